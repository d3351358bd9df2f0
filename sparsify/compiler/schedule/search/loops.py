"""Actions on loops: order, tiles, vector lanes.

In: `order i, k, j` and the facts of `Y[i,k] += A[i,j] * X[j,k]`.
Out: `split k ko ki 64; order i, ko, j, ki; vector ki`.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Stored
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.row_lanes import entries_at_a_time
from sparsify.compiler.schedule.search.compose import (
    collected,
    extended,
    is_assembled,
    is_lane,
    order_of,
    root,
    splits,
    with_order,
)
from sparsify.compiler.schedule.search.facts import Chain, Facts
from sparsify.compiler.schedule.tile_width import lane_tile

# Most loops of a nest whose order is searched.
MOST_LOOPS: Final = 5
# Stored entries with accumulators of their own, beside the lanes of a tile.
SETS: Final = (2, 4)


def reorder(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`order i, k, j -> order i, j, k`: two neighbouring loops exchanged, if no operand needs their order.

    Longer nests keep the order with the least cost, see `loop_order.py`.
    """
    for number, chain in enumerate(facts.chains):
        loops = order_of(schedule, number)
        if len(chain.loops) > MOST_LOOPS:
            continue
        for n, (first, second) in enumerate(pairwise(loops)):
            pair = root(schedule, first), root(schedule, second)
            if pair in chain.edges or pair[0] == pair[1] or is_lane(schedule, second):
                continue
            if is_assembled(chain, facts) and len({n in index_names(chain.assign.target) for n in pair}) > 1:  # type: ignore[union-attr]
                continue
            yield with_order(schedule, number, (*loops[:n], second, first, *loops[n + 2 :]))


