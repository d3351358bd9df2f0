"""Results of operators under a sparsifier, as nodes of a graph.

In: `%h = gelu(%x)` and `ScalarThreshold(0.1)`. Out: `%k = kept_entries(%h, '["ScalarThreshold", {"threshold": 0.1}]');
%y = where(%k, %h, 0)`: gradients reach the kept entries alone.

Conditions of streaming sparsifiers are rows of the operator table, and so become part of kernels; others read whole
tensors, and torch's operators compute them.
"""

import json
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.recipe.sparsifier_spec import SparsifierSpec
from sparsify.sparsification.from_recipe import sparsifier_of
from sparsify.sparsification.rules.sparsifier import Sparsifier

# Objects of user classes, written as numbers in graphs.
OBJECTS: Final[list[Sparsifier]] = []


def written(sparsifier: Sparsifier) -> str:
    """A sparsifier in graph notation: class and arguments, or the number of a user class's object.

    >>> written(sparsifier_of(SparsifierSpec.model_validate("ScalarThreshold(0.1)")))
    '["ScalarThreshold", {"threshold": 0.1}]'
    """
    spec = SparsifierSpec.model_validate(sparsifier)
    if spec.given is None:
        return json.dumps([spec.name, spec.arguments], default=lambda tensor: tensor.item())
    positions = [number for number, one in enumerate(OBJECTS) if one is sparsifier]
    if not positions:
        OBJECTS.append(sparsifier)
    return json.dumps([spec.name, positions[0] if positions else len(OBJECTS) - 1])


@lru_cache(maxsize=256)
def read(text: str) -> Sparsifier:
    """The sparsifier in a graph's notation."""
    name, arguments = json.loads(text)
    if isinstance(arguments, int):
        return OBJECTS[arguments]
    result: Sparsifier = sparsifier_of(SparsifierSpec.model_validate({name: arguments}))
    return result


@torch.library.custom_op("sparsify::kept_entries", mutates_args=())
def entries(tensor: Tensor, sparsifier: str) -> Tensor:
    """The mask of the entries kept by a sparsifier, truth values of the tensor's shape."""
    return read(sparsifier).mask(tensor.detach()).contiguous()


@entries.register_fake
def _entries(tensor: Tensor, sparsifier: str) -> Tensor:
    return tensor.new_empty(tensor.shape, dtype=torch.bool)


kept_entries: Final = torch.ops.sparsify.kept_entries.default


def sparse_gradient(tensor: Tensor, mask: Tensor | None, sparsifiers: tuple[str, ...]) -> Tensor:
    """The tensor; its gradient is sparsified, and 0 where `mask` is false.

    Args:
        tensor: a result of an operator.
        mask: pattern of the gradient; `None`: no fixed pattern.
        sparsifiers: sparsifiers of the gradient, applied in order.
    """
    result: Tensor = _SparseGradient.apply(tensor, mask, sparsifiers)  # type: ignore[no-untyped-call]
    return result


def straight_through(tensor: Tensor, sparsified: Tensor) -> Tensor:
    """The sparsified tensor; the gradient passes to all entries of the dense tensor."""
    result: Tensor = _StraightThrough.apply(tensor, sparsified)  # type: ignore[no-untyped-call]
    return result


class _SparseGradient(torch.autograd.Function):
    """`x -> x`; sparsifiers are applied to the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mask: Tensor | None, sparsifiers: tuple[str, ...]) -> Tensor:
        ctx.mask, ctx.sparsifiers = mask, sparsifiers
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        for sparsifier in ctx.sparsifiers:
            gradient = torch.where(kept_entries(gradient.detach(), sparsifier), gradient, 0)
        return gradient if ctx.mask is None else torch.where(ctx.mask, gradient, 0), None, None


class _StraightThrough(torch.autograd.Function):
    """`(x, y) -> y`; the gradient passes to x."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sparsified: Tensor) -> Tensor:
        return sparsified.view_as(sparsified)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
