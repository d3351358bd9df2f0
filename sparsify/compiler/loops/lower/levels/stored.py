"""Stored coordinates: the operands that drive a loop, and the positions of their current levels.

In: `forall j: y[i] += A[i,j] * x[j]`, A compressed by row, `i` entered. Out: the driver `A[i,j]`, at positions
`A2_pos[i] .. A2_pos[i + 1]`.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops.arithmetic import integer, plus
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Place, Range
from sparsify.compiler.loops.lower.lattice import prune
from sparsify.compiler.loops.lower.levels import hash_table
from sparsify.compiler.loops.lower.levels.places import first_below, is_located, next_variable, place_of
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def drivers(context: Context, loop: notation.Forall, env: Environment) -> list[Access]:
    """The accesses in the loop with stored coordinates of the loop variable in the next level."""
    found: dict[Access, None] = {}
    for access in stored_accesses(context, loop.body, env):
        place = place_of(context, access, env)
        levels = context.levels(access.tensor)
        if place.levels == len(levels) or is_located(levels[place.levels]):
            continue
        if next_variable(context, access, levels[place.levels], env) == loop.index:
            found[access] = None
    return hash_table.iterated(context, list(found), accesses_read(context, loop.body, env), env)


def stored_accesses(context: Context, node: Node, env: Environment) -> list[Access]:
    """The accesses to operands with separate patterns, also if shared, possibly stored at this point.

    A window without values depending on it is excluded: its bounds have not been checked.
    """
    read = {context.root_of(access) for access in accesses_read(context, node, env)}
    targets = {n.target.tensor for n in find(node, Assign)}
    roots = (context.root_of(n) for n in find(node, Access))
    return [
        root
        for root in dict.fromkeys(roots)
        if root.tensor in context.declarations
        and root.tensor not in targets
        and not context.declaration(root.tensor).format.is_dense
        and root not in env.absent
        and (root in read or all(isinstance(index, Index) for index in root.indices))
    ]


def level_range(context: Context, access: Access, place: Place, *, in_lanes: bool = False) -> Range:
    """The positions of the current level of `access`; for differing parents, of the parent in the first lane."""
    if not (place.position.is_uniform or in_lanes):
        raise ScheduleError(
            f"the lanes of a vector loop reach different rows of {access}", "vector an inner loop"
        )
    if place.part is not None:
        return place.part
    start = place.position.start
    stride = context.levels(access.tensor)[place.levels].level.stride
    after = plus(start, integer(stride)) if place.segment_end is None else place.segment_end
    begin, end = (first_below(context, access, place.levels, parent) for parent in (start, after))
    return Range(begin, end)


def note_skipping(context: Context, body: Node, found: list[Access]) -> None:
    """Marks results of a loop over `found` as prefilled, except results on the pattern of `found`.

    Loops leave out the padding of blocks and empty slots, so these have to be prefilled.
    """
    context.prefilled.update(
        n.target.tensor
        for n in find(body, Assign)
        if n.monoid is None
        and not (
            (root := context.root_of(n.target)) in found
            and not context.declaration(root.tensor).format.has_empty_slots
            and all(map(context.is_whole, context.blocks))
        )
    )


def repeats(context: Context, access: Access, level: int) -> bool:
    """Whether a level stores a coordinate once for each entry below, as all levels of COO but the last."""
    levels = [stored.level for stored in context.levels(access.tensor)]
    if level + 1 == len(levels) or not levels[level + 1].is_branchless:
        return False
    return levels[level].is_branchless or not levels[level].is_unique


def accesses_read(context: Context, node: Node, env: Environment) -> tuple[Access, ...]:
    """The accesses that affect the values of a statement, given the absent ones."""
    key = id(node), env.absent
    if key not in context.read:
        context.read[key] = node, _accesses_read(context, node, env)
    return context.read[key][1]


def _accesses_read(context: Context, node: Node, env: Environment) -> tuple[Access, ...]:
    values = [prune(n.value, env.absent, context) for n in find(node, Assign)]
    conditions = [n.condition for n in find(node, notation.If)]
    return tuple(dict.fromkeys(n for value in (*values, *conditions) for n in find(value, Access)))
