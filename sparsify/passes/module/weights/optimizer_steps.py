"""Zeros of trained weights, restored after each step of optimizers that mix entries, such as Muon.

In: a pruned weight with gradients at its nonzeros. Out: after `torch.optim.Muon([...]).step()` the weight has its
earlier zeros. Optimizers that compute each entry from its own gradients keep zeros by themselves. An optimizer that
holds packed weights made dense by a later `train()`, or weights replaced by `apply`, warns in its first step.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, optim
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakTensorKeyDictionary

from sparsify.compiler.arrays.clear import cleared_by
from sparsify.errors import UnsupportedOperatorError
from sparsify.storage.subclass import trained_masks
from sparsify.storage.subclass.trained_masks import entries
from sparsify.storage.tensor import SparseTensor
from sparsify.warn import warn

# An entry with zero gradients only stays 0; also under LBFGS, which sums gradients with factors common to all entries.
ENTRYWISE: Final = frozenset(
    (
        *(optim.SGD, optim.ASGD, optim.Rprop, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adafactor),
        *(optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.SparseAdam, optim.LBFGS),
    )
)
# Optimizers of whole matrices, or of arrays of all parameters: sparse parameters are neither.
WHOLE: Final = frozenset((optim.LBFGS, optim.Rprop, optim.Adafactor, optim.SparseAdam, optim.Muon))
_watched: Any = WeakTensorKeyDictionary()
_replaced: Any = WeakTensorKeyDictionary()
# Weights of models before `apply`, each with its name and a function that returns its trained replacement.
_applied: Any = WeakTensorKeyDictionary()
_hooks: list[Any] = []
_inside: "WeakKeyDictionary[optim.Optimizer, list[Tensor]]" = WeakKeyDictionary()
_masks: "WeakKeyDictionary[optim.Optimizer, list[tuple[Tensor, Tensor]]]" = WeakKeyDictionary()

trained_masks.clear_by(cleared_by)


def keep_zeros_of(weights: Iterable[Tensor]) -> None:
    """Makes later optimizer steps restore the zeros of weights."""
    for weight in weights:
        _watched[weight] = True
    if len(_watched):
        _watch_steps()


def tell_of_replaced(weights: Mapping[str, Tensor]) -> None:
    """Makes optimizer steps warn if they hold weights that the model has replaced."""
    for name, weight in weights.items():
        _replaced[weight] = name
    if weights:
        _watch_steps()


def tell_of_applied(weights: Mapping[str, tuple[Tensor, Callable[[], Tensor | None]]]) -> None:
    """Makes optimizer steps warn if they hold weights whose replacements get the gradients.

    Args:
        weights: weight before `apply`, and a function that returns the weight trained now, by name.
    """
    for name, (weight, trained) in weights.items():
        _applied[weight] = name, trained
    if weights:
        _watch_steps()


def _untrained(parameters: Iterable[Tensor]) -> list[str]:
    """The names of weights before `apply` without gradients whose replacements have gradients; once each.

    Empty where the model from before `apply` trains, too, at least in part.
    """
    weights = list(parameters)
    if any(weight.grad is not None and weight in _applied for weight in weights):
        return []
    ids = {id(weight) for weight in weights}
    names = []
    for weight in [weight for weight in weights if weight in _applied and weight.grad is None]:
        name, trained = _applied[weight]
        now = trained()
        if now is None or now.grad is None or id(now) in ids:
            continue
        names.append(name)
        del _applied[weight]
    return names


def _watch_steps() -> None:
    """Registers the hooks before and after the steps of all optimizers."""
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before))
        _hooks.append(register_optimizer_step_post_hook(_after))


def watch_trained() -> None:
    """Makes optimizer steps reject untrainable sparse parameters, and keep the masks of dense ones."""
    _watch_steps()


def require_entrywise(optimizer: optim.Optimizer) -> None:
    """Raises where an optimizer of whole matrices holds a sparse parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sparse = next((parameter for parameter in parameters if type(parameter) is SparseTensor), None)
    if sparse is not None:
        raise UnsupportedOperatorError(
            f"{type(optimizer).__name__} cannot train a parameter of a SparseTensor {list(sparse.shape)}",
            "SGD, Adam, AdamW and others that treat each entry by itself, or a model that has its zeros already, "
            "whose weights stay dense under a rule with `source: given`",
        )


def _before(optimizer: optim.Optimizer, *_: Any) -> None:
    """Warns of packed weights that the optimizer does not train; records zeros that its step may overwrite."""
    if type(optimizer) in WHOLE:
        require_entrywise(optimizer)
    is_entrywise = type(optimizer) in ENTRYWISE
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(_applied) and (names := _untrained(parameters)):
        warn(
            f"{type(optimizer).__name__} holds {', '.join(names)} of the model before `apply`, which others have "
            "taken the places of: it does not train them; make the optimizer of the parameters of what `apply` returns"
        )
    if is_entrywise:
        _inside[optimizer] = trained_masks.unwritten(parameters)
        if not len(_replaced):
            return
    if names := [_replaced.pop(weight) for weight in parameters if weight in _replaced]:
        warn(
            f"{type(optimizer).__name__} holds the packed weights {', '.join(names)}, which `train()` has made dense "
            "parameters since: it does not train them; make the optimizer after `train()`"
        )
    if not is_entrywise:
        _masks[optimizer] = [(weight, ~entries(weight)) for weight in parameters if weight in _watched]


def _after(optimizer: optim.Optimizer, *_: Any) -> None:
    """Restores the recorded zeros."""
    with torch.no_grad():
        # Momentum from before a mask, and gradients changed since, write outside the mask.
        trained_masks.clear_outside(_inside.pop(optimizer, ()))
        for weight, is_zero in _masks.pop(optimizer, ()):
            weight.masked_fill_(is_zero, 0)
