"""Entering a stored coordinate: sets the index variable, and for a block the first coordinate and the end.

In: `jo` at `A2_crd[p]`, blocks of 4. Out: `j` begins at `4 * jo`, `ji` runs over 4 coordinates, fewer at the edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, compare, constant, integer, larger, minus, smaller, times
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Range, scalar
from sparsify.compiler.loops.lower.iterate import ranges
from sparsify.compiler.loops.lower.iterate.unroll import is_written_out
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]


def at_block(
    low: Lowering, split: notation.Split, value: Coordinate, env: Environment, *, whole: bool = False
) -> Environment:
    """The environment in block `value` of a split: the tile starts there, cut at the edge unless `whole`."""
    reach = _tile_around(low, split, env)
    env, left = _enter_block(low, split, value, env)
    divides = _divides(low, split) if reach is None else reach.exact and (reach.bound or 1) % split.size == 0
    if whole or divides:
        return env.with_range(split.inner, Range(ZERO, integer(split.size), split.size, True))
    return env.with_range(split.inner, Range(ZERO, smaller(integer(split.size), left), split.size))


def _tile_around(low: Lowering, split: notation.Split, env: Environment) -> Range | None:
    """The iterations of a tile divided further by a split; `None` for a split of all coordinates."""
    return env.ranges.get(split.index) if split.index in low.split_by_inner else None


def _enter_block(
    low: Lowering, split: notation.Split, value: Coordinate, env: Environment
) -> tuple[Environment, loops.Expr]:
    """The environment in block `value`, and the number of remaining coordinates from the start of the block."""
    if split.inner in env.coordinates or split.inner in env.bases:
        raise ScheduleError(f"the loop over {split.inner} is around the one over {split.outer}", "order them")
    if not value.is_uniform:
        raise ScheduleError(
            f"the lanes of a vector loop reach different blocks of {split.index}", f"vector {split.inner}"
        )
    reach = _tile_around(low, split, env)
    if reach is not None and reach.begin != ZERO:
        raise ScheduleError(
            f"the loop over {split.index} begins in the middle of a tile, and {split.outer} counts from its start",
            f"no tail around {split.outer}",
        )
    base = times(value.start, integer(split.size))
    env = env.with_coordinate(split.outer, value).with_base(split.index, base)
    if reach is None:
        return env, minus(low.bound(split.index), base)
    # In a cut tile the block may not exist.
    return env, larger(minus(reach.end, base), ZERO)


def _divides(low: Lowering, split: notation.Split) -> bool:
    """Whether no block reaches over the edge, as far as known at compile time."""
    extent = constant(low.bound(split.index))
    return low.is_whole(split) or (extent is not None and extent % split.size == 0)


def padded_split(low: Lowering, index: str) -> notation.Split | None:
    """The split with `index` as the stored coordinate within a block, if coordinates may lie outside of the tensor."""
    split = low.split_by_inner.get(index)
    return split if split is not None and split in low.blocks and not _divides(low, split) else None


def body_at(
    low: Lowering,
    loop: notation.Forall,
    value: loops.Var,
    env: Environment,
    ahead: Callable[[Environment], Lowered] = lambda env: [],
) -> Lowered:
    """The body at a stored coordinate, preceded by `ahead`.

    The body of a block with an unrolled loop is lowered twice: for whole blocks, and for a block cut by the edge.
    For dense blocks the whole kernel is lowered twice.
    """

    def inside(bound: Lowered, inner: Environment) -> Lowered:
        body = low.body(loop, inner)
        padded = padded_split(low, loop.index)
        if body and padded is not None:
            if padded.index not in inner.coordinates:
                raise ScheduleError(
                    f"{padded.inner} is stored within a block, and the loop over {padded.outer} is not around it",
                    f"leave the loop over {padded.outer} whole",
                )
            is_inside = compare("lt", inner.coordinates[padded.index].start, low.bound(padded.index))
            body = [loops.If(is_inside, loops.Block(tuple(body)))]
        return [*ahead(inner), *bound, *body] if body else []

    split = low.split_by_outer.get(loop.index)
    if split is None or split in low.blocks or not is_written_out(low, loop, split.inner):
        return inside(*ranges.bind(low, loop.index, scalar(value), loop.body, env))
    env, left = _enter_block(low, split, scalar(value), env)
    size = integer(split.size)
    whole = inside([], env.with_range(split.inner, Range(ZERO, size, split.size, True)))
    cut = inside([], env.with_range(split.inner, Range(ZERO, left, split.size)))
    if not whole:
        return []
    return [loops.If(compare("ge", left, size), loops.Block(tuple(whole)), loops.Block(tuple(cut)))]
