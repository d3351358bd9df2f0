"""Bodies of loops: at a value of the loop variable, or at a stored coordinate that may begin a block.

In: `forall j: y[i] += A[i,j] * x[j]` at `j = A2_crd[p]`. Out: the statements of the body, wrapped by a growing result.
"""

from __future__ import annotations

from collections.abc import Callable

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, compare, integer
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Lowered, Range, scalar
from sparsify.compiler.loops.lower.iterate.bind import bind
from sparsify.compiler.loops.lower.iterate.blocks import enter_block, padded_split
from sparsify.compiler.loops.lower.iterate.unroll import is_written_out
from sparsify.compiler.loops.lower.levels.search import located
from sparsify.compiler.loops.lower.rows.around import around
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def lower_body(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """The body of `loop` at one value of its variable, wrapped in the code of a growing result."""
    return around(context, loop, located(context, loop.body, env), env)


def bound_body(context: Context, loop: notation.Forall, value: Coordinate, env: Environment) -> Lowered:
    """The body of `loop` after its variable is set to `value`."""
    bound, inner = bind(context, loop.index, value, loop.body, env)
    body = lower_body(context, loop, inner)
    return [*bound, *body] if body else []


def body_at(
    context: Context,
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
        body = lower_body(context, loop, inner)
        padded = padded_split(context, loop.index)
        if body and padded is not None:
            if padded.index not in inner.coordinates:
                raise ScheduleError(
                    f"{padded.inner} is stored within a block, and the loop over {padded.outer} is not around it",
                    f"leave the loop over {padded.outer} whole",
                )
            is_inside = compare("lt", inner.coordinates[padded.index].start, context.bound(padded.index))
            body = [loops.If(is_inside, loops.Block(tuple(body)))]
        return [*ahead(inner), *bound, *body] if body else []

    split = context.split_by_outer.get(loop.index)
    if split is None or split in context.blocks or not is_written_out(context, loop, split.inner):
        return inside(*bind(context, loop.index, scalar(value), loop.body, env))
    env, left = enter_block(context, split, scalar(value), env)
    size = integer(split.size)
    whole = inside([], env.with_range(split.inner, Range(ZERO, size, split.size, True)))
    cut = inside([], env.with_range(split.inner, Range(ZERO, left, split.size)))
    if not whole:
        return []
    return [loops.If(compare("ge", left, size), loops.Block(tuple(whole)), loops.Block(tuple(cut)))]
