"""Expressions: einsum values -> typed loop IR values, with lanes if the coordinate of the lane matters.

In: `A[i,j] * T[j,k]` inside a vector loop over `k`. Out: `mul(broadcast(A_vals[p]), T_vals[... ..8])`.
"""

from __future__ import annotations

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.dtype import OF_BOOL, kind_of, operand_kind
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Extent, Index, Stored
from sparsify.compiler.ir.dtypes import BYTES, COMPLEX, INTEGER, NUMBER, category, computing, real
from sparsify.compiler.ir.node import holds
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import convert, lanes_of
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, LaneContext
from sparsify.compiler.loops.lower.values.access import load, position_of
from sparsify.errors import UnsupportedProgramError


def evaluate(context: Context, expr: Expr, env: Environment, dtype: str) -> loops.Expr:
    """The value of `expr` as `dtype`, a scalar or one value a lane."""
    return convert(_value(context, expr, env, dtype), dtype)


def _value(context: Context, expr: Expr, env: Environment, wanted: str) -> loops.Expr:
    """The value of `expr` in its computing dtype; expressions of numbers alone are computed as `wanted`."""
    match expr:
        case Const(value=value):
            if isinstance(value, bool) or wanted == "bool":
                return loops.Literal(bool(value), loops.BOOL)
            return loops.Literal(value, loops.Type(wanted))
        case Index(name=name):
            if name not in env.coordinates:
                raise UnsupportedProgramError(
                    f"the value of {name} outside of the loop over its blocks", "a format without blocks"
                )
            coordinate = env.coordinates[name]
            if coordinate.is_uniform or env.lane is None:
                return coordinate.start
            return coordinate.as_vector(env.lane.lanes)
        case Extent(name=name):
            return context.extent(name)
        case Access():
            return load(context, expr, env)
        case Stored(access=access):
            position_of(context, access, env)  # raises unless the loops have found the entry
            return loops.Literal(True, loops.BOOL)
        case Cast(dtype=dtype, value=inner):
            return evaluate(context, inner, env, computing(dtype))
        case Call(function=function, args=args):
            return _call(context, function, args, env, wanted)
    raise AssertionError(f"{expr} is not lowered to loops")


def _call(
    context: Context, function: str, args: tuple[Expr, ...], env: Environment, wanted: str
) -> loops.Expr:
    """A function applied lane by lane to operands of one dtype."""
    kind = operand_kind(function, [kind_of(arg, context.kinds) for arg in args])
    result = FUNCTIONS[function].result
    dtype = computing(kind.dtype)
    if kind.strength == NUMBER:
        dtype = _of_numbers(dtype, args, "float64" if result == "bool" else wanted)
        if category(dtype) == COMPLEX and not FUNCTIONS[function].of_complex:
            return convert(_call(context, function, args, env, real(dtype)), dtype)
    if dtype == "bool" and function in ("lt", "le", "gt", "ge"):
        dtype = "int8"
    wants = [dtype] * len(args)
    if function == "where":
        wants[0] = "bool"
    operands = spread([evaluate(context, arg, env, want) for arg, want in zip(args, wants, strict=True)])
    if function in ("conj", "real") and category(dtype) != COMPLEX:
        return operands[0]
    if dtype == "bool" and function in OF_BOOL:
        function, operands = OF_BOOL[function], operands * (3 - len(operands))
    made = (
        result
        if result in ("bool", "float32", "int32")
        else real(dtype)
        if function in ("abs", "real")
        else dtype
    )
    return loops.Op(function, tuple(operands), loops.Type(made, lanes_of(operands[0])))


def _of_numbers(dtype: str, args: tuple[Expr, ...], wanted: str) -> str:
    """The dtype for computing numbers: the dtype of neighbouring tensors, except integers for index variables."""
    if dtype == "bool" or category(wanted) < category(dtype):
        return dtype
    integers = category(dtype) == INTEGER
    return dtype if integers and any(holds(arg, Index, Extent) for arg in args) else wanted


def used_lanes(lane: LaneContext, dtype: str) -> loops.Expr:
    """Mask of the used lanes of a vector of `dtype`, if some are unused."""
    assert lane.count is not None, "all lanes are in use"
    kind = loops.Type("int64" if BYTES[dtype] == 8 else "int32", lane.lanes)
    number = loops.Lanes(loops.Literal(0, loops.Type(kind.dtype)), kind)
    count = loops.Broadcast(convert(lane.count, kind.dtype), kind)
    return loops.Op("lt", (number, count), loops.Type("bool", lane.lanes))


def is_zero_past_end(value: loops.Expr) -> bool:
    """Whether the unused lanes are 0, as in a load with a count."""
    match value:
        case loops.Load(count=count) | loops.Gather(count=count):
            return count is not None
        case loops.Op("add" | "sub" | "mul" | "neg", args):
            return all(map(is_zero_past_end, args))
    return False


def spread(values: list[loops.Expr]) -> list[loops.Expr]:
    """All values with as many lanes as the widest."""
    lanes = max(lanes_of(value) for value in values)
    return [widen(value, lanes) for value in values]


def widen(value: loops.Expr, lanes: int) -> loops.Expr:
    """A scalar repeated in `lanes` lanes; a vector unchanged."""
    kind: loops.Type = value.type  # type: ignore[attr-defined]
    if kind.lanes == lanes:
        return value
    wide = loops.Type(kind.dtype, lanes)
    if isinstance(value, loops.Literal):
        return loops.Literal(value.value, wide)
    return loops.Broadcast(value, wide)
