"""Methods of torch about memory layout: permuted modes, shared memory, addresses.

In: `A.T`, `A.share_memory_()`. Out: a tensor over the same arrays; methods that would hand out dense memory
raise.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import ConversionError, InvalidTensorError, ShapeError, UnsupportedOperatorError
from sparsify.storage.own_memory import PLAIN
from sparsify.storage.subclass.dispatch import on_pattern
from sparsify.storage.tensor import SparseTensor, operators, take_place


def _reversed_modes(tensor: SparseTensor) -> SparseTensor:
    """`tensor.T`."""
    return tensor.permute(tuple(reversed(range(tensor.dim()))))


def _transposed_matrix(tensor: SparseTensor) -> SparseTensor:
    """`tensor.t()`: of a matrix; a vector is unchanged."""
    if tensor.dim() > 2:
        raise ShapeError(f"t() of a tensor of {tensor.dim()} modes; transpose(m, n) names two of them")
    return _reversed_modes(tensor)


def _permute(tensor: SparseTensor, *modes: Any, dims: Any = None) -> SparseTensor:
    return tensor.permute(*modes) if dims is None else tensor.permute(dims)


def _transpose(tensor: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    return tensor.transpose(dim0, dim1)


def _move(tensor: SparseTensor, source: Any, destination: Any) -> SparseTensor:
    """`tensor.movedim(source, destination)`: modes moved to other places, the rest in order."""
    torch.movedim(torch.empty([0] * tensor.dim()), source, destination)  # raises for unknown modes
    rank = tensor.dim()
    sources, places = ([modes] if isinstance(modes, int) else list(modes) for modes in (source, destination))
    order = [mode for mode in range(rank) if mode not in [source % rank for source in sources]]
    for target, mode in sorted(zip([p % rank for p in places], [m % rank for m in sources], strict=True)):
        order.insert(target, mode)
    return tensor.permute(order)


def _matrix_transpose(tensor: SparseTensor) -> SparseTensor:
    """`tensor.mT`: the last two modes exchanged."""
    return tensor.transpose(-2, -1)


def _share_memory(tensor: SparseTensor) -> SparseTensor:
    """`tensor.share_memory_()`: values and the arrays of the pattern, shared for all tensors of the pattern."""
    for array in (*tensor._pattern.arrays_in_place(), tensor._vals):
        array.share_memory_()
    return tensor


def _is_shared(tensor: SparseTensor) -> bool:
    return bool(tensor._vals.is_shared())


def _set_data(tensor: SparseTensor, data: Tensor) -> None:
    """`tensor.data = data`: takes over another sparse tensor of the shape and dtype, or entries on the pattern."""
    if type(data) in PLAIN and data.shape == tensor.shape and data.dtype == tensor.dtype:
        with suppress(UnsupportedOperatorError):  # the message below is about the argument
            data = on_pattern(data, tensor)
    if not isinstance(data, SparseTensor) or data.shape != tensor.shape or data.dtype != tensor.dtype:
        kind = type(data).__name__
        raise InvalidTensorError(
            f"the data of a SparseTensor {list(tensor.shape)} of {tensor.dtype} set to "
            f"a {kind} {list(data.shape)} of {data.dtype}",
            "a SparseTensor of the same shape and dtype, or a dense tensor that is the fill outside of the pattern",
        )
    take_place(tensor, data)


def _without_memory(name: str) -> Callable[..., Any]:
    """An implementation that refuses a function reading or handing out memory."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ConversionError(
            f"{name} of a SparseTensor, which has no dense memory",
            "act on .values(), or ask for .to_dense() first",
        )

    return refuse


for _names, _operator in (
    ((Tensor.T.__get__,), _reversed_modes),  # type: ignore[attr-defined]
    ((torch.t, Tensor.t), _transposed_matrix),
    ((torch.permute, Tensor.permute), _permute),
    ((torch.transpose, torch.swapaxes, torch.swapdims, Tensor.swapaxes, Tensor.swapdims), _transpose),
    ((torch.movedim, torch.moveaxis, Tensor.movedim, Tensor.moveaxis), _move),
    ((Tensor.mT.__get__,), _matrix_transpose),  # type: ignore[attr-defined]
    ((Tensor.share_memory_,), _share_memory),
    ((Tensor.is_shared,), _is_shared),
    ((Tensor.data.__set__,), _set_data),  # type: ignore[attr-defined]
):
    operators.update(dict.fromkeys(_names, _operator))
for _name in ("apply_", "map_", "numpy", "__array__", "tolist", "__dlpack__"):
    operators[getattr(Tensor, _name)] = _without_memory(_name)
