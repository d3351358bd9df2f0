"""Lowering of scheduled notation: statements, temporaries, and the enclosing kernel function.

In: `forall i: let w in register: (forall j: w += A[i,j] * x[j]); y[i] = w`.
Out: `for i: w = 0; for pA2 in A2_pos[i]..A2_pos[i+1]: ...; y_vals[i] = w`.
"""

from __future__ import annotations

from functools import reduce
from typing import assert_never

from sparsify.compiler.einsum.infer.shared_pattern import further_extents, root_access
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.dtypes import BYTES, held
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ZERO,
    both,
    compare,
    constant,
    integer,
    minus,
    plus,
    product,
    quotient,
    remainder,
    times,
)
from sparsify.compiler.loops.lower import assign, temporaries
from sparsify.compiler.loops.lower.assemble import assemble, hash_workspace
from sparsify.compiler.loops.lower.environment import Coordinate, Environment
from sparsify.compiler.loops.lower.expression import evaluate
from sparsify.compiler.loops.lower.iterate import ranges, search
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.lane_width import lanes, tensor_kinds
from sparsify.compiler.notation.provenance import extent_names
from sparsify.errors import ScheduleError, UnsupportedProgramError

# Maximum cases of merged loops in one kernel: three operands in two sparse levels have 361.
MOST_CASES = 400
# Recent kernels, newest last: the check whether statements fit one kernel lowers kernels that are built soon
# afterwards, for all layers of a model.
MOST_RECENT = 32
_RECENT: dict[tuple[str, int], tuple[notation.Notation, loops.Function]] = {}


def lower(program: notation.Notation, vector_bytes: int) -> loops.Function:
    """The kernel for `program` with vector registers of `vector_bytes` bytes (0: scalar code); memoized.

    Raises:
        DiscordantError: the loops do not reach the levels of a tensor in level order.
        ScheduleError: the schedule has no code, such as registers under a loop of unknown extent.
        UnsupportedProgramError: an expression without a lowering.
    """
    # Equality does not distinguish 0.0 from -0.0, nor 1 from 1.0, but texts do.
    key = repr(program), vector_bytes
    known, function = _RECENT.pop(key, (None, None))
    if function is None or known != program:
        function = Lowering(program, vector_bytes).function()
    _RECENT[key] = program, function
    for old in list(_RECENT)[:-MOST_RECENT]:
        _RECENT.pop(old, None)
    return function


