"""Graph convolutions: one layer as one program, and a whole model of two layers.

In: `layer("pubmed", place, ...)`, `model("cora", place, ...)`. Out: a `Case` against torch's forms and
torch-geometric.
"""

import copy
import warnings

import torch
from torch import Tensor, nn

import sparsify
from experiments import graphs
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.models import registry
from sparsify.models.data import Graph
from sparsify.runtime.buffers import POOL

LAYER = """
T[j,k] = X[j,f] * W[f,k]
Y[i,k] = relu(A[i,j] * T[j,k] + b[k])
"""
HIDDEN = 128


class PygLayer(nn.Module):
    """`relu(GCNConv(x, edge_index))` with given weights."""

    def __init__(self, weight: Tensor, bias: Tensor, *, cached: bool = False) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch-geometric uses deprecated parts of torch
            from torch_geometric.nn import GCNConv
        self.conv = GCNConv(*weight.shape, cached=cached)
        self.conv.lin.weight.data = weight.t().contiguous()
        self.conv.bias.data = bias.clone()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Output of the layer [n, hidden]."""
        return torch.relu(self.conv(x, edge_index))


def layer(
    name: str,
    place: Place,
    *,
    torch_ratio: float,
    pyg_ratio: float | None = None,
    fresh: float | None = None,
    sparse_features: bool = False,
    dense_ratio: float | None = None,
) -> Case:
    """`relu(A (X W) + b)` with 128 hidden features, against the best torch form and torch-geometric.

    With `sparse_features` both sides store X sparse; `dense_ratio` is the target against torch's forms with dense X.
    """
    graph, source = graphs.graph(name, place.root, place.scale)
    x, a, w, b = _operands(graph, name, place)
    case = Case(
        f"gcn-layer-{name}{'' if sparse_features else '-dense-x'}",
        f"A {graph.nodes} rows, {a.values().shape[0]} stored; X {x.shape[1]} features; {HIDDEN} hidden",
        source,
        [],
        [],
        lambda: _expected(a, x, w, b),
    )
    adjacency = case.prepare("A to SparseTensor", lambda: sparsify.tensor(a))
    given = case.prepare("X to SparseTensor", lambda: sparsify.tensor(x, "csr")) if sparse_features else x

    def ours() -> Tensor:
        result: Tensor = sparsify.evaluate(LAYER, A=adjacency, X=given, W=w, b=b)
        return result

    case.prepare("first call", ours)
    case.contenders.append(Contender("sparsify", ours, baseline=False))
    dense_forms = _torch_forms(a, x, w, b, "dense X")
    forms = _torch_forms(a, _torch_csr(x), w, b, "sparse X") if sparse_features else dense_forms
    case.contenders += forms
    names = tuple(form.name for form in forms)
    case.targets.append(Target("sparsify", names, torch_ratio, "pooled"))
    if dense_ratio is not None:
        case.contenders += dense_forms
        dense_names = tuple(form.name for form in dense_forms)
        case.targets.append(Target("sparsify", dense_names, dense_ratio, "dense features"))
    if fresh is not None:
        case.contenders.append(Contender("sparsify fresh", ours, baseline=False, before=POOL.clear))
        case.targets.append(Target("sparsify fresh", names, fresh, "fresh"))
    if pyg_ratio is not None:
        pyg = PygLayer(w, b).requires_grad_(False)
        case.contenders.append(Contender("PyG GCNConv", lambda: pyg(x, graph.edge_index)))
        case.targets.append(Target("sparsify", ("PyG GCNConv",), pyg_ratio, "PyG"))
    return case


def _operands(graph: Graph, name: str, place: Place) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, adjacency, weight and bias."""
    seeded = torch.Generator().manual_seed(0)
    weight = torch.randn(graph.x.shape[1], HIDDEN, generator=seeded) / graph.x.shape[1] ** 0.5
    bias = torch.randn(HIDDEN, generator=seeded)
    return graph.x, graphs.matrix(name, place.root, place.scale).csr, weight, bias


def _expected(a: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    product = graphs.scipy_of(a.double()) @ (x.double() @ w.double()).numpy()
    return torch.relu(torch.from_numpy(product) + b.double())


def _torch_csr(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return x.to_sparse_csr()


def _torch_forms(a: Tensor, x: Tensor, w: Tensor, b: Tensor, note: str) -> list[Contender]:
    """Formulations of the layer in torch, as contenders."""
    wide = graphs.widened(a)
    return [
        Contender(f'mm(A, X W, "sum"), {note}', lambda: torch.sparse.mm(wide, x @ w, "sum").add_(b).relu_()),
        Contender(f"A32 (X W), {note}", lambda: (a @ (x @ w)).add_(b).relu_()),
        Contender(f"A64 (X W), {note}", lambda: (wide @ (x @ w)).add_(b).relu_()),
        Contender(f"addmm(b, A64, X W), {note}", lambda: torch.addmm(b, wide, x @ w).relu_()),
    ]


def model(name: str, place: Place, *, asked: float) -> Case:
    """A two-layer GCN in inference against the same model of torch-geometric, with and without its cache."""
    graph, source = graphs.graph(name, place.root, place.scale)
    dense = registry.find("gcn").build(graph.x.shape[1], graph.classes, {"hidden": HIDDEN}).eval()
    dense.requires_grad_(False)
    cached = copy.deepcopy(dense)
    for conv in cached.children():
        setattr(conv, "cached", True)  # noqa: B010
    example = (graph.x, graph.edge_index)
    case = Case(
        f"gcn-model-{name}",
        f"{graph.nodes} nodes, {graph.edges} edges, {graph.x.shape[1]} -> {HIDDEN} -> {graph.classes}",
        source,
        [],
        [],
        lambda: copy.deepcopy(dense).double()(graph.x.double(), graph.edge_index),
        tolerance=1e-4,
    )
    sparse = case.prepare("apply", lambda: sparsify.apply(dense, "gcn", example))
    case.prepare("first call", lambda: sparse(*example))
    case.contenders += [
        Contender("sparsify", lambda: sparse(*example), baseline=False),
        Contender("PyG", lambda: dense(*example)),
        Contender("PyG cached=True", lambda: cached(*example)),
    ]
    case.targets += [
        Target("sparsify", ("PyG",), asked, "no cache"),
        Target("sparsify", ("PyG cached=True",), None, "cached"),
    ]
    return case
