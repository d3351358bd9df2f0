"""Parts of a pattern: a shape of extents, and one array or none per level and role.

In: `[3, 4]`, `pos` and `crd`. Out: the shape `(3, 4)`, or an error naming the wrong part.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage.format import Format

Arrays = Sequence[Tensor | None]


def shape_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """A shape of extents.

    Raises:
        InvalidTensorError: anything but non-negative integers.
    """
    if not isinstance(sizes, Iterable) or isinstance(sizes, str):
        raise InvalidTensorError(f"the shape {sizes!r}", "a tuple of non-negative integers")
    extents = tuple(sizes)
    for mode, size in enumerate(extents):
        if isinstance(size, torch.SymInt):
            return extents
        if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
            raise InvalidTensorError(
                f"the shape {extents} has {size!r} in mode {mode}", "non-negative integers"
            )
    return tuple([int(size) for size in extents])


def require_readable(data: Tensor, what: str) -> None:
    """Checks that the shape and entries of a tensor are readable.

    Raises:
        InvalidTensorError: nested, quantized and oneDNN tensors, and parameters without a shape.
    """
    if is_lazy(data):
        raise InvalidTensorError(f"{what} without a shape, a {type(data).__name__}", "materialize it first")
    if data.is_nested:
        raise InvalidTensorError(
            f"{what} in a nested tensor", "layout=torch.jagged, data.to_padded_tensor(0), or one part of it"
        )
    if data.is_mkldnn:
        raise InvalidTensorError(f"{what} in oneDNN's layout", "data.to_dense()")
    if data.is_quantized:
        raise InvalidTensorError(f"{what} in a quantized tensor", "data.dequantize()")


def check_levels(format: Format, shape: tuple[int, ...], pos: Arrays, crd: Arrays) -> None:
    """Checks for a format of the shape's rank, and a tensor or `None` for each level."""
    if not isinstance(format, Format):
        raise FormatError(f"a Pattern of the format {format!r}", 'sparsify.Format("dense, compressed")')
    if format.rank != len(shape):
        raise FormatError(
            f"{format} stores {format.rank} modes, the shape is {list(shape)}", "another format"
        )
    for role, arrays in (("pos", pos), ("crd", crd)):
        if not isinstance(arrays, list | tuple) or len(arrays) != len(format.levels):
            count = len(arrays) if isinstance(arrays, list | tuple) else type(arrays).__name__
            raise InvalidTensorError(
                f"{role} arrays for {format}: {count}",
                f"one of each of the {len(format.levels)} levels, None for a level without",
            )
        for number, (array, stored) in enumerate(zip(arrays, format.levels, strict=True)):
            if (problem := _array_problem(role, array, stored.level.arrays)) is not None:
                raise InvalidTensorError(f"{role} of level {number} ({stored}) {problem[0]}", problem[1])


def _array_problem(role: str, array: Tensor | None, roles: Sequence[str]) -> tuple[str, str] | None:
    """The fault of the array of a level, and the expected array; `None` for a valid array."""
    if array is None:
        is_missing = role == "crd" and role in roles
        return ("is missing", "an array of integers for crd") if is_missing else None
    if not isinstance(array, Tensor):
        return f"is a {type(array).__name__}", "a torch tensor of integers"
    return (f"has shape {list(array.shape)}", "one contiguous dimension") if array.dim() != 1 else None
