"""Attention in einsums as products of matrices: `einsum("bihd,bjhd->bhij", %q, %k)`.

In: such an einsum before a softmax over `j`, and `einsum("bhij,bjhd->bihd", %p, %v)` behind it.
Out: `%s = matmul(permute(%q), permute(%k))`, of [b, h, i, d] and [b, h, d, j]; and the same of the weights and values,
whose result is permuted back.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sparsify.passes.graph.einsum_nodes import einsum_of
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.operators import operator_name, tensor_value

aten = torch.ops.aten
# How many nodes lie between a softmax and the products around it, at most: scales, masks, dtypes, dropout.
NEAR = 8


@dataclass(frozen=True)
class Product:
    """An einsum that is a product of matrices for each entry of a batch.

    Attributes:
        left: what has the rows, and the letters of its modes.
        right: what has the columns, and the letters of its modes.
        result: the letters of what it computes.
        batch: letters that the result has in front of rows and columns; `right` may lack some.
        rows, inner, columns: the letters of [.., rows, inner] times [.., inner, columns].
    """

    left: tuple[fx.Node, str]
    right: tuple[fx.Node, str]
    result: str
    batch: str
    rows: str
    inner: str
    columns: str


def spell_products(softmax: fx.Node) -> None:
    """Puts products of matrices in place of the einsums around a softmax, where both are such."""
    before, behind = _before(softmax), _behind(softmax)
    scores = None if before is None else _scores(before)
    mean = None if behind is None else _weighted_mean(*behind)
    if before is not None and scores is not None:
        _spell(before, scores)
    if behind is not None and mean is not None:
        _spell(behind[0], mean)


def _before(softmax: fx.Node) -> fx.Node | None:
    """The einsum that a softmax is taken of."""
    node: Any = softmax.args[0]
    for _ in range(NEAR):
        if not isinstance(node, fx.Node) or operator_name(node) == "einsum":
            return node if isinstance(node, fx.Node) else None
        operands = [operand for operand in node.all_input_nodes if tensor_value(operand) is not None]
        einsums = [operand for operand in operands if operator_name(operand) == "einsum"]
        node = einsums[0] if einsums else next(iter(operands), None)
    return None


def _behind(softmax: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The einsum that reads the weights of a softmax, and as what node it reads them."""
    node = softmax
    for _ in range(NEAR):
        if len(node.users) != 1:
            return None
        user = next(iter(node.users))
        if operator_name(user) == "einsum":
            return user, node
        node = user
    return None


def _scores(node: fx.Node) -> Product | None:
    """The product `S[.., i, j] = Q[.., i, k] * K[.., j, k]`."""
    found = einsum_of(node)
    if found is None or len(found.operands) != 2 or len(found.output) < 2:
        return None
    operands, result = list(found.operands), found.output
    if result[-1] in operands[0][1]:
        operands.reverse()
    return _product(operands, result, result[-2], result[-1])


def _weighted_mean(node: fx.Node, weights: fx.Node) -> Product | None:
    """The product `Y[.., i, l] = P[.., i, j] * V[.., j, l]`, for the weights P."""
    found = einsum_of(node)
    if found is None or len(found.operands) != 2 or not found.output:
        return None
    operands, result = list(found.operands), found.output
    if operands[0][0] is not weights:
        operands.reverse()
    own = [letter for letter in result if letter not in operands[0][1]]
    if operands[0][0] is not weights or operands[1][0] is weights or len(operands[0][1]) < 2 or len(own) != 1:
        return None
    rows, last = list(operands[0][1])[-2:]
    return None if last in result or rows not in result else _product(operands, result, rows, own[0])


def _product(operands: list[tuple[fx.Node, str]], result: str, rows: str, columns: str) -> Product | None:
    """The product with these rows and columns, None where an einsum is no such product."""
    left, right = operands
    inner = [letter for letter in left[1] if letter not in result]
    batch = [letter for letter in result if letter not in (rows, columns)]
    is_product = (
        len(inner) == 1
        and set(left[1]) == {*batch, rows, inner[0]}
        and {columns, inner[0]} <= set(right[1]) <= {*batch, columns, inner[0]}
    )
    return Product(left, right, result, "".join(batch), rows, inner[0], columns) if is_product else None


def _spell(node: fx.Node, product: Product) -> None:
    """Puts permutations and a product of matrices in place of an einsum."""
    with node.graph.inserting_before(node):
        left = _ordered(*product.left, product.batch + product.rows + product.inner)
        right = _ordered(*product.right, product.batch + product.inner + product.columns)
        found = call(aten.matmul.default, left, right)
        found.meta = {**node.meta, "val": found.meta["val"]}
        found = _ordered(found, product.batch + product.rows + product.columns, product.result)
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)


def _ordered(node: fx.Node, letters: str, wanted: str) -> fx.Node:
    """A tensor with its modes in another order, and modes of extent 1 for those that it lacks."""
    order = [letters.index(letter) for letter in wanted if letter in letters]
    if order != sorted(order):
        node = call(aten.permute.default, node, order)
    for place, letter in enumerate(wanted):
        if letter not in letters:
            node = call(aten.unsqueeze.default, node, place)
    return node
