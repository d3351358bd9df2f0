"""Kernels under autograd: the adjoint program of a program, compiled when a gradient is asked for.

In: a kernel and operands that require gradients. Out: results whose backward runs the adjoint's kernels, which
are differentiable in their turn.
"""

from typing import Any

import torch

from sparsify.compiler.einsum.gradient import adjoint
from sparsify.compiler.kernel import Kernel, compile_program
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

Wrapping = tuple[Pattern | None, float | int | complex]


def differentiable(kernel: Kernel, operands: tuple[torch.Tensor, ...]) -> Any:
    """The results of `kernel`, connected to the operands that require gradients."""
    wrapping: tuple[Wrapping, ...] = tuple(
        (o.pattern, o.fill) if isinstance(o, SparseTensor) else (None, 0) for o in operands
    )
    plain = [o.values() if isinstance(o, SparseTensor) else o for o in operands]
    shapes: list[Wrapping] = []
    found = _Kernel.apply(  # type: ignore[no-untyped-call]
        kernel, wrapping, shapes, *plain
    )
    results = tuple(_wrap(value, *shape) for value, shape in zip(found, shapes, strict=True))
    return results[0] if len(results) == 1 else results


def _wrap(value: torch.Tensor, pattern: Pattern | None, fill: Any) -> torch.Tensor:
    return value if pattern is None else SparseTensor(pattern, value, fill)


def adjoint_kernel(kernel: Kernel, wrt: tuple[str, ...]) -> Kernel:
    """The kernel of the adjoint program, kept on the forward kernel."""
    if wrt not in kernel.adjoints:
        grads = {name: f"g_{name}" for name in kernel.program.outputs}
        kernel.adjoints[wrt] = compile_program(adjoint(kernel.program, wrt, grads))
    return kernel.adjoints[wrt]


class _Kernel(torch.autograd.Function):
    """A kernel over plain tensors: dense operands and the values of sparse ones."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, wrapping: tuple[Wrapping, ...], shapes: list[Wrapping], *plain: Any
    ) -> Any:
        operands = tuple(_wrap(value, *how) for value, how in zip(plain, wrapping, strict=True))
        values = kernel.run(operands)
        results = [values[name] for name in kernel.program.outputs]
        shapes.extend((r.pattern, r.fill) if isinstance(r, SparseTensor) else (None, 0) for r in results)
        ctx.kernel, ctx.wrapping, ctx.shapes = kernel, wrapping, shapes
        found = tuple(r.values() if isinstance(r, SparseTensor) else r for r in results)
        ctx.save_for_backward(*plain, *found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        kernel: Kernel = ctx.kernel
        program = kernel.program
        needed = ctx.needs_input_grad[3:]
        wrt = tuple(name for name, need in zip(program.inputs, needed, strict=True) if need)
        count = len(program.inputs)
        saved = ctx.saved_tensors
        values = {
            n: _wrap(v, *how) for n, v, how in zip(program.inputs, saved[:count], ctx.wrapping, strict=True)
        }
        results = saved[count:]
        for name, value, gradient, how in zip(program.outputs, results, gradients, ctx.shapes, strict=True):
            values[name] = _wrap(value, *how)
            whole = torch.zeros_like(value) if gradient is None else gradient.contiguous()
            values[f"g_{name}"] = _wrap(whole, *how)
        backward = adjoint_kernel(kernel, wrt)
        missing = [name for name in backward.program.inputs if name not in values]
        if missing:
            # Temporaries of the plan are computed again: keeping them would hold memory between the passes.
            again = kernel.run(tuple(values[name] for name in program.inputs))
            values.update((name, again[name]) for name in missing)
        found = backward(*(values[name] for name in backward.program.inputs))
        found = found if isinstance(found, tuple) else (found,)
        by_name = dict(zip(wrt, found, strict=True))
        plain = (by_name.get(name) for name in program.inputs)
        return None, None, None, *(g.values() if isinstance(g, SparseTensor) else g for g in plain)
