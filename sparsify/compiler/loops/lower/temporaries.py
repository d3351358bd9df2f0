"""Temporaries: registers, and memory that is dense or has a place for each stored position of an operand.

In: `let w[ki] in register`, `let S[iri,jo,ji] in thread pattern of M[i,j]`. Out: `w_0: float32x8 = 0`, and scratch
memory for as many positions as the longest segment of M has, where `jo` counts from the segment's beginning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Const, Expr, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, integer, minus, plus, product
from sparsify.compiler.loops.lower import hubs, marked, workspace
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, LaneContext, Register, scalar
from sparsify.compiler.loops.lower.levels import first_below, is_located, level_variable, place_of
from sparsify.compiler.node import Node, children, find
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.provenance import Provenance
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Start = float | int | bool | None


def let(low: Lowering, node: notation.Let, env: Environment) -> list[loops.Stmt]:
    """The temporaries, set to the identity where sums begin and to the fill where loops skip, then the body."""
    if _is_own(node, env):
        assert isinstance(node.body, notation.Sequence)
        made, *rest = node.body.statements
        own = (*env.own, notation.Let(node.temporaries, made))
        return low.statement(notation.Sequence(tuple(rest)), replace(env, own=own))
    declared: list[loops.Stmt] = []
    starts = {t.name: _identity(low, node, t) for t in node.temporaries}
    variables: dict[str, list[loops.Var]] = {}
    for temporary in node.temporaries:
        if temporary.scope == "register":
            registers, env = register(low, node, temporary, starts[temporary.name], env)
            declared += registers
            variables[temporary.name] = [each.var for each in registers]
        elif env.lane is not None:
            raise ScheduleError(
                f"{temporary} lies in the vector loop over {env.lane.index}, whose lanes would share it",
                f"precompute {temporary.name} at {env.lane.index} in register",
            )
        elif temporary.listed or temporary.marked:
            low.starts[temporary.name] = float(starts[temporary.name] or 0)
            low.read.clear()  # pruned with other values
            declared += (marked if temporary.marked else workspace).begin(low, temporary)
        else:
            _allocate(low, temporary)
    around = low.prefilled - set(starts)
    low.prefilled &= around
    body = low.statement(node.body, env) if env.hub is None else hubs.body(low, node, variables, env)
    fills: list[loops.Stmt] = []
    for temporary in node.temporaries:
        start = starts[temporary.name]
        if start is None and temporary.name in low.prefilled and temporary.pattern_of is None:
            start = low.fill_of(Access(temporary.name))
        if temporary.listed:
            body += workspace.end(low, temporary)
        elif start is not None and temporary.scope != "register" and not temporary.marked:
            value = loops.Literal(start, loops.Type(temporary.dtype))
            fills.append(loops.Fill(temporary.name, ZERO, _count(low, temporary), value))
    low.prefilled |= around
    return [*declared, *fills, *body]


def _is_own(node: notation.Let, env: Environment) -> bool:
    """Whether the threads of parallel loops have a temporary each, which the first statement computes."""
    names = {temporary.name for temporary in node.temporaries}
    if env.in_parallel or any(temporary.scope != "thread" for temporary in node.temporaries):
        return False
    if not isinstance(node.body, notation.Sequence):
        return False
    made, *rest = node.body.statements
    is_shared = any(isinstance(loop.kind, notation.Parallel) for loop in find(made, notation.Forall))
    written = {assign.target.tensor for assign in find(made, Assign)}
    changed = {assign.target.tensor for part in rest for assign in find(part, Assign)}
    if is_shared or written != names or changed & {access.tensor for access in find(made, Access)}:
        return False
    return all(_is_read_by_threads(part, names) for part in rest)


def _is_read_by_threads(node: Node, names: set[str]) -> bool:
    """Whether all that reads temporaries lies in parallel loops, whose threads compute whole iterations."""
    match node:
        case notation.Forall(kind=notation.Parallel(hubs=0)):
            return True
        case Access(tensor=tensor):
            return tensor not in names
    return all(_is_read_by_threads(child, names) for child in children(node))


def _identity(low: Lowering, node: notation.Let, temporary: notation.Temporary) -> Start:
    """The value that a temporary starts with: the identity when its first assignment is a sum."""
    for part in find(node.body, Assign):
        if part.target.tensor == temporary.name:
            return MONOIDS[part.monoid].identity(temporary.dtype) if part.monoid else None
    raise AssertionError(f"{temporary} is never assigned")


def register(
    low: Lowering, node: notation.Let, temporary: notation.Temporary, start: Start, env: Environment
) -> tuple[list[loops.Declare], Environment]:
    """One variable for each element of a temporary in registers."""
    lanes = low.lanes
    kinds = {index: _kinds(node, index) for index in temporary.indices}
    vectors = [i for i in temporary.indices if kinds[i] == {notation.Vector} or _is_table(node, i, kinds[i])]
    for index in temporary.indices:
        looping = kinds[index] & {notation.Serial, notation.Vector, notation.Parallel}
        if index not in vectors and looping and (lanes > 1 or notation.Serial in kinds[index]):
            raise ScheduleError(
                f"{temporary}: the loops over {index} are not all written out", f"unroll {index}"
            )
    if lanes == 1 or (not vectors and env.lane is None):
        vectors, width = [], 1
    elif len(vectors) > 1:
        raise ScheduleError(
            f"{temporary} has {' and '.join(vectors)} in its lanes", "vector only one of them"
        )
    else:
        width = lanes
    kind = loops.Type(temporary.dtype, width)
    lane = vectors[0] if vectors else None
    is_reduced = lane is not None and _is_reduced(low, node, temporary.name, lane)
    counts = {index: _static_bound(low, index, temporary, env) for index in temporary.indices}
    if lane is not None:
        counts[lane] = -(-counts[lane] // width)
    along = counts[lane] if lane is not None else 1
    register = Register(low.fresh(temporary.name), temporary.indices, lane, kind, is_reduced, along)
    names = [register.name]
    for index in temporary.indices:
        names = [f"{name}_{n}" for name in names for n in range(counts[index])]
    value = loops.Literal(low.fill_of(Access(temporary.name)) if start is None else start, kind)
    low.names.update(names)
    declared = [loops.Declare(loops.Var(name, kind), value, True) for name in names]
    return declared, replace(env, registers={**env.registers, temporary.name: register})


def _is_reduced(low: Lowering, node: notation.Let, name: str, lane: str) -> bool:
    """Whether an assignment reads all lanes of a temporary into an entry that has no index in the lanes."""
    provenance = Provenance(low.program.relations)
    for assign in find(node.body, Assign):
        if any(n.tensor == name for n in find(assign.value, Access)):
            written = {leaf for index in index_names(assign.target) for leaf in provenance.leaves(index)}
            if lane not in written:
                return True
    return False


def _is_table(node: Node, index: str, kinds: set[type[notation.Kind]]) -> bool:
    """Whether a temporary is written in vectors along `index`, and read at any of its coordinates in other lanes."""
    if kinds != {notation.Vector, notation.Serial}:
        return False
    around = [
        n for n in find(node, notation.Forall) if isinstance(n.kind, notation.Vector) and n.index != index
    ]
    loops_over = [n for n in find(node, notation.Forall) if n.index == index]
    within = {id(n) for outer in around for n in find(outer.body, notation.Forall)}
    return all(isinstance(n.kind, notation.Vector) or id(n) in within for n in loops_over)


def _kinds(node: Node, index: str) -> set[type[notation.Kind]]:
    """The kinds of the loops over `index` in `node`."""
    return {type(n.kind) for n in find(node, notation.Forall) if n.index == index}


def _static_bound(low: Lowering, index: str, temporary: notation.Temporary, env: Environment) -> int:
    """The constant that bounds the iterations of `index`."""
    known = env.ranges.get(index)
    bound = known.bound if known is not None else None
    if bound is None and index in low.split_by_inner:
        bound = low.split_by_inner[index].size
    if bound is None:
        bound = low.constant_extent(index)
    if bound is None:
        raise ScheduleError(
            f"{temporary} is in registers and {index} has no constant extent", f"split {index}"
        )
    return bound


def _allocate(low: Lowering, temporary: notation.Temporary) -> None:
    """Memory for a temporary, allocated once a thread where threads have their own, else once."""
    if temporary.name not in low.memory:
        low.memory[temporary.name] = temporary
        # Inside a parallel loop every temporary is private: its `let` runs once an iteration.
        count = _count(low, temporary)
        if is_strip(temporary):
            count = plus(count, integer(low.lanes - 1))
        low.setups[-1].append(loops.Allocate(temporary.name, temporary.dtype, count))


def _count(low: Lowering, temporary: notation.Temporary) -> loops.Expr:
    """How many elements a temporary in memory has."""
    if temporary.pattern_of is None:
        return product([low.bound(index) for index in temporary.indices])
    if is_whole(temporary):
        dense = [i for i in temporary.indices if i not in temporary.pattern_indices]
        stored = loops.Var(f"{temporary.pattern_of}_nnz", loops.INT)
        return product([*(low.bound(index) for index in dense), stored])
    return product([_strip_bound(low, temporary, index) for index in temporary.indices])


def has_room(low: Lowering, name: str, index: str, lanes: int) -> bool:
    """Whether `name` is a temporary whose mode `index` strips of `lanes` iterations never leave, in cut tiles too."""
    temporary, split = low.memory.get(name), low.split_by_inner.get(index)
    if (
        temporary is None
        or split is None
        or temporary.pattern_of is not None
        or index not in temporary.indices
    ):
        return False
    return all(size % lanes == 0 for size in (split.size, *split.tail))


def is_strip(temporary: notation.Temporary) -> bool:
    """Whether a temporary has the stored positions of one segment and nothing else.

    Behind them there is room for a whole vector, see `ends_a_strip`.
    """
    return temporary.pattern_of is not None and len(temporary.indices) == 1 and not is_whole(temporary)


def ends_a_strip(low: Lowering, name: str, lane: LaneContext) -> bool:
    """Whether a vector that is not in use in all lanes is the last one of a strip, none begins behind it.

    A processor hands what it has just stored to the next load of it, but not what masks let through: such a vector is
    stored without one. Other tiles than of one vector, or of a part of whole ones, are cut in other places, too.
    """
    temporary, index = low.memory.get(name), lane.index
    if temporary is None or not is_strip(temporary) or lane.bits is not None:
        return False
    while (split := low.split_by_inner.get(index)) is not None:
        sizes = (split.size, *split.tail)
        is_cut = index == lane.index and sizes[-1] != lane.lanes
        if is_cut or any(size % lane.lanes for size in sizes):
            return False
        index = split.index
    return True


def position(low: Lowering, temporary: notation.Temporary, access: Access, env: Environment) -> Coordinate:
    """The position of an entry in a temporary in memory: its modes folded in storage order."""
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
        return _whole_position(low, temporary, access, env)
    for mode in temporary.layout or range(len(temporary.indices)):
        own = temporary.indices[mode]
        if temporary.pattern_of is None:
            result = result.times(low.bound(own)).plus(env.coordinates[names[mode]])
        else:
            place = _strip_place(low, temporary, own, names[mode], env)
            result = result.times(_strip_bound(low, temporary, own)).plus(place)
    return result


def _whole_position(
    low: Lowering, temporary: notation.Temporary, access: Access, env: Environment
) -> Coordinate:
    """The position of an entry in a temporary with all positions of its pattern.

    `S[h,i,j]` by positions of `M[i,j]` has those of one `h` side by side, `H[t,e,h]` by positions of `G[t,e]` has the
    row over `h` of each; `Z[t,e,1,h]` is a part of that row.
    """
    last = max(map(temporary.indices.index, temporary.pattern_indices), default=-1)
    result = scalar(ZERO)
    for mode, (index, own) in enumerate(zip(access.indices, temporary.indices, strict=True)):
        if own not in temporary.pattern_indices:
            at = env.coordinates[index.name] if isinstance(index, Index) else _constant(index)
            result = result.times(low.bound(own)).plus(at)
        elif mode == last:
            stored = loops.Var(f"{temporary.pattern_of}_nnz", loops.INT)
            result = result.times(stored).plus(_stored_position(low, access, env))
    return result


def _constant(index: Expr) -> Coordinate:
    """The coordinate that a number says."""
    assert isinstance(index, Const), "indices are variables or numbers here"
    return scalar(loops.Literal(int(index.value), loops.INT))


def is_whole(temporary: notation.Temporary) -> bool:
    """Whether a temporary has all positions of its pattern, not only those below outer loops."""
    return set(temporary.pattern_indices) <= set(temporary.indices)


def _stored_position(low: Lowering, access: Access, env: Environment) -> Coordinate:
    """The position of an entry among all stored entries of the pattern that it follows."""
    root = low.root_of(access)
    place = place_of(low, root, env)
    levels = low.declaration(root.tensor).format.levels
    if place.levels < len(levels):
        stuck = level_variable(low, root, levels[place.levels])
        raise DiscordantError(f"{access} by positions of {root}", f"the loop order that reaches {stuck} last")
    return place.position


def _strip_level(low: Lowering, temporary: notation.Temporary, index: str) -> int | None:
    """The compressed level of the pattern whose coordinates are those of `index`, `None` for a dense mode.

    An index of positions that have coordinates in several levels is fused of theirs: the first one is compressed.
    """
    root = Access(temporary.pattern_of or "", tuple(Index(name) for name in temporary.pattern_indices))
    levels = list(enumerate(low.declaration(root.tensor).format.levels))
    stored = {level_variable(low, root, s): number for number, s in levels if not is_located(s)}
    first = {name: low.parts(name)[0] for name in temporary.indices}
    inside = [part for part in first.values() if part in stored]
    if len(inside) > 1 or any(levels[stored[name]][1].level.is_branchless for name in inside):
        raise ScheduleError(
            f"{temporary} has positions of several levels of {root}", "precompute it further inside"
        )
    return stored.get(first[index])


def _strip_bound(low: Lowering, temporary: notation.Temporary, index: str) -> loops.Expr:
    """How many places `index` has in a strip: those of the longest segment, or its coordinates."""
    level = _strip_level(low, temporary, index)
    return low.bound(index) if level is None else longest_segment(low, temporary.pattern_of or "", level)


def _strip_place(
    low: Lowering, temporary: notation.Temporary, own: str, index: str, env: Environment
) -> Coordinate:
    """The place along one mode of a strip; a compressed one counts from the beginning of its segment."""
    if _strip_level(low, temporary, own) is None:
        return env.coordinates[index]
    root = Access(temporary.pattern_of or "", tuple(Index(name) for name in temporary.pattern_indices))
    place = env.places.get(root)
    if place is None or place.segment is None or place.position.vector is not None:
        raise ScheduleError(
            f"{temporary} is used where no loop is at a position of {root}", "order the loops"
        )
    return Coordinate(minus(place.position.start, place.segment), place.position.step)


def longest_segment(low: Lowering, tensor: str, level: int) -> loops.Expr:
    """The number of positions in the longest segment of a compressed level, found when the kernel starts."""
    longest = loops.Var(f"{tensor}{level + 1}_longest", loops.INT)
    if longest.name in low.longest:
        return longest
    low.names.add(longest.name)
    low.longest.add(longest.name)
    parents = _parents(low, tensor, level)
    parent = loops.Var(low.fresh(f"{tensor}{level + 1}_segment"), loops.INT)
    access = Access(tensor)
    ends = [first_below(low, access, level, p) for p in (plus(parent, ONE), parent)]
    length = minus(*ends)
    found = loops.Var(low.fresh(f"{longest.name}_found"), loops.INT)
    larger = loops.Set(found, loops.Op("max", (found, length), loops.INT))
    low.setups[0] += [
        loops.Declare(found, ZERO, True),
        loops.For(parent, ZERO, parents, loops.Block((larger,))),
        loops.Declare(longest, found),
    ]
    return longest


def _parents(low: Lowering, tensor: str, level: int) -> loops.Expr:
    """How many positions the level above has."""
    count: loops.Expr = ONE
    for number in range(level):
        count = first_below(low, Access(tensor), number, count)
    return count
