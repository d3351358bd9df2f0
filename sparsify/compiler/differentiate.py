"""Kernels under autograd: backward runs the kernel of the adjoint program.

In: a kernel and operands that require gradients. Out: results whose backward runs kernels that are
differentiable in their turn.
"""

from collections.abc import Sequence
from typing import Any

import torch

from sparsify.storage.tensor import SparseTensor, values_at, wrap


class Differentiable(torch.autograd.Function):
    """A kernel whose operands and results are dense or sparse; gradients lie on the pattern of what they are of."""

    @staticmethod
    def forward(ctx: Any, kernel: Any, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = kernel.run(operands)
        results = tuple([values[name] for name in kernel.program.outputs])
        ctx.kernel = kernel
        # Values are saved too: torch then notices when they are written to through `values()`.
        values = [t._vals for t in (*operands, *results) if isinstance(t, SparseTensor)]
        ctx.save_for_backward(*operands, *results, *values)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        program = ctx.kernel.program
        wrt = tuple(
            [name for name, need in zip(program.inputs, ctx.needs_input_grad[1:], strict=True) if need]
        )
        values = dict(zip((*program.inputs, *program.outputs), ctx.saved_tensors, strict=False))
        by_name = pull_back(ctx.kernel, values, gradients, wrt)
        return None, *[by_name.get(name) for name in program.inputs]


def pull_back(
    kernel: Any,
    values: dict[str, torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    wrt: tuple[str, ...],
) -> dict[str, torch.Tensor]:
    """The gradients of the operands `wrt`, from those of the results.

    Args:
        kernel: the forward kernel.
        values: its operands and results by name.
        gradients: of its results, None for zeros.
        wrt: names of operands.
    """
    program = kernel.program
    values = dict(values)
    for name, gradient in zip(program.outputs, gradients, strict=True):
        values[f"g_{name}"] = _laid_out(gradient, values[name])
    backward = kernel.adjoint(wrt)
    missing = [name for name in backward.program.inputs if name not in values]
    if missing:
        # Temporaries of the plan are computed again: keeping them would hold memory between the passes.
        again = kernel.temporaries(tuple(missing))(*[values[name] for name in program.inputs])
        values.update(zip(missing, again if isinstance(again, tuple) else (again,), strict=True))
    found = backward(*[values[name] for name in backward.program.inputs])
    return dict(zip(wrt, found if isinstance(found, tuple) else (found,), strict=True))


def _laid_out(gradient: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    """The gradient of a result as the adjoint program reads it: sparse on the pattern of a sparse result."""
    if not isinstance(result, SparseTensor):
        return torch.zeros_like(result) if gradient is None else gradient
    if gradient is None:
        return wrap(result.pattern, torch.zeros_like(result._vals))
    if isinstance(gradient, SparseTensor) and gradient.pattern is result.pattern:
        return gradient
    return SparseTensor(result.pattern, values_at(gradient, result.pattern))
