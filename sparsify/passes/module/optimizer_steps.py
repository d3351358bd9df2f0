"""Zeros of trained weights under optimizers that mix entries, as Muon does: they are put back after each step.

In: a pruned weight that gets gradients where it is not 0. Out: after `torch.optim.Muon([...]).step()` its zeros are
those from before. Optimizers that compute each entry from its own gradients keep zeros by themselves. Optimizers that
hold packed weights, which `train()` has made dense since, say so in their first step.
"""

from collections.abc import Iterable, Mapping
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
from sparsify.storage import trained_masks
from sparsify.storage.tensor import SparseTensor
from sparsify.storage.trained_masks import entries
from sparsify.warn import warn

# An entry whose gradients are all 0 stays 0; of LBFGS too, which adds up gradients with factors for all entries.
ENTRYWISE: Final = frozenset(
    (
        *(optim.SGD, optim.ASGD, optim.Rprop, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adafactor),
        *(optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.SparseAdam, optim.LBFGS),
    )
)
# Optimizers that compute with whole matrices, or with arrays of all parameters, which sparse parameters are not.
WHOLE: Final = frozenset((optim.LBFGS, optim.Rprop, optim.Adafactor, optim.SparseAdam, optim.Muon))
_watched: Any = WeakTensorKeyDictionary()
_replaced: Any = WeakTensorKeyDictionary()
_hooks: list[Any] = []
_inside: "WeakKeyDictionary[optim.Optimizer, list[Tensor]]" = WeakKeyDictionary()
_masks: "WeakKeyDictionary[optim.Optimizer, list[tuple[Tensor, Tensor]]]" = WeakKeyDictionary()

trained_masks.clear_by(cleared_by)


def keep_zeros_of(weights: Iterable[Tensor]) -> None:
    """From now on steps of optimizers leave the zeros of these weights."""
    for weight in weights:
        _watched[weight] = True
    if len(_watched):
        _watch_steps()


def tell_of_replaced(weights: Mapping[str, Tensor]) -> None:
    """From now on steps of optimizers that hold these weights, which their model has no more, warn."""
    for name, weight in weights.items():
        _replaced[weight] = name
    if weights:
        _watch_steps()


def _watch_steps() -> None:
    """Registers what looks at all optimizers before and after their steps."""
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before))
        _hooks.append(register_optimizer_step_post_hook(_after))


def watch_trained() -> None:
    """From now on steps of optimizers that cannot train sparse parameters say so, and keep masks of dense ones."""
    _watch_steps()


def require_entrywise(optimizer: optim.Optimizer) -> None:
    """Raises where an optimizer that computes with whole matrices holds a sparse parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sparse = next((parameter for parameter in parameters if type(parameter) is SparseTensor), None)
    if sparse is not None:
        raise UnsupportedOperatorError(
            f"{type(optimizer).__name__} cannot train a parameter of a SparseTensor {list(sparse.shape)}",
            "SGD, Adam, AdamW and others that treat each entry by itself, or a model that has its zeros already, "
            "whose weights stay dense under a rule with `source: given`",
        )


def _before(optimizer: optim.Optimizer, *_: Any) -> None:
    """Warns of packed weights that the optimizer does not train; remembers zeros that its step may overwrite."""
    if type(optimizer) in WHOLE:
        require_entrywise(optimizer)
    is_entrywise = type(optimizer) in ENTRYWISE
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
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
    """Puts these zeros back."""
    with torch.no_grad():
        # Momentum from before a mask, and gradients that were changed since, write outside of it.
        trained_masks.clear_outside(_inside.pop(optimizer, ()))
        for weight, is_zero in _masks.pop(optimizer, ()):
            weight.masked_fill_(is_zero, 0)
