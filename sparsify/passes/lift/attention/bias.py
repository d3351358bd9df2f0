"""Masks of attention that add a bias of each distance, taken apart and put together.

In: `%m = where(%padding, %bias, -3.4e38)`, [batch, heads, queries, keys], `%bias` of distances alone.
Out: `%v`, [heads, queries + keys - 1], the mask `%padding` with what is the same for all queries kept once, -3.4e38.
"""

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, fx

from sparsify.passes.graph.constant_values import constant
from sparsify.passes.graph.insert import call_before
from sparsify.passes.graph.operators import operator_name, tensor_value
from sparsify.passes.lift.attention.mask_factors import factors
from sparsify.passes.lift.attention.relative_bias import PAIRS, Distances, spread

aten = torch.ops.aten
# Memory alone is changed by these, where the dtype stays.
SAME = ("contiguous", "clone", "alias", "to")


@dataclass(frozen=True)
class Bias:
    """What a mask adds to scores.

    Attributes:
        vector: of each distance, [.., queries + keys - 1]; None where it is a number.
        number: that.
        own: what the mask has besides: truth values that keep it, or numbers; None without.
        elsewhere: what is added where truth values do not keep it.
    """

    vector: fx.Node | None
    number: float = 0.0
    own: fx.Node | None = None
    elsewhere: float | None = None


def bias_of(mask: fx.Node, distances: Distances, extents: tuple[str, str], user: fx.Node) -> Bias | None:
    """What a mask of numbers is made of where it adds a bias of each distance, or one number; None for other masks.

    Args:
        mask: of attention.
        distances: what is of them in the graph.
        extents: how many queries and keys there are, as texts.
        user: the attention.
    """
    while operator_name(mask) in SAME and isinstance(mask.args[0], fx.Node):
        base = mask.args[0]
        if base.meta["val"].dtype != mask.meta["val"].dtype:
            return None
        mask = base
    terms = _terms(mask)
    biases = [term for term in terms if is_bias(term, distances, extents)]
    if biases:
        add = partial(call_before, user, aten.add.Tensor)
        others = [term for term in terms if term not in biases]
        if not all(term.meta["val"].dtype.is_floating_point for term in others):
            return None
        vector = plain(reduce(add, map(distances.along, biases)), user)
        return Bias(vector, own=reduce(add, others) if others else None)
    first: Any
    second: Any
    first, second, third = (*mask.args, None, None, None)[:3]
    is_choice = operator_name(mask) == "where" and tensor_value(first) is not None
    if not is_choice or not isinstance(third, int | float):
        return None
    number = constant(second)
    if number is None and not is_bias(second, distances, extents):
        return None
    along = distances.along(second) if number is None else None
    kept = list[fx.Node]()
    for factor in factors(first):
        if along is not None and distances.mode(factor) == PAIRS:
            choice = distances.along(factor)
            along = call_before(user, aten.where.ScalarOther, choice, along, float(third))
        else:
            kept.append(factor)
    own = reduce(partial(call_before, user, aten.logical_and.default), kept) if kept else None
    found = None if along is None else plain(along, user)
    return Bias(found, number or 0.0, own, float(third) if kept else None)


def _terms(mask: fx.Node) -> list[fx.Node]:
    """The tensors that a mask is the sum of, broadcast from the last mode on."""
    sides = [side for side in mask.args if tensor_value(side) is not None]
    if operator_name(mask) != "add" or mask.kwargs or len(sides) != 2:
        return [mask]
    return [term for side in sides if isinstance(side, fx.Node) for term in _terms(side)]


def is_bias(node: Any, distances: Distances, extents: tuple[str, ...]) -> bool:
    """Whether a node is a bias of each distance between so many queries and keys, the same for all of a batch."""
    if distances.mode(node) != PAIRS:
        return False
    value = tensor_value(node)
    assert value is not None, "what is of distances is a tensor"
    is_once = all(str(extent) == "1" for extent in value.shape[:-3])
    return is_once and value.dtype.is_floating_point and tuple(map(str, value.shape[-2:])) == extents


def plain(vector: fx.Node, user: fx.Node) -> fx.Node:
    """A vector without modes of extent 1 before that of distances."""
    value = tensor_value(vector)
    assert value is not None, "biases are tensors"
    for mode in reversed(range(value.dim() - 1)):
        if str(value.shape[mode]) == "1":
            vector = call_before(user, aten.select.int, vector, mode, 0)
    return vector


def combined_mask(
    pattern: Tensor,
    own: Tensor | None = None,
    bias: Tensor | float | None = None,
    elsewhere: float | None = None,
) -> Tensor:
    """The dense mask of a pattern and what a model has itself, [.., queries, keys].

    Args:
        pattern: truth values, or what is added to scores, [queries, keys] or with heads before them.
        own: truth values that keep scores and the bias, or further numbers.
        bias: of each distance, [.., queries + keys - 1], or of all.
        elsewhere: what is added where truth values do not keep the bias.

    Returns:
        truth values where nothing is added to scores.
    """
    if bias is None and own is not None and own.dtype == torch.bool:
        return own & pattern if pattern.dtype == torch.bool else torch.where(own, pattern, -torch.inf)
    if bias is None:
        assert own is not None, "a pattern alone needs none beside it"
        return torch.where(pattern, own, -torch.inf) if pattern.dtype == torch.bool else own + pattern
    added = spread(bias, *pattern.shape[-2:]) if isinstance(bias, Tensor) else torch.tensor(bias)
    if own is not None and own.dtype == torch.bool:
        added = torch.where(own, added, -torch.inf if elsewhere is None else elsewhere)
    elif own is not None:
        added = added + own
    return torch.where(pattern, added, -torch.inf) if pattern.dtype == torch.bool else added + pattern
