"""Lowering of scheduled notation: the enclosing kernel function, and the function for each kind of statement.

In: `forall i: let w in register: (forall j: w += A[i,j] * x[j]); y[i] = w`.
Out: `for i: w = 0; for pA2 in A2_pos[i]..A2_pos[i+1]: ...; y_vals[i] = w`.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from sparsify.compiler.einsum.infer.shared_pattern import further_extents
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Assign, Declaration
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, both, compare, constant, integer, plus, product, times
from sparsify.compiler.loops.lower import assign, temporaries
from sparsify.compiler.loops.lower.assemble import assemble
from sparsify.compiler.loops.lower.context import Context, Statements
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.forall import forall
from sparsify.compiler.loops.lower.levels.search import located
from sparsify.compiler.loops.lower.values.expression import evaluate
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import UnsupportedProgramError

# Recent kernels, newest last: the check whether statements fit one kernel lowers kernels that are built soon
# afterwards, for all layers of a model.
MOST_RECENT = 32
_RECENT: dict[tuple[str, int], tuple[notation.Notation, loops.Function]] = {}


def lower(program: notation.Notation, vector_bytes: int) -> loops.Function:
    """The kernel for `program` with vector registers of `vector_bytes` bytes (0: scalar code); memoized.

    Raises:
        DiscordantError: the loops do not reach the levels of a tensor in level order.
        ScheduleError: the schedule has no code, such as registers under a loop of unknown extent.
        UnsupportedProgramError: an expression without a lowering.
    """
    # Equality does not distinguish 0.0 from -0.0, nor 1 from 1.0, but texts do.
    key = repr(program), vector_bytes
    known, function = _RECENT.pop(key, (None, None))
    if function is None or known != program:
        function = _function(Context(program, vector_bytes, STATEMENTS))
    _RECENT[key] = program, function
    for old in list(_RECENT)[:-MOST_RECENT]:
        _RECENT.pop(old, None)
    return function


def _function(context: Context) -> loops.Function:
    """The whole kernel."""
    _check_outputs(context)
    context.blocks_divide = all(constant(context.rest(split)) in (0, None) for split in context.blocks)
    body = _body(context)
    rests = [context.rest(split) for split in sorted(context.assumed, key=str)]
    whole = [compare("eq", rest, ZERO) for rest in rests if constant(rest) is None]
    if whole:
        context.blocks_divide = False
        body = [loops.If(reduce(both, whole), loops.Block(tuple(body)), loops.Block(tuple(_body(context))))]
    fills = [_fill(context, name) for name in _outputs_to_fill(context)]
    statements = (*fills, *body)
    return loops.Function(
        context.sizes,
        context.buffers,
        loops.Block(tuple(statements)),
        context.vector_bytes,
        str(context.program.body),
    )


def _check_outputs(context: Context) -> None:
    """Raises for a dense result in blocks, because its padding has no iterations."""
    for name in context.program.outputs:
        declaration = context.declarations[name]
        if declaration.format.is_dense and not declaration.format.is_short:
            raise UnsupportedProgramError(
                f"a result stored {declaration.format}", "a dense result, converted afterwards"
            )


def _body(context: Context) -> list[loops.Stmt]:
    """All statements of the kernel, preceded by the allocation of memory."""
    context.memory, context.setups, context.longest = {}, [[]], set()
    grown = [name for name in context.program.outputs if context.declarations[name].is_assembled]
    body = assemble.phases(context, grown) if grown else located(context, context.program.body, Environment())
    return [*context.setups[0], *body]


def _outputs_to_fill(context: Context) -> list[str]:
    """The outputs that receive sums, or skip unstored coordinates in loops."""
    assigns = find(context.program.body, Assign)
    summed = {a.target.tensor for a in assigns if a.monoid is not None} | context.prefilled
    return [
        name
        for name in context.program.outputs
        if name in summed and not context.declarations[name].is_assembled
    ]


def _fill(context: Context, name: str) -> loops.Stmt:
    """Fills the whole output with the initial value of the sums."""
    declaration = context.declarations[name]
    monoids = {a.monoid for a in find(context.program.body, Assign) if a.target.tensor == name and a.monoid}
    value = MONOIDS[monoids.pop()].identity(declaration.dtype) if monoids else declaration.fill
    initial = loops.Literal(value, loops.Type(declaration.dtype))
    if declaration.interior is not None:
        return _fill_interior(context, declaration, initial)
    if declaration.pattern_of is not None:
        stored = loops.Var(f"{declaration.pattern_of}_nnz", loops.INT)
        below = further_extents(declaration, context.declarations[declaration.pattern_of])
        count = product([stored, *(context.extent(index) for index in below)])
    else:
        count = product([context.extent(index) for index in declaration.extents])
    return loops.Fill(f"{name}_vals", ZERO, count, initial)


def _fill_interior(context: Context, declaration: Declaration, initial: loops.Expr) -> loops.Stmt:
    """Fills the entries of an output inside rows of zeros, and leaves the zeros."""
    assert declaration.interior is not None, "other outputs are contiguous"
    counters = [context.fresh_int(f"{index}_filled") for index in declaration.extents]
    places = zip(counters, declaration.interior.all_strides, strict=True)
    place = reduce(plus, [times(counter, integer(stride)) for counter, stride in places])
    body: loops.Stmt = loops.Store(f"{declaration.name}_vals", place, initial)
    for counter, index in reversed([*zip(counters, declaration.extents, strict=True)]):
        body = loops.For(counter, ZERO, context.extent(index), body)
    return body


def _sequence(context: Context, node: notation.Sequence, env: Environment) -> Lowered:
    """The loop IR of a sequence of statements, in order."""
    return [stmt for inner in node.statements for stmt in context.statement(inner, env)]


def _conditional(context: Context, node: notation.If, env: Environment) -> Lowered:
    """A statement under a condition."""
    then = loops.Block(tuple(context.statement(node.body, env)))
    return [loops.If(evaluate(context, node.condition, env, "bool"), then)]


STATEMENTS: Final[Statements] = {
    Assign: assign.lower,
    notation.Sequence: _sequence,
    notation.Let: temporaries.let,
    notation.Forall: forall,
    notation.If: _conditional,
}
