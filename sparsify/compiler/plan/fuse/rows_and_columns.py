"""Programs over one pattern with results by rows and results by columns: one kernel for each kind.

In:  `P = exp(S); D = (U X^T + d) P where A is stored; d_b[i,h] += D[h,i,j]; d_X[j,h,f] += U[i,h,f] * P[h,i,j]`, A
     compressed by row.
Out: one kernel over the rows of A for d_b, one over the rows of its transposed copy `A_10` for d_X. Both rematerialize
     P and D.

Temporaries that both kernels read and neither computes entry by entry have kernels of their own, which run first;
results indexed by neither rows nor columns have kernels that run last. Sums over all entries are first summed by row.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sparsify.compiler.einsum.gradient.program import needed
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Const,
    Declaration,
    Expr,
    Index,
    Program,
    Reduce,
)
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_tensors
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.plan.fuse.row_chain import fusion
from sparsify.compiler.plan.prepare.transpose_operands import Twin, reordered, turned_declaration
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format

BY_ROWS = Format("dense, compressed")
RELATION = Format("dense, compressed, singleton")


@dataclass(frozen=True, slots=True)
class Divided:
    """A program divided into chains over rows and over columns.

    Attributes:
        first: statements that both chains read; `None` if empty.
        rows: chain over the rows of the pattern.
        columns: chain over the columns of the pattern, reading the transposed copy.
        twin: transposed copy of the pattern.
        last: results indexed by neither rows nor columns; `None` if empty.
    """

    first: Program | None
    rows: Program
    columns: Program
    twin: Twin
    last: Program | None

    def __str__(self) -> str:
        results = [", ".join(part.outputs) for part in (self.rows, self.columns)]
        again = [statement.target.tensor for statement in self.again()]
        return (
            f"{results[0]}: one kernel over rows; {results[1]}: one over columns, on {self.twin.name}; "
            f"{', '.join(again)}: computed by both"
        )

    def again(self) -> list[Assign]:
        """The statements that both chains compute."""
        named = rename_tensors(self.columns, {self.twin.name: self.twin.source}).statements
        return [statement for statement in self.rows.statements if statement in named]


def divided(program: Program, sizes: Sizes) -> Divided | None:
    """The chains of a program, if each is expected to be faster as one kernel than as a kernel for each statement.

    Dense temporaries of rows that the columns read are computed by the kernel over rows if possible.
    """
    for joined in (True, False):
        parts = divide(program, joined)
        if parts is not None and _is_faster(parts, sizes):
            return parts
    return None


def divide(program: Program, joined: bool = True) -> Divided | None:
    """The chains of a program over the entries of one matrix stored by rows; `None` for other programs.

    Args:
        program: every operand as stored; a program with several statements for one result is refused.
        joined: whether the chain over rows computes the dense temporaries of rows.
    """
    names = [statement.target.tensor for statement in program.statements]
    if len(set(names)) < len(names):
        return None
    program = infer_format(program)
    mask = _mask(program)
    if mask is None:
        return None
    names = [index.name for index in mask.indices if isinstance(index, Index)]
    row, *entry = (names[mode] for mode in program.declaration(mask.tensor).format.ordering)
    column = entry[-1]
    program, sums = _sums_of_rows(program, row, tuple(entry))
    entries = [s for s in program.statements if _is_of_entries(program, s)]
    inside = {mask.tensor, *(statement.target.tensor for statement in entries)}
    first = [s for s in program.statements if s not in entries and not _reads(s) & (inside | sums)]
    results = [s for s in program.statements if s not in entries and s not in first]
    beside = [
        s for s in first if joined and _belongs(s, row, column) and not _reads(s) & set(_targets(first))
    ]
    needed_first = {name for s in first if s not in beside for name in _reads(s)}
    beside = [s for s in beside if s.target.tensor not in needed_first]
    first = [s for s in first if s not in beside]
    of_rows = [s for s in results if _belongs(s, row, column)]
    of_columns = [s for s in results if _belongs(s, column, row)]
    last = [s for s in results if s not in of_rows and s not in of_columns]
    read = {name for s in program.statements for name in _reads(s)} - sums
    if not of_rows or not of_columns or read & set(_targets(results)):
        return None
    columns = _part(program, [*entries, *of_columns], _targets(of_columns), mask)
    is_of_entries = any(_reads(s) & inside for s in last)
    rest = (
        _part(program, [*entries, *last], _targets(last), mask if is_of_entries else None) if last else None
    )
    read = {*program.outputs, *columns.inputs, *(rest.inputs if rest else ())}
    given = [name for name in _targets(beside) if name in read]
    chain = [s for s in program.statements if s in entries or s in beside or s in of_rows]
    rows = _part(program, chain, [*_targets(of_rows), *given], mask)
    early = [name for name in _targets(first) if name in read or name in rows.inputs]
    twin = _twin(program, mask)
    before = _part(program, first, early, None) if early else None
    return Divided(before, rows, _turned(columns, mask, twin), twin, rest)


def _sums_of_rows(program: Program, row: str, entry: tuple[str, ...]) -> tuple[Program, set[str]]:
    """The program with each sum over all entries split into row sums and their total, and the names of the row sums.

    `d_w[h,k] = sum(i, j, D[h,i,j] * X[j,h,k])` becomes `w[i,h,k] = sum(j, ..)`, a result by rows, and `sum(i,
    w[i,h,k])`.
    """
    taken = {d.name for d in program.declarations} | set(all_indices(program.statements))
    statements: list[Assign] = []
    found: set[str] = set()
    for statement in program.statements:
        parts = _sum_of_rows(program, statement, row, entry, fresh("w", taken))
        if parts is not None:
            name = parts[0].target.tensor
            taken.add(name)
            found.add(name)
        statements += parts or [statement]
    if not found:
        return program, found
    return infer_format(replace(program, statements=tuple(statements))), found


def _sum_of_rows(
    program: Program, statement: Assign, row: str, entry: tuple[str, ...], name: str
) -> tuple[Assign, Assign] | None:
    """A sum over all entries split in two, row sums and their total; `None` for other statements.

    The row sums must be no larger than an operand: `d_M[k,l] = sum(i, j, D[i,j] * Q[i,k] * K[j,l])`, the gradient of
    bilinear scores, would need a matrix for each row.
    """
    match statement.value:
        case Reduce("sum", summed, body) if {row, *entry} <= set(summed):
            rest = tuple(index for index in summed if index not in entry)
        case _:
            return None
    if (
        statement.monoid is not None
        or rest != (row,)
        or not program.declaration(statement.target.tensor).format.is_dense
    ):
        return None
    where: tuple[Expr, Expr] | None = None
    match body:
        case Call("where", (Expr() as condition, Expr() as kept, Const(0) as otherwise)):
            if not {row, *entry} & set(free_indices(condition)):
                where, body = (condition, otherwise), kept
    names = [index for index in free_indices(statement.target) if index in free_indices(body)]
    read = [set(free_indices(access)) for access in find(body, Access)]
    if not any({row, *entry} & found and set(names) <= found for found in read):
        return None
    target = Access(name, tuple(map(Index, (row, *names))))
    value: Expr = target if where is None else Call("where", (where[0], target, where[1]))
    of_rows = Assign(target, None, Reduce("sum", entry, body))
    return of_rows, replace(statement, value=Reduce("sum", (row,), value))


def _is_faster(parts: Divided, sizes: Sizes) -> bool:
    """Whether both chains are expected to be faster as one kernel than as a kernel for each statement."""
    sizes = sizes.also({parts.twin.name: parts.twin.source})
    chains = [fusion(part, sizes) for part in (parts.rows, parts.columns)]
    return all(chain is not None and chain.is_faster for chain in chains)


def _mask(program: Program) -> Access | None:
    """The access to the only sparse operand, a matrix or relation by rows; `None` for differing indices."""
    sparse = [d for d in program.declarations if d.name in program.inputs and not d.format.is_dense]
    if len(sparse) != 1 or sparse[0].format.unfixed() not in (BY_ROWS, RELATION):
        return None
    places = {
        access for s in program.statements for access in find(s, Access) if access.tensor == sparse[0].name
    }
    for statement in program.statements:
        if _is_of_entries(program, statement):
            places.add(pattern_access(program, statement.target))
    if len(places) != 1 or (place := places.pop()).tensor != sparse[0].name:
        return None
    return place if len(set(index_names(place))) == len(place.indices) else None


def _is_of_entries(program: Program, statement: Assign) -> bool:
    """Whether a statement computes a temporary, not a result, with a value for each stored entry."""
    name = statement.target.tensor
    return name not in program.outputs and not program.declaration(name).format.is_dense


def _belongs(statement: Assign, to: str, other: str) -> bool:
    """Whether a result has index variable `to` of the pattern, and not `other`."""
    names = index_names(statement.target)
    return to in names and other not in names


def _targets(statements: Sequence[Assign]) -> list[str]:
    return [statement.target.tensor for statement in statements]


def _reads(statement: Assign) -> set[str]:
    return {access.tensor for access in find(statement.value, Access)}


def _part(
    program: Program, statements: Sequence[Assign], outputs: Collection[str], mask: Access | None
) -> Program:
    """The program of a subset of the statements; entries keep their dtype of the whole program."""
    kept = needed(list(statements), list(outputs))
    targets = set(_targets(kept))
    read = {name for statement in kept for name in _reads(statement)} - targets
    read |= set() if mask is None else {mask.tensor}
    read |= _owners(program, read, targets)
    declared = [
        replace(d, pattern_of=None) if d.name in read else d
        for d in program.declarations
        if d.name in read or d.name in outputs
    ]
    inputs = tuple(d.name for d in declared if d.name in read)
    found = Program(tuple(kept), tuple(declared), inputs, tuple(outputs), program.extents)
    return _with_dtypes(infer_format(found), program)


def _owners(program: Program, read: Collection[str], targets: Collection[str]) -> set[str]:
    """Inputs of the program that declare the extents of targets which no read tensor has."""
    given = {extent for d in program.declarations if d.name in read for extent in d.extents}
    given |= dict(program.extents).keys()
    wanted = {extent for d in program.declarations if d.name in targets for extent in d.extents}
    inputs = [d for d in program.declarations if d.name in program.inputs]
    return {next(d.name for d in inputs if extent in d.extents) for extent in sorted(wanted - given)}


def _with_dtypes(part: Program, program: Program) -> Program:
    """A part with the dtypes of the whole program."""
    known = {declared.name: declared.dtype for declared in program.declarations}
    declarations = tuple(replace(d, dtype=known.get(d.name, d.dtype)) for d in part.declarations)
    return replace(part, declarations=declarations)


def _twin(program: Program, mask: Access) -> Twin:
    """The transposed copy of the pattern."""
    declared = program.declaration(mask.tensor)
    ordering = declared.format.ordering[::-1]
    name = fresh(f"{mask.tensor}_{''.join(map(str, ordering))}", {d.name for d in program.declarations})
    return Twin(name, mask.tensor, reordered(declared.format, ordering), "its results belong to columns")


def _turned(part: Program, mask: Access, twin: Twin) -> Program:
    """A part that reads the transposed copy in place of the pattern; its entries share the transposed pattern."""
    source: Declaration = part.declaration(mask.tensor)
    given = {*part.inputs, *part.outputs}
    declarations = tuple(
        turned_declaration(twin, source) if d.name == mask.tensor else d
        for d in part.declarations
        if d.name in given
    )
    inputs = tuple(twin.name if name == mask.tensor else name for name in part.inputs)
    renamed = rename_tensors(part, {mask.tensor: twin.name})
    turned = replace(renamed, declarations=declarations, inputs=inputs)
    return _with_dtypes(infer_format(turned), part)
