"""Iteration lattices: the coordinates where an expression can differ from its background.

In: `A[i,j] * B[i,j] + C[i,j]` and the sparse accesses met by a loop over `j`. Out: the points
`{A, B, C}, {A, B}, {C}`; a point is the set of stored accesses, `{}` means everywhere.

Source: Kjolstad et al., The Tensor Algebra Compiler, 2017, section 5; fills after Henry et al., 2021.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.dtype import kind_of
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Cast, Const, Expr, Extent, Index, Stored
from sparsify.compiler.ir.dtypes import Kind, held
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.notation.nodes import Let
from sparsify.storage.fill import decided

Point = frozenset[Access]
Value = float | int | bool
NOWHERE: frozenset[Point] = frozenset()
EVERYWHERE: frozenset[Point] = frozenset({frozenset()})


class Tensors(Protocol):
    """Facts about the tensors of a program for the lattice."""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The dtypes of the tensors."""

    def fill_of(self, access: Access) -> Value:
        """The value of unstored entries."""

    def root_of(self, access: Access) -> Access:
        """The access to the tensor with the shared pattern; the access itself for a separate pattern."""


@dataclass(frozen=True, slots=True)
class Regions:
    """The points where a value may differ from `background`; without a background the value may be anything anywhere.

    A number in the program text is a background that never annihilates: `0 * x` keeps the NaN of `x`.
    """

    points: frozenset[Point]
    background: Value | None
    is_number: bool = False


def statement_points(
    node: Node, sparse: frozenset[Access], tensors: Tensors, absent: frozenset[Access]
) -> frozenset[Point]:
    """The lattice points where some assignment in `node` has to run.

    Temporaries local to `node` have the regions of their assigned values.
    """
    found: set[Point] = set()
    local = {t.name for inner in find(node, Let) for t in inner.temporaries}
    known: dict[str, Regions] = {}
    for assign in find(node, Assign):
        regions = expression_regions(assign.value, sparse, tensors, absent, known)
        name = assign.target.tensor
        root = tensors.root_of(assign.target)
        if root in sparse or root in absent:
            # The target has entries only on its pattern.
            if root in sparse:
                found |= _combined(regions.points | EVERYWHERE, frozenset({frozenset({root})}))
            continue
        neutral = float(MONOIDS[assign.monoid].neutral) if assign.monoid is not None else None
        if name in local:
            background = regions.background
            if neutral is not None and background != neutral:
                regions = Regions(regions.points | EVERYWHERE, None)
            before = known.get(name, Regions(NOWHERE, background))
            known[name] = Regions(before.points | regions.points, regions.background)
            continue
        if assign.monoid is None and (changes := _changes(assign, known)) is not None:
            found |= changes
            continue
        found |= regions.points
        if regions.background is None or regions.background != (
            tensors.fill_of(assign.target) if neutral is None else neutral
        ):
            found |= EVERYWHERE
    return _closed(frozenset(found))


def _changes(assign: Assign, known: Mapping[str, Regions]) -> frozenset[Point] | None:
    """The points where `x = x * s + y` changes `x`: not for `s` = 1 and `y` = 0; `None` for other assignments."""
    match assign.value:
        case Call("add", (Call("mul", (target, Access(tensor=factor))), Access(tensor=added))):
            regions = [known.get(factor), known.get(added)]
            if target == assign.target and [r.background for r in regions if r is not None] == [1, 0]:
                return frozenset[Point]().union(*(r.points for r in regions if r is not None))
    return None


def expression_regions(
    expr: Expr,
    sparse: frozenset[Access],
    tensors: Tensors,
    absent: frozenset[Access],
    known: Mapping[str, Regions],
) -> Regions:
    """The regions where `expr` may differ from its background, with only the accesses in `sparse` iterated.

    `sparse` and `absent` name tensors with separate patterns; tensors sharing a pattern follow.
    """
    match expr:
        case Const(value=value):
            return Regions(NOWHERE, value, is_number=True)
        case Access() if tensors.root_of(expr) in sparse:
            return Regions(frozenset({frozenset({tensors.root_of(expr)})}), tensors.fill_of(expr))
        case Access() if tensors.root_of(expr) in absent:
            return Regions(NOWHERE, tensors.fill_of(expr))
        case Access(tensor=tensor) if tensor in known:
            return known[tensor]
        case Stored(access=access) if tensors.root_of(access) in sparse:
            return Regions(frozenset({frozenset({tensors.root_of(access)})}), 0.0)
        case Stored(access=access) if tensors.root_of(access) in absent:
            return Regions(NOWHERE, 0.0)
        case Access() | Index() | Stored() | Extent():
            return Regions(EVERYWHERE, None)
        case Cast(value=value):
            return expression_regions(value, sparse, tensors, absent, known)
        case Call(function=function, args=args):
            return _call_regions(
                function, [expression_regions(a, sparse, tensors, absent, known) for a in args]
            )
    raise AssertionError(f"{expr} is not lowered to loops")


