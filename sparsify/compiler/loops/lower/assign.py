"""Assignments: `target = value`, and sums and other reductions into a target.

In: `w[ki] += A[i,j] * T[j,k]` in a vector loop over `ki`. Out: `w_0 = w_0 + A_vals[p] * T_vals[j * k_extent + k ..8]`.
"""

from __future__ import annotations

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.dtype import OF_BOOL, with_casts
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const
from sparsify.compiler.einsum.register import expand_functions
from sparsify.compiler.ir.dtypes import computing
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import lanes_of
from sparsify.compiler.loops.lower.assemble import assemble, bitset_workspace, workspace
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, LaneContext
from sparsify.compiler.loops.lower.lattice import prune_known
from sparsify.compiler.loops.lower.values.access import load, position_of, store
from sparsify.compiler.loops.lower.values.expression import is_zero_past_end, used_lanes, widen
from sparsify.compiler.loops.lower.values.masked import evaluate_masked
from sparsify.errors import ScheduleError


def lower(context: Context, assign: Assign, env: Environment) -> list[loops.Stmt]:
    """`target = value` or `target = combine(target, value)`; no code if the value is the identity."""
    value, is_background = prune_known(with_casts(assign.value, context.kinds), env.absent, context)
    target, dtype = assign.target, computing(context.dtype(assign.target.tensor))
    if context.assembly is not None and target.tensor == context.assembly.name:
        if is_background and value == Const(context.fill_of(target)) and not context.assembly.phase:
            return []  # unstored in all operands, hence unstored in the result
        return assemble.append(context, context.assembly, evaluate_masked(context, value, env, dtype), env)
    if assign.monoid is None:
        result = evaluate_masked(context, value, env, dtype)
        if (listed := workspace.add(context, target, result, result, env)) is not None:
            return listed
        return [store(context, target, _fit(context, result, assign, env), env)]
    monoid = MONOIDS[assign.monoid]
    if isinstance(value, Const) and value.value == monoid.neutral:
        return []
    added = evaluate_masked(context, value, env, dtype)
    combine = monoid.combine if dtype != "bool" else OF_BOOL.get(monoid.combine, monoid.combine)
    current = load(context, target, env)
    is_own = bool(FUNCTIONS[combine].body)
    if lanes_of(current) == 1 and env.lane is not None:
        if is_own:
            raise ScheduleError(f"the lanes of {target} are combined by {combine}", "vectorise another index")
        added = widen(added, env.lane.lanes)
        if env.lane.bits is not None:
            nothing = loops.Literal(monoid.identity(dtype), loops.Type(dtype, env.lane.lanes))
            added = loops.Op("where", (_stored_lanes(env.lane), added, nothing), nothing.type)
        added = loops.Horizontal(combine, added, loops.Type(dtype), env.lane.count)
    elif target.tensor not in env.registers:
        _, position = position_of(context, target, env)
        if position.vector is not None:
            raise ScheduleError(f"the lanes of {target} may write one entry twice", "vectorise another index")
    added = widen(added, lanes_of(current))
    kind = loops.Type(dtype, lanes_of(current))
    is_zero_elsewhere = False
    if env.lane is not None and env.lane.bits is not None and combine == "add":
        masked = _with_zeros(added, _stored_lanes(env.lane))
        added, is_zero_elsewhere = masked or added, masked is not None
    combined: loops.Expr = loops.Op(combine, (current, added), kind)
    if is_own:
        combined = evaluate_masked(context, expand_functions(Call(combine, (target, value))), env, dtype)
    if _spills(target, env) and (combine != "add" or not is_zero_past_end(added)):
        assert env.lane is not None, "only lanes spill"
        combined = loops.Op("where", (used_lanes(env.lane, dtype), combined, current), kind)
    if env.lane is not None and env.lane.bits is not None and lanes_of(current) > 1 and not is_zero_elsewhere:
        combined = loops.Op("where", (_stored_lanes(env.lane), combined, current), kind)
    if target.tensor in context.marked:
        return bitset_workspace.add(context, target, combined, env)
    if (listed := workspace.add(context, target, added, combined, env)) is not None:
        return listed
    return [store(context, target, combined, env)]


def _stored_lanes(lane: LaneContext) -> loops.Expr:
    """The lanes with an entry."""
    assert lane.bits is not None, "bits say which"
    return loops.LaneBits(lane.bits, loops.Type("bool", lane.lanes))


def _with_zeros(added: loops.Expr, stored: loops.Expr) -> loops.Expr | None:
    """`x * expand(w) -> where(stored, x, 0) * expand(w)`, 0 in lanes without an entry; None for other values."""
    match added:
        case loops.Op("mul", (first, second), kind) if _is_expanded(second) and not _is_expanded(first):
            nothing = loops.Literal(0, kind)
            return loops.Op("mul", (loops.Op("where", (stored, first, nothing), kind), second), kind)
        case loops.Op("mul", (first, second), kind) if _is_expanded(first) and not _is_expanded(second):
            return _with_zeros(loops.Op("mul", (second, first), kind), stored)
    return None


def _is_expanded(value: loops.Expr) -> bool:
    """Whether a value is 0 in lanes without an entry."""
    return isinstance(value, loops.Expand) or (isinstance(value, loops.Convert) and _is_expanded(value.value))


def _spills(target: Access, env: Environment) -> bool:
    """Whether contributions of lanes past the end would enter a later horizontal reduction of the register."""
    register = env.registers.get(target.tensor)
    is_cut = env.lane is not None and env.lane.count is not None and env.lane.bits is None
    return is_cut and register is not None and register.is_reduced


def _fit(context: Context, value: loops.Expr, assign: Assign, env: Environment) -> loops.Expr:
    """`value` with the number of lanes of the target."""
    if assign.target.tensor in env.registers:
        lanes = env.registers[assign.target.tensor].type.lanes
    else:
        _, position = position_of(context, assign.target, env)
        lanes = 1 if env.lane is None or position.is_uniform else env.lane.lanes
    if lanes == 1 and lanes_of(value) > 1:
        raise ScheduleError(f"the lanes of `{assign}` all write one entry", "vectorise another index")
    return widen(value, lanes)
