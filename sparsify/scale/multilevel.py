"""The streaming partitioner: a semi-external multilevel method, with memory proportional to the nodes.

In: an `Adjacency` on disk and a number of parts. Out: int32 [nodes], the part of each node.

Sweeps of label propagation, reading the rows block by block, cluster the nodes; the small graph of the clusters
is clustered further in memory, bisected and refined; then the rows are read again to move nodes at the cut.

Source: Akhremtsev, Sanders, Schulz, (Semi-)external algorithms for graph partitioning and clustering, 2015.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Any, Final

import numpy as np
import scipy.sparse

from sparsify.compiler.arrays.partition_graph import Labels, grow, propagate, refine
from sparsify.scale.adjacency import Adjacency

Array = np.ndarray[Any, Any]
IMBALANCE: Final = 0.03
# Nodes of the coarsest graph, per part and as a minimum.
COARSEST: Final = (40, 400)
# Maximum weight of a cluster at one level, in average nodes.
SHRINK: Final = 6
CLUSTER_SWEEPS: Final = 4
REFINE_SWEEPS: Final = 6
TRIALS: Final = 12


@dataclass(frozen=True)
class Graph:
    """A symmetric graph in memory with weights.

    Attributes:
        pos, crd, edge_weight: int64 [nodes + 1], int32 [entries], int64 [entries].
        node_weight: int64 [nodes].
    """

    pos: Array
    crd: Array
    edge_weight: Array
    node_weight: Array

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.node_weight)


def multilevel(adjacency: Adjacency, parts: int, seed: int = 0) -> Array:
    """The part of each node, int32 [nodes]; at most 1.03 times the equal share per part, or the share rounded up.

    Args:
        adjacency: rows on disk.
        parts: number of parts, two or more.
        seed: random seed of all choices.
    """
    nodes = len(adjacency.pos) - 1
    limit = _limit(nodes, parts)
    if nodes <= max(COARSEST[0] * parts, COARSEST[1]):
        return _balanced(_partition(_in_memory(adjacency), parts, limit, seed), adjacency, limit, parts)
    cluster = _cluster_rows(adjacency, max(2, min(SHRINK * 2, limit // 8)), seed)
    coarse = _contract_rows(adjacency, cluster)
    part = _partition(coarse, parts, limit, seed)[cluster]
    del coarse, cluster
    labels = Labels(part, np.bincount(part, minlength=parts), np.full(parts, limit, np.int64))
    for sweep in range(REFINE_SWEEPS):
        moved = sum(propagate(*block, labels, seed=seed + sweep) for block in adjacency.blocks())
        if moved * 1000 <= nodes and (labels.size <= limit).all():
            break
    return _balanced(part, adjacency, limit, parts)


def _balanced(part: Array, adjacency: Adjacency, limit: int, parts: int) -> Array:
    """The parts, after moving low-degree nodes from parts above the limit to the lightest ones."""
    size = np.bincount(part, minlength=parts)
    heavy = np.flatnonzero(size > limit)
    if not len(heavy):
        return part
    degree = np.diff(adjacency.pos)
    lightest = [(int(count), number) for number, count in enumerate(size) if count <= limit]
    heapify(lightest)
    for number in heavy:
        rows = np.flatnonzero(part == number)
        given = rows[np.argsort(degree[rows], kind="stable")][: size[number] - limit]
        for row in np.sort(given):
            count, target = heappop(lightest)
            part[row] = target
            heappush(lightest, (count + 1, target))
    return part


def _limit(weight: int, parts: int) -> int:
    """The maximum weight of a part."""
    return max(ceil(weight / parts), int(weight / parts * (1 + IMBALANCE)))


def _cluster_rows(adjacency: Adjacency, most: int, seed: int) -> Array:
    """Clusters of the nodes on disk, numbered from 0, int32 [nodes]."""
    nodes = len(adjacency.pos) - 1
    labels = Labels(np.arange(nodes, dtype=np.int32), np.ones(nodes, np.int64), np.array([most]))
    for sweep in range(CLUSTER_SWEEPS):
        moved = sum(propagate(*block, labels, seed=seed + sweep) for block in adjacency.blocks())
        if moved * 50 <= nodes:
            break
    return _renumbered(labels.part)


def _renumbered(labels: Array) -> Array:
    """Labels renumbered from 0, in order."""
    used = np.zeros(int(labels.max(initial=-1)) + 1, np.int32)
    used[labels] = 1
    return (np.cumsum(used, dtype=np.int32) - 1).astype(np.int32)[labels]


def _in_memory(adjacency: Adjacency) -> Graph:
    """The graph on disk, with weights 1."""
    crd = np.concatenate([block for _, _, block in adjacency.blocks()])
    nodes = len(adjacency.pos) - 1
    return Graph(adjacency.pos, crd, np.ones(len(crd), np.int64), np.ones(nodes, np.int64))


def _contract_rows(adjacency: Adjacency, cluster: Array) -> Graph:
    """The graph of clusters of the nodes on disk, block by block."""
    count = int(cluster.max()) + 1
    total: Any = scipy.sparse.csr_array((count, count), dtype=np.int32)
    for first, pos, crd in adjacency.blocks():
        rows = np.repeat(cluster[first : first + len(pos) - 1], np.diff(pos))
        total = total + _edges_between(rows, cluster[crd], np.ones(len(crd), np.int32), count)
    return _graph(total, np.bincount(cluster, minlength=count))


def _edges_between(rows: Array, columns: Array, weight: Array, count: int) -> scipy.sparse.csr_array:
    """Edges between clusters, with summed weights."""
    apart = rows != columns
    return scipy.sparse.csr_array((weight[apart], (rows[apart], columns[apart])), (count, count))


def _graph(matrix: scipy.sparse.csr_array, node_weight: Array) -> Graph:
    """The graph of a matrix."""
    return Graph(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32, copy=False),
        matrix.data.astype(np.int64),
        node_weight.astype(np.int64),
    )


def _contract(graph: Graph, cluster: Array) -> Graph:
    """The graph of clusters of a graph in memory."""
    count = int(cluster.max()) + 1
    rows = np.repeat(cluster, np.diff(graph.pos))
    matrix = _edges_between(rows, cluster[graph.crd], graph.edge_weight, count)
    weight = np.zeros(count, np.int64)
    np.add.at(weight, cluster, graph.node_weight)
    return _graph(matrix, weight)


def _partition(graph: Graph, parts: int, limit: int, seed: int) -> Array:
    """The parts of a graph in memory: coarsened, bisected, refined at each level."""
    part = None
    if graph.nodes > max(COARSEST[0] * parts, COARSEST[1]):
        total = int(graph.node_weight.sum())
        most = max(2, min(SHRINK * total // graph.nodes, limit // 8))
        labels = Labels(np.arange(graph.nodes, dtype=np.int32), graph.node_weight.copy(), np.array([most]))
        for sweep in range(CLUSTER_SWEEPS):
            propagate(
                0, graph.pos, graph.crd, labels,
                edge_weight=graph.edge_weight, node_weight=graph.node_weight, seed=seed + sweep,
            )  # fmt: skip
        cluster = _renumbered(labels.part)
        coarse = _contract(graph, cluster)
        if coarse.nodes < 0.95 * graph.nodes:
            part = _partition(coarse, parts, limit, seed)[cluster]
    if part is None:
        part = _bisect(graph, parts, seed)
    labels = _labels(graph, part, np.full(parts, limit, np.int64))
    _refined(graph, labels, seed)
    return labels.part


def _labels(graph: Graph, part: Array, limit: Array) -> Labels:
    """The labels of a partition of a graph in memory, with the weights of the parts."""
    size = np.zeros(len(limit), np.int64)
    np.add.at(size, part, graph.node_weight)
    return Labels(np.ascontiguousarray(part, np.int32), size, limit)


def _refined(graph: Graph, labels: Labels, seed: int) -> None:
    """Balances parts, and refines until a pass gains nothing."""
    weights = {"edge_weight": graph.edge_weight, "node_weight": graph.node_weight}
    for sweep in range(4):
        if (labels.size <= labels.limit).all():
            break
        propagate(0, graph.pos, graph.crd, labels, **weights, seed=seed + sweep)
    patience = 200 + min(graph.nodes // 20, 5000)
    for _ in range(8):
        if refine(graph.pos, graph.crd, labels, graph.edge_weight, graph.node_weight, patience) <= 0:
            break


def _bisect(graph: Graph, parts: int, seed: int) -> Array:
    """Parts of a small graph by recursive bisection."""
    part = np.zeros(graph.nodes, np.int32)
    if parts == 1 or graph.nodes == 0:
        return part
    left = parts // 2
    half = _halves(graph, left / parts, seed)
    for side, first, count in ((0, 0, left), (1, left, parts - left)):
        rows = np.flatnonzero(half == side)
        inner = _bisect(_subgraph(graph, rows), count, seed + 1)
        part[rows] = inner + first
    return part


def _halves(graph: Graph, share: float, seed: int) -> Array:
    """The best of several bisections: part 0 is grown around a node to its share, then both parts are refined."""
    total = int(graph.node_weight.sum())
    wanted = round(total * share)
    slack = max(int(graph.node_weight.max()), int(total * IMBALANCE / 4))
    limit = np.array([wanted + slack, total - wanted + slack])
    random = np.random.default_rng(seed)
    best: tuple[tuple[bool, int], Array] | None = None
    for _ in range(TRIALS):
        labels = _labels(graph, np.ones(graph.nodes, np.int32), limit)
        start = int(random.integers(graph.nodes))
        grow(graph.pos, graph.crd, labels, graph.edge_weight, graph.node_weight, wanted, start)
        _refined(graph, labels, seed)
        price = (bool((labels.size > limit).any()), _cut(graph, labels.part))
        if best is None or price < best[0]:
            best = (price, labels.part)
    assert best is not None
    return best[1]


def _cut(graph: Graph, part: Array) -> int:
    """The weight of edges between parts, in both directions."""
    rows = np.repeat(part, np.diff(graph.pos))
    return int(graph.edge_weight[rows != part[graph.crd]].sum())


def _subgraph(graph: Graph, rows: Array) -> Graph:
    """The graph of some nodes."""
    matrix = scipy.sparse.csr_array((graph.edge_weight, graph.crd, graph.pos), (graph.nodes, graph.nodes))
    return _graph(matrix[rows][:, rows], graph.node_weight[rows])
