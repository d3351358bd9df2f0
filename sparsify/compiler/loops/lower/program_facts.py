"""Facts of a program that lowering reads and never changes: declarations, relations of index variables, sizes, buffers.

In: `split k ko ki 64`, `A[i,j]: csr`. Out: `bound("ki") = 64`, `bound("i") = i_extent`, `A2_pos`, `A2_crd`, `A_vals`.
"""

from sparsify.compiler.einsum.infer.shared_pattern import root_access
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.dtypes import BYTES, held
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import integer, plus, quotient, remainder, times
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.lane_width import lanes, tensor_kinds
from sparsify.compiler.notation.provenance import extent_names
from sparsify.errors import ScheduleError, UnsupportedProgramError
from sparsify.storage.format import StoredLevel

Start = float | int | bool | None


def initial_value(let: notation.Let, temporary: notation.Temporary) -> Start:
    """The initial value of a temporary: the identity if the first assignment is a sum."""
    for part in find(let.body, Assign):
        if part.target.tensor == temporary.name:
            return MONOIDS[part.monoid].identity(temporary.dtype) if part.monoid else None
    raise AssertionError(f"{temporary} is never assigned")


class ProgramFacts:
    """A program, its relations by variable, and the width of its vectors.

    Attributes:
        blocks: splits by dense blocks of an operand; the last block is padded if the extent is not divisible.
        patterns: temporaries with the stored positions of an operand.
        starts: initial values of workspaces with a record of their entries in use.
    """

    def __init__(self, program: notation.Notation, vector_bytes: int) -> None:
        self.program = program
        self.vector_bytes = vector_bytes
        self.declarations = {d.name: d for d in program.declarations}
        self.constants = dict(program.extents)
        self.extents = extent_names(program)
        relations = program.relations
        self.split_by_outer = {r.outer: r for r in relations if isinstance(r, notation.Split)}
        self.split_by_inner = {r.inner: r for r in relations if isinstance(r, notation.Split)}
        self.splits = {r.index: r for r in relations if isinstance(r, notation.Split)}
        self.blocks = self._blocks()
        self.positions = {r.position: r for r in relations if isinstance(r, notation.Position)}
        self.fused = {r.fused: r for r in relations if isinstance(r, notation.Fuse)}
        self.prefetches = {r.tensor: r.distance for r in relations if isinstance(r, notation.Prefetch)}
        self.sizes = self._sizes()
        self.buffers = self._buffers()
        self.index_dtypes = {b.name: b.dtype for b in self.buffers}
        lets = find(program.body, notation.Let)
        temporaries = [(let, t) for let in lets for t in let.temporaries]
        self.dtypes = {d.name: d.dtype for d in program.declarations} | {
            t.name: t.dtype for _, t in temporaries
        }
        self.patterns = {t.name: t for _, t in temporaries if t.pattern_of is not None}
        self.in_registers = {t.name for _, t in temporaries if t.scope == "register"}
        self.in_memory = {t.name for _, t in temporaries} - self.in_registers
        recorded = [(let, t) for let, t in temporaries if t.listed or t.marked]
        self.starts = {t.name: float(initial_value(let, t) or 0) for let, t in recorded}
        self.kinds = tensor_kinds(program)
        self.lanes = lanes(program, vector_bytes)

    def declaration(self, name: str) -> Declaration:
        """The declaration of tensor `name`."""
        return self.declarations[name]

    def levels(self, name: str) -> tuple[StoredLevel, ...]:
        """The levels of tensor `name`, outermost first."""
        return self.declarations[name].format.levels

    def stride(self, name: str, stored: StoredLevel) -> int | None:
        """The constant stride of a mode of a tensor inside rows of zeros; None for a tensor in contiguous memory."""
        interior = self.declarations[name].interior
        return None if interior is None else interior.all_strides[stored.expression.mode]

    def dtype(self, name: str) -> str:
        """The dtype of a tensor or temporary."""
        return self.dtypes[name]

    def index_dtype(self, buffer: str) -> str:
        """The dtype of a pos or crd array, `A2_crd`."""
        return self.index_dtypes[buffer]

    def item_bytes(self, name: str) -> int:
        """The size of an element of a tensor."""
        return BYTES[self.dtype(name)]

    def extent(self, index: str) -> loops.Expr:
        """The extent of an original index variable, a constant if known."""
        known = self.constant_extent(index)
        return (
            loops.Var(f"{self.extents.get(index, index)}_extent", loops.INT)
            if known is None
            else integer(known)
        )

    def constant_extent(self, index: str) -> int | None:
        """The extent of an original index variable if known."""
        return self.constants.get(self.extents.get(index, index))

    def bound(self, index: str) -> loops.Expr:
        """The number of coordinates of an original or derived index variable."""
        if index in self.split_by_inner:
            return integer(self.split_by_inner[index].size)
        if index in self.split_by_outer:
            split = self.split_by_outer[index]
            return quotient(plus(self.bound(split.index), integer(split.size - 1)), integer(split.size))
        if index in self.fused:
            return times(self.bound(self.fused[index].first), self.bound(self.fused[index].second))
        if index in self.positions:
            raise ScheduleError(
                f"a temporary in memory over the positions {index}", "index it by coordinates"
            )
        return self.extent(index)

    def parts(self, index: str) -> tuple[str, ...]:
        """The index variables fused into a loop variable; the variable itself if not fused."""
        if (fuse := self.fused.get(index)) is None:
            return (index,)
        return (*self.parts(fuse.first), *self.parts(fuse.second))

    def rest(self, split: notation.Split) -> loops.Expr:
        """The remainder of an extent after whole blocks."""
        return remainder(self.extent(split.index), integer(split.size))

    def fill_of(self, access: Access) -> float | int | bool:
        """The value of unstored entries; for a workspace, the initial value of the sums."""
        declared = self.declarations.get(access.tensor)
        fill = self.starts.get(access.tensor, 0.0) if declared is None else declared.fill
        return held(fill, self.kinds[access.tensor].dtype)

    def root_of(self, access: Access) -> Access:
        """The access to the operand with the shared pattern; the access itself for a separate pattern or none."""
        if (temporary := self.patterns.get(access.tensor)) is not None:
            names = dict(zip(temporary.indices, access.indices, strict=True))
            places = tuple(names.get(name, Index(name)) for name in temporary.pattern_indices)
            return Access(temporary.pattern_of or "", places)
        declared = self.declarations.get(access.tensor)
        if declared is None or declared.pattern_of is None:
            return access
        return root_access(declared, self.declarations[declared.pattern_of], access)

    def root_of_name(self, tensor: str) -> str:
        """The operand with the shared pattern of a tensor; the tensor itself for a separate pattern."""
        if (temporary := self.patterns.get(tensor)) is not None:
            return temporary.pattern_of or tensor
        declared = self.declarations.get(tensor)
        return tensor if declared is None or declared.pattern_of is None else declared.pattern_of

    def level_variable(self, access: Access, stored: StoredLevel) -> str:
        """The loop variable with the coordinates of a level: `j`, or `jo`, `ji` of a blocked mode.

        For an index that is no variable: the text of the index, which names no loop.
        """
        expression = stored.expression
        index = access.indices[expression.mode]
        if not isinstance(index, Index):
            return str(index)
        if expression.kind == "whole":
            return index.name
        if expression.kind == "difference":
            raise UnsupportedProgramError(
                f"{access} is stored along its diagonals ({stored}), over which no loops run",
                'to(format="csr") first',
            )
        split = self._split_of_index(index.name, expression.size)
        return split.outer if expression.kind == "block" else split.inner

    def level_extent(self, tensor: str, stored: StoredLevel) -> loops.Expr:
        """The number of coordinates of a level."""
        expression = stored.expression
        whole = self.extent(self.declaration(tensor).extents[expression.mode])
        if expression.kind == "block":
            return quotient(plus(whole, integer(expression.size - 1)), integer(expression.size))
        return integer(expression.size) if expression.kind == "within" else whole

    def _blocks(self) -> frozenset[notation.Split]:
        """The splits by dense blocks of an operand; the last block is padded if the extent is not divisible."""
        found = set()
        for access in find(self.program.body, Access):
            if access.tensor not in self.program.inputs:
                continue
            for stored in self.declarations[access.tensor].format.levels:
                index = access.indices[stored.expression.mode]
                split = self.splits.get(index.name) if isinstance(index, Index) else None
                if stored.expression.kind == "within" and stored.level.is_padded and split is not None:
                    found.add(split)
        return frozenset(found)

    def _split_of_index(self, index: str, size: int) -> notation.Split:
        """The split of `index` into blocks of `size`, made by concretize for every blocked mode."""
        split = self.splits.get(index)
        if split is None or split.size != size:
            raise UnsupportedProgramError(
                f"{index} is stored in blocks of {size} and not split so", "convert it"
            )
        return split

    def _sizes(self) -> tuple[str, ...]:
        """The unknown extents, then the stored entries and the widths of each sparse operand."""
        names: dict[str, None] = {}
        for declaration in self.program.declarations:
            names.update(
                (f"{index}_extent", None) for index in declaration.extents if index not in self.constants
            )
        for name in self.program.inputs:
            if not self.declarations[name].format.is_dense:
                names[f"{name}_nnz"] = None
            for number, stored in enumerate(self.declarations[name].format.levels, 1):
                if stored.level.has_width:
                    names[f"{name}{number}_width"] = None
        # For results with a possibly given pattern: negative if not given.
        names.update(
            (f"{name}_nnz", None) for name in self.program.outputs if self.declarations[name].is_assembled
        )
        # Other schedules of the program may share their work, and all its kernels take the same sizes.
        names["serial_threshold"] = None
        return tuple(names)

    def _buffers(self) -> tuple[loops.Buffer, ...]:
        """The arrays of the operands in level order, values last; then the arrays of the results."""
        buffers: list[loops.Buffer] = []
        for name in (*self.program.inputs, *self.program.outputs):
            declaration, output = self.declarations[name], name in self.program.outputs
            grown = output and declaration.is_assembled
            if not output or grown:
                for number, (pos, crd) in enumerate(declaration.index_dtypes, 1):
                    if pos:
                        buffers.append(loops.Buffer(f"{name}{number}_pos", pos, output, grown))
                    if crd:
                        buffers.append(loops.Buffer(f"{name}{number}_crd", crd, output, grown))
            buffers.append(loops.Buffer(f"{name}_vals", declaration.dtype, output, grown))
        return tuple(buffers)
