"""Loops: the code of `forall index: body` by the kind of the loop and by the storage of its coordinates.

In: `forall j: y[i] += A[i,j] * x[j]`. Out: a loop over the stored coordinates of A; over
`0..j_extent` if A is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sparsify.compiler.loops.lower.assemble import (
    dropped,
    workspace,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.iterate import coordinates
from sparsify.compiler.loops.lower.iterate.parallel import parallel
from sparsify.compiler.loops.lower.iterate.ranges import serial, unrolled, vector
from sparsify.compiler.loops.lower.iterate.tiles import tiles
from sparsify.compiler.loops.lower.iterate.transpose import transposed
from sparsify.compiler.loops.lower.levels.stored import drivers
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

# Loops over all coordinates of a range, by the kind of the loop.
RANGES: Final[Mapping[type[notation.Kind], Callable[[Context, notation.Forall, Environment], Lowered]]] = {
    notation.Serial: serial,
    notation.Vector: vector,
    notation.Unrolled: unrolled,
    notation.Transposed: transposed,
}


def forall(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """The loop IR of `forall index: body`, by the kind of the loop and the storage of its coordinates."""
    if isinstance(loop.kind, notation.Parallel):
        return parallel(context, loop, env)
    if (entries := workspace.iterate(context, loop, env)) is not None:
        return entries
    if (row := dropped.row_of(context, loop)) is not None:
        return dropped.append(context, loop, row, env)
    if loop.index not in context.positions and (found := drivers(context, loop, env)):
        return coordinates.iterate(context, loop, found, env)
    split = context.split_by_outer.get(loop.index)
    if split is None:
        return RANGES[type(loop.kind)](context, loop, env)
    if not isinstance(loop.kind, notation.Serial):
        raise ScheduleError(
            f"{loop.index} runs over tiles, which are not written out", f"unroll or vector {split.inner}"
        )
    return tiles(context, split, loop, env)
