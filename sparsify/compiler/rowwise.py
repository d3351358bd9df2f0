"""Statements that need only what the same row has, as one kernel over the rows, with what that costs.

In:  `S[i,k] = sum(j, A[i,j] * X[j,k]); m[i] = sum(k, S[i,k]) / 64; l = sum(i, k, square(S[i,k] - m[i]))`, S a result.
Out: `S_row[i,k] = sum(j, A[i,j] * X[j,k]); m[i] = ..; w[i] = sum(k, square(S_row[i,k] - m[i])); S[i,k] = S_row[i,k];
     l = sum(i, w[i])` as one kernel: 900 us, not 2,400 us.

Apart, each statement reads from memory what another one has written there; together a row stays in scratch. A sum over
all rows becomes a sum of what each row sums, so that threads share rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from sparsify.compiler.cpp import target
from sparsify.compiler.einsum.factor import factor
from sparsify.compiler.einsum.infer_format import dense_format, infer_format
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.einsum.rename import replace as with_part
from sparsify.compiler.einsum.sums import free_indices
from sparsify.compiler.node import Node, find, map_children
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.schedule.cost import known_extents, loops_us, statement_us, tensor_bytes
from sparsify.compiler.schedule.machine import scaled
from sparsify.compiler.schedule.product_cost import kernel_us
from sparsify.compiler.schedule.row_nests import row_nests
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import UnsupportedProgramError
from sparsify.options import current
from sparsify.runtime.threads import count

# Modes of a result: a row, and what lies along it.
MOST_MODES: Final = 2


@dataclass(frozen=True, slots=True)
class Rowwise:
    """Statements over the same rows as one kernel and as a kernel for each.

    Attributes:
        program: as one kernel computes it.
        results: of the statements, in order.
        together_us, apart_us: the expected times of a call.
        held: bytes of temporaries and results that stay with their rows.
    """

    program: Program
    results: tuple[str, ...]
    together_us: float
    apart_us: float
    held: int

    @property
    def is_faster(self) -> bool:
        """Whether one kernel is expected to be faster."""
        return self.together_us <= self.apart_us

    def __str__(self) -> str:
        times = f"one kernel {self.together_us:,.0f} us, a kernel each {self.apart_us:,.0f} us"
        held = f"{self.held:,} bytes are not read again: rows stay in scratch"
        return (
            f"{', '.join(self.results)}: {times}; {held if self.is_faster else 'cut, since one kernel loses'}"
        )


def priced_rows(program: Program, sizes: Sizes) -> tuple[float, float, int] | None:
    """The times of one kernel and of a kernel for each statement, and the bytes not moved; `None` where not known."""
    extents = known_extents(program, sizes.extents)
    stored = sizes.stored
    sparse = [d for d in program.declarations if not d.format.is_dense]
    names = {name for declared in program.declarations for name in declared.extents}
    if not names <= extents.keys() or any(declared.name not in stored for declared in sparse):
        return None
    # As it is assumed: what becomes one kernel must not depend on a busy minute.
    machine = scaled(count(current()), target.vector_bytes(current()))
    bytes_of = {d.name: tensor_bytes(d, extents, stored) for d in program.declarations}
    moved = sum(bytes_of[name] for name in (*program.inputs, *program.outputs))
    read = [{a.tensor for a in find(s.value, Access)} | {s.target.tensor} for s in program.statements]
    each = sum(bytes_of[name] for names in read for name in names)
    busy = sum(loops_us(program, s, extents, stored, machine) for s in program.statements)
    apart = sum(statement_us(program, s, extents, stored, machine) for s in program.statements)
    together = kernel_us(busy, moved, machine)
    for declared in sparse:  # one thread takes the longest row
        longest = sizes.longest_row(declared.name) or 0
        together = max(together, busy * longest / max(1, stored[declared.name]))
    return together, apart, each - moved


def may_share_rows(statements: Sequence[Assign], program: Program) -> bool:
    """Whether statements may be nests over the same rows: cheap, and true for some that are not."""
    targets = {statement.target.tensor: statement.target for statement in statements}
    if len(targets) < len(statements) or not any(target.indices for target in targets.values()):
        return False
    for statement in statements:
        indices = statement.target.indices
        if len(indices) > MOST_MODES or not program.declaration(statement.target.tensor).format.is_dense:
            return False
        for access in find(statement.value, Access):
            made = targets.get(access.tensor)
            if made is not None and made.indices and indices and access.indices[0] != indices[0]:
                return False
    return len({program.declaration(t.tensor).extents[0] for t in targets.values() if t.indices}) == 1


def rowwise(program: Program, sizes: Sizes) -> Rowwise | None:
    """The statements of a program as one kernel over rows, with what it costs; `None` where they are no such kernel.

    Args:
        program: with one plain assignment a result, every operand as it is stored.
        sizes: of the operands.
    """
    if len(program.statements) < 2 or not may_share_rows(program.statements, program):
        return None
    priced = priced_rows(program, sizes)
    made = None if priced is None else by_rows(program)
    if priced is None or made is None:
        return None
    try:
        plain = concretize(infer_format(made))
    except UnsupportedProgramError:
        return None
    if row_nests(plain) is None:
        return None
    return Rowwise(made, tuple(s.target.tensor for s in program.statements), *priced)


def by_rows(program: Program) -> Program | None:
    """A program as its nests over rows are: sums over all rows last, sums over entries with loops of their own.

    `None` where index variables cannot have the same names, or a sum has another dtype than what it sums.
    """
    program = held_results(factor(program))
    row = next(cast(Index, s.target.indices[0]).name for s in program.statements if s.target.indices)
    taken = {declared.name for declared in program.declarations} | {*all_indices(program.statements)}
    declared = {declaration.name: declaration for declaration in program.declarations}
    sparse = {name for name, declaration in declared.items() if not declaration.format.is_dense}
    targets: dict[str, Access] = {}
    rows: list[Assign] = []
    after: list[Assign] = []
    for given in program.statements:
        statement = _renamed(given, row, targets)
        if statement is None:
            return None
        targets[statement.target.tensor] = statement.target
        if statement.target.indices:
            rows.append(_own_loops(statement, sparse, taken))
            continue
        value = statement.value
        for sum_ in [node for node in find(value, Reduce) if row in node.indices]:
            made = _sum_of_row(statement, sum_, row, declared, taken)
            if made is None:
                return None
            number, declaration, last = made
            rows.append(_own_loops(number, sparse, taken))
            declared[declaration.name] = declaration
            value = with_part(value, sum_, last)
        after.append(replace(statement, value=value))
    return replace(program, statements=(*rows, *after), declarations=tuple(declared.values()))


def _renamed(statement: Assign, row: str, targets: Mapping[str, Access]) -> Assign | None:
    """A statement with the index variables of the statements that it reads; `None` where it needs them for others."""
    names: dict[str, str] = {}
    if statement.target.indices:
        names[cast(Index, statement.target.indices[0]).name] = row
    for access in find(statement.value, Access):
        made = targets.get(access.tensor)
        if made is None or len(made.indices) != len(access.indices):
            continue
        for own, wanted in zip(access.indices, made.indices, strict=True):
            if not isinstance(own, Index) or not isinstance(wanted, Index):
                return None
            if names.setdefault(own.name, wanted.name) != wanted.name:
                return None
    names = {own: wanted for own, wanted in names.items() if own != wanted}
    if {*names.values()} & ({*all_indices((statement,))} - names.keys()):
        return None
    return rename_indices(statement, names) if names else statement


def held_results(program: Program) -> Program:
    """`Y = e; Z = f(Y) -> Y_row = e; Z = f(Y_row); Y = Y_row`: results that others read are temporaries of a row."""
    targets = {statement.target.tensor: statement.target for statement in program.statements}
    read = {access.tensor for s in program.statements for access in find(s.value, Access)}
    taken = {declared.name for declared in program.declarations} | {*all_indices(program.statements)}
    names: dict[str, str] = {}
    for name in program.outputs:
        if name in read and name in targets:
            names[name] = fresh(f"{name}_row", taken)
            taken.add(names[name])
    if not names:
        return program

    def renamed(node: Node) -> Node:
        node = map_children(node, renamed)
        return replace(node, tensor=names.get(node.tensor, node.tensor)) if isinstance(node, Access) else node

    statements = [cast(Assign, renamed(statement)) for statement in program.statements]
    copies = [
        Assign(targets[name], None, Access(held, targets[name].indices)) for name, held in names.items()
    ]
    declarations = [replace(program.declaration(name), name=held) for name, held in names.items()]
    ordered = sorted((*statements, *copies), key=lambda s: not s.target.indices)
    return replace(
        program,
        statements=tuple(ordered),
        declarations=(*program.declarations, *declarations),
    )


def _own_loops(statement: Assign, sparse: Collection[str], taken: set[str]) -> Assign:
    """`sum(j, A a) + sum(j, A b) -> sum(j, A a) + sum(j1, A b)`: loops over entries that no other sum has."""
    entries = {name for a in find(statement.value, Access) if a.tensor in sparse for name in free_indices(a)}

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if not isinstance(node, Reduce) or not entries & {*node.indices}:
            return node
        names = {}
        for name in entries & {*node.indices}:
            names[name] = fresh(name, taken)
            taken.add(names[name])
        return rename_indices(node, names)

    return replace(statement, value=cast(Expr, visit(statement.value))) if entries else statement


def _sum_of_row(
    statement: Assign, sum_: Reduce, row: str, declared: Mapping[str, Declaration], taken: set[str]
) -> tuple[Assign, Declaration, Reduce] | None:
    """`sum(i, k, e) -> w[i] = sum(k, e)` and `sum(i1, w[i1])`, with the declaration of `w`."""
    if free_indices(sum_):
        return None
    result = declared[statement.target.tensor]
    reads = find(sum_, Access)
    modes = [mode for a in reads for mode in zip(a.indices, declared[a.tensor].extents, strict=True)]
    extent = dict(modes).get(Index(row))
    if extent is None or {declared[a.tensor].dtype for a in reads} != {result.dtype}:
        return None
    name, last = fresh("w", taken), fresh(row, taken)
    taken |= {name, last}
    rest = tuple(index for index in sum_.indices if index != row)
    number = Assign(Access(name, (Index(row),)), None, replace(sum_, indices=rest) if rest else sum_.body)
    whole = Reduce(sum_.monoid, (last,), Access(name, (Index(last),)))
    return number, Declaration(name, (extent,), dense_format(1), result.dtype), whole
