"""Blocks of a split: the first coordinate of a block, its end, and padding behind the edge.

In: `jo` at `A2_crd[p]`, blocks of 4. Out: `j` begins at `4 * jo`, `ji` runs over 4 coordinates, fewer at the edge.
"""

from __future__ import annotations

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, constant, integer, larger, minus, smaller, times
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Range
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def at_block(
    context: Context, split: notation.Split, value: Coordinate, env: Environment, *, whole: bool = False
) -> Environment:
    """The environment in block `value` of a split: the tile starts there, cut at the edge unless `whole`."""
    reach = _tile_around(context, split, env)
    env, left = enter_block(context, split, value, env)
    divides = (
        _divides(context, split) if reach is None else reach.exact and (reach.bound or 1) % split.size == 0
    )
    if whole or divides:
        return env.with_range(split.inner, Range(ZERO, integer(split.size), split.size, True))
    return env.with_range(split.inner, Range(ZERO, smaller(integer(split.size), left), split.size))


def _tile_around(context: Context, split: notation.Split, env: Environment) -> Range | None:
    """The iterations of a tile divided further by a split; `None` for a split of all coordinates."""
    return env.ranges.get(split.index) if split.index in context.split_by_inner else None


def enter_block(
    context: Context, split: notation.Split, value: Coordinate, env: Environment
) -> tuple[Environment, loops.Expr]:
    """The environment in block `value`, and the number of remaining coordinates from the start of the block."""
    if split.inner in env.coordinates or split.inner in env.bases:
        raise ScheduleError(f"the loop over {split.inner} is around the one over {split.outer}", "order them")
    if not value.is_uniform:
        raise ScheduleError(
            f"the lanes of a vector loop reach different blocks of {split.index}", f"vector {split.inner}"
        )
    reach = _tile_around(context, split, env)
    if reach is not None and reach.begin != ZERO:
        raise ScheduleError(
            f"the loop over {split.index} begins in the middle of a tile, and {split.outer} counts from its start",
            f"no tail around {split.outer}",
        )
    base = times(value.start, integer(split.size))
    env = env.with_coordinate(split.outer, value).with_base(split.index, base)
    if reach is None:
        return env, minus(context.bound(split.index), base)
    # In a cut tile the block may not exist.
    return env, larger(minus(reach.end, base), ZERO)


def _divides(context: Context, split: notation.Split) -> bool:
    """Whether no block reaches over the edge, as far as known at compile time."""
    extent = constant(context.bound(split.index))
    return context.is_whole(split) or (extent is not None and extent % split.size == 0)


def padded_split(context: Context, index: str) -> notation.Split | None:
    """The split with `index` as the stored coordinate within a block, if coordinates may lie outside of the tensor."""
    split = context.split_by_inner.get(index)
    return split if split is not None and split in context.blocks and not _divides(context, split) else None
