"""Places in temporaries: the element of an access in memory, and the room for whole vectors.

In: `S[i,j]` in `thread pattern of M[i,j]`, at position `pM2` of a segment starting at `begin`. Out: `pM2 - begin`.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Access, Const, Expr, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, minus, plus
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, LaneContext, scalar
from sparsify.compiler.loops.lower.levels.places import first_below, is_located, place_of
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError


def has_room(context: Context, name: str, index: str, lanes: int) -> bool:
    """Whether strips of `lanes` iterations along mode `index` of a temporary stay in bounds, in cut tiles too."""
    temporary, split = context.memory.get(name), context.split_by_inner.get(index)
    if (
        temporary is None
        or split is None
        or temporary.pattern_of is not None
        or index not in temporary.indices
    ):
        return False
    return all(size % lanes == 0 for size in (split.size, *split.tail))


def is_strip(temporary: notation.Temporary) -> bool:
    """Whether a temporary has exactly the stored positions of one segment.

    Behind the positions, memory for a whole vector is reserved, see `ends_a_strip`.
    """
    return temporary.pattern_of is not None and len(temporary.indices) == 1 and not is_whole(temporary)


def ends_a_strip(context: Context, name: str, lane: LaneContext) -> bool:
    """Whether a partly used vector is the last one of a strip, with no vector behind.

    A processor forwards stores to later loads, but not masked stores: the last vector is therefore
    stored without a mask. Tiles other than one vector, or a part of whole vectors, are cut at other places, too.
    """
    temporary, index = context.memory.get(name), lane.index
    if temporary is None or not is_strip(temporary) or lane.bits is not None:
        return False
    while (split := context.split_by_inner.get(index)) is not None:
        sizes = (split.size, *split.tail)
        is_cut = index == lane.index and sizes[-1] != lane.lanes
        if is_cut or any(size % lane.lanes for size in sizes):
            return False
        index = split.index
    return True


def position(context: Context, temporary: notation.Temporary, access: Access, env: Environment) -> Coordinate:
    """The position of an entry in a temporary in memory: the modes linearized in storage order."""
    is_by_positions = temporary.pattern_of is not None and is_whole(temporary)
    for index in access.indices:
        if not isinstance(index, Index | Const) or (isinstance(index, Const) and not is_by_positions):
            raise UnsupportedProgramError(f"{access} has the index {index}", "plain index variables")
    names = [index.name for index in access.indices if isinstance(index, Index)]
    for name in names:
        if name not in env.coordinates and temporary.pattern_of is None:
            raise ScheduleError(
                f"{access} is read or written where {name} is not known", "order its loops outermost first"
            )
    result = scalar(ZERO)
    if is_by_positions:
        return _whole_position(context, temporary, access, env)
    for mode in temporary.layout or range(len(temporary.indices)):
        own = temporary.indices[mode]
        if temporary.pattern_of is None:
            result = result.times(context.bound(own)).plus(env.coordinates[names[mode]])
        else:
            place = _strip_place(context, temporary, own, names[mode], env)
            result = result.times(strip_bound(context, temporary, own)).plus(place)
    return result


def _whole_position(
    context: Context, temporary: notation.Temporary, access: Access, env: Environment
) -> Coordinate:
    """The position of an entry in a temporary with all positions of its pattern.

    `S[h,i,j]` by positions of `M[i,j]` stores the entries of one `h` contiguously, `H[t,e,h]` by positions of `G[t,e]`
    the row over `h` of each position; `Z[t,e,1,h]` is a part of the row.
    """
    last = max(map(temporary.indices.index, temporary.pattern_indices), default=-1)
    result = scalar(ZERO)
    for mode, (index, own) in enumerate(zip(access.indices, temporary.indices, strict=True)):
        if own not in temporary.pattern_indices:
            at = env.coordinates[index.name] if isinstance(index, Index) else _constant(index)
            result = result.times(context.bound(own)).plus(at)
        elif mode == last:
            stored = loops.Var(f"{temporary.pattern_of}_nnz", loops.INT)
            result = result.times(stored).plus(_stored_position(context, access, env))
    return result


def _constant(index: Expr) -> Coordinate:
    """The coordinate of a constant index."""
    assert isinstance(index, Const), "indices are variables or numbers here"
    return scalar(loops.Literal(int(index.value), loops.INT))


def is_whole(temporary: notation.Temporary) -> bool:
    """Whether a temporary has all positions of its pattern, not only the positions below outer loops."""
    return set(temporary.pattern_indices) <= set(temporary.indices)


def _stored_position(context: Context, access: Access, env: Environment) -> Coordinate:
    """The position of an entry among all stored entries of the shared pattern."""
    root = context.root_of(access)
    place = place_of(context, root, env)
    levels = context.levels(root.tensor)
    if place.levels < len(levels):
        stuck = context.level_variable(root, levels[place.levels])
        raise DiscordantError(f"{access} by positions of {root}", f"the loop order that reaches {stuck} last")
    return place.position


def _strip_level(context: Context, temporary: notation.Temporary, index: str) -> int | None:
    """The compressed level of the pattern with the coordinates of `index`, `None` for a dense mode.

    An index of positions with coordinates in several levels is fused from their indices: the first one is compressed.
    """
    root = Access(temporary.pattern_of or "", tuple(Index(name) for name in temporary.pattern_indices))
    levels = list(enumerate(context.levels(root.tensor)))
    stored = {context.level_variable(root, s): number for number, s in levels if not is_located(s)}
    first = {name: context.parts(name)[0] for name in temporary.indices}
    inside = [part for part in first.values() if part in stored]
    if len(inside) > 1 or any(levels[stored[name]][1].level.is_branchless for name in inside):
        raise ScheduleError(
            f"{temporary} has positions of several levels of {root}", "precompute it further inside"
        )
    return stored.get(first[index])


def strip_bound(context: Context, temporary: notation.Temporary, index: str) -> loops.Expr:
    """The number of places of `index` in a strip: the length of the longest segment, or the number of coordinates."""
    level = _strip_level(context, temporary, index)
    return (
        context.bound(index) if level is None else longest_segment(context, temporary.pattern_of or "", level)
    )


def _strip_place(
    context: Context, temporary: notation.Temporary, own: str, index: str, env: Environment
) -> Coordinate:
    """The place along one mode of a strip; a compressed mode counts from the start of the segment."""
    if _strip_level(context, temporary, own) is None:
        return env.coordinates[index]
    root = Access(temporary.pattern_of or "", tuple(Index(name) for name in temporary.pattern_indices))
    place = env.places.get(root)
    if place is None or place.segment is None or place.position.vector is not None:
        raise ScheduleError(
            f"{temporary} is used where no loop is at a position of {root}", "order the loops"
        )
    return Coordinate(minus(place.position.start, place.segment), place.position.step)


def longest_segment(context: Context, tensor: str, level: int) -> loops.Expr:
    """The number of positions in the longest segment of a compressed level, computed at kernel start."""
    longest = loops.Var(f"{tensor}{level + 1}_longest", loops.INT)
    if longest.name in context.longest:
        return longest
    context.names.taken.add(longest.name)
    context.longest.add(longest.name)
    parents = _parents(context, tensor, level)
    parent = context.fresh_int(f"{tensor}{level + 1}_segment")
    access = Access(tensor)
    ends = [first_below(context, access, level, p) for p in (plus(parent, ONE), parent)]
    length = minus(*ends)
    found = context.fresh_int(f"{longest.name}_found")
    larger = loops.Set(found, loops.Op("max", (found, length), loops.INT))
    context.setups[0] += [
        loops.Declare(found, ZERO, True),
        loops.For(parent, ZERO, parents, loops.Block((larger,))),
        loops.Declare(longest, found),
    ]
    return longest


def _parents(context: Context, tensor: str, level: int) -> loops.Expr:
    """The number of positions of the level above."""
    count: loops.Expr = ONE
    for number in range(level):
        count = first_below(context, Access(tensor), number, count)
    return count
