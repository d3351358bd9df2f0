"""scipy's sparse arrays and matrices, read and made over the same values if the layout allows.

In: `scipy.sparse.csr_array`. Out: a `SparseTensor` in CSR, and back.
"""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError
from sparsify.storage import validate
from sparsify.storage.fill import Fill
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    import scipy.sparse


def is_sparse(data: object) -> bool:
    """Whether `data` is a sparse array or matrix of scipy, without an import of scipy."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(data))


def read(data: Any, fill: Fill, duplicates: str) -> SparseTensor:
    """The tensor of a sparse array; unsorted indices are sorted in a copy, duplicates refused or added."""
    from sparsify.storage.interop.tensors import from_coordinates

    if data.format not in ("csr", "csc", "bsr", "coo"):
        data = data.tocoo()
    if data.format == "coo":
        coordinates = [_tensor(c) for c in getattr(data, "coords", (data.row, data.col))]
        values = _tensor(data.data)
        return from_coordinates(
            coordinates, values, data.shape, format="coo", fill=fill, duplicates=duplicates
        )
    _check(data)
    if not data.has_sorted_indices:
        data = data.sorted_indices()
    if duplicates == "sum" and not data.has_canonical_format:
        data = data.copy()
        data.sum_duplicates()
    pos: tuple[Tensor | None, ...] = (None, _tensor(data.indptr))
    crd: tuple[Tensor | None, ...] = (None, _tensor(data.indices))
    form = data.format
    if form == "bsr":
        height, width = data.blocksize
        form = f"bcsr({height}, {width})"
        pos, crd = (*pos, None, None), (*crd, None, None)
    pattern = Pattern(Format(form), data.shape, pos, crd)
    return SparseTensor(pattern, _tensor(data.data).reshape(-1), fill)


def _check(data: Any) -> None:
    """Checks index arrays, so that scipy's own routines stay within memory."""
    unsorted = Format("dense, compressed(unordered)")
    shape = data.shape if data.format != "csc" else data.shape[::-1]
    if data.format == "bsr":
        shape = tuple(n // b for n, b in zip(shape, data.blocksize, strict=True))
    arrays = (None, _tensor(data.indptr)), (None, _tensor(data.indices))
    try:
        validate.pattern(Pattern(unsorted, shape, *arrays, is_private=True))
    except InvalidTensorError as error:
        if "duplicate" not in error.message:
            raise


def _tensor(array: Any) -> Tensor:
    """A tensor over an array of scipy."""
    contiguous = np.ascontiguousarray(array)
    native = contiguous.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.require(contiguous, native, ["W"]))
    except TypeError as error:
        raise InvalidTensorError(f"a scipy array of {contiguous.dtype} ({error})", "another dtype") from None


def write(matrix: SparseTensor) -> "scipy.sparse.sparray":
    """The scipy array over the memory of a tensor; formats unknown to scipy become coordinates."""
    import scipy.sparse

    from sparsify.storage.interop.torch_layouts import layout_of, same_dtype

    pattern = matrix.pattern
    layout, block = layout_of(matrix.format)
    if matrix.dtype in (torch.bfloat16, torch.float16):
        raise InvalidTensorError(f"scipy has no sparse arrays of {matrix.dtype}", "to(torch.float32) first")
    if layout in ("coo", "bsc") or any(n % b for n, b in zip(pattern.shape, block, strict=False)):
        listed = matrix.to(format=Format("coo", rank=pattern.rank))
        coordinates = tuple(c.numpy() for c in listed.coordinates())
        return scipy.sparse.coo_array((listed.values().detach().numpy(), coordinates), shape=pattern.shape)
    pos, crd = pattern._pos[1], pattern._crd[1]
    assert pos is not None and crd is not None, "the second level is compressed"
    pos, crd = same_dtype(pos, crd)
    values = matrix.values().detach().numpy()
    arrays = (crd.numpy(), pos.numpy())
    shape = (pattern.shape[0], pattern.shape[1])
    match layout:
        case "csr":
            return scipy.sparse.csr_array((values, *arrays), shape=shape)
        case "csc":
            return scipy.sparse.csc_array((values, *arrays), shape=shape)
    blocks = values.reshape(-1, *block)
    return scipy.sparse.bsr_array((blocks, *arrays), shape=shape)
