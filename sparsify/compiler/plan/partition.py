"""Partition of a program into kernels: greedy contraction of fusion groups while a join is expected to save time.

In: `H = relu(A X); m = mean of H's rows; Y = H - m; T = Y W; Z = A T; U = Z + b` and the sizes of the operands.
Out: `H, m, Y` as one kernel, `T` apart, `Z, U` as one kernel; the expected times of rejected groups.

`FUSIONS` lists the fusions, functions from a part of a program to a priced group: the times of one kernel and of a
kernel for each statement. The whole program is tried first; then each statement starts as a group, and the join of
two groups with the largest gain is contracted, until no join gains.

Source: fusion as contraction of the statement graph, Gao, Olsen, Sarkar and Thekkath, Collective loop fusion for array
contraction, 1992; sums of prices that are compared group by group, Chen et al., TVM, 2018, section 3.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Extent, Program, Reduce
from sparsify.compiler.einsum.rewrite.combine_statements import collect
from sparsify.compiler.ir.node import find
from sparsify.compiler.plan.fuse.experts import Mixture, mixture
from sparsify.compiler.plan.fuse.reductions import Aggregated, aggregated
from sparsify.compiler.plan.fuse.row_chain import Fusion, fusion
from sparsify.compiler.plan.fuse.rows_and_columns import Divided, divided
from sparsify.compiler.plan.fuse.rowwise import RowPrices, Rowwise, may_be_of_rows, may_share_rows, rowwise
from sparsify.compiler.plan.prepare.count_unstored import count_unstored
from sparsify.compiler.plan.products.contract import Contracted, contract
from sparsify.compiler.plan.step import one_step
from sparsify.compiler.schedule.cost.statement import expected_entries, known_extents
from sparsify.compiler.schedule.sizes import Sizes

T = TypeVar("T")
Found = Fusion | Mixture | Aggregated | Divided | Rowwise
# Most rejected groups that `explain` prints.
RUNNERS_UP: Final = 4
# Fewest statements of a program for which proper subsets are searched.
LEAST: Final = 3


class Prepared:
    """A program and the analyses that all fusions share, each memoized.

    Attributes:
        program: one plain assignment for each result.
        sizes: sizes of the operands.
    """

    def __init__(self, program: Program, sizes: Sizes) -> None:
        self.program, self.sizes = collect(program), sizes

    @cached_property
    def named(self) -> Program:
        """The program with unified names of extents (`name_extents`)."""
        return name_extents(self.program)

    @cached_property
    def contracted(self) -> Contracted:
        """The program with unstored coordinates counted, and products of many operands split."""
        return contract(count_unstored(self.named, self.sizes), self.sizes)

    @cached_property
    def as_written(self) -> frozenset[str]:
        """The results of the statements that neither counting nor splitting changes."""
        left = {*self.contracted.program.statements}
        return frozenset(s.target.tensor for s in self.named.statements if s in left)

    @cached_property
    def known(self) -> Sizes:
        """Sizes with the expected entries of sparse temporaries; unchanged if an extent is unknown."""
        extents = known_extents(self.named, self.sizes.extents)
        names = {name for declared in self.named.declarations for name in declared.extents}
        if not names <= extents.keys():
            return self.sizes
        counts = dict(self.sizes.stored)
        for statement in self.named.statements:
            name = statement.target.tensor
            if not self.named.declaration(name).format.is_dense and name not in counts:
                counts[name] = expected_entries(self.named, statement, extents, counts)
        return self.sizes.expecting(counts)

    @cached_property
    def prices(self) -> RowPrices:
        """Expected times of statements."""
        return RowPrices(self.program, self.known)

    @cached_property
    def whole(self) -> "Part":
        """All statements as one part, with every operand as stored."""
        names = tuple(statement.target.tensor for statement in self.program.statements)
        return Part(self, names, one_step(self.program)[0].program)


@dataclass(frozen=True)
class Part:
    """A subset of the statements as a program.

    Attributes:
        prepared: the whole program.
        names: results of the statements, in order.
        program: the statements; results of other statements are operands.
    """

    prepared: Prepared = field(repr=False)
    names: tuple[str, ...]
    program: Program

    @property
    def is_whole(self) -> bool:
        """Whether the part has all statements."""
        return self is self.prepared.whole

    @property
    def sizes(self) -> Sizes:
        """Known sizes of the operands of the part."""
        return self.prepared.sizes if self.is_whole else self.prepared.known

    @property
    def statements(self) -> list[Assign]:
        """The statements of the part, as the whole program has them."""
        own = {*self.names}
        return [s for s in self.prepared.program.statements if s.target.tensor in own]

    @property
    def is_as_written(self) -> bool:
        """Whether no statement reduces over unstored coordinates or is split."""
        if self.is_whole:
            return self.prepared.contracted.program == self.prepared.named
        return self.prepared.as_written.issuperset(self.names)


@dataclass(frozen=True)
class Group:
    """A fusion group: statements that share a kernel, or a few kernels.

    Attributes:
        part: the statements.
        found: the fusion, with its expected times.
    """

    part: Part
    found: Found

    @property
    def is_faster(self) -> bool:
        """Whether the group is expected to be faster than a kernel for each statement."""
        return not isinstance(self.found, Fusion | Aggregated | Rowwise) or self.found.is_faster

    @cached_property
    def times(self) -> tuple[float, float] | None:
        """Expected times fused and separate; `None` for unknown sizes."""
        match self.found:
            case Fusion(fused_us=together, apart_us=apart):
                pass
            case (
                Aggregated(together_us=together, apart_us=apart)
                | Rowwise(together_us=together, apart_us=apart)
            ):
                pass
            case _:
                priced = self.part.prepared.prices.of(self.part.statements)
                return None if priced is None else priced[:2]
        return None if together is None or apart is None else (together, apart)

    @property
    def gain(self) -> float:
        """Time that fusion is expected to save; 0 for unknown sizes."""
        return 0.0 if self.times is None else self.times[1] - self.times[0]

    def __str__(self) -> str:
        return str(self.found)


def row_chains(part: Part) -> Group | None:
    """A part as a row-wise chain over stored entries."""
    found = fusion(part.program, part.sizes) if part.is_as_written else None
    return None if found is None else Group(part, found)


def experts(part: Part) -> Group | None:
    """A part as a mixture of experts."""
    found = mixture(part.program)
    return None if found is None else Group(part, found)


def reductions(part: Part) -> Group | None:
    """A part as reductions that read the same rows of a table."""
    found = aggregated(name_extents(part.program), part.sizes) if part.is_as_written else None
    return None if found is None else Group(part, found)


def rows_and_columns(part: Part) -> Group | None:
    """A whole program as chains over rows and over columns."""
    declared = part.prepared.program.declaration  # parts may store results under other names
    has_entries = any(not declared(name).format.is_dense for name in part.names)
    if not part.is_whole or len(part.names) < 3 or not has_entries or not part.is_as_written:
        return None
    found = divided(one_step(part.prepared.named)[0].program, part.sizes)
    return None if found is None else Group(part, found)


def rows(part: Part) -> Group | None:
    """A part as statements that read values of the same row only."""
    if not part.is_as_written:
        return None
    found = rowwise(part.program, part.prepared.prices, part.statements)
    return None if found is None else Group(part, found)


# The fusions of several statements into one kernel, the most specific first.
FUSIONS: Final[tuple[Callable[[Part], Group | None], ...]] = (
    row_chains,
    experts,
    reductions,
    rows_and_columns,
    rows,
)


@dataclass(frozen=True)
class Partition:
    """The fusion groups of a program.

    Attributes:
        prepared: the program.
        groups: fusion groups; every other statement has a kernel of its own.
        refused: fusions of the whole program that are not faster.
        search: search for groups of a proper subset, if one ran.
    """

    prepared: Prepared
    groups: tuple[Group, ...]
    refused: tuple[Group, ...]
    search: "_Search | None" = None

    def said(self) -> list[str]:
        """A report line for each group, then lines for rejected groups."""
        behind = [] if self.search is None else self.search.refused()[:RUNNERS_UP]
        return list(dict.fromkeys(map(str, (*self.groups, *self.refused, *behind))))


def partition(prepared: Prepared) -> Partition:
    """The fusion groups of a program that are expected to be faster as one kernel."""
    count = len(prepared.program.statements)
    refused: list[Group] = []
    for way in FUSIONS if count > 1 else ():
        found = way(prepared.whole)
        if found is not None and found.is_faster:
            return Partition(prepared, (found,), tuple(refused))
        refused += [] if found is None else [found]
    if count < LEAST or not prepared.prices.is_known:
        return Partition(prepared, (), tuple(refused))
    search = _Search(prepared)
    return Partition(prepared, search.contracted(), tuple(refused), search)


class _Search:
    """The dependence graph of the statements, and memoized prices of groups; a set of statements is a bit mask."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        program = prepared.program
        self.statements = program.statements
        self.count = len(self.statements)
        place = {statement.target.tensor: n for n, statement in enumerate(self.statements)}
        reads = [{a.tensor for a in find(s.value, Access)} for s in self.statements]
        self.before = [_bits(place[name] for name in names if name in place) for names in reads]
        self.after = [
            _bits(m for m in range(self.count) if self.before[m] >> n & 1) for n in range(self.count)
        ]
        sparse = {d.name for d in program.declarations if not d.format.is_dense}
        self.is_entries = [s.target.tensor in sparse for s in self.statements]
        self.is_result = [s.target.tensor in program.outputs for s in self.statements]
        self.is_of_rows = [may_be_of_rows(s, program) for s in self.statements]
        self.operands = [names & sparse - place.keys() for names in reads]
        self.groups = [1 << n for n in range(self.count)]
        self.gains: dict[int, float] = {}
        self.found: dict[int, Group | None] = {}

    def contracted(self) -> tuple[Group, ...]:
        """The groups after all profitable joins; a statement outside every group has a kernel of its own."""
        for family in [*self.families()]:  # pairs from a chain do not gain: start with whole chains
            self.contract(next((part for part in self.cut_ends(family) if self.more(part) > 0), 0))
        wanted = dict.fromkeys(mask for group in self.groups for mask in self.joins(group))
        waiting = {mask: self.more(mask) for mask in wanted}
        while waiting:
            best = max(waiting, key=waiting.__getitem__)
            if waiting.pop(best) <= 0:
                break
            if self.contract(best):
                waiting = {mask: gain for mask, gain in waiting.items() if not mask & best}
                waiting |= {mask: self.more(mask) for mask in self.joins(best)}
        found = [self.group(mask) for mask in self.groups if mask.bit_count() > 1]
        return tuple(group for group in found if group is not None)

    def contract(self, mask: int) -> bool:
        """Contracts a set of statements to one group, if a faster fusion of the set exists."""
        group = self.group(mask) if mask else None
        if group is None or not group.is_faster:
            return False
        self.groups = [*(other for other in self.groups if not other & mask), mask]
        return True

    def refused(self) -> list[Group]:
        """The priced groups that were not contracted, the smallest loss first."""
        taken = [mask for mask in self.groups if mask.bit_count() > 1]
        priced = [mask for mask, gain in self.gains.items() if gain or self.found.get(mask) is not None]
        behind = [mask for mask in priced if not any(mask & ~group == 0 for group in taken)]
        found = [group for mask in behind if (group := self.group(mask)) is not None]
        return sorted(found, key=lambda group: -group.gain)

    def more(self, wanted: int) -> float:
        """Time that a join saves beyond the savings of its groups."""
        inside = [mask for mask in self.groups if mask & wanted and mask.bit_count() > 1]
        return self.price(wanted) - sum(self.price(mask) for mask in inside)

    def joins(self, group: int) -> list[int]:
        """Joins of a group with each producer, consumer, or independent group that reads the same sparse operand."""
        found = dict[int, None]()
        near = _union((*self.over(self.before, group), *self.over(self.after, group))) & ~group
        related = self.reached(self.before, group) | self.reached(self.after, group)
        operands = self.read(group)
        for other in self.groups:
            if other & near or (other != group and not other & related and operands & self.read(other)):
                found[self.convex(group | other)] = None
        return [*found]

    def families(self) -> Iterator[int]:
        """Statements that compute or read the same temporaries over stored entries, directly or transitively."""
        links = [
            1 << n | self.after[n] for n in range(self.count) if self.is_entries[n] and not self.is_result[n]
        ]
        while links:
            found = links.pop()
            while near := [mask for mask in links if mask & found]:
                links = [mask for mask in links if not mask & found]
                found = _union((found, *near))
            yield self.convex(found)

    def cut_ends(self, family: int) -> Iterator[int]:
        """A family, then the family without its first statements, without its last ones, and without both."""
        members = [n for n in range(self.count) if family >> n & 1]
        first = _bits(n for n in members if not self.before[n] & family)
        last = _bits(n for n in members if not self.after[n] & family)
        for left in dict.fromkeys((family, family & ~first, family & ~last, family & ~first & ~last)):
            if left.bit_count() > 1 and self.convex(left) == left:
                yield left

    def read(self, mask: int) -> set[str]:
        """The sparse operands that a set of statements reads."""
        return set[str]().union(*self.over(self.operands, mask))

    def over(self, values: Sequence[T], mask: int) -> list[T]:
        """The values of the statements of a set."""
        return [values[n] for n in range(mask.bit_length()) if mask >> n & 1]

    def convex(self, wanted: int) -> int:
        """The convex closure of a set: its groups, and all groups on dependence paths between them."""
        wanted = self.whole(wanted)
        between = self.reached(self.before, wanted) & self.reached(self.after, wanted)
        return wanted | between

    def whole(self, mask: int) -> int:
        """The union of all groups that intersect a set of statements."""
        return _union(group for group in self.groups if group & mask)

    def reached(self, steps: Sequence[int], start: int) -> int:
        """The groups reachable from a start set along `steps`, a relation between statements."""
        found, new = 0, start
        while new := self.whole(_union(self.over(steps, new))) & ~found & ~start:
            found |= new
        return found

    def price(self, mask: int) -> float:
        """Expected time saved by one kernel for a set of statements; 0 if no fusion applies."""
        if mask not in self.gains:
            self.gains[mask] = self._priced(mask)
        return self.gains[mask]

    def _priced(self, mask: int) -> float:
        statements = self.over(self.statements, mask)
        names = {statement.target.tensor for statement in statements}
        if len(names) < 2 or len(names) == self.count or not names <= self.prepared.as_written:
            return 0.0
        held = [
            n for n in range(self.count) if mask >> n & 1 and self.is_entries[n] and not self.is_result[n]
        ]
        if any(not self.after[n] & ~mask for n in held):
            if not reads_own_rows(statements):
                return 0.0
            found = self.group(mask)
            return 0.0 if found is None or not found.is_faster else found.gain
        if not all(self.over(self.is_of_rows, mask)) or not may_share_rows(statements, self.prepared.program):
            return 0.0
        times = self.prepared.prices.of(statements)
        return 0.0 if times is None else times[1] - times[0]

    def group(self, mask: int) -> Group | None:
        """The best fusion of a set of statements, `None` without one."""
        if mask not in self.found:
            names = tuple(statement.target.tensor for statement in self.over(self.statements, mask))
            part = part_of(self.prepared, names)
            known = () if part is None else [way(part) for way in FUSIONS]
            priced = [group for group in known if group is not None and group.times is not None]
            self.found[mask] = max(priced, key=lambda group: group.gain, default=None)
        return self.found[mask]


