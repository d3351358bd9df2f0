"""A sample of rows of a large graph, with all edges that their results depend on, for verification.

In: a call with an edge index [2, e] of many edges. Out: a `RowSample`: rows, and the same call restricted to the edges
of the rows' neighbourhoods, with the results of the whole graph in the sampled rows. Some rows without edges are
included.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparsify.errors import VerificationError
from sparsify.passes.capture import calls

# Graphs with fewer edges are compared as a whole.
MANY_EDGES: Final = 1 << 19
# A sample has at most an eighth of the edges.
SHARE: Final = 8
# Sample sizes in the order of trial, larger ones as long as the edges fit.
COUNTS: Final = (16, 64, 256, 1024)
FEWER: Final = (4, 1)
# Additional rows without edges.
EMPTY_ROWS: Final = 8
SEED: Final = 1_618_033


@dataclass(frozen=True)
class RowSample:
    """Rows of a graph, and a call with the edges that the rows depend on.

    Attributes:
        rows: positions of nodes.
        nodes: number of nodes.
        call: call with fewer edges; gradients of edge data reach the tensors of the whole call.
    """

    rows: Tensor
    nodes: int
    call: calls.Call

    def of(self, result: Any) -> Any:
        """The rows of all tensors of a result.

        Raises:
            VerificationError: a tensor has no row for each node.
        """
        return pytree.tree_map(self._rows_of, result)

    def _rows_of(self, leaf: Any) -> Any:
        """The sampled rows of a tensor; any other value is unchanged."""
        if not isinstance(leaf, Tensor):
            return leaf
        if type(leaf) is not Tensor or leaf.layout is not torch.strided or leaf.shape[:1] != (self.nodes,):
            raise VerificationError("a result has no row for each node")
        return leaf[self.rows]


def row_sample(call: calls.Call, hops: int) -> RowSample | None:
    """A sample of the call's graph; `None` for few edges, or if rows depend on too many edges.

    Args:
        call: call with one edge index, sources before targets, and node features.
        hops: distance of the farthest nodes with an influence on a row; edges into the last hop count, too.
    """
    dense = [value for value in call.values if type(value) is Tensor]
    edge_indices = [value for value in dense if is_edge_index(value)]
    if len(edge_indices) != 1 or any(
        isinstance(value, Tensor) and type(value) is not Tensor for value in call.values
    ):
        return None
    (edge_index,) = edge_indices
    edges = edge_index.shape[1]
    sizes = {value.shape[0] for value in dense if value.is_floating_point() and value.ndim > 1} - {edges}
    if len(sizes) != 1 or edges == (nodes := sizes.pop()):
        return None
    least, greatest = edge_index.aminmax()
    if least < 0 or greatest >= nodes:
        return None
    chosen = chosen_rows(edge_index, nodes, hops)
    if chosen is None:
        return None
    rows, chosen_edges = chosen
    values = [
        edge_index[:, chosen_edges]
        if value is edge_index
        else value.index_select(0, chosen_edges)
        if value.shape[:1] == (edges,)
        else value
        for value in dense
    ]
    return RowSample(rows, nodes, calls.with_tensors(call, values))


def is_edge_index(value: Tensor) -> bool:
    """Whether a tensor is an edge index of a large graph."""
    is_pair = value.dtype is torch.int64 and value.layout is torch.strided and value.ndim == 2
    return is_pair and value.shape[0] == 2 and value.shape[1] >= MANY_EDGES


def chosen_rows(edge_index: Tensor, nodes: int, hops: int) -> tuple[Tensor, Tensor] | None:
    """Rows and the positions of the edges that the rows depend on; `None` if one row depends on too many."""
    source, target = edge_index
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(nodes, generator=generator)
    best = None
    for count in COUNTS:
        edges = edges_of(order[:count], source, target, nodes, hops)
        if edges is None:
            break
        best = count, edges
    if best is None:
        tried = ((count, edges_of(order[:count], source, target, nodes, hops)) for count in FEWER)
        best = next(((count, edges) for count, edges in tried if edges is not None), None)
    if best is None:
        return None
    has_edges = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, target, True)
    empty = torch.nonzero(~has_edges).flatten()[:EMPTY_ROWS]
    return torch.cat([order[: best[0]], empty]), best[1]


def edges_of(rows: Tensor, source: Tensor, target: Tensor, nodes: int, hops: int) -> Tensor | None:
    """The positions of edges into rows, into the sources of those edges, and so on; `None` for too many."""
    reached = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, rows, True)
    positions = torch.nonzero(reached[target]).flatten()
    for _ in range(hops):
        before = len(positions)
        reached[source[positions]] = True
        positions = torch.nonzero(reached[target]).flatten()
        if SHARE * len(positions) > len(target):
            return None
        if len(positions) == before:
            break
    return positions


def on_rows(sample: RowSample, run: Callable[[], Any]) -> Callable[[], Any]:
    """The computation of a result's rows."""
    return lambda: sample.of(run())
