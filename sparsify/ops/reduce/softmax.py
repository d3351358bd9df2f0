"""Softmax over stored entries, as `torch.sparse.softmax`: unstored ones count as minus infinity.

In: `torch.softmax(A, 1)`. Out: a tensor on the pattern of A, with row sums of 1.

The one exception to the fill rules, so no dense fallback exists: unsupported cases raise.
"""

from math import prod
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.evaluate import evaluate
from sparsify.errors import EinsumError
from sparsify.ops.entries.move import entries_of
from sparsify.ops.pointwise.elementwise import INDICES
from sparsify.ops.reduce.reductions import modes_of
from sparsify.ops.register.table import refuse
from sparsify.storage import convert
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor, operators

# Maximum number of rows for a dense vector over all rows.
MOST_EMPTY_ROWS: Final = 2**20


def softmax(
    input: SparseTensor, dim: int, dtype: torch.dtype | None = None, *, out: Any = None
) -> SparseTensor:
    """`torch.softmax` along one mode of the stored entries.

    Raises:
        EinsumError: integers, truth values and complex numbers, as in torch; `dtype` selects a floating point type.
    """
    if out is not None:
        raise refuse("softmax with out=", "use the result")
    taken = input if dtype is None else input.to(dtype)
    if not taken.dtype.is_floating_point:
        raise EinsumError(f"softmax of {taken.dtype}", "softmax(..., dtype=torch.float32)")
    (mode,) = modes_of(input, dim)
    format = taken.format
    rows = prod(extent for number, extent in enumerate(taken.shape) if number != mode)
    if rows > MOST_EMPTY_ROWS + 8 * taken.nnz and not format.is_dense:
        return _of_rows_with_entries(taken, mode)
    if format.is_short and format.ordering[-1] != mode:
        # Rows are contiguous if the mode is stored last; both conversions are cached on the pattern.
        order = (*(m for m in format.ordering if m != mode), mode)
        transposed = taken.to(format=Format([stored.level for stored in format.levels], order))
        return softmax(transposed, mode).to(format=format)
    names = INDICES[: input.dim()]
    entry = f"A[{','.join(names)}]"
    rest = ",".join(name for number, name in enumerate(names) if number != mode)
    at = f"[{rest}]" if rest else ""
    text = f"""
        m{at} max= where(stored({entry}), {entry}, -inf)
        P[{",".join(names)}] = where(stored({entry}), exp({entry} - where(m{at} == -inf, 0, m{at})), 0)
        d{at} += P[{",".join(names)}]
        Y[{",".join(names)}] = P[{",".join(names)}] / where(d{at} == 0, 1, d{at})"""
    dense = dense_format(len(names) - 1)
    return cast(SparseTensor, evaluate(text, "Y", A=taken, format={"m": dense, "d": dense}))


def _of_rows_with_entries(input: SparseTensor, mode: int) -> SparseTensor:
    """The softmax of a tensor with mostly empty rows, by a matrix of the nonempty rows alone."""
    entries = entries_of(input)
    rest = torch.stack([column for number, column in enumerate(entries.columns) if number != mode])
    used, row = torch.unique(rest, dim=1, return_inverse=True)
    shape = (used.shape[1], input.shape[mode])
    nonempty = convert.placed([row, entries.columns[mode]], entries.source, shape, Format("csr"))
    compact = softmax(SparseTensor(nonempty.pattern, input.values()[nonempty.permutation]), 1)
    values = torch.zeros_like(input.values()).index_copy(0, nonempty.permutation, compact.values())
    return SparseTensor(input.pattern, values)


def functional_softmax(
    input: SparseTensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> SparseTensor:
    """`torch.nn.functional.softmax`; the mode is required."""
    if dim is None:
        raise refuse("softmax without a mode", "dim=-1")
    return softmax(input, dim, dtype)


def log_softmax(
    input: SparseTensor, dim: int, *_: Any, dtype: torch.dtype | None = None, **__: Any
) -> Tensor:
    """The logarithm of the softmax on the stored entries; an unstored one is minus infinity."""
    return cast(SparseTensor, softmax(input, dim, dtype).log())


for _functions, _compute in (
    ((torch.softmax, Tensor.softmax, torch.sparse.softmax), softmax),
    ((functional.softmax,), functional_softmax),
    ((torch.log_softmax, Tensor.log_softmax, functional.log_softmax, torch.sparse.log_softmax), log_softmax),
):
    operators.update(dict.fromkeys(_functions, _compute))