def reads_own_rows(statements: Sequence[Assign]) -> bool:
    """Whether statements read each other's results at the same rows only; products read all rows."""
    targets = {statement.target.tensor: statement.target.indices for statement in statements}
    accesses = [a for s in statements for a in find(s.value, Access) if a.tensor in targets]
    places = [(a.indices, targets[a.tensor]) for a in accesses]
    return all(at[: max(1, len(at) - 1)] == made[: max(1, len(made) - 1)] for at, made in places)


def part_of(prepared: Prepared, names: Sequence[str]) -> Part | None:
    """A subset of the statements as a program; `None` if a result has a pattern unknown before the kernel runs.

    A result of another statement carries its shared pattern, if the part does not read the owner of the pattern.
    """
    program = prepared.program
    own = {*names}
    statements = tuple(s for s in program.statements if s.target.tensor in own)
    given = dict.fromkeys(a.tensor for s in statements for a in find(s.value, Access) if a.tensor not in own)
    outside = {
        a.tensor for s in program.statements if s.target.tensor not in own for a in find(s.value, Access)
    }
    outputs = tuple(name for name in names if name in outside or name in program.outputs)
    declared = {d.name: d for d in program.declarations}
    if any(declared[name].pattern_of is None and not declared[name].format.is_dense for name in outputs):
        return None
    roots: dict[str, str] = {}
    for name in given:
        root = declared[name].pattern_of
        is_same = root is not None and declared[name].format == declared[root].format
        if root is not None and is_same and root not in given and root not in own:
            roots.setdefault(root, name)
    kept: list[Declaration] = []
    for name in (*given, *names):
        root = declared[name].pattern_of
        root = None if root is None or name in program.inputs else roots.get(root, root)
        if root is not None and root != name and root not in own:
            given.setdefault(root)
        kept.append(replace(declared[name], pattern_of=None if root == name else root))
    inside = {d.name for d in kept}
    kept += [replace(declared[name], pattern_of=None) for name in given if name not in inside]
    kept += _owners(program, statements, kept, given)
    order = [d.name for d in program.declarations]
    kept.sort(key=lambda d: order.index(d.name))
    inputs = tuple(d.name for d in kept if d.name not in own)
    return Part(prepared, tuple(names), Program(statements, tuple(kept), inputs, outputs, program.extents))


def _owners(
    program: Program, statements: Iterable[Assign], kept: Sequence[Declaration], given: Iterable[str]
) -> list[Declaration]:
    """Unread tensors that declare the extents missing from the read tensors."""
    inputs = {*given}
    known = {extent for d in kept if d.name in inputs for extent in d.extents} | dict(program.extents).keys()
    wanted = [extent for d in kept for extent in d.extents]
    for statement in statements:
        wanted += [n.name for n in find(statement.value, Extent)]
        wanted += [name for n in find(statement.value, Reduce) for name in n.indices]
    found: list[Declaration] = []
    names = {d.name for d in kept}
    every = [d for d in program.declarations if d.name not in names]
    every.sort(key=lambda d: d.name not in program.inputs)
    for extent in wanted:
        owner = next((d for d in every if extent in d.extents), None)
        if extent not in known and owner is not None:
            found.append(replace(owner, pattern_of=None))
            every.remove(owner)
            known |= {*owner.extents}
    return found


def _bits(places: Iterable[int]) -> int:
    """The bit mask of a set of positions."""
    return _union(1 << place for place in places)


def _union(masks: Iterable[int]) -> int:
    """The union of bit masks."""
    found = 0
    for mask in masks:
        found |= mask
    return found
