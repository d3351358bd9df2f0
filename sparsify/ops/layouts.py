"""torch's names for layouts: the same tensor in another format, and the arrays of a layout.

In: `A.to_sparse_csc()`, `A.crow_indices()`. Out: A in the format `csc`; the row offsets of A in CSR.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import FormatError
from sparsify.ops.register.table import operator
from sparsify.storage.format import Format
from sparsify.storage.interop import torch_layouts
from sparsify.storage.tensor import SparseTensor

FORMATS = {
    torch.sparse_coo: "coo",
    torch.sparse_csr: "csr",
    torch.sparse_csc: "csc",
    torch.sparse_bsr: "bcsr",
}


@operator(Tensor.to_sparse)
def to_sparse(
    input: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """`A.to_sparse()`: in coordinates, or in the format of torch's `layout`."""
    if (sparse_dim is not None and sparse_dim != input.dim()) or dense_dim:
        raise FormatError("to_sparse with dense modes", 'to(format="coordinate, dense")')
    name = FORMATS.get(layout or torch.sparse_coo)
    if name is None:
        raise FormatError(f"to_sparse in {layout}", f"one of {', '.join(map(str, FORMATS))}")
    if name == "bcsr":
        name = f"bcsr({', '.join(map(str, blocksize or ()))})"
    return input.to(format=Format(name, rank=input.dim()))


def _in_format(name: str) -> Any:
    """The conversion to a format."""

    def convert(input: SparseTensor, dense_dim: int | None = None) -> SparseTensor:
        return input.to(format=Format(name, rank=input.dim()))

    return convert


for _function, _name in ((Tensor.to_sparse_csr, "csr"), (Tensor.to_sparse_csc, "csc")):
    operator(_function)(_in_format(_name))


@operator(Tensor.to_sparse_bsr)
def to_sparse_bsr(
    input: SparseTensor, blocksize: Sequence[int], dense_dim: int | None = None
) -> SparseTensor:
    """`A.to_sparse_bsr((2, 2))`: in blocks."""
    return to_sparse(input, layout=torch.sparse_bsr, blocksize=blocksize)


ARRAYS: dict[Any, tuple[str, tuple[str, str]]] = {
    Tensor.crow_indices: ("pos", ("csr", "bsr")),
    Tensor.col_indices: ("crd", ("csr", "bsr")),
    Tensor.ccol_indices: ("pos", ("csc", "bsc")),
    Tensor.row_indices: ("crd", ("csc", "bsc")),
}
"""torch's names for the arrays of compressed layouts: which array of the second level, and the layouts that have it."""


def _array(name: str, role: str, layouts: Sequence[str]) -> Any:
    """The implementation of a function that returns an index array."""

    def read(input: SparseTensor) -> Tensor:
        layout, _ = torch_layouts.layout_of(input.format)
        if layout not in layouts:
            raise FormatError(f"{name} of a tensor in {input.format}", f'to(format="{layouts[0]}")')
        array: Tensor = getattr(input.pattern, role)[1]
        return array.detach()

    return read


for _reader, (_role, _layouts) in ARRAYS.items():
    operator(_reader)(_array(_reader.__name__, _role, _layouts))


@operator(Tensor._nnz)
def _nnz(input: SparseTensor) -> int:
    """`A._nnz()`: the number of stored entries."""
    return input.nnz


@operator(Tensor.indices, Tensor._indices)
def indices(input: SparseTensor) -> Tensor:
    """`A.indices()`: the coordinates of the stored entries [d, nnz], aligned with `A.values()`."""
    return input.coordinates()


@operator(Tensor._values)
def _values(input: SparseTensor) -> Tensor:
    """`A._values()`: the stored values [nnz]."""
    return input.values()


@operator(Tensor.is_coalesced)
def is_coalesced(input: SparseTensor) -> bool:
    """`A.is_coalesced()`: always, since each coordinate is stored once."""
    return True


@operator(Tensor.coalesce)
def coalesce(input: SparseTensor) -> SparseTensor:
    """`A.coalesce()`: the tensor itself, since each coordinate is stored once."""
    return input


@operator(Tensor.sparse_dim)
def sparse_dim(input: SparseTensor) -> int:
    """`A.sparse_dim()`: all modes, as in `indices`."""
    return input.dim()


@operator(Tensor.dense_dim)
def dense_dim(input: SparseTensor) -> int:
    """`A.dense_dim()`: none, as `values` has none."""
    return 0
