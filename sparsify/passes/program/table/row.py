"""Rows of the operator table: the meaning of an operator in index notation.

A pointwise row is a notation over the arguments of the operator's schema:

    pointwise("leaky_relu", "where(self > 0, self, negative_slope * self)", "leaky_relu(x[m,n], 0.1)")

Other rows are functions from an `OperatorView` to the value of the result at `view.out`; the first line of the
docstring is the notation printed by `sparsify explain --ops`:

    @row("mv(a[m,n], x[n])")
    def mv(view): "`y[i] = sum(j, self[i,j] * vec[j])`"

Examples are calls of operators with the shapes of tensors in brackets, letters for extents; `x[m]:bool` holds truth
values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import isinf
from typing import Any

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.node import Node, map_children
from sparsify.passes.program.model import Refusal
from sparsify.passes.program.operator_view import OperatorView

Translate = Callable[[OperatorView], str | Expr]


@dataclass(frozen=True)
class Row:
    """An operator in index notation.

    Attributes:
        operator: canonical name, `leaky_relu`.
        notation: meaning as text, for people.
        translate: function that returns the value of the result; raises `Refusal` for unsupported arguments.
        examples: supported calls.
        section: section of the table.
    """

    operator: str
    notation: str
    translate: Translate
    examples: tuple[str, ...]
    section: str


ROWS: dict[str, Row] = {}
# Operators between regions, with the reasons why index notation lacks them.
OPAQUE: dict[str, str] = {}


def opaque(reason: str, *names: str) -> None:
    """Adds operators that are left to torch."""
    OPAQUE.update(dict.fromkeys(names, reason))


def pointwise(name: str, notation: str, *examples: str) -> None:
    """Adds a row for an operator on entries; tensors broadcast."""
    arguments = ", ".join(f"{letter}[m,n]" for letter in ("x", "y")[: 1 + ("other" in notation)])
    all_examples = examples or (f"{name}({arguments})",)
    ROWS[name] = Row(name, notation, lambda view: substituted(view, notation), all_examples, "pointwise")


def row(*examples: str, names: tuple[str, ...] = ()) -> Callable[[Translate], Translate]:
    """A decorator that adds rows for a function: under its name without a trailing underscore, and `names`."""

    def put(function: Translate) -> Translate:
        notation = (function.__doc__ or "").partition("\n")[0].strip().rstrip(".").replace("`", "")
        section = function.__module__.rpartition(".")[2]
        for name in (function.__name__.removesuffix("_"), *names):
            ROWS[name] = Row(name, notation, function, examples, section)
        return function

    return put


def substituted(view: OperatorView, notation: str) -> Expr:
    """A pointwise notation with the accesses and numbers of a node in place of argument names."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and not node.indices and node.tensor in view.arguments:
            return view.expression(view.at_entry(view[node.tensor]))
        return simplify_number(map_children(node, visit))

    result = visit(template(notation))
    assert isinstance(result, Expr)
    return result


@cache
def template(notation: str) -> Expr:
    """A pointwise notation as an expression, parsed once."""
    return parse_expression(notation)


def simplify_number(node: Node) -> Node:
    """`1 * x -> x`."""
    match node:
        case Call("mul", (Const(one), other)) if is_one(one):
            return other
    return node


def is_one(value: Any) -> bool:
    """Whether a number is the integer 1, which changes no dtype, or 1.0."""
    return not isinstance(value, bool) and not isinf(value) and value == 1


def require(condition: bool, reason: str) -> None:
    """Raises a refusal if a condition does not hold.

    Raises:
        Refusal: with the reason.
    """
    if not condition:
        raise Refusal(reason)


def is_boolean(tensor: Any) -> bool:
    """Whether an argument is a tensor of truth values, or one."""
    if isinstance(tensor, fx.Node):
        value = tensor.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype is torch.bool
    return isinstance(tensor, bool)
