"""A sparse input matrix as dense tensors, the form in which graphs take it.

In: a sparse matrix `adj` [100, 100]. Out: rows, columns and values of the stored entries, and an empty tensor whose
extents are the matrix's.
"""

import torch

from sparsify.errors import CaptureError
from sparsify.storage.tensor import SparseTensor


def sparse_parts(matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows, columns and values of a sparse matrix, and an empty tensor with the extents.

    With more than two modes, rows are linear indices over all modes but the last one.

    Raises:
        CaptureError: a vector, or a tensor with a fill value other than 0.
    """
    if matrix.dim() < 2:
        raise CaptureError(f"a sparse input of shape {list(matrix.shape)}", "two modes or more")
    if isinstance(matrix, SparseTensor):
        if matrix._fill != 0:
            raise CaptureError(
                f"a sparse input whose fill is {matrix._fill}",
                "a fill of 0, or the tensor itself, as value.to_dense()",
            )
        coordinates, values = matrix.coordinates(), matrix.values()
        inside = matrix.pattern.inside()
        if inside is not None:  # for blocks that extend over the edge
            coordinates, values = coordinates[:, inside], values[inside]
        *leading, columns = coordinates
    else:
        entries = matrix if matrix.layout is torch.sparse_coo else matrix.to_sparse()
        if entries.dense_dim():  # rows of values
            entries = entries.to_dense().to_sparse()
        entries = entries.coalesce()
        *leading, columns = entries.indices()
        values = entries.values()
    rows = leading[0]
    for extent, coordinates in zip(matrix.shape[1:-1], leading[1:], strict=True):
        rows = rows * extent + coordinates
    return rows.clone(), columns.clone(), values, values.new_empty((*matrix.shape, 0)).detach()
