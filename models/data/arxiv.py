"""ogbn-arxiv: citations among arXiv papers on computer science.

In: `arxiv(Path("/data"))`; `/data/ogbn_arxiv/raw/` holds `node-label.csv.gz`, `node_year.csv.gz`,
`adj_full.npz` (scipy CSR) or OGB's own `edge.csv.gz`, and optionally `node-feat.csv.gz`. Out: a `Graph`.
Source: Hu et al., Open Graph Benchmark: datasets for machine learning on graphs, NeurIPS 2020.
"""

from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from sparsify.errors import DataError
from sparsify.models.data.fastrp import fastrp
from sparsify.models.data.folders import find
from sparsify.models.data.graph import Graph

PLACES = ("ogbn_arxiv", "ogbn-arxiv", "arxiv", "data/ogbn_arxiv", ".")
LABELS = "raw/node-label.csv.gz"
LAST_TRAINING_YEAR = 2017
VALIDATION_YEAR = 2018


def arxiv(root: Path | None = None, seed: int = 0) -> Graph:
    """Citation graph with every citation in both directions, 40 classes and the split by year.

    Args:
        root: parent folder of `ogbn_arxiv/`, or the folder itself; only read.
        seed: seed of features generated from the graph if `node-feat.csv.gz` is missing.

    Raises:
        DataError: a file is missing or does not fit the others.
    """
    folder = None if root is None else find(PLACES, root, LABELS)
    if folder is None:
        raise DataError(
            f"ogbn-arxiv is not here: looked for {PLACES[0]}/{LABELS} under {root or 'no data root'}",
            "unpack OGB's arxiv.zip (snap.stanford.edu/ogb/data/nodeproppred), give the folder with arxiv/ by "
            "--data-root DIR; --dataset synthetic needs no files",
        )
    raw = folder / "raw"
    y, year = column(raw / "node-label.csv.gz"), column(raw / "node_year.csv.gz")
    adjacency = undirected(citations(raw, len(y)))
    if adjacency.shape[0] != len(y) or len(year) != len(y):
        raise DataError(
            f"{raw}: {adjacency.shape[0]} nodes, {len(y)} labels and {len(year)} years do not fit",
            "fetch the set anew",
        )
    x, features = node_features(raw, adjacency, seed)
    entries = adjacency.tocoo()
    return Graph(
        name="ogbn-arxiv",
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64)),
        y=torch.from_numpy(y),
        train=positions(year <= LAST_TRAINING_YEAR),
        val=positions(year == VALIDATION_YEAR),
        test=positions(year > VALIDATION_YEAR),
        classes=int(y.max()) + 1,
        features=features,
    )


def column(file: Path) -> NDArray[np.int64]:
    """Numbers of a compressed file with one number per line."""
    if not file.is_file():
        raise DataError(f"{file} is missing", "fetch the set anew")
    return np.loadtxt(file, dtype=np.int64, delimiter=",", ndmin=1)


def citations(raw: Path, nodes: int) -> "scipy.sparse.csr_array":
    """Directed citations, [n, n]: citing paper by cited paper."""
    if (raw / "adj_full.npz").is_file():
        return scipy.sparse.csr_array(scipy.sparse.load_npz(raw / "adj_full.npz"))
    if (raw / "edge.csv.gz").is_file():
        source, target = np.loadtxt(raw / "edge.csv.gz", dtype=np.int64, delimiter=",", ndmin=2).T
        return scipy.sparse.csr_array(
            (np.ones(len(source), dtype=bool), (source, target)), shape=(nodes, nodes)
        )
    raise DataError(f"{raw} has neither adj_full.npz nor edge.csv.gz", "fetch the set anew")


def undirected(adjacency: "scipy.sparse.csr_array") -> "scipy.sparse.csr_array":
    """Adjacency with both directions of every entry, no self loops and ones as values."""
    entries = adjacency.tocoo()
    apart = entries.row != entries.col
    row, col = entries.row[apart], entries.col[apart]
    ones = np.ones(2 * len(row), dtype=np.float32)
    both = scipy.sparse.csr_array(
        (ones, (np.concatenate([row, col]), np.concatenate([col, row]))), shape=adjacency.shape
    )
    both.sum_duplicates()
    both.data[:] = 1.0
    return both


def node_features(
    raw: Path, adjacency: "scipy.sparse.csr_array", seed: int
) -> tuple[NDArray[np.float32], str]:
    """Features [n, 128] and their description; the benchmark's features if present."""
    file = raw / "node-feat.csv.gz"
    if not file.is_file():
        return fastrp(adjacency, 128, seed), "made from the graph by FastRP, not the benchmark's own"
    x = np.loadtxt(file, dtype=np.float32, delimiter=",", ndmin=2)
    if len(x) != adjacency.shape[0]:
        raise DataError(f"{file} has {len(x)} rows for {adjacency.shape[0]} nodes", "fetch the set anew")
    return x, "the benchmark's own: averaged word embeddings"


def positions(chosen: NDArray[np.bool_]) -> torch.Tensor:
    """Positions of true entries."""
    return torch.from_numpy(np.flatnonzero(chosen))
