"""Products that sum, as einsums of two or three operands.

In: `%y = einsum("td,ehd->teh", %x, %w)` or `%y = bmm(%a, %b)`. Out: `Einsum(((%x, "td"), (%w, "ehd")), "teh")`.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import fx

from sparsify.passes.operators import operator_name


@dataclass(frozen=True)
class Einsum:
    """An einsum of two or three operands: letters of each, and of the result."""

    operands: tuple[tuple[fx.Node, str], ...]
    output: str


def einsum_of(node: Any) -> Einsum | None:
    """The einsum that a node computes, `None` for other nodes and for those with an ellipsis or a repeated letter."""
    if not isinstance(node, fx.Node):
        return None
    if operator_name(node) == "bmm":
        left, right = cast(tuple[fx.Node, fx.Node], node.args)
        return Einsum(((left, "bij"), (right, "bjk")), "bik")
    if operator_name(node) != "einsum" or not isinstance(node.args[0], str):
        return None
    text = node.args[0].replace(" ", "")
    operands: Any = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
    inputs, arrow, output = text.partition("->")
    letters = inputs.split(",")
    if not arrow or len(letters) != len(operands) or "." in text:
        return None
    if any(len(set(at)) < len(at) for at in (*letters, output)) or len(operands) not in (2, 3):
        return None
    return Einsum(tuple(zip(operands, letters, strict=True)), output)
