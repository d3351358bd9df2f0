"""Expressions: einsum values -> typed loop IR values, with lanes where the lane's coordinate matters.

In: `A[i,j] * T[j,k]` inside a vector loop over `k`. Out: `mul(broadcast(A_vals[p]), T_vals[... ..8])`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Index, Stored
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import lanes_of
from sparsify.compiler.loops.lower.access import load, position_of
from sparsify.compiler.loops.lower.environment import Environment, LaneContext
from sparsify.compiler.node import walk
from sparsify.errors import UnsupportedProgramError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

# From the weakest to the strongest; an integer with a float32 is a float32.
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def evaluate(low: Lowering, expr: Expr, env: Environment, dtype: str) -> loops.Expr:
    """The value of `expr` as `dtype`, a scalar or one value a lane."""
    return convert(_value(low, expr, env, dtype), dtype)


def _value(low: Lowering, expr: Expr, env: Environment, dtype: str) -> loops.Expr:
    match expr:
        case Const(value=value):
            return loops.Literal(value, loops.Type("bool" if isinstance(value, bool) else dtype))
        case Index(name=name):
            if name not in env.coordinates:
                raise UnsupportedProgramError(
                    f"the value of {name} outside of the loop over its blocks", "a format without blocks"
                )
            coordinate = env.coordinates[name]
            if coordinate.is_uniform or env.lane is None:
                return coordinate.start
            return coordinate.as_vector(env.lane.lanes)
        case Access():
            return load(low, expr, env)
        case Stored(access=access):
            position_of(low, access, env)  # raises unless the loops have found the entry
            return loops.Literal(True, loops.BOOL)
        case Call(function=function, args=args):
            return _call(low, function, args, env, dtype)
    raise AssertionError(f"{expr} is not lowered to loops")


def _call(low: Lowering, function: str, args: tuple[Expr, ...], env: Environment, dtype: str) -> loops.Expr:
    """A function applied lane by lane to arguments of one dtype; constants take the dtype of the others."""
    if FUNCTIONS[function].result == "bool":
        # What is compared has a dtype of its own; constants in it take that of the tensors.
        tensors = (node.tensor for arg in args for node in walk(arg) if isinstance(node, Access))
        dtype = max(map(low.dtype, tensors), key=DTYPES.index, default="float64")
    values = [None if isinstance(arg, Const) else _value(low, arg, env, dtype) for arg in args]
    found = [value.type.dtype for value in values if value is not None]  # type: ignore[attr-defined]
    if function == "where":
        found = found[1:] if values[0] is not None else found
    common = max(found, key=DTYPES.index, default=dtype)
    if common == "bool" and function not in (
        "where",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
    ):
        common = dtype
    result = FUNCTIONS[function].result
    if result == "float" and not common.startswith("float"):
        common = dtype if dtype.startswith("float") else "float32"
    operands = []
    for place, (arg, value) in enumerate(zip(args, values, strict=True)):
        wanted = "bool" if function == "where" and place == 0 else common
        if value is None:
            assert isinstance(arg, Const)
            value = loops.Literal(arg.value, loops.Type(wanted))
        operands.append(convert(value, wanted))
    operands = spread(operands)
    lanes = lanes_of(operands[0])
    return loops.Op(function, tuple(operands), loops.Type("bool" if result == "bool" else common, lanes))


def used_lanes(lane: LaneContext, dtype: str) -> loops.Expr:
    """Which lanes of a vector of `dtype` are in use, when not all are."""
    assert lane.count is not None, "all lanes are in use"
    kind = loops.Type("int64" if dtype in ("float64", "int64") else "int32", lane.lanes)
    number = loops.Lanes(loops.Literal(0, loops.Type(kind.dtype)), kind)
    count = loops.Broadcast(convert(lane.count, kind.dtype), kind)
    return loops.Op("lt", (number, count), loops.Type("bool", lane.lanes))


def truth(value: loops.Expr) -> loops.Expr:
    """1 where `value` is not 0, else 0, in its dtype."""
    kind: loops.Type = value.type  # type: ignore[attr-defined]
    zero, one = loops.Literal(0, kind), loops.Literal(1, kind)
    return loops.Op("where", (loops.Op("ne", (value, zero), loops.Type("bool", kind.lanes)), one, zero), kind)


def is_zero_past_end(value: loops.Expr) -> bool:
    """Whether the lanes that are not in use are 0, as those of a load with a count are."""
    match value:
        case loops.Load(count=count) | loops.Gather(count=count):
            return count is not None
        case loops.Op("add" | "sub" | "mul" | "neg", args):
            return all(map(is_zero_past_end, args))
    return False


def convert(value: loops.Expr, dtype: str) -> loops.Expr:
    """`value` in another dtype."""
    kind: loops.Type = value.type  # type: ignore[attr-defined]
    if kind.dtype == dtype:
        return value
    if isinstance(value, loops.Literal):
        return loops.Literal(value.value, loops.Type(dtype, kind.lanes))
    return loops.Convert(value, loops.Type(dtype, kind.lanes))


def spread(values: list[loops.Expr]) -> list[loops.Expr]:
    """All values with as many lanes as the widest."""
    lanes = max(lanes_of(value) for value in values)
    return [widen(value, lanes) for value in values]


def widen(value: loops.Expr, lanes: int) -> loops.Expr:
    """A scalar repeated in `lanes` lanes; a vector as it is."""
    kind: loops.Type = value.type  # type: ignore[attr-defined]
    if kind.lanes == lanes:
        return value
    wide = loops.Type(kind.dtype, lanes)
    if isinstance(value, loops.Literal):
        return loops.Literal(value.value, wide)
    return loops.Broadcast(value, wide)
