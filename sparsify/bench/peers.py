"""Peers: calls of other installed projects for the work of a row; optional for sparsify.

In: `spmm(csr, X)`. Out: `{"scipy": call, "PyG": None, ...}`: calls by peer, `None` for a missing peer;
`installed.reason("PyG")` gives the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import scipy.sparse
import torch
from torch import Tensor

from sparsify.runner.peers.installed import Call, load

Peers = Mapping[str, Call | None]


def scipy_of(csr: Tensor) -> scipy.sparse.csr_array:
    """The matrix as a scipy CSR matrix."""
    arrays = (csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy())
    return scipy.sparse.csr_array(arrays, shape=(csr.shape[0], csr.shape[1]))


def product(csr: Tensor, other: Tensor) -> dict[str, Call | None]:
    """`A @ B` of a matrix in CSR with a dense matrix or vector, or with one in CSR."""
    A = scipy_of(csr)
    B = scipy_of(other) if other.layout == torch.sparse_csr else other.numpy()
    found: dict[str, Call | None] = {"scipy": lambda: A @ B, "pydata/sparse": None, "GraphBLAS": None}
    if (sparse := load("pydata/sparse")) is not None:
        left = sparse.GCXS.from_scipy_sparse(A)
        right = sparse.GCXS.from_scipy_sparse(B) if scipy.sparse.issparse(B) else B
        found["pydata/sparse"] = lambda: left @ right
    if (graphblas := load("GraphBLAS")) is not None:
        found["GraphBLAS"] = graphblas_product(graphblas, A, B)
    return found


def graphblas_product(package: Any, A: scipy.sparse.csr_array, B: Any) -> Call:
    """The product in SuiteSparse:GraphBLAS; a product with a dense operand is full and read as a dense array."""
    package.init("suitesparse", blocking=True)
    plus_times, left = package.semiring.plus_times, package.io.from_scipy_sparse(A)
    if scipy.sparse.issparse(B):
        right = package.io.from_scipy_sparse(B)
        return lambda: left.mxm(right, plus_times).new()
    if B.ndim == 1:
        vector = package.Vector.from_dense(B)
        return lambda: left.mxv(vector, plus_times).new().to_dense(0.0)
    dense = package.Matrix.from_dense(B)
    return lambda: left.mxm(dense, plus_times).new().to_dense(0.0)


def sparse_linear(layer: torch.nn.Linear) -> Callable[[Tensor], Tensor] | None:
    """SparseLab's layer with the weight of a torch layer, `None` if not installed."""
    if (package := load("SparseLab")) is None:
        return None
    made = package.SparseLinear(layer.in_features, layer.out_features, sparsity=0.5)
    made._csr = package.PaddedCSR.from_dense(layer.weight.detach())
    made._values = torch.nn.Parameter(torch.from_numpy(numpy.asarray(made._csr.values)))
    made.bias = torch.nn.Parameter(layer.bias.detach().clone())
    call: Callable[[Tensor], Tensor] = made.eval()
    return call


def spmm(csr: Tensor, X: Tensor) -> dict[str, Call | None]:
    """`A @ X` of a matrix in CSR with a dense one; PyG adds up messages along edges."""
    found = {**product(csr, X), "PyG": None}
    if (nn := load("PyG")) is not None:
        rows = torch.arange(csr.shape[0]).repeat_interleave(csr.crow_indices().diff())
        edges, values = torch.stack([csr.col_indices().long(), rows]), csr.values()
        convolution = nn.SimpleConv(aggr="sum")
        found["PyG"] = lambda: convolution(X, edges, values)
    return found


def gcn(features: int, hidden: int, classes: int) -> type[torch.nn.Module] | None:
    """PyG's graph convolution, `None` if not installed."""
    nn = load("PyG")
    return None if nn is None else nn.GCNConv
