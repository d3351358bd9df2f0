"""Declarations of operands from tensors: format, dtype, fill.

In: a dense float32 matrix. Out: `Operand(Format("dense, dense"), "float32")`, the same object for all of them.
"""

from functools import lru_cache
from typing import Final

import torch

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.ir.dtypes import BYTES, name_of
from sparsify.compiler.operands.arguments import index_dtypes
from sparsify.errors import DtypeError, EinsumError
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

_known: Final[dict[Operand, Operand]] = {}


def describe(operand: torch.Tensor) -> Operand:
    """Format, dtype and fill of an operand; equal descriptions are the same object."""
    if isinstance(operand, SparseTensor):
        pattern, key = operand._pattern, (operand._vals.dtype, operand._fill)
        found: Operand = pattern.recall(key) or pattern.cached(key, lambda: _of_sparse(operand))
        return found
    return _of_dense(operand.dtype, operand.dim(), operand.layout)


def _of_sparse(operand: SparseTensor) -> Operand:
    fill = operand.fill
    if isinstance(fill, complex) and fill.imag:
        raise DtypeError(f"an operand with the fill {fill}", "a real fill: operand.with_fill(0)")
    made = Operand(
        operand.format, _dtype_name(operand.dtype), float(fill.real), index_dtypes(operand.pattern)
    )
    return _known.setdefault(made, made)


@lru_cache
def _of_dense(dtype: torch.dtype, rank: int, layout: torch.layout) -> Operand:
    if layout != torch.strided:
        raise EinsumError(f"an operand of layout {layout}", "sparsify.tensor(operand)")
    made = Operand(Format(", ".join(["dense"] * rank) or "scalar"), _dtype_name(dtype))
    return _known.setdefault(made, made)


def _dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype that kernels support, `float32`."""
    name = name_of(dtype)
    if name not in BYTES:
        other = "complex64" if dtype.is_complex else "float32"
        raise DtypeError(
            f"an operand of dtype {name}", f"one of {', '.join(BYTES)}: operand.to(torch.{other})"
        )
    return name
