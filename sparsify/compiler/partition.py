"""Which statements of a program share a kernel: groups that are contracted as long as that is expected to save time.

In: `H = relu(A X); m = mean of H's rows; Y = H - m; T = Y W; Z = A T; U = Z + b` and the sizes of the operands.
Out: `H, m, Y` as one kernel, `T` apart, `Z, U` as one kernel; what other groups were expected to take.

A group is priced by a way to compute it: `FUSIONS` has them, functions of a part of a program that say what one kernel
and a kernel for each statement take. First the whole program is asked for; then each statement starts as a group
of its own, and the join of two groups that gains most is contracted, until none gains.

Source: fusion as contraction of the statement graph, Gao, Olsen, Sarkar and Thekkath, Collective loop fusion for array
contraction, 1992; sums of prices that are compared group by group, Chen et al., TVM, 2018, section 3.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from sparsify.compiler.aggregate import Aggregated, aggregated
from sparsify.compiler.divide import Divided, divided
from sparsify.compiler.einsum.collect import collect
from sparsify.compiler.einsum.extents import name_extents
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Extent, Program, Reduce
from sparsify.compiler.fuse import Fusion, fusion
from sparsify.compiler.mixture import Mixture, mixture
from sparsify.compiler.node import find
from sparsify.compiler.rowwise import Rowwise, may_share_rows, priced_rows, rowwise
from sparsify.compiler.schedule.contract import Contracted, contract
from sparsify.compiler.schedule.cost import expected_entries, known_extents
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.step import one_step
from sparsify.compiler.unstored import count_unstored

Found = Fusion | Mixture | Aggregated | Divided | Rowwise
# Groups that were not chosen, as `explain` shows them.
RUNNERS_UP: Final = 4


class Prepared:
    """A program and what all ways to compute it ask for, each found once.

    Attributes:
        program: with one plain assignment a result.
        sizes: of the operands.
    """

    def __init__(self, program: Program, sizes: Sizes) -> None:
        self.program, self.sizes = collect(program), sizes

    @cached_property
    def named(self) -> Program:
        """The program with the names of its extents as declarations have them."""
        return name_extents(self.program)

    @cached_property
    def contracted(self) -> Contracted:
        """The program with what is not stored counted, and products of many operands split."""
        return contract(count_unstored(self.named, self.sizes), self.sizes)

    @cached_property
    def as_written(self) -> frozenset[str]:
        """The results of the statements that are computed as they are, without such splits."""
        left = {*self.contracted.program.statements}
        return frozenset(s.target.tensor for s in self.named.statements if s in left)

    @cached_property
    def known(self) -> Sizes:
        """The sizes, with the entries that sparse temporaries are expected to have; as they are where not known."""
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
    def whole(self) -> "Part":
        """All statements, with every operand as it is stored."""
        names = tuple(statement.target.tensor for statement in self.program.statements)
        return Part(self, names, one_step(self.program)[0].program)


@dataclass(frozen=True)
class Part:
    """Statements of a program as a program.

    Attributes:
        prepared: the whole program.
        names: of the results of the statements, in order.
        program: the statements; what they read of others are operands.
    """

    prepared: Prepared = field(repr=False)
    names: tuple[str, ...]
    program: Program

    @property
    def is_whole(self) -> bool:
        """Whether these are all statements."""
        return self is self.prepared.whole

    @property
    def sizes(self) -> Sizes:
        """What is known of its operands."""
        return self.prepared.sizes if self.is_whole else self.prepared.known

    @property
    def is_as_written(self) -> bool:
        """Whether no statement sums over what is not stored, nor is split."""
        if self.is_whole:
            return self.prepared.contracted.program == self.prepared.named
        return self.prepared.as_written.issuperset(self.names)


@dataclass(frozen=True)
class Group:
    """Statements that share a kernel, or a few of them.

    Attributes:
        part: the statements.
        found: how they are computed, and for how long.
    """

    part: Part
    found: Found

    @property
    def is_faster(self) -> bool:
        """Whether that is expected to be faster than a kernel for each statement."""
        return not isinstance(self.found, Fusion | Aggregated | Rowwise) or self.found.is_faster

    @cached_property
    def times(self) -> tuple[float, float] | None:
        """The expected times together and apart; `None` where sizes are not known."""
        match self.found:
            case Fusion(fused_us=together, apart_us=apart):
                pass
            case (
                Aggregated(together_us=together, apart_us=apart)
                | Rowwise(together_us=together, apart_us=apart)
            ):
                pass
            case _:
                priced = priced_rows(self.part.program, self.part.sizes)
                return None if priced is None else priced[:2]
        return None if together is None or apart is None else (together, apart)

    @property
    def gain(self) -> float:
        """The time that is expected to be saved; 0 where nothing is known."""
        return 0.0 if self.times is None else self.times[1] - self.times[0]

    def __str__(self) -> str:
        return str(self.found)


def row_chains(part: Part) -> Group | None:
    """The row-wise chain over stored entries that a part is."""
    found = fusion(part.program, part.sizes) if part.is_as_written else None
    return None if found is None else Group(part, found)


def experts(part: Part) -> Group | None:
    """The mixture of experts that a part is."""
    found = mixture(part.program)
    return None if found is None else Group(part, found)


def reductions(part: Part) -> Group | None:
    """The reductions that read the same rows of a table, which a part is."""
    found = aggregated(name_extents(part.program), part.sizes) if part.is_as_written else None
    return None if found is None else Group(part, found)


def rows_and_columns(part: Part) -> Group | None:
    """The chains over rows and over columns that a whole program is."""
    has_entries = any(not part.program.declaration(name).format.is_dense for name in part.names)
    if not part.is_whole or len(part.names) < 3 or not has_entries or not part.is_as_written:
        return None
    found = divided(one_step(part.prepared.named)[0].program, part.sizes)
    return None if found is None else Group(part, found)


def rows(part: Part) -> Group | None:
    """The statements that need only what the same row has, which a part is."""
    found = rowwise(part.program, part.prepared.known) if part.is_as_written else None
    return None if found is None else Group(part, found)


# The ways to compute several statements by one kernel, particular ones first.
FUSIONS: Final[tuple[Callable[[Part], Group | None], ...]] = (
    row_chains,
    experts,
    reductions,
    rows_and_columns,
    rows,
)


@dataclass(frozen=True)
class Partition:
    """The groups of a program.

    Attributes:
        prepared: the program.
        groups: of statements that share kernels; all others have one each.
        refused: groups that were priced and are not faster, the best first.
    """

    prepared: Prepared
    groups: tuple[Group, ...]
    refused: tuple[Group, ...]

    def said(self) -> list[str]:
        """A line for each group, then those for groups that were not chosen."""
        behind = [group for group in self.refused if group.times is not None or not self.groups]
        lines = [str(group) for group in (*self.groups, *behind[:RUNNERS_UP])]
        return list(dict.fromkeys(lines))


def partition(prepared: Prepared) -> Partition:
    """The groups of a program that are expected to be faster as one kernel."""
    if len(prepared.program.statements) < 2:
        return Partition(prepared, (), ())
    refused = []
    for way in FUSIONS:
        found = way(prepared.whole)
        if found is not None and found.is_faster:
            return Partition(prepared, (found,), tuple(refused))
        refused += [] if found is None else [found]
    if len(prepared.program.statements) < 3:
        return Partition(prepared, (), tuple(refused))
    search = _Search(prepared)
    groups = search.contracted()
    behind = sorted(search.priced(), key=lambda group: -group.gain)
    names = {name for group in groups for name in group.part.names}
    behind = [group for group in behind if group not in groups and not names.issuperset(group.part.names)]
    return Partition(prepared, groups, (*refused, *behind))


class _Search:
    """The statements of a program as a graph, and the prices of its groups; sets of statements are bits."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        program = prepared.program
        self.statements = program.statements
        place = {statement.target.tensor: n for n, statement in enumerate(self.statements)}
        reads = [{a.tensor for a in find(s.value, Access)} for s in self.statements]
        self.before = [_bits(place[name] for name in names if name in place) for names in reads]
        sparse = {d.name for d in program.declarations if not d.format.is_dense}
        self.entries = [bool({s.target.tensor} & sparse) for s in self.statements]
        self.operands = [names & sparse - place.keys() for names in reads]
        self.all = (1 << len(self.statements)) - 1
        self.prices: dict[int, Group | None] = {}

    def contracted(self) -> tuple[Group, ...]:
        """The groups after all joins that gain; a statement that no group has is computed apart."""
        groups = [1 << n for n in range(len(self.statements))]
        while True:
            best, gain = 0, 0.0
            for wanted in dict.fromkeys(self.joins(groups)):
                found = self.price(wanted)
                if found is None or not found.is_faster:
                    continue
                more = found.gain - sum(
                    g.gain for mask in groups if mask & wanted and (g := self.price(mask))
                )
                if more > gain:
                    best, gain = wanted, more
            if not best:
                found = [self.price(mask) for mask in groups]
                return tuple(group for group in found if group is not None)
            groups = [*(mask for mask in groups if not mask & best), best]

    def priced(self) -> list[Group]:
        """All groups that a way computes."""
        return [group for group in self.prices.values() if group is not None]

    def joins(self, groups: Sequence[int]) -> Iterator[int]:
        """Unions of groups: what reads a result of another, what reads the same sparse operand, chains over entries."""
        for family in self.families():
            for wanted in self.cut_ends(family):
                yield self.convex(wanted, groups)
        for number, first in enumerate(groups):
            operands = self.read(first)
            for second in groups[number + 1 :]:
                if self.above(first) & second or self.above(second) & first or operands & self.read(second):
                    yield self.convex(first | second, groups)

    def families(self) -> Iterator[int]:
        """The statements that compute or read the same temporaries over stored entries, directly or by others."""
        links = [
            1 << n | _bits(m for m, before in enumerate(self.before) if before >> n & 1)
            for n, is_entries in enumerate(self.entries)
            if is_entries
        ]
        while links:
            found = links.pop()
            while near := [mask for mask in links if mask & found]:
                links = [mask for mask in links if not mask & found]
                found = _union((found, *near))
            yield found

    def cut_ends(self, family: int) -> Iterator[int]:
        """A family, and what is left of it without its first statements, its last ones, or both."""
        members = [n for n in range(len(self.statements)) if family >> n & 1]
        first = _bits(n for n in members if not self.before[n] & family)
        last = family & ~_union(self.before[n] for n in members)
        for left in (family, family & ~first, family & ~last, family & ~first & ~last):
            if left.bit_count() > 1:
                yield left

    def read(self, mask: int) -> set[str]:
        """The sparse operands that some statements read."""
        return set[str]().union(*(names for n, names in enumerate(self.operands) if mask >> n & 1))

    def above(self, mask: int) -> int:
        """The statements that some others read."""
        return _union(before for n, before in enumerate(self.before) if mask >> n & 1)

    def convex(self, wanted: int, groups: Sequence[int]) -> int:
        """The groups that some statements are of, with those that lie on ways from one of them to another."""
        wanted = _union(mask for mask in groups if mask & wanted)
        above = self.reached(wanted, groups, self.above)
        below = self.reached(wanted, groups, lambda mask: _union(g for g in groups if self.above(g) & mask))
        return wanted | (above & below)

    def reached(self, start: int, groups: Sequence[int], step: Callable[[int], int]) -> int:
        """The groups that steps lead to from some of them."""
        found = 0
        while more := _union(g for g in groups if g & step(start | found)) & ~found & ~start:
            found |= more
        return found

    def price(self, mask: int) -> Group | None:
        """The way to compute statements by one kernel, and what it takes; `None` where there is none."""
        if mask not in self.prices:
            self.prices[mask] = self._priced(mask)
        return self.prices[mask]

    def _priced(self, mask: int) -> Group | None:
        members = [n for n in range(len(self.statements)) if mask >> n & 1]
        program = self.prepared.program
        if len(members) < 2 or mask == self.all:
            return None
        inside = any(self.entries[n] for n in members)
        if not inside and not may_share_rows([self.statements[n] for n in members], program):
            return None
        names = tuple(self.statements[n].target.tensor for n in members)
        if not self.prepared.as_written.issuperset(names):
            return None
        part = part_of(self.prepared, names)
        if part is None:
            return None
        found = [group for way in FUSIONS if (group := way(part)) is not None and group.times is not None]
        return max(found, key=lambda group: group.gain, default=None)


def part_of(prepared: Prepared, names: Sequence[str]) -> Part | None:
    """Some statements of a program as a program; `None` where a result needs entries that are not known before.

    A result of another statement brings the pattern that it shares, as long as the part reads what it shares it with.
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
    """Tensors that are not read, for the extents that those which are do not have."""
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
    """The set of some places."""
    return _union(1 << place for place in places)


def _union(masks: Iterable[int]) -> int:
    """All bits of some sets."""
    found = 0
    for mask in masks:
        found |= mask
    return found
