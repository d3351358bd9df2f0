"""Call overhead: cases with negligible work, as one row, graphs of ten nodes, operands without entries.

In: `graph(10, place)`. Out: a `Case` dominated by the calls themselves.
"""

import torch
from torch import Tensor, nn

import sparsify
from sparsify.bench import peers
from sparsify.bench.harness import Case
from sparsify.bench.linear import Weight, linear
from sparsify.bench.place import Place
from sparsify.bench.predicted import uniform
from sparsify.bench.products import against, dense, row

GRAPH = {
    "schema": 1,
    "name": "graph",
    "sparsify": [{"targets": ["input:adj"], "role": "adjacency", "source": "given", "format": "csr"}],
}
FEATURES, HIDDEN, CLASSES = 16, 16, 4


class Convolutions(nn.Module):
    """Two graph convolutions with ReLU in between, by matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        """Logits [n, classes] of features [n, features] and an adjacency [n, n]."""
        found: Tensor = adj @ self.second(torch.relu(adj @ self.first(x)))
        return found


def graph(nodes: int, place: Place) -> Case:
    """A whole model on a small graph, against torch with a dense adjacency and with torch's CSR."""
    A = uniform(nodes, nodes, 2)
    adj, csr = A.to_dense(), A.to_torch()
    torch.manual_seed(0)
    model, x = Convolutions().eval().requires_grad_(False), dense(nodes, FEATURES)
    exact = Convolutions().double()
    exact.load_state_dict(model.state_dict())
    case = row(
        f"gcn-{nodes}", f"{nodes} nodes, {A.nnz} edges", lambda: exact(x.double(), adj.double()).detach()
    )
    sparse = case.prepare("pack and build", lambda: sparsify.apply(model, GRAPH, (x, A), verify=False))
    theirs = {"torch dense": lambda: model(x, adj), "torch CSR": lambda: model(x, csr)}
    check = "ours looks at the contents of the adjacency in each call, and calls each layer from Python"
    case.why = dict.fromkeys(theirs, f"{nodes} nodes are no work; {check}")
    return against(case, lambda: sparse(x, A), theirs)


def layer(place: Place) -> Case:
    """A layer of a tenth of the usual extents."""
    case = linear(Weight(90), 1, Place(place.root, 0.1 * place.scale))
    case.name = f"small-{case.name}"
    return case


def empty_product(rows: int, columns: int, place: Place) -> Case:
    """A matrix without entries times a dense one, or times itself without columns."""
    A = sparsify.tensor(torch.zeros(rows, rows), "csr")
    csr = A.to_torch()
    if not columns:
        case = row(f"spgemm-{rows}-empty", f"{rows} rows, no entries", lambda: torch.zeros(0).double())
        theirs = {"torch": lambda: csr @ csr, **peers.product(csr, csr)}
        return against(case, lambda: sparsify.einsum("ij,jk->ik", A, A), theirs)
    X = dense(rows, columns)
    case = row(
        f"spmm-{rows}-empty",
        f"{rows} rows, no entries, {columns} columns",
        lambda: torch.zeros(X.shape).double(),
    )
    theirs = {"torch CSR": lambda: csr @ X, **peers.spmm(csr, X)}
    return against(case, lambda: sparsify.einsum("ij,jk->ik", A, X), theirs)


def no_rows(place: Place) -> Case:
    """A matrix without rows times a dense one."""
    A = sparsify.tensor(torch.zeros(0, 10), "csr")
    csr, X = A.to_torch(), dense(10, 4)
    case = row("spmm-no-rows", "no rows, 10 columns, 4 columns", lambda: torch.zeros(0, 4).double())
    return against(case, lambda: sparsify.einsum("ij,jk->ik", A, X), {"torch CSR": lambda: csr @ X})
