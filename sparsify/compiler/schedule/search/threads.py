"""Actions on threads and caches: a parallel outermost loop, prefetches of gathered rows.

In: `order i, j, k; vector k`. Out: `order i, j, k; vector k; parallel i dynamic A`, the same with `prefetch X 16`.
"""

from collections.abc import Iterator
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Declaration
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.search.compose import extended, is_assembled, is_lane, path, root
from sparsify.compiler.schedule.search.facts import Facts
from sparsify.compiler.schedule.tile_width import TILE_BYTES

# Prefetch distance in bytes of gathered rows, and the fewest bytes of such a row.
AHEAD_BYTES: Final = 1 << 14
LEAST_BYTES: Final = 128
# Rows of a sparse operand: the work of a row takes about the latency of the last-level cache.
ROWS_AHEAD: Final = 2


def parallel(schedule: d.Schedule, facts: Facts) -> Iterator[tuple[d.Schedule, d.Parallel]]:
    """`forall i -> parallel forall i dynamic by positions of A`: threads share the outermost loop.

    The operand with the most entries whose outermost level is the loop's balances the threads. No other decision
    depends on threads: every schedule is estimated with them.
    """
    if any(isinstance(part, d.Parallel) for part in schedule.directives):
        return
    first = path(schedule, facts, 0)
    if not first or is_lane(schedule, first[0]):
        return
    rows = [name for name in facts.plain.inputs if _begins(facts, name, root(schedule, first[0]))]
    by = max(rows, key=lambda name: facts.pricing.sizes.stored.get(name, 0), default="")
    if by:
        # The appended parts of all threads but the first are moved at the end.
        kept = [part for part in schedule.directives if isinstance(part, d.Precompute)]
        has_rows = any(part.listed or part.marked for part in kept)
        is_appended = not has_rows and any(facts.declared[n].is_assembled for n in facts.plain.outputs)
        found = d.Parallel(first[0], "balanced" if is_appended else "dynamic", by)
        yield extended(schedule, found), found
    found = d.Parallel(first[0])
    yield extended(schedule, found), found


def _begins(facts: Facts, name: str, index: str) -> bool:
    """Whether the outermost level of a sparse operand is full and over an index variable."""
    declared = facts.declared[name]
    reads = [access for access in find(facts.plain.body, Access) if access.tensor == name]
    if declared.format.is_dense or not reads or not declared.format.levels[0].level.is_full:
        return False
    return all(index_names(a)[declared.format.levels[0].expression.mode] == index for a in reads)


def prefetch(schedule: d.Schedule, facts: Facts) -> Iterator[d.Schedule]:
    """`prefetch X 16`: rows gathered at stored coordinates from a table larger than the caches near a core.

    Rows of a sparse operand, gathered by a sum over entries of another one, are asked for two rows ahead.
    """
    asked = {part.tensor for part in schedule.directives if isinstance(part, d.Prefetch)}
    for name in facts.plain.inputs:
        if name not in asked and _is_scattered(facts, name):
            yield extended(schedule, d.Prefetch(name, ROWS_AHEAD))
    stored, item = facts.stored, facts.pricing.item_bytes
    for access in find(facts.plain.body, Access):
        declared = facts.declared.get(access.tensor)
        if (
            declared is None
            or access.tensor in asked
            or not declared.format.is_dense
            or len(access.indices) < 2
        ):
            continue
        *rows, column = index_names(access)
        width = facts.extents.get(column, 0) * item
        if not rows or rows[-1] not in stored or column in stored or width < LEAST_BYTES:
            continue
        if facts.pricing.sizes.is_far(rows[-1], column, item, _coordinates(facts, rows[-1])):
            asked.add(access.tensor)
            yield extended(schedule, d.Prefetch(access.tensor, max(1, AHEAD_BYTES // min(width, TILE_BYTES))))


def _is_scattered(facts: Facts, name: str) -> bool:
    """Whether rows of a sparse operand are gathered by a sum and scattered into a result of unknown pattern."""
    declared = facts.declared[name]
    reads = [access for access in find(facts.plain.body, Access) if access.tensor == name]
    levels = declared.format.levels
    if declared.format.is_dense or len(levels) != 2 or not levels[0].level.is_full or len(reads) != 1:
        return False
    row = index_names(reads[0])[levels[0].expression.mode]
    results = [chain.assign.target for chain in facts.chains if chain.assign is not None]
    is_summed = all(row not in index_names(target) for target in results)
    return is_summed and any(is_assembled(chain, facts) for chain in facts.chains)


def _coordinates(facts: Facts, index: str) -> Declaration | None:
    """The only sparse operand with an index variable at its last level; `None` for several."""
    found = {
        access.tensor
        for access in find(facts.plain.body, Access)
        if (declared := facts.declared.get(access.tensor)) is not None and not declared.format.is_dense
        if index_names(access)[declared.format.levels[-1].expression.mode] == index
    }
    return facts.declared[found.pop()] if len(found) == 1 else None
