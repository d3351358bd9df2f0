"""The symmetric adjacency of a graph as rows on disk, made from chunks of edges.

In: an `EdgeList`. Out: `Adjacency`; its `blocks()` give consecutive rows in CSR. Memory is O(nodes) and one bucket.

Edges are appended to one file for each range of rows, and each file is sorted separately: an external bucket sort.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse

from sparsify.scale.edge_list import EdgeList

Array = np.ndarray[Any, Any]
BLOCK_ENTRIES: Final = 1 << 20


@dataclass(frozen=True)
class Adjacency:
    """Rows of a symmetric adjacency without self loops; edges in both directions count once.

    Attributes:
        pos: int64 [nodes + 1].
        path: int32 [pos[nodes]] on disk: the neighbours of each node.
        bounds: the first rows of the blocks, and the number of nodes.
    """

    pos: Array
    path: Path
    bounds: tuple[int, ...]

    def blocks(self) -> Iterator[tuple[int, Array, Array]]:
        """First row, `pos` from 0 and `crd` of consecutive rows."""
        with self.path.open("rb") as file:
            for first, last in pairwise(self.bounds):
                pos = self.pos[first : last + 1] - self.pos[first]
                yield first, pos, np.fromfile(file, np.int32, int(pos[-1]))


def build(edges: EdgeList, folder: Path) -> Adjacency:
    """Sorts the edges of a file into rows, in a folder for temporary files.

    Args:
        edges: counted, with a known number of nodes.
        folder: folder with room for 24 bytes an edge.
    """
    assert edges.nodes is not None, "edges are counted first"
    nodes = edges.nodes
    degree = np.zeros(nodes, np.int64)
    for chunk in edges.chunks():
        for side in chunk:
            degree += np.bincount(side, minlength=nodes)
    bounds = _bounds(degree)
    _scatter(edges, bounds, folder)
    path = folder / "neighbours.bin"
    with path.open("wb") as file:
        for number, (first, last) in enumerate(pairwise(bounds)):
            bucket = _bucket(folder, number)
            pairs = np.fromfile(bucket, np.int32).reshape(-1, 2)
            bucket.unlink()
            ones = np.ones(len(pairs), bool)
            block = scipy.sparse.csr_array((ones, (pairs[:, 0] - first, pairs[:, 1])), (last - first, nodes))
            block.sum_duplicates()
            degree[first:last] = np.diff(block.indptr)
            block.indices.astype(np.int32, copy=False).tofile(file)
    pos = np.zeros(nodes + 1, np.int64)
    np.cumsum(degree, out=pos[1:])
    return Adjacency(pos, path, bounds)


def _bounds(degree: Array) -> tuple[int, ...]:
    """First rows of blocks of about 1 M entries each."""
    ends = np.cumsum(degree)
    marks = np.arange(BLOCK_ENTRIES, int(ends[-1]), BLOCK_ENTRIES)
    cuts = np.unique(np.concatenate([[0], np.searchsorted(ends, marks), [len(degree)]]))
    return tuple(cuts.tolist())


def _bucket(folder: Path, number: int) -> Path:
    """The temporary file of a block of rows."""
    return folder / f"rows-{number}.bin"


def _scatter(edges: EdgeList, bounds: tuple[int, ...], folder: Path) -> None:
    """Appends every edge, in both directions, to the file of the row's block."""
    starts = np.asarray(bounds[1:-1])
    for number in range(len(bounds) - 1):
        _bucket(folder, number).touch()
    for chunk in edges.chunks():
        chunk = chunk[:, chunk[0] != chunk[1]].astype(np.int32)
        pairs = np.concatenate([chunk, chunk[::-1]], 1)
        block = np.searchsorted(starts, pairs[0], side="right").astype(
            np.int16 if len(starts) < 32768 else np.int32
        )
        order = np.argsort(block, kind="stable")
        pairs = np.ascontiguousarray(pairs[:, order].T)
        ends = np.cumsum(np.bincount(block, minlength=len(bounds) - 1))
        for number, (start, end) in enumerate(zip(np.concatenate([[0], ends]), ends)):
            if end > start:
                with _bucket(folder, number).open("ab") as file:
                    pairs[start:end].tofile(file)
