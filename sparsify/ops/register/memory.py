"""Limit on dense memory: a dense copy or result out of all proportion to the stored entries is refused.

In: the shape of a dense copy and the original operands. Out: nothing, or `DenseSizeError` with the sizes.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils._pytree import tree_leaves

from sparsify.errors import DenseSizeError
from sparsify.storage.tensor import SparseTensor

LEAST_BYTES: Final = 2**30
TIMES_STORED: Final = 100
"""A dense copy is refused when it takes more than `LEAST_BYTES` and `TIMES_STORED` times the stored bytes."""
INSTEAD: Final = {
    "embedding": "S[index] gives rows as a SparseTensor",
    "sort": "S.topk(k), or S.values().sort()",
    "argsort": "S.topk(k), or S.values().argsort()",
    "msort": "S.topk(k, 0), or S.values().sort()",
    "cumsum": "torch.cumsum of one row at a time, S[i]",
    "cumprod": "torch.cumprod of one row at a time, S[i]",
    "rand_like": "S.with_values(torch.rand(S.nnz))",
    "randn_like": "S.with_values(torch.randn(S.nnz))",
    "inverse": "scipy.sparse.linalg.splu(S.to_scipy()) solves systems",
    "add": "keep the pattern: act on S.values()",
    "sub": "keep the pattern: act on S.values()",
}
"""Remedies by the last part of a function's name; any other is advised to act on `.values()` or on rows."""
ANY: Final = "act on S.values(), on rows S[i], or say it as sparsify.evaluate"


def stored_bytes(operands: Iterable[Tensor]) -> int:
    """Bytes of values and index arrays of operands, dense ones counted whole."""
    total = 0
    for operand in operands:
        if isinstance(operand, SparseTensor):
            arrays = (*operand._pattern.arrays_in_place(), operand._vals)
            total += sum(array.numel() * array.element_size() for array in arrays)
        elif operand.layout == torch.strided:
            total += operand.numel() * operand.element_size()
    return total


def dense_bytes(operands: Iterable[Tensor]) -> int:
    """Bytes of dense copies of the sparse operands."""
    return sum(o.numel() * o.element_size() for o in operands if isinstance(o, SparseTensor))


def tensors_in(arguments: Any) -> list[Tensor]:
    """The tensors among nested arguments, each once."""
    return list({id(leaf): leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}.values())


def check_bytes(name: str, count: int, operands: Sequence[Tensor]) -> None:
    """Raises if `count` bytes are out of proportion to the operands.

    Raises:
        DenseSizeError: more than `LEAST_BYTES` and more than `TIMES_STORED` times the stored bytes of the operands.
    """
    if count <= LEAST_BYTES or is_dynamo_compiling():
        return
    stored = stored_bytes(operands)
    if count > TIMES_STORED * stored:
        raise DenseSizeError(
            f"{name} would take {_size(count)} of dense memory for operands of {_size(stored)}",
            INSTEAD.get(name.rpartition(".")[2].strip("_"), ANY) + "; .to_dense() asks for the dense tensor",
        )


def check_shape(name: str, shape: Sequence[int], dtype: torch.dtype, *operands: Any) -> None:
    """`check_bytes` for a dense result of a shape and dtype."""
    check_bytes(name, prod(shape) * dtype.itemsize, tensors_in(operands))


def _size(count: int) -> str:
    """A size in bytes as readable text.

    >>> _size(19_600_000_000)
    '19.6 GB'
    """
    number, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"
