"""Kernels within the transforms of `torch.func`, `grad vjp jvp jacrev hessian vmap`, and within `forward_ad`.

In: `torch.func.grad(lambda x: sparsify.einsum("ij,j->i", A, x).sum())(x)`. Out: the gradient, by the kernel of the
adjoint program.

Transforms follow dense operands; patterns and sparse operands are constants. `vmap` calls the kernel once for each
coordinate of the mapped mode.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType

from sparsify.compiler.kernel.transforms.autograd import pull_back
from sparsify.errors import UnsupportedOperatorError
from sparsify.storage import transformed
from sparsify.storage.tensor import SparseTensor, wrap

REMEDY = (
    "a dense result, format=, of sparse operands that are made outside; torch.autograd follows sparse ones"
)


def call(kernel: Any, operands: Sequence[Tensor]) -> Any:
    """The results of a kernel under active transforms.

    Raises:
        UnsupportedOperatorError: the transforms would have to follow a sparse tensor.
    """
    operands = [_constant(o) if isinstance(o, SparseTensor) else o for o in operands]
    if not transformed.is_followed(operands):
        with transformed.outside():
            return kernel(*operands)
    return _followed(kernel, operands, "torch.func")


def call_forward(kernel: Any, operands: Sequence[Tensor]) -> Any:
    """The results of a kernel for dense operands with tangents, and the tangents of the results.

    Raises:
        UnsupportedOperatorError: a sparse tensor would have to have a tangent.
    """
    if transformed.have_tangents([o for o in operands if isinstance(o, SparseTensor)]):
        raise UnsupportedOperatorError("tangents of the values of a sparse tensor", REMEDY)
    return _followed(kernel, operands, "tangents")


def _followed(kernel: Any, operands: Sequence[Tensor], by: str) -> Any:
    """The dense results of a kernel whose operands are transformed."""
    program = kernel.program
    for name in program.outputs:
        if not program.declaration(name).format.is_dense:
            raise UnsupportedOperatorError(f"{by} of a sparse result, {name}", REMEDY)
    return Transformed.apply(kernel, *operands)  # type: ignore[no-untyped-call]


def _constant(operand: SparseTensor) -> SparseTensor:
    """A sparse operand over plain values: `grad` wraps even values computed from constants.

    Raises:
        UnsupportedOperatorError: a transform follows the values.
    """
    values = operand._vals
    while torch._C._functorch.is_gradtrackingtensor(values) and not values.requires_grad:
        values = torch._C._functorch.get_unwrapped(values)
    if transformed.is_followed(values) or (values is not operand._vals and _is_forward()):
        raise UnsupportedOperatorError("torch.func through the values of a sparse tensor", REMEDY)
    return operand if values is operand._vals else wrap(operand._pattern, values, operand._fill)


def _is_forward() -> bool:
    """Whether a forward-mode transform is active, which needs no `requires_grad`."""
    keys = (interpreter.key() for interpreter in torch._C._functorch.get_interpreter_stack() or ())
    return TransformType.Jvp in keys


class Transformed(torch.autograd.Function):
    """A kernel as an autograd function for transforms: `setup_context` saves tensors, separate from the computation."""

    @staticmethod
    def forward(kernel: Any, *operands: Tensor) -> Any:
        return kernel.results(operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kernel, *operands = inputs
        ctx.kernel = kernel
        kept = (*operands, *(output if type(output) is tuple else (output,)))
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        program = ctx.kernel.program
        needs = ctx.needs_input_grad[1:]
        wrt = tuple([name for name, need in zip(program.inputs, needs, strict=True) if need])
        found = pull_back(ctx.kernel, _named(ctx), gradients, wrt)
        return None, *[found.get(name) for name in program.inputs]

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        found = push_forward(ctx.kernel, _named(ctx), tangents)
        return found if len(found) > 1 else found[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], kernel: Any, *operands: Tensor) -> Any:
        dims = in_dims[1:]
        if not info.batch_size:
            raise UnsupportedOperatorError("torch.func.vmap over a mode without places", "one place or more")
        results = [
            kernel(*[o if d is None else o.select(d, n) for o, d in zip(operands, dims, strict=True)])
            for n in range(info.batch_size)
        ]
        if isinstance(results[0], tuple):
            stacked = tuple([torch.stack(parts) for parts in zip(*results, strict=True)])
            return stacked, (0,) * len(stacked)
        return torch.stack(results), 0


def _named(ctx: Any) -> dict[str, Tensor]:
    """Operands and results of a call by name."""
    program = ctx.kernel.program
    # A function called after its transform has ended, like the result of `vjp`, still gets wrapped tensors.
    saved = [torch._C._functorch.unwrap_if_dead(tensor) for tensor in ctx.saved_tensors]
    return dict(zip((*program.inputs, *program.outputs), saved, strict=True))


def push_forward(
    kernel: Any, values: dict[str, Tensor], tangents: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Tangents of the results: the adjoint of the adjoint, which is linear in its gradients.

    Args:
        kernel: forward kernel.
        values: operands and results by name.
        tangents: tangents of the operands, None for constant ones.
    """
    program = kernel.program
    moved = {name: t for name, t in zip(program.inputs, tangents, strict=True) if t is not None}
    adjoint = kernel.adjoint(tuple(moved))
    gradients = {f"g_{name}": torch.zeros_like(values[name]) for name in program.outputs}
    asked = tuple([name for name in gradients if name in adjoint.program.inputs])
    missing = tuple([name for name in adjoint.program.inputs if name not in values and name not in gradients])
    if missing:
        again = kernel.temporaries(missing)(*[values[name] for name in program.inputs])
        values = values | dict(zip(missing, again if isinstance(again, tuple) else (again,), strict=True))
    found = pull_back(adjoint, values | gradients, tuple(moved.values()), asked) if asked else {}
    return tuple([found.get(name, zeros) for name, zeros in gradients.items()])
