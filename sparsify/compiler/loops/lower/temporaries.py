"""Temporaries: registers, dense memory, or memory with a place for each stored position of an operand.

In: `let w[ki] in register`, `let S[iri,jo,ji] in thread pattern of M[i,j]`. Out: `w_0: float32x8 = 0`, and scratch
memory for the positions of the longest segment of M; `jo` counts from the start of the segment.
"""

from __future__ import annotations

from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, children, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, compare, integer, plus, product
from sparsify.compiler.loops.lower.assemble import workspace
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment
from sparsify.compiler.loops.lower.iterate import heavy_rows
from sparsify.compiler.loops.lower.iterate.bind import range_of
from sparsify.compiler.loops.lower.program_facts import initial_value
from sparsify.compiler.loops.lower.values.registers import register
from sparsify.compiler.loops.lower.values.temporary_places import is_strip, is_whole, strip_bound
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def let(context: Context, node: notation.Let, env: Environment) -> list[loops.Stmt]:
    """The temporaries, initialized to the identity for sums and to the fill for skipping loops, then the body."""
    if _is_own(node, env):
        assert isinstance(node.body, notation.Sequence)
        made, *rest = node.body.statements
        own = (*env.own, notation.Let(node.temporaries, made))
        return context.statement(notation.Sequence(tuple(rest)), replace(env, own=own))
    position = _position_after_copies(context, node)
    if position is None or position in env.filled or context.assembly is not None:
        return _let(context, node, env)
    reach = range_of(context, position, _after_copies(node), env)
    body = _let(context, node, replace(env, filled=env.filled | {position}))
    return [loops.If(compare("lt", reach.begin, reach.end), loops.Block(tuple(body)))]


def _position_after_copies(context: Context, node: notation.Let) -> str | None:
    """The stored positions that read copies in thread memory and nothing else: without positions no copy is made.

    `let tile in thread: (forall d: tile[d] = W[e,d]); forall p: ..` for the positions p of row e; `None` for others.
    """
    reader = _after_copies(node)
    if not isinstance(reader, notation.Forall):
        return None
    split = context.split_by_outer.get(reader.index)
    position = reader.index if split is None else split.index
    return position if position in context.positions else None


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


def _let(context: Context, node: notation.Let, env: Environment) -> list[loops.Stmt]:
    """The temporaries of `let`, in any case."""
    declared: list[loops.Stmt] = []
    starts = {t.name: initial_value(node, t) for t in node.temporaries}
    variables: dict[str, list[loops.Var]] = {}
    for temporary in node.temporaries:
        if temporary.scope == "register":
            registers, env = register(context, node, temporary, starts[temporary.name], env)
            declared += registers
            variables[temporary.name] = [each.var for each in registers]
        elif env.lane is not None:
            raise ScheduleError(
                f"{temporary} lies in the vector loop over {env.lane.index}, whose lanes would share it",
                f"precompute {temporary.name} at {env.lane.index} in register",
            )
        elif temporary.listed or temporary.marked:
            declared += workspace.begin(context, node, temporary)
        else:
            _allocate(context, temporary)
    around = context.prefilled - set(starts)
    context.prefilled &= around
    body = (
        context.statement(node.body, env)
        if env.hub is None
        else heavy_rows.body(context, node, variables, env)
    )
    fills: list[loops.Stmt] = []
    for temporary in node.temporaries:
        start = starts[temporary.name]
        if start is None and temporary.name in context.prefilled and temporary.pattern_of is None:
            start = context.fill_of(Access(temporary.name))
        if temporary.listed:
            body += workspace.end(context, temporary)
        elif start is not None and temporary.scope != "register" and not temporary.marked:
            value = loops.Literal(start, loops.Type(temporary.dtype))
            fills.append(loops.Fill(temporary.name, ZERO, _count(context, temporary), value))
    context.prefilled |= around
    return [*declared, *fills, *body]


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


def _allocate(context: Context, temporary: notation.Temporary) -> None:
    """Memory for a temporary, allocated once a thread if private to threads, else once."""
    if temporary.name not in context.memory:
        context.memory[temporary.name] = temporary
        # Inside a parallel loop every temporary is private, because `let` runs once an iteration.
        count = _count(context, temporary)
        if is_strip(temporary):
            count = plus(count, integer(context.lanes - 1))
        context.setups[-1].append(loops.Allocate(temporary.name, temporary.dtype, count))


def _count(context: Context, temporary: notation.Temporary) -> loops.Expr:
    """The number of elements of a temporary in memory."""
    if temporary.pattern_of is None:
        return product([context.bound(index) for index in temporary.indices])
    if is_whole(temporary):
        dense = [i for i in temporary.indices if i not in temporary.pattern_indices]
        stored = loops.Var(f"{temporary.pattern_of}_nnz", loops.INT)
        return product([*(context.bound(index) for index in dense), stored])
    return product([strip_bound(context, temporary, index) for index in temporary.indices])
