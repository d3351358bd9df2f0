"""torch's names for layouts: the same tensor in another format.

In: `A.to_sparse_csc()`. Out: A in the format `csc`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import FormatError
from sparsify.ops.table import operator
from sparsify.storage.format import Format
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
    """`A.to_sparse()`: in coordinates, or in the format that is torch's `layout`."""
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
