"""Kernels under autograd: backward runs the kernel of the adjoint program.

In: a kernel and operands that require gradients. Out: results with a backward pass of differentiable kernels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from sparsify.errors import SparsifyError
from sparsify.storage.tensor import SparseTensor, values_at, wrap


@dataclass(frozen=True, slots=True)
class Kept:
    """The tensors of a call saved for the backward pass.

    Attributes:
        kernel: called kernel.
        wrt: names of the operands that need gradients.
        names: names of saved operands, results and temporaries.
        places: indices of the saved tensors among operands, results and temporaries.
        is_sure: whether backward gets all gradients of results, none of them `None`: torch makes the zeros.
        forward: kernel that returns the temporaries after the results; the same kernel without any.
    """

    kernel: Any
    wrt: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[int, ...]
    is_sure: bool
    forward: Any

    @property
    def temporaries(self) -> set[str]:
        """The saved temporaries."""
        program = self.kernel.program
        return set(self.names) - {*program.inputs, *program.outputs}


class Differentiable(torch.autograd.Function):
    """A kernel with dense or sparse operands and results; a sparse gradient has the pattern of its tensor."""

    @staticmethod
    def forward(ctx: Any, kernel: Any, *operands: Tensor) -> Any:
        needs = ctx.needs_input_grad
        ctx.kept = kept = kernel.kept.get(needs) or kernel.kept.setdefault(needs, keep(kernel, needs[1:]))
        found = results = kept.forward.results(operands)
        if kept.forward is not kernel:
            count = len(kernel.program.outputs)
            results = found[:count] if count > 1 else found[0]
        every = (*operands, *found) if type(found) is tuple else (*operands, found)
        saved = []
        for place in kept.places:
            tensor = every[place]
            saved.append(tensor)
            if type(tensor) is not Tensor and isinstance(tensor, SparseTensor):
                saved.append(tensor._vals)  # torch then detects in-place writes through `values()`
        ctx.save_for_backward(*saved)
        if not kept.is_sure:
            ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        kept, names = ctx.kept, iter(ctx.kept.names)
        values, is_values = {}, False
        for tensor in ctx.saved_tensors:
            if not is_values:
                values[next(names)] = tensor
            is_values = not is_values and isinstance(tensor, SparseTensor)
        if torch.is_grad_enabled():  # rematerialized temporaries carry second derivatives
            for name in kept.temporaries:
                del values[name]
        by_name = pull_back(kept.kernel, values, gradients, kept.wrt)
        return None, *[by_name.get(name) for name in kept.kernel.program.inputs]


def read_by_gradients(kernel: Any, wrt: tuple[str, ...]) -> set[str]:
    """The operands, results and temporaries read by the gradients of the operands `wrt`.

    Raises:
        SparsifyError: there are no such gradients.
    """
    return set(kernel.adjoint(wrt).program.inputs) - {f"g_{name}" for name in kernel.program.outputs}


def keep(kernel: Any, needs: Sequence[bool]) -> Kept:
    """The tensors read by the gradients of a kernel, for the operands that need gradients.

    If the adjoint is unknown, all operands and results. A result not read by the gradients is not saved and may be
    modified in place afterwards.
    """
    program = kernel.program
    every = (*program.inputs, *program.outputs)
    wrt = tuple([name for name, need in zip(program.inputs, needs, strict=True) if need])
    try:
        read = read_by_gradients(kernel, wrt)
    except SparsifyError:  # raised again by the backward pass
        read = set(every)
    forward, more = kernel, tuple(sorted(read - set(every)))
    if more and set(more) <= set(kernel.keeping.kept):
        forward, every = kernel.also(more), (*every, *more)
        read |= set(program.inputs)  # for second derivatives
    elif more:
        # Temporaries of the plan are rematerialized: saving them would hold memory between the passes.
        read = (read & set(every)) | set(program.inputs)
    # torch makes zeros for missing gradients of dense results; zeros of sparse gradients need the results.
    is_sure = all(program.declaration(name).format.is_dense for name in program.outputs)
    if not is_sure:
        read.update(program.outputs)
    names = tuple([name for name in every if name in read])
    return Kept(kernel, wrt, names, tuple([every.index(name) for name in names]), is_sure, forward)


# `Differentiable.apply` without the search for tensors of functorch's transforms, half of its time: for tensors in
# plain memory, outside of transforms.
apply_plainly: Final[Callable[..., Any]] = super(torch.autograd.Function, Differentiable).apply


def pull_back(
    kernel: Any,
    values: dict[str, Tensor],
    gradients: Sequence[Tensor | None],
    wrt: tuple[str, ...],
) -> dict[str, Tensor]:
    """The gradients of the operands `wrt`, from the gradients of the results.

    Args:
        kernel: forward kernel.
        values: operands and results by name that the gradients read; if a result is missing, all operands, from which
            it is recomputed.
        gradients: gradients of the results, None for zeros.
        wrt: names of operands.
    """
    program = kernel.program
    values = dict(values)
    for name, gradient in zip(program.outputs, gradients, strict=True):
        values[f"g_{name}"] = _laid_out(gradient, values.get(name))
    backward = kernel.adjoint(wrt)
    missing = [name for name in backward.program.inputs if name not in values]
    if missing:
        again = kernel.temporaries(tuple(missing))(*[values[name] for name in program.inputs])
        values.update(zip(missing, again if isinstance(again, tuple) else (again,), strict=True))
    found = backward(*[values[name] for name in backward.program.inputs])
    if _requests and not torch.is_grad_enabled():
        _give_dense(kernel, values, wrt)
    return dict(zip(wrt, found if isinstance(found, tuple) else (found,), strict=True))


class GradientRequest:
    """Request for the gradients of a sparse operand at unstored coordinates too, in force while this object lives.

    Attributes:
        dense_gradients: operand, dense gradient and graph task of autograd, for each kernel that reads the operand
            in a backward pass.
    """

    def __init__(self, operand: SparseTensor) -> None:
        self.dense_gradients: list[tuple[SparseTensor, Tensor, int]] = []
        _requests[operand._vals.data_ptr()] = self


_requests: Final[WeakValueDictionary[int, GradientRequest]] = WeakValueDictionary()


def graph_task() -> int:
    """The number of the running backward pass of autograd, -1 outside; nested passes have numbers of their own."""
    return torch._C._current_graph_task_id()


def _give_dense(kernel: Any, values: Mapping[str, Tensor], wrt: Sequence[str]) -> None:
    """Computes the requested dense gradients of operands, if the program with dense operands has an adjoint."""
    for name in wrt:
        operand = values.get(name)
        if not isinstance(operand, SparseTensor):
            continue
        request = _requests.get(operand._vals.data_ptr())
        if request is None:
            continue
        try:
            backward = kernel.dense_adjoint((name,))
            if all(read in values and read != name for read in backward.program.inputs):
                gradient = backward(*[values[read] for read in backward.program.inputs])
                request.dense_gradients.append((operand, gradient, graph_task()))
        except SparsifyError:
            continue  # the owner of `GradientRequest` detects the missing gradient


def _laid_out(gradient: Tensor | None, result: Tensor | None) -> Tensor:
    """The gradient of a result as the adjoint program reads it: sparse on the pattern of a sparse result."""
    if result is None:
        assert gradient is not None, (
            "autograd asks for gradients of one result when it has that of the result"
        )
        return gradient
    if not isinstance(result, SparseTensor):
        return torch.zeros_like(result) if gradient is None else gradient
    if gradient is None:
        return wrap(result.pattern, torch.zeros_like(result._vals))
    if isinstance(gradient, SparseTensor) and gradient.pattern is result.pattern:
        return gradient
    return SparseTensor(result.pattern, values_at(gradient, result.pattern))
