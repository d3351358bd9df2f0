"""Other projects' ways to do a row's work, where they are installed; sparsify needs none of them.

In: `spmm(csr, X)`. Out: `{"scipy": call, "PyG": None, ...}`: a call by the peer's name, `None` where it is missing.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import scipy.sparse
import torch
from torch import Tensor

# The module of each peer.
MODULES: Final = {
    "PyG": "torch_geometric.nn",
    "pydata/sparse": "sparse",
    "OpenVINO": "openvino",
    "ONNX Runtime": "onnxruntime",
    "onnxscript": "onnxscript",
}
Call = Callable[[], Any]
Peers = Mapping[str, Call | None]


def load(name: str) -> Any:
    """The module of a peer, `None` where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts of torch and numpy that are to go
        try:
            return import_module(MODULES[name])
        except ImportError:
            return None


def scipy_of(csr: Tensor) -> scipy.sparse.csr_array:
    """The same matrix for scipy."""
    arrays = (csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy())
    return scipy.sparse.csr_array(arrays, shape=(csr.shape[0], csr.shape[1]))


def product(csr: Tensor, other: Tensor) -> dict[str, Call | None]:
    """`A @ B` of a matrix in CSR with a dense matrix or vector, or with one in CSR."""
    A = scipy_of(csr)
    B = scipy_of(other) if other.layout == torch.sparse_csr else other.numpy()
    found: dict[str, Call | None] = {"scipy": lambda: A @ B, "pydata/sparse": None}
    if (sparse := load("pydata/sparse")) is not None:
        left = sparse.GCXS.from_scipy_sparse(A)
        right = sparse.GCXS.from_scipy_sparse(B) if scipy.sparse.issparse(B) else B
        found["pydata/sparse"] = lambda: left @ right
    return found


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
    """PyG's graph convolution, `None` where it is not installed."""
    nn = load("PyG")
    return None if nn is None else nn.GCNConv
