"""Results of operators that a sparsifier thins out, as nodes of a graph.

In: `%h = gelu(%x)` and `ScalarThreshold(0.1)`. Out: `%k = kept_entries(%h, '["ScalarThreshold", {"threshold": 0.1}]');
%y = where(%k, %h, 0)`: gradients are those of the entries that stay.

Conditions of streaming sparsifiers are rows of the operator table, so that they become part of kernels; others read
whole tensors, and torch's operators compute them.
"""

import json
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.recipe.sparsifier_spec import SparsifierSpec
from sparsify.sparsification.from_recipe import sparsifier_of
from sparsify.sparsification.sparsifier import Sparsifier

# Objects of users' classes, which graphs write as numbers.
OBJECTS: Final[list[Sparsifier]] = []


def written(sparsifier: Sparsifier) -> str:
    """A sparsifier as graphs write it: its class and arguments, or the number of an object of a user's class.

    >>> written(sparsifier_of(SparsifierSpec.model_validate("ScalarThreshold(0.1)")))
    '["ScalarThreshold", {"threshold": 0.1}]'
    """
    found = SparsifierSpec.model_validate(sparsifier)
    if found.given is None:
        return json.dumps([found.name, found.arguments], default=lambda tensor: tensor.item())
    known = [number for number, one in enumerate(OBJECTS) if one is sparsifier]
    if not known:
        OBJECTS.append(sparsifier)
    return json.dumps([found.name, known[0] if known else len(OBJECTS) - 1])


@lru_cache(maxsize=256)
def read(text: str) -> Sparsifier:
    """The sparsifier that is written so."""
    name, arguments = json.loads(text)
    if isinstance(arguments, int):
        return OBJECTS[arguments]
    found: Sparsifier = sparsifier_of(SparsifierSpec.model_validate({name: arguments}))
    return found


@torch.library.custom_op("sparsify::kept_entries", mutates_args=())
def entries(tensor: Tensor, sparsifier: str) -> Tensor:
    """The places of the entries of a tensor that a sparsifier keeps, truth values of its shape."""
    return read(sparsifier).mask(tensor.detach()).contiguous()


@entries.register_fake
def _entries(tensor: Tensor, sparsifier: str) -> Tensor:
    return tensor.new_empty(tensor.shape, dtype=torch.bool)


kept_entries: Final = torch.ops.sparsify.kept_entries.default


def sparse_gradient(tensor: Tensor, kept: Tensor | None, sparsifiers: tuple[str, ...]) -> Tensor:
    """The tensor; its gradient is sparsified, and 0 where `kept` is false.

    Args:
        tensor: a result of an operator.
        kept: the pattern that the gradient keeps; `None`: it has a pattern of its own.
        sparsifiers: of the gradient, one after the other.
    """
    found: Tensor = _SparseGradient.apply(tensor, kept, sparsifiers)  # type: ignore[no-untyped-call]
    return found


def straight_through(tensor: Tensor, sparsified: Tensor) -> Tensor:
    """The sparsified tensor; its gradient is that of the tensor, in all entries."""
    found: Tensor = _StraightThrough.apply(tensor, sparsified)  # type: ignore[no-untyped-call]
    return found


class _SparseGradient(torch.autograd.Function):
    """`x -> x`; the gradient is that of the entries that sparsifiers keep of it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, kept: Tensor | None, sparsifiers: tuple[str, ...]) -> Tensor:
        ctx.kept, ctx.sparsifiers = kept, sparsifiers
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (found,) = gradients
        for sparsifier in ctx.sparsifiers:
            found = torch.where(kept_entries(found.detach(), sparsifier), found, 0)
        return found if ctx.kept is None else torch.where(ctx.kept, found, 0), None, None


class _StraightThrough(torch.autograd.Function):
    """`(x, y) -> y`; the gradient is that of x."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sparsified: Tensor) -> Tensor:
        return sparsified.view_as(sparsified)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
