"""Values at many points with masks of fill entries: functions by the rules of fill entries, in torch.

In: `apply("mul", [Grid(values of A, unstored entries of A), Grid(x)])`. Out: their product; 0 at unstored entries of A,
for any x.

The rules are those of `einsum.values`, which computes in numpy; `storage.fill` lists the decisions of fills.
"""

from dataclasses import dataclass, replace
from functools import cache, reduce

import torch
from torch import Tensor

from sparsify.compiler.einsum.functions import FUNCTIONS, argument_names
from sparsify.compiler.einsum.infer.dtype import OF_BOOL, kind_of, operand_kind, result_kind
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.dtypes import (
    BOOL,
    INTEGER,
    NUMBER,
    Kind,
    category,
    computing,
    torch_dtype,
)
from sparsify.compiler.reference.functions import compute
from sparsify.storage.fill import Fill, decided

Mask = Tensor | None


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that broadcast over the points of a space.

    Attributes:
        values: values in the computing dtype of `kind`.
        is_fill: mask of fill entries; `None`: none.
        is_number: whether the values derive from constants only, which are neither fill nor stored.
    """

    values: Tensor
    is_fill: Mask
    kind: Kind
    is_number: bool = False

    def cast(self, dtype: str) -> "Grid":
        """The values in another dtype."""
        kind = Kind(dtype, self.kind.strength)
        return replace(self, values=in_dtype(self.values, kind), kind=kind)


def number(value: float | int | bool, kind: Kind) -> Grid:
    """A constant."""
    return Grid(exact(value), None, kind, is_number=True)


def exact(value: Fill, device: torch.device | None = None) -> Tensor:
    """A scalar tensor without rounding.

    >>> exact(0.1).item()
    0.1
    """
    dtypes = {bool: torch.bool, int: torch.int64, complex: torch.complex128}
    return torch.tensor(value, dtype=dtypes.get(type(value), torch.float64), device=device)


def computed_dtype(kind: Kind) -> torch.dtype:
    """The torch dtype of values of a kind in this package; constants are double until a tensor promotes them."""
    found = torch_dtype(computing(kind.dtype))
    return torch.float64 if kind.strength == NUMBER and found.is_floating_point else found


def in_dtype(values: Tensor, kind: Kind) -> Tensor:
    """Values in the dtype of a kind; floats beyond the range of an integer saturate, NaN becomes 0."""
    dtype = computed_dtype(kind)
    if values.dtype is dtype:
        return values
    if category(kind.dtype) == BOOL:
        return values != 0
    if values.dtype.is_complex and not dtype.is_complex:
        values = values.real
    if category(kind.dtype) == INTEGER and values.dtype.is_floating_point:
        values = _saturated(values)
    return values.to(dtype)


def _saturated(values: Tensor) -> Tensor:
    limits = torch.iinfo(torch.int64)
    inside = values.abs() < 2.0**63
    whole = torch.where(inside, values, 0.0).long()
    beyond = torch.where(values < 0, limits.min, limits.max)
    return torch.where(inside | values.isnan(), whole, beyond)


def apply(function: str, args: list[Grid]) -> Grid:
    """A function of grids, by the rules of fill entries."""
    if FUNCTIONS[function].body:
        return _apply_body(_body(function), dict(zip(argument_names(len(args)), args, strict=True)))
    operand, kind = _call_kinds(function, tuple(arg.kind for arg in args))
    values = _computed(function, args, operand, kind)
    if all(arg.is_number for arg in args):
        return Grid(values, None, kind, is_number=True)
    is_fill = _all_fill(args)
    computed, decided_by = values, None
    for position, arg in enumerate(args):
        if arg.is_fill is None:
            continue
        hit, result = decided(function, position, arg.values)
        if hit is False:
            continue
        hit = arg.is_fill & hit
        result = in_dtype(torch.as_tensor(result), kind)
        if decided_by is None:
            values, decided_by = torch.where(hit, result, values), hit
        else:
            is_contradicted = hit & decided_by & (values != result)
            values = torch.where(is_contradicted, computed, torch.where(hit, result, values))
            decided_by = decided_by | hit
        is_fill = hit if is_fill is None else is_fill | hit
    return Grid(values, is_fill, kind)


def _computed(function: str, args: list[Grid], operand: Kind, kind: Kind) -> Tensor:
    """The values of a built-in function, without rules for fill entries."""
    arrays = [in_dtype(arg.values, operand) for arg in args]
    name = OF_BOOL.get(function, function) if operand.dtype == "bool" else function
    if len(arrays) < FUNCTIONS[name].arity:
        arrays *= 2
    return in_dtype(compute(name, tuple(arrays)), kind)


def _all_fill(args: list[Grid]) -> Mask:
    """The mask of points at which all arguments but numbers are fill entries."""
    masks = [arg.is_fill for arg in args if not arg.is_number]
    if any(mask is None for mask in masks):
        return None
    return reduce(torch.logical_and, [mask for mask in masks if mask is not None])


@cache
def _call_kinds(function: str, kinds: tuple[Kind, ...]) -> tuple[Kind, Kind]:
    """The kind to which operands of a call are converted, and the kind of its result."""
    return operand_kind(function, list(kinds)), result_kind(function, list(kinds))


@cache
def _body(function: str) -> Expr:
    return parse_expression(FUNCTIONS[function].body)


def _apply_body(expr: Expr, arguments: dict[str, Grid]) -> Grid:
    """The body of a user-registered function, over its arguments."""
    match expr:
        case Access(name):
            return arguments[name]
        case Const(value):
            return number(value, kind_of(expr, {}))
        case Cast(dtype, value):
            return _apply_body(value, arguments).cast(dtype)
        case Call("where", (condition, yes, no)):
            return choose(*(_apply_body(arg, arguments) for arg in (condition, yes, no)))
        case Call(function, args):
            return apply(function, [_apply_body(arg, arguments) for arg in args])
    raise AssertionError(f"{expr} is no part of the body of a function")


def choose(condition: Grid, yes: Grid, no: Grid) -> Grid:
    """`where(condition, yes, no)`: a fill entry if the condition and the selected branch are.

    Equal branches, one of them unstored, also give a fill entry, for any condition.
    """
    chosen = condition.values != 0
    kind = result_kind("where", [condition.kind, yes.kind, no.kind])
    first, second = in_dtype(yes.values, kind), in_dtype(no.values, kind)
    values = torch.where(chosen, first, second)
    if condition.is_number and yes.is_number and no.is_number:
        return Grid(values, None, kind, is_number=True)
    is_yes, is_no = _filled(yes), _filled(no)
    is_fill = _filled(condition) & torch.where(chosen, is_yes, is_no)
    if yes.is_fill is not None or no.is_fill is not None:
        one = [mask for mask in (yes.is_fill, no.is_fill) if mask is not None]
        is_fill = is_fill | (reduce(torch.logical_or, one) & is_yes & is_no & (first == second))
    return Grid(values, is_fill, kind)


def _filled(grid: Grid) -> Tensor:
    """The mask of fill entries and numbers."""
    if grid.is_number:
        return torch.tensor(True, device=grid.values.device)
    return torch.tensor(False, device=grid.values.device) if grid.is_fill is None else grid.is_fill
