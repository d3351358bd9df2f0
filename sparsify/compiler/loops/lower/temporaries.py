"""Temporaries: registers, dense memory, or memory with a place for each stored position of an operand.

In: `let w[ki] in register`, `let S[iri,jo,ji] in thread pattern of M[i,j]`. Out: `w_0: float32x8 = 0`, and scratch
memory for the positions of the longest segment of M; `jo` counts from the start of the segment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, children, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, compare, integer, plus, product
from sparsify.compiler.loops.lower.assemble import bitset_workspace, hash_workspace, list_workspace
from sparsify.compiler.loops.lower.environment import Environment, Register
from sparsify.compiler.loops.lower.iterate import heavy_rows, ranges
from sparsify.compiler.loops.lower.temporary_places import is_strip, is_whole, strip_bound
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.provenance import Provenance
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Start = float | int | bool | None


def let(low: Lowering, node: notation.Let, env: Environment) -> list[loops.Stmt]:
    """The temporaries, initialized to the identity for sums and to the fill for skipping loops, then the body."""
    if _is_own(node, env):
        assert isinstance(node.body, notation.Sequence)
        made, *rest = node.body.statements
        own = (*env.own, notation.Let(node.temporaries, made))
        return low.statement(notation.Sequence(tuple(rest)), replace(env, own=own))
    position = position_after_copies(low, node)
    if position is None or position in env.filled or low.assembly is not None:
        return _let(low, node, env)
    reach = ranges.range_of(low, position, _after_copies(node), env)
    body = _let(low, node, replace(env, filled=env.filled | {position}))
    return [loops.If(compare("lt", reach.begin, reach.end), loops.Block(tuple(body)))]


def position_after_copies(low: Lowering, node: notation.Let) -> str | None:
    """The stored positions that read copies in thread memory and nothing else: without positions no copy is made.

    `let tile in thread: (forall d: tile[d] = W[e,d]); forall p: ..` for the positions p of row e; `None` for others.
    """
    reader = _after_copies(node)
    if not isinstance(reader, notation.Forall):
        return None
    split = low.split_by_outer.get(reader.index)
    position = reader.index if split is None else split.index
    return position if position in low.positions else None


def _after_copies(node: notation.Statement | Assign) -> notation.Statement | Assign:
    """The statement after nested copies to thread memory; the statement itself if it is no `let` of copies."""
    match node:
        case notation.Let(temporaries, notation.Sequence((made, last))):
            names = {temporary.name for temporary in temporaries}
            are_dense = all(
                t.scope == "thread" and t.pattern_of is None and not t.listed for t in temporaries
            )
            if are_dense and {assign.target.tensor for assign in find(made, Assign)} == names:
                return _after_copies(last)
    return node


def _let(low: Lowering, node: notation.Let, env: Environment) -> list[loops.Stmt]:
    """The temporaries of `let`, in any case."""
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
            declared += listed(low, node, temporary)
        else:
            _allocate(low, temporary)
    around = low.prefilled - set(starts)
    low.prefilled &= around
    body = low.statement(node.body, env) if env.hub is None else heavy_rows.body(low, node, variables, env)
    fills: list[loops.Stmt] = []
    for temporary in node.temporaries:
        start = starts[temporary.name]
        if start is None and temporary.name in low.prefilled and temporary.pattern_of is None:
            start = low.fill_of(Access(temporary.name))
        if temporary.listed:
            body += (list_workspace if temporary.name in low.listed else hash_workspace).end(low, temporary)
        elif start is not None and temporary.scope != "register" and not temporary.marked:
            value = loops.Literal(start, loops.Type(temporary.dtype))
            fills.append(loops.Fill(temporary.name, ZERO, _count(low, temporary), value))
    low.prefilled |= around
    return [*declared, *fills, *body]


def listed(low: Lowering, node: notation.Let, temporary: notation.Temporary) -> list[loops.Stmt]:
    """An empty workspace with a record of its entries in use."""
    low.starts[temporary.name] = float(_identity(low, node, temporary) or 0)
    low.read.clear()  # pruned with other values
    if temporary.marked:
        return bitset_workspace.begin(low, temporary)
    if len(temporary.indices) > 1:
        return hash_workspace.begin(low, node, temporary)
    return list_workspace.begin(low, temporary)


def _is_own(node: notation.Let, env: Environment) -> bool:
    """Whether each thread of parallel loops has a private temporary, computed by the first statement."""
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
    """Whether all reads of temporaries are in parallel loops with whole iterations per thread."""
    match node:
        case notation.Forall(kind=notation.Parallel(hubs=0)):
            return True
        case Access(tensor=tensor):
            return tensor not in names
    return all(_is_read_by_threads(child, names) for child in children(node))


def _identity(low: Lowering, node: notation.Let, temporary: notation.Temporary) -> Start:
    """The initial value of a temporary: the identity if the first assignment is a sum."""
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
    """Whether an assignment reads all lanes of a temporary into an entry without an index in the lanes."""
    provenance = Provenance(low.program.relations)
    for assign in find(node.body, Assign):
        if any(n.tensor == name for n in find(assign.value, Access)):
            written = {leaf for index in index_names(assign.target) for leaf in provenance.leaves(index)}
            if lane not in written:
                return True
    return False


def _is_table(node: Node, index: str, kinds: set[type[notation.Kind]]) -> bool:
    """Whether a temporary is written in vectors along `index`, and read at arbitrary coordinates in other lanes."""
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
    """The constant bound of the iterations of `index`."""
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
    """Memory for a temporary, allocated once a thread if private to threads, else once."""
    if temporary.name not in low.memory:
        low.memory[temporary.name] = temporary
        # Inside a parallel loop every temporary is private, because `let` runs once an iteration.
        count = _count(low, temporary)
        if is_strip(temporary):
            count = plus(count, integer(low.lanes - 1))
        low.setups[-1].append(loops.Allocate(temporary.name, temporary.dtype, count))


def _count(low: Lowering, temporary: notation.Temporary) -> loops.Expr:
    """The number of elements of a temporary in memory."""
    if temporary.pattern_of is None:
        return product([low.bound(index) for index in temporary.indices])
    if is_whole(temporary):
        dense = [i for i in temporary.indices if i not in temporary.pattern_indices]
        stored = loops.Var(f"{temporary.pattern_of}_nnz", loops.INT)
        return product([*(low.bound(index) for index in dense), stored])
    return product([strip_bound(low, temporary, index) for index in temporary.indices])