class Lowering:
    """One lowering: the program, its relations by variable, and the state of emission."""

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
        self.dtypes = {d.name: d.dtype for d in program.declarations}
        self.index_dtypes = {b.name: b.dtype for b in self._buffers()}
        lets = find(program.body, notation.Let)
        self.dtypes |= {t.name: t.dtype for let in lets for t in let.temporaries}
        self.patterns = {t.name: t for let in lets for t in let.temporaries if t.pattern_of is not None}
        self.kinds = tensor_kinds(program)
        self.lanes = lanes(program, vector_bytes)
        self.blocks_divide = True
        # Splits assumed to divide their extents.
        self.assumed: set[notation.Split] = set()
        self.memory: dict[str, notation.Temporary] = {}
        self.listed: dict[str, loops.Var] = {}
        self.tables: dict[str, hash_workspace.Table] = {}
        self.marked: set[str] = set()
        self.starts: dict[str, float] = {}
        # Accesses read by statements, by node identity and absent accesses; the nodes are kept alive with their ids.
        self.read: dict[tuple[int, frozenset[Access]], tuple[Node, tuple[Access, ...]]] = {}
        self.longest: set[str] = set()
        self.transposed: dict[Access, loops.Expr] = {}
        self.setups: list[list[loops.Stmt]] = [[]]
        # Operands with repeated rows, marked once.
        self.repeating: set[str] = set()
        self.prefilled: set[str] = set()
        self.is_parallel = False
        self.shared_sums = 0
        self.names = {*self.index_dtypes, *self._sizes()}
        self.in_registers = {t.name for let in lets for t in let.temporaries if t.scope == "register"}
        self.names |= {t.name for let in lets for t in let.temporaries} - self.in_registers
        self.assembly: assemble.Assembly | None = None
        self.cases = 0

    def function(self) -> loops.Function:
        """The whole kernel."""
        self._check_outputs()
        self.blocks_divide = all(constant(self._rest(split)) in (0, None) for split in self.blocks)
        body = self._body()
        rests = [self._rest(split) for split in sorted(self.assumed, key=str)]
        whole = [compare("eq", rest, ZERO) for rest in rests if constant(rest) is None]
        if whole:
            self.blocks_divide = False
            body = [loops.If(reduce(both, whole), loops.Block(tuple(body)), loops.Block(tuple(self._body())))]
        fills = [self._fill(name) for name in self._outputs_to_fill()]
        statements = (*fills, *body)
        return loops.Function(
            self._sizes(),
            self._buffers(),
            loops.Block(tuple(statements)),
            self.vector_bytes,
            str(self.program.body),
        )

    def _rest(self, split: notation.Split) -> loops.Expr:
        """The remainder of an extent after whole blocks."""
        return remainder(self.extent(split.index), integer(split.size))

    def _check_outputs(self) -> None:
        """Raises for a dense result in blocks, because its padding has no iterations."""
        for name in self.program.outputs:
            declaration = self.declarations[name]
            if declaration.format.is_dense and not declaration.format.is_short:
                raise UnsupportedProgramError(
                    f"a result stored {declaration.format}", "a dense result, converted afterwards"
                )

    def _body(self) -> list[loops.Stmt]:
        """All statements of the kernel, preceded by the allocation of memory."""
        self.memory, self.setups, self.longest = {}, [[]], set()
        grown = [name for name in self.program.outputs if assemble.is_assembled(self.declarations[name])]
        body = assemble.phases(self, grown) if grown else self.located(self.program.body, Environment())
        return [*self.setups[0], *body]

    def count_cases(self, loop: notation.Forall, number: int) -> None:
        """Counts the bodies of merged loops: each is separate code, and nested cases multiply.

        Raises:
            UnsupportedProgramError: too many cases.
        """
        self.cases += number
        if self.cases > MOST_CASES:
            raise UnsupportedProgramError(
                f"merging the sparse operands at the loop over {loop.index} takes more than {MOST_CASES} cases",
                "several statements of fewer operands, or dense operands",
            )

    def count_bodies(self, access: Access) -> None:
        """Counts a body emitted once with and once without an entry.

        Raises:
            UnsupportedProgramError: too many cases, as for merged loops.
        """
        self.cases += 1
        if self.cases > MOST_CASES:
            raise UnsupportedProgramError(
                f"looking for {access} and other entries takes more than {MOST_CASES} cases",
                "several statements of fewer windows",
            )

    def statement(self, node: notation.Statement | Assign, env: Environment) -> list[loops.Stmt]:
        """The loop IR of one statement."""
        match node:
            case Assign():
                return assign.lower(self, node, env)
            case notation.Sequence(statements=statements):
                return [stmt for inner in statements for stmt in self.statement(inner, env)]
            case notation.Let():
                return temporaries.let(self, node, env)
            case notation.Forall():
                return ranges.forall(self, node, env)
            case notation.If(condition=condition, body=body):
                then = loops.Block(tuple(self.statement(body, env)))
                return [loops.If(evaluate(self, condition, env, "bool"), then)]
            case _:
                assert_never(node)  # type: ignore[arg-type]

    def body(self, loop: notation.Forall, env: Environment) -> list[loops.Stmt]:
        """The body of `loop` at one value of its variable, wrapped in the code of a growing result."""
        lowered = self.located(loop.body, env)
        return self.assembly.around(loop, lowered, env) if self.assembly is not None else lowered

    def located(self, node: notation.Statement | Assign, env: Environment) -> list[loops.Stmt]:
        """The loop IR of a statement, with cases for windows and searched entries inside and outside their tensors."""
        return search.located(self, node, env, lambda inner: self.statement(node, inner))

    def declaration(self, name: str) -> Declaration:
        """The declaration of tensor `name`."""
        return self.declarations[name]

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

    def register_offset(self, index: str, coordinate: Coordinate, env: Environment) -> loops.Expr:
        """The offset of a register's element along `index`: the coordinate within the range."""
        known = env.ranges.get(index)
        return coordinate.start if known is None else minus(coordinate.start, known.begin)

    def is_whole(self, split: notation.Split) -> bool:
        """Whether the code assumes extents divisible by the operand blocks of `split`."""
        if split not in self.blocks or not self.blocks_divide:
            return False
        self.assumed.add(split)
        return True

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

    def split_of_index(self, index: str, size: int) -> notation.Split:
        """The split of `index` into blocks of `size`, made by concretize for every blocked mode."""
        split = self.splits.get(index)
        if split is None or split.size != size:
            raise UnsupportedProgramError(
                f"{index} is stored in blocks of {size} and not split so", "convert it"
            )
        return split

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

    def fresh(self, name: str) -> str:
        """`name`, or `name` with an unused number."""
        candidate, number = name, 0
        while candidate in self.names:
            number += 1
            candidate = f"{name}v{number}"
        self.names.add(candidate)
        return candidate

    def _outputs_to_fill(self) -> list[str]:
        """The outputs that receive sums, or skip unstored coordinates in loops."""
        assigns = find(self.program.body, Assign)
        summed = {a.target.tensor for a in assigns if a.monoid is not None} | self.prefilled
        return [
            name
            for name in self.program.outputs
            if name in summed and not assemble.is_assembled(self.declarations[name])
        ]

    def _fill(self, name: str) -> loops.Stmt:
        """Fills the whole output with the initial value of the sums."""
        declaration = self.declarations[name]
        monoids = {a.monoid for a in find(self.program.body, Assign) if a.target.tensor == name and a.monoid}
        value = MONOIDS[monoids.pop()].identity(declaration.dtype) if monoids else declaration.fill
        if declaration.pattern_of is not None:
            stored = loops.Var(f"{declaration.pattern_of}_nnz", loops.INT)
            below = further_extents(declaration, self.declarations[declaration.pattern_of])
            count = product([stored, *(self.extent(index) for index in below)])
        else:
            count = product([self.extent(index) for index in declaration.extents])
        return loops.Fill(f"{name}_vals", ZERO, count, loops.Literal(value, loops.Type(declaration.dtype)))

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
            (f"{name}_nnz", None)
            for name in self.program.outputs
            if assemble.is_assembled(self.declarations[name])
        )
        # Other schedules of the program may share their work, and all its kernels take the same sizes.
        names["serial_threshold"] = None
        return tuple(names)

    def _buffers(self) -> tuple[loops.Buffer, ...]:
        """The arrays of the operands in level order, values last; then the arrays of the results."""
        buffers: list[loops.Buffer] = []
        for name in (*self.program.inputs, *self.program.outputs):
            declaration, output = self.declarations[name], name in self.program.outputs
            grown = output and assemble.is_assembled(declaration)
            if not output or grown:
                for number, (pos, crd) in enumerate(declaration.index_dtypes, 1):
                    if pos:
                        buffers.append(loops.Buffer(f"{name}{number}_pos", pos, output, grown))
                    if crd:
                        buffers.append(loops.Buffer(f"{name}{number}_crd", crd, output, grown))
            buffers.append(loops.Buffer(f"{name}_vals", declaration.dtype, output, grown))
        return tuple(buffers)
