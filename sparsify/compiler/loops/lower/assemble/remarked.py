"""Rows of the right operand with the columns of the previous row: marked once.

In: rows j - 1 and j of B in `Y[i,k] += A[i,j] * B[j,k]`, with equal columns, and A has both in row i.
Out: the marks of row j are left out, only the sums are made. Unknowns of one node of a mesh have equal columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, both, compare, convert, integer, minus, plus
from sparsify.compiler.loops.lower.assemble import bitset_workspace
from sparsify.compiler.loops.lower.environment import Environment
from sparsify.compiler.loops.lower.level_access import is_located, level_extent
from sparsify.compiler.notation import nodes as notation

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]
FLAG = loops.Type("int8")


def once(
    low: Lowering,
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
    assembly = low.assembly
    if assembly is None or assembly.phase not in (bitset_workspace.COUNT, bitset_workspace.FILL) or not made:
        return made
    is_marked = _is_marked(low, loop, access, env)
    if is_marked is None:
        return made
    low.repeating.add(access.tensor)
    if assembly.phase == bitset_workspace.COUNT:
        return [loops.If(loops.Op("logical_not", (is_marked,), loops.BOOL), loops.Block(tuple(made)))]
    assembly.phase = bitset_workspace.VALUES
    sums = values()
    assembly.phase = bitset_workspace.FILL
    return [loops.If(is_marked, loops.Block(tuple(sums)), loops.Block(tuple(made)))]


def _is_marked(low: Lowering, loop: notation.Forall, access: Access, env: Environment) -> loops.Expr | None:
    """`again[j] and pA > begin and crd[pA - 1] == j - 1`; `None` if more than the rows of one operand matters.

    Only `A[i,j]` determines the visited rows, and only the row determines the marked columns.
    """
    target = loop.body.target if isinstance(loop.body, Assign) else None
    if target is None or target.tensor not in low.marked or target.indices != (Index(loop.index),):
        return None
    reads = {low.root_of(n) for n in find(low.program.body, Access)}
    stored = [
        read
        for read in reads
        if read.tensor in low.program.inputs and not low.declaration(read.tensor).format.is_dense
    ]
    left = next((read for read in stored if read != access), None)
    if len(stored) != 2 or left is None or left not in env.places or env.lane is not None:
        return None
    if not all(isinstance(index, Index) for read in stored for index in read.indices):
        return None
    levels, above = low.declaration(access.tensor).format.levels, low.declaration(left.tensor).format.levels
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
    before = convert(loops.Load(crd, minus(position, ONE), loops.Type(low.index_dtype(crd))), "int64")
    flag = loops.Load(_flags(access.tensor), coordinate, FLAG)
    follows = both(compare("gt", position, place.segment), compare("eq", before, minus(coordinate, ONE)))
    return both(compare("ne", flag, loops.Literal(0, FLAG)), follows)


def flags(low: Lowering) -> Lowered:
    """For each row of the operands with rows marked once: whether the columns equal the columns of the previous row."""
    return [stmt for tensor in sorted(low.repeating) for stmt in _flagged(low, tensor)]


def _flagged(low: Lowering, tensor: str) -> Lowered:
    pos, crd = f"{tensor}2_pos", f"{tensor}2_crd"
    rows = level_extent(low, tensor, low.declaration(tensor).format.levels[0])
    row, place, shift = (
        loops.Var(low.fresh(f"{tensor}_{name}"), loops.INT) for name in ("row", "at", "shift")
    )
    end = loops.Var(low.fresh(f"{tensor}_after"), loops.INT)

    def read(buffer: str, index: loops.Expr) -> loops.Expr:
        return convert(loops.Load(buffer, index, loops.Type(low.index_dtype(buffer))), "int64")

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
