"""Graphs and meshes for benchmarks: real graphs from a data root, else generated graphs of equal size.

In: `matrix("pubmed", root)`. Out: the normalised adjacency as torch CSR, and its source in words.
"""

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from sparsify.errors import DataError
from sparsify.models import data, inputs
from sparsify.models.data import Graph
from sparsify.models.data.synthetic import synthetic

# Nodes, directed edges, features and classes of the real graphs.
SIZES = {
    "cora": (2_708, 10_556, 1_433, 7),
    "citeseer": (3_327, 9_104, 3_703, 6),
    "pubmed": (19_717, 88_648, 500, 3),
    "arxiv": (169_343, 2_315_598, 128, 40),
}
NAMES = {"arxiv": "ogbn-arxiv"}
# A mesh of bricks: three unknowns a node with a shared pattern, and neighbours nearby.
MESH_NODES = 33_334
MESH_NEIGHBOURS = 17
MESH_REACH = 40
UNKNOWNS = 3


@dataclass(frozen=True, slots=True)
class Matrix:
    """A sparse matrix [n, n] as torch CSR with int32 coordinates, and its source in words."""

    name: str
    source: str
    csr: torch.Tensor

    @property
    def rows(self) -> int:
        """n."""
        return self.csr.shape[0]

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.csr.values().shape[0]

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.nnz} stored"


@cache
def graph(name: str, root: Path | None, scale: float = 1.0) -> tuple[Graph, str]:
    """Graph `name` and its source; generated at `scale` of the size if the real graph is missing."""
    nodes, edges, features, classes = SIZES[name]
    if root is not None and scale == 1.0:
        try:
            found = data.load(NAMES.get(name, name), root)
        except DataError:
            pass
        else:
            made = found.features.startswith("made")
            return found, "real graph, features made from it" if made else "real"
    nodes, edges, features = (
        max(low, int(n * scale)) for n, low in ((nodes, 60), (edges, 240), (features, 8))
    )
    return synthetic(nodes, edges, features, classes), "generated, power-law degrees, same size"


@cache
def matrix(name: str, root: Path | None, scale: float = 1.0) -> Matrix:
    """`D^-1/2 (A + I) D^-1/2` of a graph, or the mesh `fem`."""
    if name == "fem":
        return Matrix(name, "generated mesh, 3 unknowns a node", mesh(max(9, int(MESH_NODES * scale))))
    found, source = graph(name, root, scale)
    return Matrix(name, source, narrow(inputs.normalised_adjacency(found)))


def mesh(nodes: int, seed: int = 0) -> torch.Tensor:
    """A banded matrix of a mesh with three unknowns a node, about 50 stored entries a row."""
    rng = np.random.default_rng(seed)
    reach = min(MESH_REACH, nodes - 1)
    near = rng.integers(-reach, reach + 1, size=(nodes, MESH_NEIGHBOURS + 1))
    columns = np.clip(np.arange(nodes)[:, None] + near, 0, nodes - 1)
    rows = np.repeat(np.arange(nodes), columns.shape[1])
    ones = np.ones(len(rows), dtype=np.float32)
    blocks = scipy.sparse.csr_array((ones, (rows, columns.ravel())), shape=(nodes, nodes))
    full = scipy.sparse.csr_array(scipy.sparse.kron(blocks, np.ones((UNKNOWNS, UNKNOWNS), np.float32), "csr"))
    full.sort_indices()
    values = rng.standard_normal(full.nnz).astype(np.float32)
    return csr(
        torch.from_numpy(full.indptr).int(),
        torch.from_numpy(full.indices).int(),
        torch.from_numpy(values),
        full.shape,
    )


def narrow(wide: torch.Tensor) -> torch.Tensor:
    """A torch CSR matrix with int32 coordinates."""
    return csr(wide.crow_indices().int(), wide.col_indices().int(), wide.values(), tuple(wide.shape))


def widened(narrow: torch.Tensor) -> torch.Tensor:
    """A torch CSR matrix with int64 coordinates."""
    return csr(
        narrow.crow_indices().long(), narrow.col_indices().long(), narrow.values(), tuple(narrow.shape)
    )


def csr(pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Torch CSR matrix over arrays `pos`, `crd` and `values`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return torch.sparse_csr_tensor(pos, crd, values, size=shape)


def scipy_of(matrix: torch.Tensor) -> "scipy.sparse.csr_array":
    """CSR matrix of scipy over the arrays of a torch CSR matrix."""
    arrays = (matrix.values().numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy())
    return scipy.sparse.csr_array(arrays, shape=(matrix.shape[0], matrix.shape[1]))
