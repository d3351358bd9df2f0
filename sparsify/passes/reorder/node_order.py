"""The order in which the nodes of a graph are visited, computed once per graph, and the call that gives it.

In: `node_order(handle, 0, 2708, edge_index)`. Out: [nodes], the node that comes at each place; with 1 the place of each
node. Remembered as long as the edges are the same; while tracing, the call is an operator.
"""

import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch

from sparsify.compiler import torch_operator
from sparsify.errors import InvalidTensorError, SparsifyError
from sparsify.passes.call.region_operator import merged, parted
from sparsify.passes.call.tracing import is_traced
from sparsify.passes.operands.alignment import require_inside
from sparsify.passes.operands.cached_operands import Structure
from sparsify.report import ConversionEntry, OrderEntry

if TYPE_CHECKING:
    import scipy.sparse

# Nodes of a part that METIS makes: their features lie in a cache of the second level.
NODES_OF_A_PART: Final = 1024
PLACE_TO_NODE, NODE_TO_PLACE = 0, 1

_orders: "weakref.WeakValueDictionary[int, NodeOrder]" = weakref.WeakValueDictionary()
_exported: "dict[int, NodeOrder]" = {}


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
    """Parts with few edges between them, one after the other."""
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
    """The graph of these edges without directions and loops."""
    import scipy.sparse

    apart = rows != columns
    there, back = rows[apart].int().numpy(), columns[apart].int().numpy()
    ones = torch.ones(len(there), dtype=torch.int8).bool().numpy()
    directed = scipy.sparse.coo_array((ones, (there, back)), shape=(nodes, nodes)).tocsr()
    both: scipy.sparse.csr_array = (directed + directed.T).tocsr()
    both.sort_indices()
    return both


class NodeOrder:
    """An order with its memory.

    Args:
        edges: from leaves to rows [edges], columns [edges], and extents that are all the number of nodes.
        method: one of `METHODS`.
        conversion, entry: where it is reported.
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
        self.handle = secrets.randbits(62)
        _orders[self.handle] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "NodeOrder":
        return self  # holds no parameters

    def __call__(self, leaves: tuple[Any, ...]) -> Sequence[torch.Tensor]:
        """The node at each place, and the place of each node."""
        with torch.no_grad():
            return self.structure(leaves)

    def compute(self, *leaves: Any) -> list[torch.Tensor]:
        """The same, computed now.

        Raises:
            InvalidTensorError: the matrix is not square, or an edge is outside of it.
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
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(nodes))
        self.entry.seconds = time.perf_counter() - started
        self.entry.distances = (distance(rows, columns), distance(place[rows.long()], place[columns.long()]))
        self.entry.gather_us = gather_us(order, sum(self.entry.columns))
        return [order, place]


def distance(rows: torch.Tensor, columns: torch.Tensor) -> float:
    """The mean of |row - column|."""
    return float((rows.long() - columns.long()).abs().double().mean()) if len(rows) else 0.0


def gather_us(order: torch.Tensor, columns: int) -> float:
    """How long it takes to permute a tensor [nodes, columns]."""
    values = torch.ones(len(order), columns)
    result = torch.index_select(values, 0, order)  # its memory is there for the second
    started = time.perf_counter()
    torch.index_select(values, 0, order, out=result)
    return (time.perf_counter() - started) * 1e6


def find(handle: int) -> NodeOrder:
    """The order with this handle.

    Raises:
        SparsifyError: it is gone, or was never in this process.
    """
    found = _orders.get(handle)
    if found is None:
        raise SparsifyError(
            "this program asks for an order of nodes of a sparse model that this process does not have",
            "keep the result of sparsify.apply alive; a program exported elsewhere is made again by apply and export",
        )
    return found


def node_order(handle: int, which: int, nodes: Any, *leaves: Any) -> torch.Tensor:
    """The order with this handle for its leaves, tensors and sizes: the node at each place, or the place of each."""
    if torch.compiler.is_compiling() and is_traced():
        traced: torch.Tensor = torch.ops.sparsify.node_order(handle, which, nodes, *parted(leaves))
        return traced
    return find(handle)(leaves)[which]


def run(
    handle: int, which: int, nodes: int, tensors: list[torch.Tensor], sizes: list[int], places: list[int]
) -> torch.Tensor:
    """The operator's computation; what is remembered is not handed out, since traces use memory again."""
    return find(handle)(tuple(merged(tensors, sizes, places, "")))[which].clone()


def shape_only(
    handle: int, which: int, nodes: int, tensors: list[torch.Tensor], sizes: list[int], places: list[int]
) -> torch.Tensor:
    """The operator on fake tensors."""
    if torch.compiler.is_exporting():
        _exported[handle] = find(handle)  # lives as long as exported programs may
    return tensors[0].new_empty((nodes,), dtype=torch.int64)


SCHEMA: Final = (
    "node_order(int handle, int which, SymInt nodes, Tensor[] tensors, SymInt[] sizes, int[] places) "
    "-> Tensor"
)
_library = torch_operator.register(torch_operator.Operator(SCHEMA, run, shape_only))
