"""Optimizer state and gradients on the patterns of parameters, checked before each step.

In: a sparse parameter with the mask of a checkpoint, and an optimizer with the state of another one. Out: an error
before the step changes anything.
"""

from typing import Any, Final

import torch
from torch import Tensor, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sparsify.errors import InvalidTensorError
from sparsify.storage.tensor import SparseTensor, operators, values_at, wrap

_hooks: Final[list[Any]] = []


def requires_grad_(tensor: Tensor, requires_grad: bool = True) -> Tensor:
    """`Tensor.requires_grad_`; the first trained sparse tensor installs the checks of optimizer steps."""
    if requires_grad and not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(require_entries))
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.requires_grad_(requires_grad)


operators[Tensor.requires_grad_] = requires_grad_


def require_entries(optimizer: optim.Optimizer, *_: Any) -> None:
    """Raises if the gradient or optimizer state of a sparse parameter has the entries of another mask.

    Raises:
        InvalidTensorError: with the parameter's shape; the step has changed nothing.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if type(parameter) is SparseTensor:
                _require_same(optimizer, parameter, group)


def _require_same(optimizer: optim.Optimizer, parameter: SparseTensor, group: dict[str, Any]) -> None:
    """Checks one parameter; dense state, from a run with dense weights, is reduced to the parameter's entries."""
    pattern, state = parameter._pattern, optimizer.state.get(parameter, {})
    for name, value in [("grad", parameter.grad), *state.items()]:
        if type(value) is Tensor and value.dim() and value.shape == parameter.shape and name in state:
            state[name] = wrap(pattern, values_at(value, pattern))
        if (
            type(value) is not SparseTensor
            or value.shape != parameter.shape
            or value._pattern.equals(pattern)
        ):
            continue
        names = group.get("param_names")
        who = next((n for n, p in zip(names or (), group["params"], strict=False) if p is parameter), "")
        raise InvalidTensorError(
            f"{name!r} of {type(optimizer).__name__} for {who or 'a parameter'} {list(parameter.shape)} has "
            f"{value.nnz} entries of another mask than the {parameter.nnz} of the parameter",
            "load the state of the optimizer that was saved with the parameters, set optimizer.state.clear(), or "
            "change masks by sparsify.training.set_mask(parameter, mask, optimizer)",
        )
