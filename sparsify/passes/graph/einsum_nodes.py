"""Summed products as einsums of two or three operands.

In: `%y = einsum("td,ehd->teh", %x, %w)` or `%y = bmm(%a, %b)`. Out: `Einsum(((%x, "td"), (%w, "ehd")), "teh")`.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

from torch import fx

from sparsify.passes.graph.operators import operator_name, tensor_value

# Letters of the modes of an ellipsis.
HIDDEN: Final = "ABCDEFGH"


@dataclass(frozen=True)
class Einsum:
    """An einsum of two or three operands: letters of each, and of the result."""

    operands: tuple[tuple[fx.Node, str], ...]
    output: str


def einsum_of(node: Any) -> Einsum | None:
    """The einsum of a node, with a letter for each mode; `None` for other nodes and for diagonals."""
    if not isinstance(node, fx.Node):
        return None
    if operator_name(node) == "bmm":
        left, right = cast(tuple[fx.Node, fx.Node], node.args)
        return Einsum(((left, "bij"), (right, "bjk")), "bik")
    if operator_name(node) != "einsum" or not isinstance(node.args[0], str):
        return None
    operands: Any = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
    inputs, arrow, output = node.args[0].replace(" ", "").partition("->")
    letters = inputs.split(",")
    if len(letters) != len(operands) or len(operands) not in (2, 3):
        return None
    spelled = _spelled([*letters, output if arrow else _implied(letters)], operands)
    if spelled is None or any(len(set(at)) < len(at) for at in spelled):
        return None
    *letters, output = spelled
    return Einsum(tuple(zip(operands, letters, strict=True)), output)


def _implied(letters: list[str]) -> str:
    """The letters of an implicit result: letters that occur once, in alphabetical order.

    >>> _implied(["bij", "bjd"])
    'di'
    """
    joined = "".join(letters)
    once = sorted(letter for letter in set(joined) - {"."} if joined.count(letter) == 1)
    return ("..." if "..." in joined else "") + "".join(once)


def _spelled(texts: list[str], operands: list[fx.Node]) -> list[str] | None:
    """The letters of operands and result, with each ellipsis expanded to the same letters."""
    if not any("..." in text for text in texts):
        return texts
    values = [tensor_value(operand) for operand in operands]
    ranks = {
        -1 if value is None else value.dim() - len(text.replace("...", ""))
        for text, value in zip(texts[:-1], values, strict=True)
        if "..." in text
    }
    free = [letter for letter in HIDDEN if not any(letter in text for text in texts)]
    if len(ranks) != 1 or not 0 <= (rank := ranks.pop()) <= len(free):
        return None
    return [text.replace("...", "".join(free[:rank])) for text in texts]
