"""Attention over the edges of a graph against torch-geometric's layer and against a kernel for each statement.

In: `layer("arxiv", "GATConv", place)`. Out: a `Case` whose results are checked against float64.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from experiments import graphs
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.runner.peers.installed import Call
from sparsify.runtime.buffers import POOL

HEADS: Final = 8
HIDDEN: Final = 8
# Nodes with thousands of edges sum as many gradients in float32.
STEP_TOLERANCE: Final = 5e-5
RECIPE: Final[Mapping[str, Any]] = {
    "schema": 1,
    "name": "edges",
    "sparsify": [{"targets": ["op:message_passing"], "format": "csr"}],
    "verify": {"rtol": 1e-3, "atol": 1e-4},
}


def layer(graph: str, kind: str, place: Place, pyg_ratio: float | None = None) -> Case:
    """Inference of one layer with eight heads."""
    case, model, sparse, x, edges = _case(f"{kind.lower()}-{graph}", graph, kind, place, trainable=False)
    case.expected = lambda: _without_gradients(copy.deepcopy(model).double(), x.double(), edges)()
    return _against(
        case, _without_gradients(sparse, x, edges), _without_gradients(model, x, edges), pyg_ratio
    )


def step(graph: str, kind: str, place: Place, pyg_ratio: float | None = None) -> Case:
    """Forward and backward of one layer with eight heads: gradient of the features."""
    case, model, sparse, x, edges = _case(f"{kind.lower()}-step-{graph}", graph, kind, place, trainable=True)
    case.expected = lambda: _gradient(copy.deepcopy(model).double(), x.double(), edges)
    case.tolerance = STEP_TOLERANCE
    return _against(case, lambda: _gradient(sparse, x, edges), lambda: _gradient(model, x, edges), pyg_ratio)


def _case(
    name: str, graph: str, kind: str, place: Place, *, trainable: bool
) -> tuple[Case, nn.Module, nn.Module, Tensor, Tensor]:
    """Case without contenders, the layer, its sparse form, features and edges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch-geometric uses deprecated parts of torch
        from torch_geometric import nn as geometric
    found, source = graphs.graph(graph, place.root, place.scale)
    x = torch.randn(found.nodes, 128, generator=torch.Generator().manual_seed(0))
    edges = found.edge_index
    torch.manual_seed(0)
    model = getattr(geometric, kind)(x.shape[1], HIDDEN, heads=HEADS).eval()
    work = f"{found.nodes} nodes, {edges.shape[1]} edges, {HEADS} heads of {HIDDEN}"
    case = Case(name, work, source, [], [], None)
    sparse = case.prepare(
        "apply", lambda: sparsify.apply(model, dict(RECIPE), (x, edges), trainable=trainable, verify=False)
    )
    return case, model, sparse, x, edges


def _without_gradients(model: nn.Module, x: Tensor, edges: Tensor) -> Call:
    """Call of a layer under `no_grad`."""

    def call() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(x, edges)
        return found

    return call


def _gradient(model: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
    """Gradient of the features; gradients of the parameters are computed too."""
    x = x.detach().requires_grad_()
    model(x, edges).square().sum().backward()
    assert x.grad is not None, "features have a gradient"
    return x.grad


def _against(case: Case, ours: Call, theirs: Call, ratio: float | None) -> Case:
    """Case with sparsify's call, pooled and fresh, against torch-geometric's."""
    case.prepare("first call", ours)
    case.contenders += [
        Contender("sparsify", ours, baseline=False),
        Contender("PyG", theirs),
        Contender("sparsify fresh", ours, baseline=False, before=POOL.clear),
    ]
    case.targets = [
        Target("sparsify", ("PyG",), ratio, "PyG"),
        Target("sparsify fresh", ("PyG",), None, "fresh"),
    ]
    return case
