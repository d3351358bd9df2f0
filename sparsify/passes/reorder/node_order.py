"""The visiting order of a graph's nodes, computed once per graph, and the call for the order.

In: `node_order(handle, 0, 2708, edge_index)`. Out: [nodes], the node at each position; with 1 the position of each
node. Memoized while the edges are unchanged; under tracing, the call is the operator of regions.
"""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch

from sparsify.errors import InvalidTensorError
from sparsify.passes.call.first_backward import Known
from sparsify.passes.call.region_call import find, handle_of
from sparsify.passes.call.region_operator import parted
from sparsify.passes.call.tracing import is_traced
from sparsify.passes.operands.alignment import require_inside
from sparsify.passes.operands.cached_operands import Structure
from sparsify.report import ConversionEntry, OrderEntry

if TYPE_CHECKING:
    import scipy.sparse

# Nodes per METIS part: their features fit a second-level cache.
NODES_OF_A_PART: Final = 1024
PLACE_TO_NODE, NODE_TO_PLACE = 0, 1


def has_metis() -> bool:
    """Whether parts can be computed."""
    return find_spec("pymetis") is not None


def rcm(pattern: "scipy.sparse.csr_array") -> torch.Tensor:
    """Neighbours near each other, by breadth first search."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    return torch.from_numpy(reverse_cuthill_mckee(pattern, symmetric_mode=True).copy()).long()


def degree(pattern: "scipy.sparse.csr_array") -> torch.Tensor:
    """Nodes of many edges first."""
    counts = torch.from_numpy(pattern.indptr).diff()
    return torch.argsort(counts, descending=True, stable=True)


def metis(pattern: "scipy.sparse.csr_array") -> torch.Tensor:
    """Parts connected by few edges, one after the other."""
    import pymetis

    rows, parts = pattern.shape[0], max(2, -(-pattern.shape[0] // NODES_OF_A_PART))
    if pattern.nnz == 0:
        return torch.arange(rows)
    edges = pymetis.CSRAdjacency(pattern.indptr, pattern.indices)
    _, part_of = pymetis.part_graph(parts, adjacency=edges)
    return torch.argsort(torch.as_tensor(part_of), stable=True)


METHODS: Final[dict[str, Callable[["scipy.sparse.csr_array"], torch.Tensor]]] = {
    "rcm": rcm,
    "degree": degree,
    "metis": metis,
}


def neighbours(rows: torch.Tensor, columns: torch.Tensor, nodes: int) -> "scipy.sparse.csr_array":
    """The undirected graph of some edges, without loops."""
    import scipy.sparse

    is_no_loop = rows != columns
    there, back = rows[is_no_loop].int().numpy(), columns[is_no_loop].int().numpy()
    ones = torch.ones(len(there), dtype=torch.int8).bool().numpy()
    directed = scipy.sparse.coo_array((ones, (there, back)), shape=(nodes, nodes)).tocsr()
    both: scipy.sparse.csr_array = (directed + directed.T).tocsr()
    both.sort_indices()
    return both


class NodeOrder:
    """An order with its memo.

    Args:
        edges: function from leaves to rows [edges], columns [edges], and extents that all equal the number of nodes.
        method: one of `METHODS`.
        conversion, entry: report entries.
    """

    def __init__(
        self,
        edges: Callable[..., Sequence[Any]],
        method: str,
        conversion: ConversionEntry,
        entry: OrderEntry,
    ) -> None:
        self.edges, self.method, self.entry = edges, METHODS[method], entry
        self.structure = Structure(self.compute, (PLACE_TO_NODE, NODE_TO_PLACE), conversion)
        self.dtypes = (torch.int64, torch.int64)
        self.handle = handle_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "NodeOrder":
        return self  # holds no parameters

    def orders(self, leaves: tuple[Any, ...]) -> Sequence[torch.Tensor]:
        """The node at each place, and the place of each node."""
        with torch.no_grad():
            return self.structure(leaves)

    def __call__(self, nodes: int, *leaves: Any) -> tuple[torch.Tensor, ...]:
        """Copies of the orders for traces, which reuse memory: memoized tensors are not handed out."""
        return tuple([order.clone() for order in self.orders(leaves)])

    def portable(self, arguments: Sequence[Any]) -> None:
        """Orders are not computed by kernels."""

    def result_shapes(self, arguments: Sequence[Any]) -> list[list[Any]]:
        """The shapes of both, of the number of nodes and leaves."""
        return [[arguments[0]], [arguments[0]]]

    def read_of(self, results: Sequence[torch.Tensor], gradients: tuple[int, ...]) -> Known:
        """No results: orders have no gradients."""
        return [None] * len(results)

    def compute(self, *leaves: Any) -> list[torch.Tensor]:
        """The orders, computed now.

        Raises:
            InvalidTensorError: the matrix is not square, or an edge is outside.
        """
        started = time.perf_counter()
        rows, columns, *extents = self.edges(*leaves)
        nodes = int(extents[0])
        if any(int(extent) != nodes for extent in extents):
            raise InvalidTensorError(
                f"`reorder` found an adjacency of {' by '.join(str(int(extent)) for extent in extents)} nodes",
                "its rows and columns are the same nodes, or the recipe has no `reorder`",
            )
        require_inside(rows, nodes, "row")
        require_inside(columns, nodes, "column")
        order = self.method(neighbours(rows, columns, nodes)) if nodes > 1 else torch.arange(nodes)
        position_of = torch.empty_like(order).index_copy_(0, order, torch.arange(nodes))
        self.entry.seconds = time.perf_counter() - started
        self.entry.distances = (
            distance(rows, columns),
            distance(position_of[rows.long()], position_of[columns.long()]),
        )
        self.entry.gather_us = gather_us(order, sum(self.entry.columns))
        return [order, position_of]


def distance(rows: torch.Tensor, columns: torch.Tensor) -> float:
    """The mean of |row - column|."""
    return float((rows.long() - columns.long()).abs().double().mean()) if len(rows) else 0.0


def gather_us(order: torch.Tensor, columns: int) -> float:
    """Time to permute a tensor [nodes, columns]."""
    values = torch.ones(len(order), columns)
    result = torch.index_select(values, 0, order)  # allocates the memory of the second call
    started = time.perf_counter()
    torch.index_select(values, 0, order, out=result)
    return (time.perf_counter() - started) * 1e6


def node_order(handle: int, which: int, nodes: Any, *leaves: Any) -> torch.Tensor:
    """The order of a handle for its leaves, tensors and sizes: node at each position, or position of each node."""
    if torch.compiler.is_compiling() and is_traced():
        traced: torch.Tensor = torch.ops.sparsify.region(handle, *parted((nodes, *leaves)), "")[which]
        return traced
    result: torch.Tensor = find(handle).orders(leaves)[which]
    return result
