"""Prefetching of gathered operands some positions ahead in a loop over stored positions.

In: `prefetch T 16` in the loop over `j` of `A`. Out: `prefetch T_vals[A2_crd[min(p + 16, A_nnz - 1)] * k_extent + k0]`.
For a compressed row, the starts of its coordinates and of its values are prefetched.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, integer, minus, plus, smaller
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, scalar
from sparsify.compiler.loops.lower.levels.places import first_below, place_of

LINE_BYTES = 64
# Below this size, waiting for a row is cheaper than prefetching.
SHORT_BYTES = 128
# Prefetched lines of a compressed row: the hardware prefetcher finds the following ones.
ROW_LINES = 2


def prefetches(
    context: Context,
    driver: Access,
    level: int,
    position: loops.Expr,
    index: str,
    body: Node,
    env: Environment,
) -> list[loops.Stmt]:
    """The prefetches of one iteration at `position` of `level`; none if the positions ahead are unknown."""
    levels = context.levels(driver.tensor)
    wanted = [a for a in _gathered(body, index) if a.tensor in context.prefetches]
    if not wanted or level + 1 != len(levels) or "crd" not in levels[level].level.arrays:
        return []
    lowered: list[loops.Stmt] = []
    for access in dict.fromkeys(wanted):
        last = minus(loops.Var(f"{driver.tensor}_nnz", loops.INT), ONE)
        ahead = smaller(plus(position, integer(context.prefetches[access.tensor])), last)
        buffer = f"{driver.tensor}{level + 1}_crd"
        coordinate = context.fresh_int(f"{index}_ahead")
        stored: loops.Expr = loops.Load(buffer, ahead, loops.Type(context.index_dtype(buffer)))
        if context.index_dtype(buffer) != "int64":
            stored = loops.Convert(stored, loops.INT)
        lines = _lines(context, access, env.with_coordinate(index, scalar(coordinate)))
        if lines:
            lowered += [loops.Declare(coordinate, stored), *lines]
    return lowered


def _gathered(body: Node, index: str) -> list[Access]:
    """The accesses addressed by `index`."""
    return [n for n in find(body, Access) if Index(index) in n.indices]


def _lines(context: Context, access: Access, env: Environment) -> list[loops.Stmt]:
    """One prefetch for each cache line of the tile, or at the start of the row, read by `access`."""
    declared = context.declarations.get(access.tensor)
    if declared is not None and not declared.format.is_dense:
        return _row(context, access, env)
    inner = [i.name for i in access.indices if isinstance(i, Index) and i.name not in env.coordinates]
    reach = 1
    inside = any(isinstance(i, Index) and _is_inside(context, i.name, env) for i in access.indices)
    for name in inner:
        split = context.splits.get(name)
        whole = context.constant_extent(name)
        is_walked = split is not None and split.index in env.bases
        if whole is not None and not is_walked:  # read whole inside, with or without a split loop
            reach *= whole
            env = env.with_coordinate(name, scalar(ZERO))
            continue
        if split is None or split.index not in env.bases:
            return []
        known = env.ranges.get(split.inner)
        bound = known.bound if known is not None else None
        reach *= split.size if bound is None else bound
        env = env.with_coordinate(name, scalar(env.bases[name]))
    if reach * context.item_bytes(access.tensor) < (LINE_BYTES if inside else SHORT_BYTES):
        return []
    place = place_of(context, access, env)
    step = LINE_BYTES // context.item_bytes(access.tensor)
    start = place.position.start
    return [
        loops.Prefetch(f"{access.tensor}_vals", plus(start, integer(offset)))
        for offset in range(0, reach, step)
    ]


def _row(context: Context, access: Access, env: Environment) -> list[loops.Stmt]:
    """Prefetches of the first lines of a compressed row, if only the coordinates of the row are unknown."""
    place = place_of(context, access, env)
    levels = context.levels(access.tensor)
    if place.levels + 1 != len(levels) or set(levels[-1].level.arrays) != {"pos", "crd"}:
        return []
    first = first_below(context, access, place.levels, place.position.start)
    needs_values = context.assembly is None or context.assembly.filling
    buffers = {
        f"{access.tensor}{len(levels)}_crd": BYTES[context.index_dtype(f"{access.tensor}{len(levels)}_crd")]
    }
    if needs_values:
        buffers[f"{access.tensor}_vals"] = context.item_bytes(access.tensor)
    start = context.fresh_int(f"{access.tensor}_ahead")
    lines = [
        loops.Prefetch(buffer, plus(start, integer(line * LINE_BYTES // size)))
        for buffer, size in buffers.items()
        for line in range(ROW_LINES)
    ]
    return [loops.Declare(start, first), *lines]


def _is_inside(context: Context, name: str, env: Environment) -> bool:
    """Whether tiles of `name` are traversed inside tiles of positions: each prefetches its part of a longer row."""
    order = list(env.bases)
    positions = [p for p in env.bases if p in context.positions]
    return name in order and bool(positions) and order.index(name) > order.index(positions[-1])
