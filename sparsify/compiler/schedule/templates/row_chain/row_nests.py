"""Schedules for statements that read values of the same row only: all nests in one loop over the rows.

In:  `S[i,k] += A[i,j] * X[j,k]; w[i] += S[i,k]; m[i] = w[i] / n; Y[i,k] = S[i,k] - m[i] + b[k]`, A by row, 64 columns.
Out: `split k ko ki 64; order S: i, ko, j, ki; order w: i, ko, ki; order Y: i, ko, ki; precompute sum_S = S at ko in
     register; precompute lanes_w = w over ki in register; precompute S at i in thread; precompute w at i in register;
     precompute m at i in register; vector ki; parallel i dynamic A`

A row stays in scratch, or in registers if nothing is summed along the row; scalars of a row are in registers. Sums over
all rows read a number of each row, after the loop.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.rewrite.nests import Body, loop_chain, loop_names
from sparsify.compiler.schedule.row_lanes import entries_at_a_time
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.tile_width import lane_tile
from sparsify.storage.format import Format

BY_ROWS: Final = Format("dense, compressed")
# Fewest accumulators for long rows: fewer would stall on the latency of an fma.
CHAINS: Final = 4
LONG_ROW: Final = 8
# Fewest bytes of a prefetched row, two cache lines, and prefetch distance in bytes.
LEAST_BYTES: Final = 128
AHEAD_BYTES: Final = 1 << 14

# Roles of nests: a vector of a row from stored entries (product), a number of a row from stored entries (count), a
# number of a row from a vector (total), a vector and a number of a row from others; and after all rows, a sum over the
# rows' numbers, and functions of such sums.
Kind = Literal["product", "count", "total", "vector", "number", "all rows", "after"]
OF_VECTORS: Final = ("product", "vector")
OF_ENTRIES: Final = ("product", "count")
AFTER: Final = ("all rows", "after")


@dataclass(frozen=True, slots=True)
class RowNest:
    """A nest of a program over rows.

    Attributes:
        kind: role of the nest.
        assign: assignment of its result.
        entry: index variable over the stored entries of a row, "" without.
        lane: index variable along a row, or over all rows, "" without.
        mask: operand that stores the entries, `None` without.
    """

    kind: Kind
    assign: Assign
    entry: str = ""
    lane: str = ""
    mask: Declaration | None = None

    @property
    def result(self) -> str:
        """The assigned tensor or temporary."""
        return self.assign.target.tensor


@dataclass(frozen=True, slots=True)
class RowNests:
    """Nests over the same rows.

    Attributes:
        row: index variable over the rows.
        nests: nests in order.
        held: temporaries of a row.
        taken: names not available for new loops and temporaries.
        extents: pairs of an index variable and the declared name of its extent.
    """

    row: str
    nests: tuple[RowNest, ...]
    held: tuple[str, ...]
    taken: frozenset[str]
    extents: tuple[tuple[str, str], ...] = ()

    @property
    def is_one_sum(self) -> bool:
        """Whether the nests are a sum and an entrywise function of the sum, which a single-nest template covers."""
        if len(self.nests) != 2:
            return False
        first, second = self.nests
        reads = {access.tensor for access in find(second.assign.value, Access)}
        kinds = (first.kind, second.kind)
        return first.result in reads and kinds in (
            ("product", "vector"),
            ("count", "number"),
            ("total", "number"),
        )

    def is_tiled(self, name: str) -> bool:
        """Whether a temporary fits register tiles: its producers and consumers proceed tile by tile."""
        places = [
            n for n, nest in enumerate(self.nests) if name in {a.tensor for a in find(nest.assign, Access)}
        ]
        having = [self.nests[place] for place in places]
        between = self.nests[places[0] : places[-1] + 1]
        is_along = len({nest.lane for nest in having}) == 1 and all(
            nest.kind in OF_VECTORS for nest in having
        )
        return is_along and not any(nest.kind == "total" for nest in between)

    @property
    def masks(self) -> list[Declaration]:
        """The operands that store entries of rows."""
        return list({nest.mask.name: nest.mask for nest in self.nests if nest.mask is not None}.values())

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """All nests in one loop over the rows, shared by threads; empty for scalar code."""
        if lanes == 1:
            return
        known = {name: sizes.extents[of] for name, of in self.extents if of in sizes.extents}
        loops = _Loops(self, lanes, item_bytes, replace(sizes, extents={**sizes.extents, **known}))
        yield loops.schedule(is_merged=not self.is_connected)

    @property
    def is_connected(self) -> bool:
        """Whether the temporaries of a row connect all nests, so that scopes fuse their loops."""
        nests = [nest for nest in self.nests if nest.kind not in AFTER]
        named = [{access.tensor for access in find(nest.assign, Access)} & {*self.held} for nest in nests]
        found, *others = named
        while near := [names for names in others if names & found]:
            others = [names for names in others if not names & found]
            found = found.union(*near)
        return not others

    def fresh(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text


@dataclass(frozen=True)
class _Loops:
    """The nests, and the parameters of their tiles."""

    rows: RowNests
    lanes: int
    item_bytes: int
    sizes: Sizes

    @cached_property
    def splits(self) -> dict[str, tuple[str, str]]:
        """The loops over the tiles of each loop along a row, and inside a tile."""
        fresh = self.rows.fresh
        found = dict.fromkeys(nest.lane for nest in self.rows.nests if nest.lane)
        return {lane: (fresh(f"{lane}o"), fresh(f"{lane}i")) for lane in found}

    def schedule(self, *, is_merged: bool) -> d.Schedule:
        """Tiles, then the loop order of each nest, scopes of temporaries, lanes, threads."""
        rows, steps = self.rows, list[d.Directive]()
        for lane, (outer, inner) in self.splits.items():
            size, tail = self.tile(lane)
            steps.append(d.Split(lane, outer, inner, size, tail))
        steps += self._positions()
        for nest in rows.nests:
            steps += self._ordered(nest)
        for nest in rows.nests:
            steps += self._collected(nest)
        steps += self._shared()
        if is_merged:
            steps.append(d.Merge(rows.row))
        steps += [d.Vector(inner) for _, inner in self.splits.values()]
        balance = max(rows.masks, key=lambda mask: self.sizes.stored.get(mask.name, 0), default=None)
        shared = ("static", "") if balance is None else ("dynamic", balance.name)
        return d.Schedule((*steps, d.Parallel(rows.row, *shared), *self._ahead()))

    def tile(self, lane: str) -> tuple[int, tuple[int, ...]]:
        """Width of a row tile, and the pieces of the last tile; four vectors for sums over all rows."""
        if any(nest.lane == lane and nest.kind == "all rows" for nest in self.rows.nests):
            return CHAINS * self.lanes, ()
        return lane_tile(self.sizes.extents.get(lane), self.lanes, self.item_bytes)

    @cached_property
    def groups(self) -> dict[str, tuple[str, str, str, int]]:
        """Position, group, inner loop and group size of each loop over entries; size 1 means no groups."""
        found: dict[str, tuple[str, str, str, int]] = {}
        for nest in self.rows.nests:
            if nest.kind in OF_ENTRIES and nest.entry not in found:
                same = [other for other in self.rows.nests if other.entry == nest.entry]
                count = self._at_a_time(nest) if len(same) == 1 else 1
                place = self.rows.fresh(f"p{nest.entry}")
                names = self.rows.fresh(f"{place}o"), self.rows.fresh(f"{place}i")
                found[nest.entry] = (place, *names, count)
        return found

    def _at_a_time(self, nest: RowNest) -> int:
        """The number of stored entries of a row summed with independent accumulators."""
        assert nest.mask is not None, "what is summed over entries has an operand that stores them"
        if nest.kind == "count":
            reads = [a for a in find(nest.assign.value, Access) if a.tensor != nest.mask.name]
            is_picked = any(nest.entry in index_names(access) for access in reads)
            return entries_at_a_time(nest.mask, self.sizes, self.lanes, is_picked)
        mean = self.sizes.mean_below(nest.mask)
        count = -(-CHAINS // max(1, self.tile(nest.lane)[0] // self.lanes))
        return count if mean is not None and mean >= LONG_ROW * count else 1

    def _positions(self) -> Iterator[d.Directive]:
        """Loops over stored positions, in groups, for independent accumulators."""
        masks = {nest.entry: nest.mask for nest in self.rows.nests if nest.mask is not None}
        for entry, (place, outer, inner, count) in self.groups.items():
            if count > 1:
                yield d.Pos(entry, place, masks[entry].name)
                yield d.Split(place, outer, inner, count)

    def _entries(self, nest: RowNest) -> tuple[str, ...]:
        """The loops over the stored entries of a row."""
        if nest.kind not in OF_ENTRIES:
            return ()
        _, outer, inner, count = self.groups[nest.entry]
        return (outer, inner) if count > 1 else (nest.entry,)

    def _ordered(self, nest: RowNest) -> Iterator[d.Directive]:
        """The loops of a nest: the row, a tile of the row, the entries, the lanes."""
        outer, inner = self.splits.get(nest.lane, ("", ""))
        row = () if nest.kind in AFTER else (self.rows.row,)
        loops = tuple(name for name in (*row, outer, *self._entries(nest), inner) if name)
        if len(loops) > 1:
            yield d.Order(loops, nest.result)

    def _collected(self, nest: RowNest) -> Iterator[d.Directive]:
        """The register accumulators of a nest, several independent ones to avoid stalls."""
        rows, (outer, inner) = self.rows, self.splits.get(nest.lane, ("", ""))
        if nest.assign.monoid is None:
            return
        name = nest.result
        if nest.kind == "product" and not (name in rows.held and rows.is_tiled(name)):
            name = rows.fresh(f"sum_{nest.result}")
            yield d.Precompute(name, "register", at=outer, source=nest.result)
        elif nest.kind in ("count", "total") and name not in rows.held:
            name = rows.fresh(f"sum_{nest.result}")
            yield d.Precompute(name, "register", at=rows.row, source=nest.result)
        if nest.kind in ("total", "all rows"):
            lanes = rows.fresh(f"lanes_{nest.result}")
            yield d.Precompute(lanes, "register", source=name, over=inner)
        if nest.kind in OF_ENTRIES and (group := self.groups[nest.entry])[3] > 1:
            sums = rows.fresh(f"sums_{nest.result}")
            yield d.Precompute(sums, "register", source=name, over=group[2])
            yield d.Vector(group[2]) if nest.kind == "count" else d.Unroll(group[2])

    def _shared(self) -> Iterator[d.Directive]:
        """Scopes of temporaries: tiles in registers, then rows in scratch, then numbers of a row in registers."""
        rows = self.rows
        lanes = {nest.result: nest.lane for nest in rows.nests if nest.kind in OF_VECTORS}
        tiled = [name for name in rows.held if name in lanes and rows.is_tiled(name)]
        yield from (d.Precompute(name, "register", at=self.splits[lanes[name]][0]) for name in tiled)
        for name in rows.held:
            if name in lanes and name not in tiled:
                yield d.Precompute(name, "thread", at=rows.row)
        yield from (d.Precompute(name, "register", at=rows.row) for name in rows.held if name not in lanes)

    def _ahead(self) -> Iterator[d.Directive]:
        """Prefetches of operands with gathered rows, from tables larger than the near caches."""
        for nest in self.rows.nests:
            size = self.tile(nest.lane)[0] * self.item_bytes if nest.kind == "product" else 0
            if size < LEAST_BYTES or not self.sizes.is_far(nest.entry, nest.lane, self.item_bytes, nest.mask):
                continue
            reads = [a for a in find(nest.assign.value, Access) if index_names(a) == (nest.entry, nest.lane)]
            for tensor in dict.fromkeys(access.tensor for access in reads):
                yield d.Prefetch(tensor, AHEAD_BYTES // size)


def row_nests(program: Notation) -> RowNests | None:
    """A program as nests over the same rows, `None` for other programs."""
    body: Body = program.body
    temporaries = body.temporaries if isinstance(body, Let) else ()
    inner = body.body if isinstance(body, Let) else body
    if not isinstance(inner, notation.Sequence) or program.relations:
        return None
    if any(temporary.pattern_of is not None for temporary in temporaries):
        return None
    declared = {declaration.name: declaration for declaration in program.declarations}
    if not all(declared[name].format.is_dense for name in program.outputs):
        return None
    chains = [loop_chain(statement) for statement in inner.statements]
    row = next((loops[0].index for loops, _ in chains if loops), "")
    nests = [_nest([loop.index for loop in loops], assign, row, declared) for loops, assign in chains]
    found = tuple(nest for nest in nests if nest is not None)
    if len(found) < len(nests) or len(found) < 2 or not row or not _is_by_rows(found, program):
        return None
    read_after = {a.tensor for nest in found if nest.kind in AFTER for a in find(nest.assign, Access)}
    held = tuple(t.name for t in temporaries if t.name not in read_after)
    taken = frozenset(loop_names(program)) | declared.keys() | {t.name for t in temporaries}
    return RowNests(row, found, held, taken, _extents(found, declared))


def _extents(nests: Sequence[RowNest], declared: Mapping[str, Declaration]) -> tuple[tuple[str, str], ...]:
    """The index variables of all accesses, with the declared names of their extents."""
    return tuple(
        (index.name, extent)
        for access in dict.fromkeys(access for nest in nests for access in find(nest.assign, Access))
        if access.tensor in declared
        for index, extent in zip(access.indices, declared[access.tensor].extents, strict=True)
        if isinstance(index, Index)
    )


def _nest(loops: Sequence[str], assign: Body, row: str, declared: dict[str, Declaration]) -> RowNest | None:
    """The role of a nest in a row; `None` for an unsupported nest."""
    if not isinstance(assign, Assign):
        return None
    target = index_names(assign.target)
    if len(target) != len(assign.target.indices) or len(target) > 2 or len(set(loops)) != len(loops):
        return None
    accesses = find(assign, Access)
    if row not in loops:
        return _after(loops, assign, declared)
    if target[:1] != (row,):
        return None
    sparse = {a for a in accesses if a.tensor in declared and not declared[a.tensor].format.is_dense}
    rest = [name for name in loops if name != row]
    entry, mask = "", None
    if sparse:
        (access, *others) = sparse
        mask = declared[access.tensor]
        names = index_names(access)
        if others or mask.format.unfixed() != BY_ROWS or len(names) != 2 or names[0] != row:
            return None
        entry = names[1]
        if assign.monoid is None or entry not in rest:
            return None
        rest.remove(entry)
    lane = next(iter(rest), "")
    if len(rest) > 1 or entry in target or (lane and not _is_last(accesses, lane)):
        return None
    if entry:
        kind: Kind = "product" if lane else "count"
        return RowNest(kind, assign, entry, lane, mask) if (lane in target) == bool(lane) else None
    if assign.monoid is not None:
        return RowNest("total", assign, lane=lane) if lane and lane not in target else None
    return (
        RowNest("vector" if lane else "number", assign, lane=lane)
        if target[1:] == (lane,) * bool(lane)
        else None
    )


def _after(loops: Sequence[str], assign: Assign, declared: dict[str, Declaration]) -> RowNest | None:
    """A sum over the numbers of all rows, or a function of such sums; `None` for other nests."""
    if any(a.tensor in declared and not declared[a.tensor].format.is_dense for a in find(assign, Access)):
        return None
    if not loops:
        return RowNest("after", assign)
    is_sum = len(loops) == 1 and not assign.target.indices and assign.monoid is not None
    if not is_sum or not _is_last(find(assign.value, Access), loops[0]):
        return None
    return RowNest("all rows", assign, lane=loops[0])


def _is_last(accesses: Sequence[Access], lane: str) -> bool:
    """Whether every operand with the variable has it last, as a plain index and once."""
    having = [access for access in accesses if lane in index_names(access)]
    return all(a.indices[-1] == Index(lane) and len(index_names(a)) == len(a.indices) for a in having)


def _is_by_rows(nests: Sequence[RowNest], program: Notation) -> bool:
    """Whether nests read each other's results at the same row only, and sums over all rows come last."""
    place = {nest.result: nest for nest in nests}
    kinds = [nest.kind in AFTER for nest in nests]
    if len(place) < len(nests) or kinds != sorted(kinds) or all(kinds):
        return False
    for nest in nests:
        for access in find(nest.assign.value, Access):
            made = place.get(access.tensor)
            if made is None:
                continue
            if access.tensor in program.outputs:
                return False
            if nest.kind not in AFTER and (
                made.kind in AFTER or access.indices != made.assign.target.indices
            ):
                return False
            if nest.kind in AFTER and made.kind in (*OF_VECTORS, *(("all rows",) if nest.lane else ())):
                return False
    return True
