"""Row-wise fusion: statements that read values of the same row only, as one kernel over the rows, priced.

In:  `S[i,k] = sum(j, A[i,j] * X[j,k]); m[i] = sum(k, S[i,k]) / 64; l = sum(i, k, square(S[i,k] - m[i]))`, S a result.
Out: `S_row[i,k] = sum(j, A[i,j] * X[j,k]); m[i] = ..; w[i] = sum(k, square(S_row[i,k] - m[i])); S[i,k] = S_row[i,k];
     l = sum(i, w[i])` as one kernel: 900 us, not 2,400 us.

Separate kernels pass temporaries through memory; the fused kernel holds a row in scratch. A sum over all rows becomes
a total of row sums, so that threads divide the rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Final, cast

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import dense_format, infer_format
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.einsum.rename import replace as with_part
from sparsify.compiler.einsum.rewrite.factor import factor
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.schedule.cost.machine import scaled
from sparsify.compiler.schedule.cost.matmul import kernel_us
from sparsify.compiler.schedule.cost.statement import known_extents, loops_us, statement_us, tensor_bytes
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.row_nests import row_nests
from sparsify.errors import UnsupportedProgramError
from sparsify.options import current
from sparsify.runtime.threads import count

# Most modes of a result: the row, and one mode along the row.
MOST_MODES: Final = 2


@dataclass(frozen=True, slots=True)
class Rowwise:
    """Statements over the same rows, priced as one kernel and as a kernel for each.

    Attributes:
        program: statements as the fused kernel computes them.
        results: results of the statements, in order.
        together_us, apart_us: expected times of a fused and of a separate call.
        held: bytes of temporaries and results that stay in scratch.
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


