"""Capture: the graph computes what the model computes, at two shapes; names and scopes are kept."""

import logging

import pytest
import torch
from graph_models import HandWritten, Kipf, KipfMatmul, TwoLayers, adjacency, graph
from torch import fx, nn

import sparsify
from sparsify.errors import CaptureError, ShapeError
from sparsify.passes.capture import calls
from sparsify.passes.capture.confined_export import WITHOUT_TRACES
from sparsify.passes.capture.export import capture, example_tensors
from sparsify.passes.graph import operators

geometric = pytest.importorskip("torch_geometric.nn")


class Renamed(geometric.SAGEConv):
    """A subclass under another name."""


class Own(geometric.MessagePassing):
    """A user's own message passing: edge weights, target-normalised."""

    def __init__(self, features, out):
        super().__init__(aggr="add")
        self.lin = nn.Linear(features, out)

    def forward(self, x, edge_index):
        weight = torch.ones(edge_index.size(1)) / (1 + edge_index[0].float())
        return self.propagate(edge_index, x=self.lin(x), weight=weight)

    def message(self, x_j, weight):
        return weight.view(-1, 1) * x_j


def gin(features, out):
    return geometric.GINConv(
        nn.Sequential(nn.Linear(features, out), nn.ReLU(), nn.Linear(out, out)), train_eps=True
    )


def run(captured, model, *args):
    """The captured graph's first output for other inputs."""
    module = fx.GraphModule(model, captured.graph)
    call = calls.flatten(calls.signature(model), args, {})
    return module(*example_tensors(call))[0]


LAYERS = [geometric.GCNConv, geometric.SAGEConv, gin, HandWritten, Own, Renamed]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_edge_index_models_are_captured(layer):
    torch.manual_seed(0)
    model = TwoLayers(layer).eval()
    captured = capture(model, calls.flatten(calls.signature(model), graph(), {}))
    assert captured.specialised[0] == "x[1] = 7"
    for nodes, edges in ((20, 55), (33, 90)):
        x, edge_index = graph(nodes, edges, seed=nodes)
        assert torch.allclose(run(captured, model, x, edge_index), model(x, edge_index), atol=1e-6)
    x, edge_index = graph()
    parameters = list(model.parameters())
    want = torch.autograd.grad(model(x, edge_index).square().sum(), parameters)
    have = torch.autograd.grad(run(captured, model, x, edge_index).square().sum(), parameters)
    for w, h in zip(want, have, strict=True):
        assert torch.allclose(w, h, atol=1e-4, rtol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", [pytest.param("coo", marks=pytest.mark.slow), "csr"])
@pytest.mark.parametrize("layer", [Kipf, KipfMatmul, *LAYERS[:3]], ids=lambda layer: layer.__name__)
@pytest.mark.filterwarnings("ignore")  # torch and PyG warn about CSR being in beta
def test_sparse_inputs_are_captured(layer, layout):
    torch.manual_seed(0)
    model = TwoLayers(layer).eval()

    def example(nodes):
        dense = adjacency(nodes, seed=nodes)
        return graph(nodes)[0], dense.to_sparse_csr() if layout == "csr" else dense.to_sparse().coalesce()

    captured = capture(model, calls.flatten(calls.signature(model), example(20), {}))
    for nodes in (20, 31):
        x, adj = example(nodes)
        assert torch.allclose(run(captured, model, x, adj), model(x, adj), atol=1e-5)


def test_dense_adjacency_stays_dynamic():
    model = TwoLayers(Kipf).eval()
    captured = capture(model, calls.flatten(calls.signature(model), (graph()[0], adjacency()), {}))
    assert captured.specialised == ["x[1] = 7"]
    names = [operators.operator_name(node) for node in captured.graph.nodes]
    assert names.count("matmul") == 4
    assert torch.allclose(
        run(captured, model, graph(9)[0], adjacency(9)), model(graph(9)[0], adjacency(9)), atol=1e-6
    )


def test_graph_is_functional_and_normalised_once():
    model = TwoLayers(geometric.GCNConv).eval()
    captured = capture(model, calls.flatten(calls.signature(model), graph(), {}))
    nodes = list(captured.graph.nodes)
    names = [operators.operator_name(node) for node in nodes]
    assert not any(operators.is_mutating(node) for node in nodes if node.op == "call_function")
    assert names.count("linear") == 2
    assert names.count("pow") == 1, "the second layer reuses the normalisation"
    assert "dropout" not in names, "dropout in eval does nothing"
    attributes = {node.target for node in nodes if node.op == "get_attr"}
    assert attributes == set(dict(model.named_parameters()))
    linear = next(node for node in nodes if operators.operator_name(node) == "linear")
    assert operators.scope(linear) == "c1.lin"
    assert operators.module_type(linear) == "Linear"


def test_training_mode_keeps_dropout():
    model = TwoLayers(geometric.SAGEConv).train()
    captured = capture(model, calls.flatten(calls.signature(model), graph(), {}))
    assert captured.training
    assert [operators.operator_name(node) for node in captured.graph.nodes].count("dropout") == 1


def test_declared_dimensions():
    model = TwoLayers(HandWritten).eval()
    call = calls.flatten(calls.signature(model), graph(), {})
    assert capture(model, call, dynamic=()).extents == [(20, 7), (2, 55)]
    only = capture(model, call, dynamic={"edge_index": (1,)}).extents
    assert only[0] == (20, 7)
    assert only[1][0] == 2
    assert isinstance(only[1][1], str)
    with pytest.raises(CaptureError, match="dynamic names 'y'; the inputs are x, edge_index"):
        capture(model, call, dynamic={"y": (0,)})
    assert capture(model, call, dynamic={"edge_index": (-1,)}).extents[1][0] == 2


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ((5,), "dynamic has mode 5 for x; that input has modes 0 to 1"),
        ({-3: None}, "dynamic has mode -3 for x; that input has modes 0 to 1"),
        ("a", "dynamic has 'a' for x; give the modes that vary as"),
        (7, r"dynamic has 7 for x; give the modes that vary as \(0, 1\) or as \{0: Dim\(...\)\}"),
        ((0.5,), r"dynamic has \(0.5,\) for x"),
    ],
)
def test_dimensions_that_an_input_does_not_have(modes, message):
    model = TwoLayers(HandWritten).eval()
    with pytest.raises(ShapeError, match=message):
        sparsify.apply(model, "gcn", graph(), dynamic={"x": modes})


