"""Dtype inference by the rules of `torch.result_type`: for values, operands and reductions.

In: `A[i,j] * 2.0` with A of int32. Out: `float32`, the dtype in which both operands are multiplied.

Sums and products of integers are int64, contractions (sums of products of tensors) keep the dtype of the product; a
contraction of truth values is their or. Undefined operations raise, such as the maximum of two complex numbers.
"""

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import is_

from sparsify.compiler.einsum.functions import FUNCTIONS, argument_names
from sparsify.compiler.einsum.monoids import PLACES
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Declaration,
    Expr,
    Extent,
    Index,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.dtypes import (
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGER,
    NUMBER,
    SCALAR,
    TENSOR,
    Kind,
    category,
    promote,
    real,
)
from sparsify.compiler.ir.node import find
from sparsify.errors import DtypeError

# Functions applied to truth values instead, as in torch.
OF_BOOL = {
    "add": "logical_or",
    "mul": "logical_and",
    "max": "logical_or",
    "min": "logical_and",
    "heaviside": "logical_or",
    "sign": "logical_or",
    "detach": "logical_or",
}
WORDS = {BOOL: "truth values", COMPLEX: "complex numbers"}


def infer_dtype(statements: Sequence[Assign], declarations: Mapping[str, Declaration]) -> str:
    """The dtype of the result assigned by a group of statements."""
    read = (access.tensor for statement in statements for access in find(statement.value, Access))
    kinds = {name: declared_kind(declarations[name]) for name in read if name in declarations}
    found = []
    for statement in statements:
        kind = kind_of(statement.value, kinds)
        if statement.monoid is not None:
            kind = reduced(kind, statement.monoid, statement.value, kinds)
        found.append(kind)
    return reduce(promote, found).dtype


def declared_kind(declared: Declaration) -> Kind:
    """The kind of a tensor, or of a number."""
    if declared.is_number:
        return Kind("int64" if declared.dtype == "int64" else "float32", NUMBER)
    return Kind(declared.dtype, TENSOR if declared.extents else SCALAR)


def kind_of(expr: Expr, kinds: Mapping[str, Kind]) -> Kind:
    """The kind of the values of an expression over tensors of these kinds.

    Raises:
        DtypeError: a function undefined for its operands.
    """
    match expr:
        case Const(bool()) | Stored():
            return Kind("bool", NUMBER if isinstance(expr, Const) else TENSOR)
        case Const(value):
            return Kind("int64" if isinstance(value, int) else "float32", NUMBER)
        case Index() | Extent():
            return Kind("int64", NUMBER)
        case Access(tensor):
            return kinds[tensor]
        case Cast(dtype):
            return Kind(dtype)
        case Reduce(monoid, _, body):
            return reduced(kind_of(body, kinds), monoid, body, kinds)
        case Call(function, args):
            found = [kind_of(arg, kinds) for arg in args]
            if function == "mod":
                _check_divisor(expr, found)
            if FUNCTIONS[function].body:
                return kind_of(_body(function), dict(zip(argument_names(len(found)), found, strict=True)))
            return result_kind(function, found)
    raise AssertionError(f"{type(expr).__name__} has no dtype")


def operand_kind(function: str, kinds: list[Kind]) -> Kind:
    """The kind to which the operands of a call are converted; the condition of a `where` becomes a bool.

    Raises:
        DtypeError: a function undefined for the kind.
    """
    described = FUNCTIONS[function]
    common = reduce(promote, kinds[1:] if function == "where" else kinds)
    kind = category(common.dtype)
    if (kind == BOOL and not described.of_bool) or (kind == COMPLEX and not described.of_complex):
        raise DtypeError(
            f"{described.symbol or function} of {WORDS[kind]} ({common.dtype})",
            "convert them: value.to(torch.float32)"
            if kind == BOOL
            else "the absolute values, or another function",
        )
    if described.of_integers:
        if kind != INTEGER:
            wanted = (
                "integers: a seed, a row and a column" if described.is_random else "packed numbers, as int32"
            )
            raise DtypeError(f"{function} of {common.dtype}", wanted)
        return Kind(described.operands, max(common.strength, SCALAR))
    if function in ("logical_and", "logical_or", "logical_xor", "logical_not"):
        return Kind("bool", common.strength)
    if described.result == "float" and kind < FLOATING:
        return Kind("float32", common.strength)
    if function == "square" and kind == BOOL:
        return Kind("int64", common.strength)
    return common


def result_kind(function: str, kinds: list[Kind]) -> Kind:
    """The kind of a call of operands of these kinds."""
    common = operand_kind(function, kinds)
    if FUNCTIONS[function].result in ("bool", "float32", "int32"):
        return Kind(FUNCTIONS[function].result, common.strength)
    return Kind(real(common.dtype), common.strength) if function in ("abs", "real") else common


def with_casts(expr: Expr, kinds: Mapping[str, Kind]) -> Expr:
    """`expr` with casts of operands to the dtype of their call; numbers stay unchanged.

    Subexpressions left after known fills are propagated then keep their dtypes.
    """
    if not isinstance(expr, Call):
        return expr
    found = [kind_of(arg, kinds) for arg in expr.args]
    wanted = operand_kind(expr.function, found)
    args = []
    for place, (arg, kind) in enumerate(zip(expr.args, found, strict=True)):
        cast = with_casts(arg, kinds)
        is_condition = wanted.dtype == "bool" or (expr.function == "where" and place == 0)
        is_other = kind.strength > NUMBER and kind.dtype != wanted.dtype and not is_condition
        args.append(Cast(wanted.dtype, cast) if is_other else cast)
    return expr if all(map(is_, args, expr.args)) else Call(expr.function, tuple(args))


def reduced(kind: Kind, monoid: str, body: Expr, kinds: Mapping[str, Kind]) -> Kind:
    """The kind of a reduction of values of `kind`.

    Raises:
        DtypeError: values without an order.
    """
    if monoid in ("min", "max", *PLACES) and category(kind.dtype) == COMPLEX:
        raise DtypeError(f"the {monoid} of complex numbers ({kind.dtype})", "the absolute values")
    if monoid in PLACES:
        return Kind("int64", max(kind.strength, SCALAR))
    if monoid in ("or", "and"):
        return Kind("bool", kind.strength)
    if monoid in ("sum", "prod") and category(kind.dtype) <= INTEGER and not _is_contraction(body, kinds):
        return Kind("int64", kind.strength)
    return kind


def _check_divisor(call: Call, kinds: list[Kind]) -> None:
    """Raises for integers divided by the constant 0; a divisor of 0 at run time gives 0, as in numpy.

    Raises:
        DtypeError: the divisor of integers is the constant 0.
    """
    divisor = call.args[1]
    is_zero = isinstance(divisor, Const) and divisor.value == 0
    if category(reduce(promote, kinds).dtype) == INTEGER and is_zero:
        raise DtypeError(f"`{call}` of integers", "a divisor other than 0, or floating numbers")


@cache
def _body(function: str) -> Expr:
    """The body of a registered function."""
    return parse_expression(FUNCTIONS[function].body)


def _is_contraction(body: Expr, kinds: Mapping[str, Kind]) -> bool:
    """Whether the summed expression is a product of tensors."""
    match body:
        case Call("mul" | "dot_uint8_int8", args):
            return all(kind_of(arg, kinds).strength > NUMBER for arg in args)
    return False
