"""Rows of the right operand with the columns of the previous row: marked once.

In: rows j - 1 and j of B in `Y[i,k] += A[i,j] * B[j,k]`, with equal columns, and A has both in row i.
Out: the marks of row j are left out, only the sums are made. Unknowns of one node of a mesh have equal columns.
"""

from __future__ import annotations

from collections.abc import Callable

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, both, compare, convert, integer, minus, plus
from sparsify.compiler.loops.lower.assembly import COUNT, FILL, VALUES
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.levels.places import is_located
from sparsify.compiler.notation import nodes as notation

FLAG = loops.Type("int8")


def once(
    context: Context,
    loop: notation.Forall,
    access: Access,
    env: Environment,
    made: Lowered,
    values: Callable[[], Lowered],
) -> Lowered:
    """The loop `made` marks the columns of a row of `access`; skipped for rows already marked.

    Args:
        values: lowers the loop without marks.
    """
    assembly = context.assembly
    if assembly is None or assembly.phase not in (COUNT, FILL) or not made:
        return made
    is_marked = _is_marked(context, loop, access, env)
    if is_marked is None:
        return made
    context.repeating.add(access.tensor)
    if assembly.phase == COUNT:
        return [loops.If(loops.Op("logical_not", (is_marked,), loops.BOOL), loops.Block(tuple(made)))]
    assembly.phase = VALUES
    sums = values()
    assembly.phase = FILL
    return [loops.If(is_marked, loops.Block(tuple(sums)), loops.Block(tuple(made)))]


def _is_marked(
    context: Context, loop: notation.Forall, access: Access, env: Environment
) -> loops.Expr | None:
    """`again[j] and pA > begin and crd[pA - 1] == j - 1`; `None` if more than the rows of one operand matters.

    Only `A[i,j]` determines the visited rows, and only the row determines the marked columns.
    """
    target = loop.body.target if isinstance(loop.body, Assign) else None
    if target is None or target.tensor not in context.marked or target.indices != (Index(loop.index),):
        return None
    reads = {context.root_of(n) for n in find(context.program.body, Access)}
    stored = [
        read
        for read in reads
        if read.tensor in context.program.inputs and not context.declaration(read.tensor).format.is_dense
    ]
    left = next((read for read in stored if read != access), None)
    if len(stored) != 2 or left is None or left not in env.places or env.lane is not None:
        return None
    if not all(isinstance(index, Index) for read in stored for index in read.indices):
        return None
    levels, above = (
        context.levels(access.tensor),
        context.levels(left.tensor),
    )
    if len(levels) != 2 or not is_located(levels[0]) or set(levels[1].level.arrays) != {"pos", "crd"}:
        return None
    row = access.indices[levels[0].expression.mode]
    if set(above[-1].level.arrays) != {"pos", "crd"} or left.indices[above[-1].expression.mode] != row:
        return None
    place = env.places[left]
    if place.levels != len(above) or place.segment is None or not place.position.is_uniform:
        return None
    coordinate, position = env.coordinates[row.name].start, place.position.start  # type: ignore[attr-defined]
    crd = f"{left.tensor}{len(above)}_crd"
    before = convert(loops.Load(crd, minus(position, ONE), loops.Type(context.index_dtype(crd))), "int64")
    flag = loops.Load(_flags(access.tensor), coordinate, FLAG)
    follows = both(compare("gt", position, place.segment), compare("eq", before, minus(coordinate, ONE)))
    return both(compare("ne", flag, loops.Literal(0, FLAG)), follows)


def flags(context: Context) -> Lowered:
    """For each row of the operands with rows marked once: whether the columns equal the columns of the previous row."""
    return [stmt for tensor in sorted(context.repeating) for stmt in _flagged(context, tensor)]


def _flagged(context: Context, tensor: str) -> Lowered:
    pos, crd = f"{tensor}2_pos", f"{tensor}2_crd"
    rows = context.level_extent(tensor, context.levels(tensor)[0])
    row, place, shift = (context.fresh_int(f"{tensor}_{name}") for name in ("row", "at", "shift"))
    end = context.fresh_int(f"{tensor}_after")

    def read(buffer: str, index: loops.Expr) -> loops.Expr:
        return convert(loops.Load(buffer, index, loops.Type(context.index_dtype(buffer))), "int64")

    same = compare("eq", read(crd, place), read(crd, minus(place, shift)))
    is_long = compare("eq", minus(end, place), shift)
    found = loops.Op("eq", (place, end), loops.BOOL)
    body = (
        loops.Declare(place, read(pos, row), True),
        loops.Declare(end, read(pos, plus(row, ONE))),
        loops.Declare(shift, minus(place, read(pos, minus(row, ONE)))),
        loops.If(
            is_long,
            loops.Block(
                (
                    loops.While(both(compare("lt", place, end), same), loops.Set(place, plus(place, ONE))),
                    loops.If(found, loops.Store(_flags(tensor), row, loops.Literal(1, FLAG))),
                )
            ),
        ),
    )
    return [
        loops.Comment(f"rows of {tensor} with the columns of the row before"),
        loops.Allocate(_flags(tensor), "int8", rows, 0),
        loops.For(row, integer(1), rows, loops.Block(body)),
    ]


def _flags(tensor: str) -> str:
    return f"{tensor}_again"