def test_fixed_extents_are_noted_and_not_logged(monkeypatch):
    logged = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", logged.append)
    monkeypatch.setattr(logging.getLogger("torch._export.non_strict_utils"), "handlers", [handler])
    model = nn.Linear(3, 4)
    captured = capture(model, calls.flatten(calls.signature(model), (torch.ones(1, 3),), {}))
    assert "input[0] = 1" in captured.specialised
    assert not logged


def test_what_cannot_be_captured_says_so():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    model = Branches()
    with pytest.raises(CaptureError, match=r"torch\.export cannot capture Branches"):
        capture(model, calls.flatten(calls.signature(model), (torch.ones(3),), {}))


def test_calls_keep_keywords_nesting_and_constants():
    class Nested(nn.Module):
        def forward(self, batch, scale=2.0, *, flag=True):
            return {"sum": batch["a"] + batch["b"] if flag else batch["a"], "scaled": batch["a"] * scale}

    model = Nested()
    batch = {"a": torch.ones(4), "b": torch.full((4,), 2.0)}
    call = calls.flatten(calls.signature(model), (batch,), {"flag": False})
    assert call.shape.tensor_names() == ["batch.a", "batch.b"]
    assert call.shape.names == ("batch", "flag")
    other = calls.flatten(calls.signature(model), (batch, 3.0), {})
    assert other.shape != call.shape
    same = calls.flatten(
        calls.signature(model), (), {"batch": {"a": torch.ones(9), "b": torch.ones(9)}, "flag": False}
    )
    assert same.shape == call.shape
    captured = capture(model, call)
    out = fx.GraphModule(model, captured.graph)(*example_tensors(call))
    assert captured.output.num_leaves == 2
    assert torch.equal(out[1], batch["a"] * 2)
    with pytest.raises(CaptureError, match="do not fit"):
        calls.flatten(calls.signature(model), (), {})


def test_results_of_traced_operators_are_not_cached():
    """The environment of symbolic shapes, which torch never frees, would hold them."""
    model = TwoLayers(HandWritten).eval()
    found = capture(model, calls.flatten(calls.signature(model), graph(), {}))
    mode = next(node.meta["val"].fake_mode for node in found.graph.nodes if "val" in node.meta)
    assert not mode.cache_enabled
    assert not mode.shape_env.fake_tensor_cache


def test_nodes_without_stack_traces():
    """Stack traces of nodes take a tenth of an export, and nothing reads them."""
    model = TwoLayers(HandWritten).eval()
    captured = capture(model, calls.flatten(calls.signature(model), graph(), {}))
    if hasattr(fx.config, WITHOUT_TRACES):
        assert not any("forward" in node.meta.get("stack_trace", "") for node in captured.graph.nodes)
        assert not getattr(fx.config, WITHOUT_TRACES)