def tile_lanes(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`order i, k, j -> split k ko ki 64; order i, ko, j, ki; vector ki`: lanes along a tile of the result.

    Nests that sum over the same index variable have partial results in the lanes.
    """
    lanes = facts.pricing.lanes
    for name in _lanes(schedule, facts):
        numbers = [n for n, chain in enumerate(facts.chains) if name in chain.loops]
        if all(_sums(facts.chains[n], name) for n in numbers):
            continue
        size, tail = lane_tile(facts.extents.get(name), lanes, facts.pricing.item_bytes)
        for width, rest in dict.fromkeys(((size, tail), (min(size, 2 * lanes), ()))):
            split = d.Split(name, *_parts(facts, name), width, rest)
            if (made := _with_partial(schedule, facts, split, numbers)) is not None:
                yield made


def _sums(chain: Chain, name: str) -> bool:
    """Whether a chain sums over an index variable."""
    return chain.assign is not None and name not in index_names(chain.assign.target)


def _with_partial(
    schedule: d.Schedule, facts: Facts, split: d.Split, numbers: list[int]
) -> d.Schedule | None:
    """Chains in tiles of lanes, sums over the tiled index variable with a partial result for each lane."""
    partial: list[d.Precompute] = []
    for number in numbers:
        chain = facts.chains[number]
        if chain.assign is None:
            return None
        if not _sums(chain, split.index):
            continue
        if (collecting := collected(schedule, facts, number)) is None:
            return None
        schedule, register = collecting
        partial.append(
            d.Precompute(f"lanes_{chain.assign.target.tensor}", "register", source=register, over=split.inner)
        )
    return extended(_tiled(schedule, facts, split), *partial)


def vector(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`order i, k, j -> order i, j, k; vector k`: lanes along a whole contiguous loop."""
    for name in _lanes(schedule, facts):
        found = schedule
        for number, chain in enumerate(facts.chains):
            if name in chain.loops:
                rest = tuple(loop for loop in order_of(schedule, number) if loop != name)
                found = with_order(found, number, (*rest, name))
        if all(chain.assign is not None for chain in facts.chains if name in chain.loops):
            yield extended(found, d.Vector(name))


def sum_lanes(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`order i, k -> split k ko ki 8; order i, ko, ki; precompute lanes = a over ki in register; vector ki`.

    The lanes of a contiguous sum have partial results, which are added up at the end.
    """
    lanes = facts.pricing.lanes
    for name in _lanes(schedule, facts):
        numbers = [n for n, chain in enumerate(facts.chains) if name in chain.loops]
        if not all(_sums(facts.chains[n], name) for n in numbers):
            continue
        split = d.Split(name, *_parts(facts, name), lanes)
        if (made := _with_partial(schedule, facts, split, numbers)) is not None:
            yield made


def merge(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`forall j: s += ..; forall j: m max= .. -> forall j: (s += ..; m max= ..)`: one pass over entries of a row."""
    merged = {part.index for part in schedule.directives if isinstance(part, d.Merge)}
    sums = [name for chain in facts.chains for name in chain.loops if _sums(chain, name)]
    for name in dict.fromkeys(sums):
        if sums.count(name) > 1 and name not in merged:
            yield extended(schedule, d.Merge(name))


def entries(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`order i, j -> pos j p A; split p po pi 4; order i, po, pi; precompute sums = a over pi in register; vector pi`.

    Several stored entries of a row are summed at a time: in lanes, or unrolled around the lanes of a tile.
    """
    for number, chain in enumerate(facts.chains):
        collecting = collected(schedule, facts, number)
        plain = [loop for loop in order_of(schedule, number) if loop not in splits(schedule)]
        if collecting is None or not plain or sum(plain[-1] in other.loops for other in facts.chains) > 1:
            continue
        if (driver := _driver(chain, facts, plain[-1])) is not None:
            yield from _entries(*collecting, facts, number, plain[-1], driver)


def _entries(
    schedule: d.Schedule, register: str, facts: Facts, number: int, name: str, driver: str
) -> Iterator[d.Schedule]:
    """The sum over `name` with several stored entries of `driver` at a time."""
    chain, loops, sizes = facts.chains[number], order_of(schedule, number), facts.pricing.sizes
    has_lanes = any(is_lane(schedule, loop) for loop in loops)
    assert chain.assign is not None, "a chain with a driver assigns"
    target, reads = chain.assign.target.tensor, find(chain.assign, Access)
    is_picked = any(name in index_names(a) for a in reads if a.tensor != driver)
    lanes = entries_at_a_time(facts.declared[driver], sizes, facts.pricing.lanes, is_picked)
    place = facts.fresh(f"p{name}")
    group, member = facts.fresh(f"{place}o"), facts.fresh(f"{place}i")
    for count in SETS if has_lanes else (lanes,):
        if count < 2 or (sizes.mean_below(facts.declared[driver]) or 0.0) < count:
            continue
        at = loops.index(name)
        ordered = with_order(schedule, number, (*loops[:at], group, member, *loops[at + 1 :]))
        partial = d.Precompute(f"sums_{target}", "register", source=register, over=member)
        kind = d.Unroll(member) if has_lanes else d.Vector(member)
        taken = d.Pos(name, place, driver), d.Split(place, group, member, count)
        yield extended(ordered, *taken, partial, kind)


def _driver(chain: Chain, facts: Facts, name: str) -> str | None:
    """The only sparse operand of a sum with a loop, whose last level lists the loop's coordinates."""
    if chain.assign is None or name in index_names(chain.assign.target):
        return None
    declared = facts.declared
    if len(find(chain.assign.value, Access)) == len(find(chain.assign.value, Stored)):
        return None  # no values are read: the loop has a constant for each entry
    reads = [a for a in find(chain.assign.value, Access) if a.tensor in declared]
    sparse = [a for a in reads if not declared[a.tensor].format.is_dense and name in index_names(a)]
    if len(sparse) != 1:
        return None
    last = declared[sparse[0].tensor].format.levels[-1]
    is_listed = "crd" in last.level.arrays and not last.level.is_branchless
    return sparse[0].tensor if is_listed and index_names(sparse[0])[last.expression.mode] == name else None


def _lanes(schedule: d.Schedule, facts: Facts) -> list[str]:
    """Dense index variables, contiguous in some operand or the result, in nests without lanes."""
    tiles = {part.index for part in splits(schedule).values()}
    found: dict[str, None] = {}
    if facts.pricing.lanes < 2:
        return []
    for number, chain in enumerate(facts.chains):
        if chain.assign is None or any(is_lane(schedule, loop) for loop in order_of(schedule, number)):
            continue
        accesses = [a for a in find(chain.assign, Access) if a.indices]
        last = {_contiguous(access, facts) for access in accesses}
        names = [name for name in chain.loops if name in last and name not in facts.stored]
        found.update(dict.fromkeys(name for name in names if name not in tiles))
    return list(found)


def _contiguous(access: Access, facts: Facts) -> str:
    """The index variable of the last stored mode."""
    declared = facts.declared.get(access.tensor)
    names = index_names(access)
    return names[-1] if declared is None else names[declared.format.ordering[-1]]


def _parts(facts: Facts, name: str) -> tuple[str, str]:
    """The names of the loops over tiles and inside a tile."""
    return facts.fresh(f"{name}o"), facts.fresh(f"{name}i")


def _tiled(schedule: d.Schedule, facts: Facts, split: d.Split) -> d.Schedule:
    """Every chain with a loop in tiles: the loop over tiles in its place, the loop inside a tile innermost in lanes."""
    for number, chain in enumerate(facts.chains):
        if split.index in chain.loops:
            loops = [split.outer if n == split.index else n for n in order_of(schedule, number)]
            schedule = with_order(schedule, number, (*loops, split.inner))
    return extended(schedule, split, d.Vector(split.inner))