class RowPrices:
    """Expected times of statements, fused over the same rows and separate, each memoized.

    Args:
        program: one plain assignment for each result.
        sizes: sizes of the operands, and expected numbers of entries of sparse temporaries.
    """

    def __init__(self, program: Program, sizes: Sizes) -> None:
        self.program, self.sizes = program, sizes
        self.declared = {declared.name: declared for declared in program.declarations}
        self.extents = known_extents(program, sizes.extents)
        names = {name for declared in program.declarations for name in declared.extents}
        sparse = [d.name for d in program.declarations if not d.format.is_dense]
        self.is_known = names <= self.extents.keys() and all(name in sizes.stored for name in sparse)
        # The assumed machine, not a measured one: fusion must not depend on the momentary load.
        self.machine = scaled(count(current()), target.vector_bytes(current()))
        self.reads = {s.target.tensor: {a.tensor for a in find(s.value, Access)} for s in program.statements}
        self.prices: dict[str, tuple[float, float]] = {}

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Bytes of each tensor, by name."""
        stored = self.sizes.stored
        return {name: tensor_bytes(d, self.extents, stored) for name, d in self.declared.items()}

    def of(self, statements: Sequence[Assign]) -> tuple[float, float, int] | None:
        """Times of one kernel and of separate kernels, and the bytes saved by fusion; `None` for unknown sizes."""
        if not self.is_known:
            return None
        own = {statement.target.tensor for statement in statements}
        outside = set[str]().union(*(read for name, read in self.reads.items() if name not in own))
        read = set[str]().union(*(self.reads[name] for name in own)) - own
        moved = sum(self.bytes[name] for name in (*read, *(own & {*outside, *self.program.outputs})))
        each = sum(self.bytes[name] for result in own for name in (result, *self.reads[result]))
        prices = [self.price(statement) for statement in statements]
        busy = sum(loops for loops, _ in prices) + self.crowded_us(statements)
        together = kernel_us(busy, moved, self.machine)
        for name in read:  # one thread takes the longest row
            longest = 0 if self.declared[name].format.is_dense else self.sizes.longest_row(name) or 0
            together = max(together, busy * longest / max(1, self.sizes.stored.get(name, 0)))
        return together, sum(apart for _, apart in prices), each - moved

    def price(self, statement: Assign) -> tuple[float, float]:
        """The time of the loops of a statement, and of a separate kernel for the statement."""
        found = self.prices.get(statement.target.tensor)
        if found is None:
            given = (self.program, statement, self.extents, self.sizes.stored, self.machine)
            found = self.prices[statement.target.tensor] = loops_us(*given), statement_us(*given)
        return found

    def crowded_us(self, statements: Sequence[Assign]) -> float:
        """Extra time for gathering rows of several tables that share the caches."""
        tables: dict[str, int] = {}
        for statement in statements:
            for sum_ in find(statement.value, Reduce):
                accesses = find(sum_.body, Access)
                entries = [a for a in accesses if not self.declared[a.tensor].format.is_dense]
                names = {n for a in entries for n in free_indices(a)} & {*sum_.indices}
                stored = max((self.sizes.stored[a.tensor] for a in entries), default=0)
                for access in accesses:
                    if access not in entries and names & {*free_indices(access)}:
                        rows = prod(self.extents[name] for name in names & {*free_indices(access)})
                        tables[access.tensor] = stored * self.bytes[access.tensor] // max(1, rows)
        size, rate = sum(self.bytes[name] for name in tables), self.machine.gathers.at
        return sum(picked / rate(size) - picked / rate(self.bytes[name]) for name, picked in tables.items())


def may_share_rows(statements: Sequence[Assign], program: Program) -> bool:
    """Whether statements may be nests over the same rows: a cheap, necessary condition only."""
    targets = {statement.target.tensor: statement.target for statement in statements}
    if len(targets) < len(statements) or not any(target.indices for target in targets.values()):
        return False
    for statement in statements:
        indices = statement.target.indices
        for access in find(statement.value, Access):
            made = targets.get(access.tensor)
            if made is not None and made.indices and indices and access.indices[0] != indices[0]:
                return False
    return len({program.declaration(t.tensor).extents[0] for t in targets.values() if t.indices}) == 1


def may_be_of_rows(statement: Assign, program: Program) -> bool:
    """Whether a statement may be nests over rows, each with at most one loop over entries and one along a row."""
    target = statement.target
    if len(target.indices) > MOST_MODES or not program.declaration(target.tensor).format.is_dense:
        return False
    for sum_ in find(statement.value, Reduce):
        accesses = find(sum_.body, Access)
        sparse = [a for a in accesses if not program.declaration(a.tensor).format.is_dense]
        entries = {name for a in sparse for name in free_indices(a)} & {*sum_.indices}
        rows = {*free_indices(target)[:1]} if target.indices else {*sum_.indices[:1]}
        along = {*sum_.indices, *free_indices(sum_.body)} - entries - rows
        if len(entries) > 1 or len(along) > 1:
            return False
    return True


def rowwise(program: Program, prices: RowPrices, statements: Sequence[Assign]) -> Rowwise | None:
    """The statements of a program as one kernel over rows, priced; `None` for other statements.

    Args:
        program: the statements as a program, every operand as stored.
        prices: expected times of the statements of the whole program.
        statements: the same statements as the whole program has them.
    """
    is_one = len(statements) > 1 and all(may_be_of_rows(s, program) for s in program.statements)
    priced = prices.of(statements) if is_one and may_share_rows(program.statements, program) else None
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
    """A program as nests over rows: sums over all rows last, sums over entries with loops of their own.

    `None` if the index variables cannot be renamed alike, or a sum over rows has another dtype than its operands.
    """
    program = held_results(factor(program))
    row = next(cast(Index, s.target.indices[0]).name for s in program.statements if s.target.indices)
    taken = {declared.name for declared in program.declarations} | {*all_indices(program.statements)}
    declared = {declaration.name: declaration for declaration in program.declarations}
    sparse = {name for name, declaration in declared.items() if not declaration.format.is_dense}
    targets: dict[str, Access] = {}
    used: set[str] = set()
    rows: list[Assign] = []
    after: list[Assign] = []
    for given in program.statements:
        statement = _renamed(given, row, targets)
        if statement is None:
            return None
        targets[statement.target.tensor] = statement.target
        if statement.target.indices:
            rows.append(_own_loops(statement, sparse, taken, used))
            continue
        value = statement.value
        for sum_ in [node for node in find(value, Reduce) if row in node.indices]:
            made = _sum_of_row(statement, sum_, row, declared, taken)
            if made is None:
                return None
            number, declaration, last = made
            rows.append(_own_loops(number, sparse, taken, used))
            declared[declaration.name] = declaration
            value = with_part(value, sum_, last)
        after.append(replace(statement, value=value))
    return replace(program, statements=(*rows, *after), declarations=tuple(declared.values()))


def _renamed(statement: Assign, row: str, targets: Mapping[str, Access]) -> Assign | None:
    """A statement with the index variables of its producers; `None` if a name clashes with another index variable."""
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
    """`Y = e; Z = f(Y) -> Y_row = e; Z = f(Y_row); Y = Y_row`: a temporary of a row for each result with readers."""
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


def _own_loops(statement: Assign, sparse: Collection[str], taken: set[str], used: set[str]) -> Assign:
    """`sum(j, A a) + sum(j, A b) -> sum(j, A a) + sum(j1, A b)`: a separate loop over entries for each sum."""
    entries = {name for a in find(statement.value, Access) if a.tensor in sparse for name in free_indices(a)}

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if not isinstance(node, Reduce):
            return node
        names = {}
        for name in entries & {*node.indices}:
            names[name] = fresh(name, taken) if name in used else name
            taken.add(names[name])
            used.add(names[name])
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