def _call_regions(function: str, args: list[Regions]) -> Regions:
    """The regions of a call: annihilators intersect, all other functions unite."""
    deciding = {
        place: value
        for place, arg in enumerate(args)
        if arg.background is not None
        and not arg.is_number
        and (value := _decided(function, place, arg.background)) is not None
    }
    if len(set(deciding.values())) == 1:
        points = EVERYWHERE
        for place, arg in enumerate(args):
            points = _combined(points, arg.points if place in deciding else arg.points | EVERYWHERE)
        return Regions(points, next(iter(deciding.values())))
    if function == "where" and args[2].background is not None and args[0].background == 0.0:
        inside = _combined(args[0].points, args[1].points | EVERYWHERE) | args[2].points
        return Regions(inside, args[2].background)
    if function == "where" and args[1].background is not None and args[0].background == 1.0:
        inside = _combined(args[0].points, args[2].points | EVERYWHERE) | args[1].points
        return Regions(inside, args[1].background)
    if function == "where" and args[1].background is not None and args[1].background == args[2].background:
        either = args[1].points | args[2].points | _combined(args[1].points, args[2].points)
        return Regions(either | _combined(either, args[0].points), args[1].background)
    points = NOWHERE
    for arg in args:
        points = points | arg.points | _combined(points, arg.points)
    backgrounds = [arg.background for arg in args]
    if deciding or any(background is None for background in backgrounds) or FUNCTIONS[function].of_integers:
        return Regions(points | EVERYWHERE, None)
    value = _evaluate(function, backgrounds)
    return Regions(points, value, all(arg.is_number for arg in args))


def _decided(function: str, place: int, fill: Value) -> Value | None:
    """The value of a call decided by one unstored argument alone, whatever the other arguments."""
    hit, value = decided(function, place, fill)
    return value if hit else None


def _evaluate(function: str, values: Iterable[Value | None]) -> Value:
    """The value of a function of constants."""
    known = [value for value in values if value is not None]
    if not FUNCTIONS[function].of_integers:
        known = [float(value) for value in known]
    with np.errstate(all="ignore"):
        return float(FUNCTIONS[function].evaluate(*known))


def _combined(first: frozenset[Point], second: frozenset[Point]) -> frozenset[Point]:
    """All unions of a point of the first set with a point of the second."""
    return frozenset(a | b for a in first for b in second)


def _closed(points: frozenset[Point]) -> frozenset[Point]:
    """Closure under unions of points: where two points coincide, the operands of both are stored."""
    more = points | _combined(points, points)
    return points if more == points else _closed(more)


def prune(expr: Expr, absent: frozenset[Access], tensors: Tensors) -> Expr:
    """`expr` with the accesses in `absent` unstored: replaced by fills, with annihilators applied.

    Only an unstored entry annihilates; `0 * x` with a constant 0 keeps the NaN of `x`.
    """
    return prune_known(expr, absent, tensors)[0]


def prune_known(expr: Expr, absent: frozenset[Access], tensors: Tensors) -> tuple[Expr, bool]:
    """The pruned expression, and whether the result is a background value: constant because entries are unstored."""
    match expr:
        case Access() if tensors.root_of(expr) in absent:
            return Const(tensors.fill_of(expr)), True
        case Stored(access=access) if tensors.root_of(access) in absent:
            return Const(False), True
        case Cast(dtype=dtype, value=value):
            inner, is_gone = prune_known(value, absent, tensors)
            return (inner if isinstance(inner, Const) else Cast(dtype, inner)), is_gone
        case Call(function=function, args=args):
            pruned = [prune_known(arg, absent, tensors) for arg in args]
            found, is_gone = _prune_call(
                Call(function, tuple(arg for arg, _ in pruned)), [gone for _, gone in pruned]
            )
            if isinstance(found, Const) and is_gone:
                found = Const(held(found.value, kind_of(expr, tensors.kinds).dtype))
            return found, is_gone
    return expr, False


def _prune_call(call: Call, gone: list[bool]) -> tuple[Expr, bool]:
    """`call` when the arguments marked in `gone` are background values."""
    args = call.args
    values = [arg.value if isinstance(arg, Const) else None for arg in args]
    decisions = {
        _decided(call.function, place, value)
        for place, value in enumerate(values)
        if value is not None and gone[place]
    } - {None}
    # Contradicting fills, as inf and -inf added, decide nothing.
    result = decisions.pop() if len(decisions) == 1 else None
    if result is None and all(gone) and None not in values:
        result = _evaluate(call.function, values)
    if result is not None:
        return Const(result), True
    match call:
        case Call("add", (x, Const(value=0.0))) if gone[1]:
            return x, False
        case Call("add", (Const(value=0.0), x)) if gone[0]:
            return x, False
        case Call("sub", (x, Const(value=0.0))) if gone[1]:
            return x, False
        case Call("where", (_, Const(value=x), Const(value=y))) if x == y and gone[1] | gone[2]:
            return Const(x), True
        case Call("where", (Const(value=condition), x, y)):
            chosen, is_gone = (x, gone[1]) if condition else (y, gone[2])
            # A number selected by an unstored condition replaces the call.
            return chosen, is_gone or (gone[0] and isinstance(chosen, Const))
    return call, False
