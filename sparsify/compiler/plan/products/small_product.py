"""Products of small dense matrices: in C, because a call of torch costs more than the product.

In: `X` of 10 x 16 and `W` of 16 x 16. Out: `X W^T`, in a fifth of the time of `torch.mm`.
"""

import ctypes
from functools import cache
from typing import Final

import torch

from sparsify.compiler.cpp.call import foreign_call, product_source
from sparsify.options import Options, current
from sparsify.storage.own_memory import PLAIN

# Multiplications that take about half as long as a call of torch.
MOST: Final = 4096
DTYPES: Final = frozenset({torch.float32, torch.float64})
assert MOST <= product_source.LONGEST


def is_small(rows: int, inner: int, columns: int) -> bool:
    """Whether a product of [rows, inner] and [inner, columns] is computed in C."""
    return 0 < rows * inner * columns <= MOST


def address() -> int | None:
    """The address of the function, with the arguments of a kernel; `None` without a compiler."""
    return _address(current())


@cache
def _address(options: Options) -> int | None:
    """The address of the function, built with the trampolines."""
    made = foreign_call.trampolines()
    if made is None:
        return None
    return ctypes.cast(getattr(made.handle, product_source.SYMBOL), ctypes.c_void_p).value


def small_product(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None,
    left_transposed: bool,
    right_transposed: bool,
) -> torch.Tensor | None:
    """The product of small matrices, plus `bias` for each row; `None` for tensors that C does not read.

    Args:
        left: [rows, inner], or [inner, rows] if transposed.
        right: [inner, columns], or [columns, inner] if transposed.
        bias: [columns].
        left_transposed: whether the left matrix is stored transposed.
        right_transposed: whether the right matrix is stored transposed.
    """
    rows, inner = left.shape[::-1] if left_transposed else left.shape
    summed, columns = right.shape[::-1] if right_transposed else right.shape
    if inner != summed or not is_small(rows, inner, columns):
        return None
    given = (left, right) if bias is None else (left, right, bias)
    if not all(map(_is_readable, given)) or len({left.dtype, *(one.dtype for one in given)}) > 1:
        return None
    function = address()
    if function is None:
        return None
    result = torch.empty((rows, columns), dtype=left.dtype, device="cpu")
    flags = (int(left_transposed), int(right_transposed), int(bias is not None))
    sizes = (rows, inner, columns, *flags, left.itemsize)
    foreign_call.bind_address(function)(sizes, (*given, result), 1, None)
    return result


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether C reads the entries of a matrix or vector in order, and autograd does not follow them."""
    if type(tensor) not in PLAIN or not tensor.is_cpu or tensor.dtype not in DTYPES:
        return False
    if (tensor.requires_grad and torch.is_grad_enabled()) or tensor.layout is not torch.strided:
        return False
    if not tensor.is_contiguous() or tensor.is_neg():
        return False
    return tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + tensor.numel()) * tensor.itemsize
