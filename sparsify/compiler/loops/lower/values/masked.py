"""Values under masks: expressions with entries that lie inside of their tensors in some lanes.

In: `x[k+r-1]` with `k` in the lanes, masked. Out: `where(first <= lane < end, x_0 at clamped coordinates, 0)`.
"""

from __future__ import annotations

from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access, Expr
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    constant,
    convert,
    integer,
    larger,
    minus,
    plus,
    quotient,
    smaller,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment
from sparsify.compiler.loops.lower.lattice import prune
from sparsify.compiler.loops.lower.levels.places import numerator
from sparsify.compiler.loops.lower.values.expression import evaluate, widen


def evaluate_masked(context: Context, value: Expr, env: Environment, dtype: str) -> loops.Expr:
    """The value of an expression, with entries masked by lane to the bounds of their tensors."""
    for access in find(value, Access):
        root = context.root_of(access)
        modes = [mode for found, mode in env.masked if found == root]
        if not modes or env.lane is None or root in env.absent:
            continue
        masks = [_mask(context, root, mode, env, dtype) for mode in sorted(modes)]
        known = replace(env, masked=frozenset(m for m in env.masked if m[0] != root))
        lanes = env.lane.lanes
        kind = loops.Type("bool", lanes)
        mask = masks[0]
        for other in masks[1:]:
            mask = loops.Op("logical_and", (mask, other), kind)
        clamped = replace(known, clamped=env.clamped | {(root, mode) for mode in modes})
        there = widen(evaluate_masked(context, value, clamped, dtype), lanes)
        gone = known.without(frozenset({root}))
        absent = widen(evaluate_masked(context, prune(value, gone.absent, context), gone, dtype), lanes)
        return loops.Op("where", (mask, there, absent), loops.Type(dtype, lanes))
    return evaluate(context, value, env, dtype)


def _mask(context: Context, access: Access, mode: int, env: Environment, dtype: str) -> loops.Expr:
    """Mask of lanes inside: from the first to the last lane with a coordinate of the mode."""
    assert env.lane is not None, "masks are of lanes"
    at = numerator(context, access, mode, env)
    assert at is not None, "windows are masked when their coordinates are known"
    extent = context.extent(context.declaration(access.tensor).extents[mode])
    lanes, step = env.lane.lanes, constant(at.step) or 1
    size = integer(abs(step))
    below, above = at.start, minus(extent, at.start)
    if step < 0:
        below, above = minus(extent, plus(at.start, ONE)), plus(at.start, ONE)
    up = integer(abs(step) - 1)
    first = quotient(plus(larger(minus(ZERO, below), ZERO), up), size)
    end = quotient(plus(larger(above, ZERO), up), size)
    kind = loops.Type("int64" if BYTES[dtype] == 8 else "int32", lanes)
    number = loops.Lanes(loops.Literal(0, loops.Type(kind.dtype)), kind)

    def bound(value: loops.Expr) -> loops.Expr:
        return loops.Broadcast(convert(smaller(value, integer(lanes)), kind.dtype), kind)

    truth = loops.Type("bool", lanes)
    inside = (
        loops.Op("ge", (number, bound(first)), truth),
        loops.Op("lt", (number, bound(end)), truth),
    )
    return loops.Op("logical_and", inside, truth)
