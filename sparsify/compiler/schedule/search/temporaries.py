"""Actions on temporaries: their place and scope, accumulators in registers.

In: `order w: i, k, j; order Y: i, k`. Out: `order w: i, k, j; order Y: i, k; precompute w at k in register`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.search.compose import (
    accumulating,
    accumulator,
    extended,
    is_assembled,
    is_assembled_by_rows,
    order_of,
    path,
    placed,
    root,
    splits,
    with_order,
)
from sparsify.compiler.schedule.search.facts import Facts


def place(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`let w[i,k] in memory -> precompute w at k in register`: computed inside the loops of producer and consumer.

    A temporary with all of its modes in those loops, or in tiles of lanes, is in registers; else each thread has one.
    """
    known = {p.temporary for p in schedule.directives if isinstance(p, d.Precompute)}
    inner = {tile.inner for tile in splits(schedule).values()}
    for name, indices in facts.temporaries.items():
        if name in known or not (loops := shared(schedule, facts, name)):
            continue
        for depth in (len(loops), len(loops) - 1):
            if depth < 1:
                continue
            rest = [loop for loop in _loops(schedule, facts, indices) if loop not in loops[:depth]]
            scope = "register" if set(rest) <= inner else "thread"
            yield placed(schedule, d.Precompute(name, scope, at=loops[depth - 1]))


def place_all(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`precompute w at i in thread; precompute v at i in thread`: all temporaries inside the loops of all nests."""
    names = list(facts.temporaries)
    known = {p.temporary for p in schedule.directives if isinstance(p, d.Precompute)}
    if len(names) < 2 or known & set(names):
        return
    common = _common([shared(schedule, facts, name) for name in names])
    inner = {tile.inner for tile in splits(schedule).values()}
    if not common:
        return
    found = schedule
    for name in reversed(names):
        rest = [n for n in _loops(schedule, facts, facts.temporaries[name]) if n not in common]
        scope = "register" if set(rest) <= inner else "thread"
        found = placed(found, d.Precompute(name, scope, at=common[-1]))
    yield found


def accumulate(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`Y[i,k] += ... -> precompute sum_Y = Y at k in register`: an accumulator inside the loops of the result."""
    for number, chain in enumerate(facts.chains):
        if not accumulator(schedule, chain) and (new := accumulating(schedule, facts, number)) is not None:
            yield extended(schedule, new)


def workspace(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`order i, k, j -> order i, j, k; precompute row_Y = Y at i in thread listed`: sums scattered into a row of `Y`.

    The entries in use, in a list or marked, become those of the result, whose pattern the kernel computes.
    """
    for number, chain in enumerate(facts.chains):
        if chain.assign is None or not chain.assign.monoid or not is_assembled(chain, facts):
            continue
        if accumulator(schedule, chain) or is_assembled_by_rows(schedule, chain) or chain.outer >= 0:
            continue
        target = chain.assign.target.tensor
        modes, declared = index_names(chain.assign.target), facts.declared[target]
        *rows, column = [modes[stored.expression.mode] for stored in declared.format.levels]
        sums = [loop for loop in order_of(schedule, number) if loop not in modes]
        if sums and set(rows) | {column} | set(sums) == set(order_of(schedule, number)):
            place = ("thread", rows[-1]) if rows else ("memory", "")
            ordered = with_order(schedule, number, (*rows, *sums, column))
            row = d.Precompute(f"row_{target}", place[0], at=place[1], source=target, listed=True)
            yield extended(ordered, row)
            above = [stored.level.is_full for stored in declared.format.levels[:-1]]
            last = declared.format.levels[-1].level
            if above and all(above) and last.can_append and not last.is_branchless:
                yield extended(ordered, replace(row, listed=False, marked=True))


def shared(schedule: d.Schedule, facts: Facts, name: str) -> tuple[str, ...]:
    """The loops around all statements that write or read a temporary."""
    paths = [
        path(schedule, facts, number)
        for number, chain in enumerate(facts.chains)
        if chain.assign is not None and name in {a.tensor for a in find(chain.assign, Access)}
    ]
    around = [
        path(schedule, facts, number)
        for number, chain in enumerate(facts.chains)
        if chain.assign is None and any(c.outer == number for c in facts.chains)
    ]
    outermost = _common(paths) if len(paths) > 1 else paths[0] if not around else around[-1]
    own = set(facts.temporaries[name])
    inner = {tile.inner for tile in splits(schedule).values()}
    return tuple(
        takewhile(lambda n: n not in inner and (root(schedule, n) in own or bool(around)), outermost)
    )


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The loops with which all paths begin."""
    alike = takewhile(lambda loops: len(set(loops)) == 1, zip(*paths, strict=False))
    return tuple(loops[0] for loops in alike)


def _loops(schedule: d.Schedule, facts: Facts, indices: Sequence[str]) -> list[str]:
    """The loops over the modes of a temporary."""
    tiles = {tile.index: tile for tile in splits(schedule).values()}
    return [
        loop
        for name in indices
        for loop in ((tiles[name].outer, tiles[name].inner) if name in tiles else (name,))
    ]
