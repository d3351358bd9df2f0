"""Applied models: results, gradients, calls, copies, torch.compile and export, and what is remembered."""

import copy
import warnings
from functools import cache
from importlib import import_module

import pytest
import torch
from graph_models import HandWritten, Kipf, KipfMatmul, TwoLayers, adjacency, graph
from torch import nn

from sparsify import errors, options
from sparsify.passes.apply import apply
from sparsify.passes.module import capture_call
from sparsify.passes.pipeline import PASSES
from sparsify.storage.interop.tensors import tensor

geometric = pytest.importorskip("torch_geometric.nn")
MESSAGES = {"schema": 1, "name": "own", "sparsify": [{"targets": ["op:message_passing"], "format": "csr"}]}
ADJACENCY = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:edge_index"], "format": "csr"}]}
BOTH = {
    "schema": 1,
    "name": "own",
    "sparsify": [*MESSAGES["sparsify"], {"targets": ["input:x"], "format": "csr"}],
}


def gin(features, out):
    return geometric.GINConv(
        nn.Sequential(nn.Linear(features, out), nn.ReLU(), nn.Linear(out, out)), train_eps=True
    )


class Attention(nn.Module):
    """Edge weights that depend on parameters: the pattern is known, the values come with every call."""

    def __init__(self, features, out):
        super().__init__()
        self.lin = nn.Linear(features, out)
        self.score = nn.Linear(features, 1)

    def forward(self, x, edge_index):
        weight = self.score(x).squeeze(-1)[edge_index[0]].sigmoid()
        h = self.lin(x)
        messages = weight.unsqueeze(-1) * h[edge_index[0]]
        return torch.zeros(x.size(0), h.size(1)).index_add(0, edge_index[1], messages)


LAYERS = {
    "gcn": (geometric.GCNConv, MESSAGES, graph),
    "gcn weighted": (
        geometric.GCNConv,
        MESSAGES,
        lambda n=20, seed=0: (*graph(n, seed=seed), torch.rand(55)),
    ),
    "gcn sparse input": (
        geometric.GCNConv,
        ADJACENCY,
        lambda n=20, seed=0: (graph(n)[0], adjacency(n, seed=seed).to_sparse_csr()),
    ),
    "sage": (geometric.SAGEConv, MESSAGES, graph),
    "sage wide": (geometric.SAGEConv, MESSAGES, lambda n=20, seed=0: graph(n, features=40, seed=seed)),
    "gin": (gin, MESSAGES, graph),
    "by hand": (HandWritten, MESSAGES, graph),
    "attention": (Attention, MESSAGES, graph),
    "kipf dense": (Kipf, ADJACENCY, lambda n=20, seed=0: (graph(n)[0], adjacency(n, seed=seed))),
    "kipf sparse": (
        KipfMatmul,
        ADJACENCY,
        lambda n=20, seed=0: (graph(n)[0], adjacency(n, seed=seed).to_sparse()),
    ),
    "sparse features": (
        geometric.SAGEConv,
        BOTH,
        lambda n=20, seed=0: (adjacency(40, seed=seed)[:n], graph(n, seed=seed)[1]),
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*(CSR|sparse).*:UserWarning")


FAST = {"gcn", "sage wide", "kipf sparse", "attention"}


def cases(*names, fast=FAST):
    """The names as parameters; those that are not fast run with the slow tests."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def case(name):
    layer, recipe, example = LAYERS[name]
    torch.manual_seed(0)
    inputs = example()
    return TwoLayers(layer, features=inputs[0].shape[1]).eval(), recipe, example


@cache
def shared(name):
    """Model, its sparse form and inputs of a case, for tests that leave them as they are."""
    model, recipe, example = case(name)
    return model, apply(model, recipe, example()), example


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", cases(*LAYERS))
def test_results_and_gradients_at_two_shapes(name):
    model, sparse, example = shared(name)
    assert sparse.report.largest_error is not None
    assert len(sparse.report.regions) >= 2
    assert not sparse.report.dense
    for inputs in (example(), example(31, seed=3)):
        assert torch.allclose(sparse(*inputs), model(*inputs), atol=1e-5, rtol=1e-4)
        assert sparse.verify_gradients(*inputs) < 1e-3
    assert len(sparse.variants) == 1, "the second shape needs no capture"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", cases("gcn", "kipf dense", "sparse features"))
def test_training_mode_is_a_variant(name):
    model, recipe, example = case(name)
    sparse = apply(model, recipe, example())
    evaluated = sparse.graph
    sparse.train()
    assert sparse.verify_gradients(*example()) < 1e-3
    assert not model.training, "the source model keeps its mode"
    assert len(sparse.variants) == 2
    assert sparse.graph is not evaluated
    sparse.eval()
    assert sparse.graph is evaluated


def test_training_reaches_the_same_weights():
    model, recipe, example = case("sage")
    twin = copy.deepcopy(model)
    sparse = apply(model, recipe, example())
    for net in (twin, sparse):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            net(*example()).square().mean().backward()
            optimizer.step()
    for want, have in zip(twin.parameters(), sparse.parameters(), strict=True):
        assert torch.allclose(want, have, atol=1e-4)
    assert torch.allclose(sparse(*example()), model(*example()), atol=1e-5), "parameters are shared"


def test_edge_weights_get_gradients():
    model, sparse, example = shared("gcn weighted")
    x, edge_index, weight = example()
    found = []
    for net in (model, sparse):
        leaf = weight.clone().requires_grad_()
        net(x, edge_index, leaf).square().sum().backward()
        found.append(leaf.grad)
    assert torch.allclose(found[0], found[1], atol=1e-4)


@pytest.mark.parametrize("name", ["sparse features", "kipf dense"])
def test_dense_inputs_get_gradients_at_their_zeros_too(name):
    model, sparse, example = shared(name)
    args = example()
    given = [a.detach().clone().requires_grad_() if a.is_floating_point() else a for a in args]
    floats = [a for a in given if a.requires_grad]
    expected = torch.autograd.grad(model(*given).square().sum(), floats)
    for run in (sparse, torch.compile(sparse, fullgraph=True, backend="aot_eager")):
        found = torch.autograd.grad(run(*given).square().sum(), floats)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_conversion_and_normalisation_happen_once_per_graph():
    model, recipe, example = case("gcn")
    sparse = apply(model, recipe, example())
    x, edge_index = example(25, seed=4)
    sparse(x, edge_index)
    before = [entry.count for entry in sparse.report.conversions]
    for _ in range(3):
        sparse(torch.rand_like(x), edge_index)
    assert [entry.count for entry in sparse.report.conversions] == before
    assert len(before) == 1, "both layers share the normalised adjacency"
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 25
    assert torch.allclose(sparse(x, edge_index), model(x, edge_index), atol=1e-5)
    assert sparse.report.conversions[0].count == before[0] + 1, "a changed graph is converted again"


def test_inference_tensors_are_never_trusted():
    model, recipe, example = case("by hand")
    sparse = apply(model, recipe, example())
    with torch.inference_mode():
        x, edge_index = (tensor.clone() for tensor in example())
        sparse(x, edge_index)
        edge_index[0, 0] = (edge_index[0, 0] + 1) % 20
        assert torch.allclose(sparse(x, edge_index), model(x, edge_index), atol=1e-5)


def test_the_signature_is_the_models_own():
    class Dictionary(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = HandWritten(7, 3)

        def forward(self, x, edge_index, scale=1.0, *, twice=False):
            y = self.layer(x, edge_index) * scale
            return {"y": y + y if twice else y, "x": (x, None)}

    model = Dictionary().eval()
    x, edge_index = graph()
    sparse = apply(model, MESSAGES, {"x": x, "edge_index": edge_index})
    for args, kwargs in [
        ((x, edge_index), {}),
        ((x,), {"edge_index": edge_index, "twice": True}),
        ((x, edge_index, 2.0), {}),
    ]:
        want, have = model(*args, **kwargs), sparse(*args, **kwargs)
        assert have.keys() == want.keys()
        assert have["x"][1] is None
        assert torch.allclose(have["y"], want["y"], atol=1e-5)
    assert len(sparse.variants) == 3


def test_capture_waits_for_the_first_call():
    model, recipe, example = case("by hand")
    sparse = apply(model, recipe)
    assert not sparse.variants
    assert torch.allclose(sparse(*example()), model(*example()), atol=1e-5)
    assert len(sparse.report.regions) == 2


def test_copies_and_state():
    model, recipe, example = case("gcn")
    sparse = apply(model, recipe, example())
    assert list(sparse.state_dict()) == list(model.state_dict())
    assert [name for name, _ in sparse.named_parameters()] == [name for name, _ in model.named_parameters()]
    twin = copy.deepcopy(sparse)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)
    assert torch.allclose(sparse(*example()), model(*example()), atol=1e-5)
    assert not torch.allclose(twin(*example()), sparse(*example()))
    twin.load_state_dict(sparse.state_dict())
    assert torch.equal(twin(*example()), sparse(*example()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", cases("gcn", "sage wide", "kipf dense", "sparse features", "attention", fast={"gcn"})
)
def test_torch_compile_sees_one_graph(name):
    model, sparse, example = shared(name)
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    want, have = model(*example()), compiled(*example())
    assert torch.allclose(have, want, atol=1e-5)
    parameters = list(model.parameters())
    dense = torch.autograd.grad(want.square().sum(), parameters)
    found = torch.autograd.grad(have.square().sum(), parameters)
    for w, h in zip(dense, found, strict=True):
        assert torch.allclose(w, h, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", cases("gcn", "sage wide", "sparse features", fast={"gcn"}))
def test_export(name):
    model, sparse, example = shared(name)
    program = torch.export.export(sparse, example(), strict=False)
    assert torch.ops.sparsify.region.default in {node.target for node in program.graph.nodes}
    assert torch.allclose(program.module()(*example()), model(*example()), atol=1e-5)


class SingleWeights(nn.Module):
    """Edge weights in float32, whatever the dtype of the features."""

    def forward(self, x, edge_index):
        degree = torch.zeros(x.size(0)).index_add(0, edge_index[1], torch.ones(edge_index.size(1)))
        weight = degree.clamp(min=1).pow(-0.5)
        weight = (weight[edge_index[0]] * weight[edge_index[1]]).unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, edge_index[1], weight * x[edge_index[0]])


def test_edge_weights_are_promoted_to_the_features():
    x, edge_index = graph()
    model = SingleWeights()
    sparse = apply(model, MESSAGES, (x.double(), edge_index))
    assert len(sparse.report.regions) == 1
    torch.testing.assert_close(sparse(x.double(), edge_index), model(x.double(), edge_index))


class SparseWeight(nn.Module):
    """A layer whose weight the user stores sparsely."""

    def __init__(self, requires_grad):
        super().__init__()
        self.weight = nn.Parameter(tensor(adjacency(7)), requires_grad)

    def forward(self, x, edge_index):
        h = nn.functional.linear(x, self.weight)
        return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("requires_grad, strict", [(True, False), (False, True)])
def test_export_of_a_sparse_parameter(requires_grad, strict):
    model = SparseWeight(requires_grad)
    sparse = apply(model, MESSAGES, graph(features=7))
    example = graph(features=7, seed=1)
    apart = torch.export.export(sparse, example, strict=strict).run_decompositions()
    assert torch.ops.sparsify.region.default in {node.target for node in apart.graph.nodes}
    torch.testing.assert_close(apart.module()(*example), model(*example))


def test_export_without_a_graph_is_an_error(monkeypatch):
    def refuse(*_, **__):
        raise errors.CaptureError("no graph of this model", "another model")

    monkeypatch.setattr(capture_call, "capture", refuse)
    with pytest.warns(RuntimeWarning, match="the source model runs"):
        sparse = apply(nn.Linear(3, 4), MESSAGES, (torch.ones(2, 3),))
    with pytest.raises(errors.CaptureError, match="no graph to export"):
        torch.export.export(sparse, (torch.ones(2, 3),), strict=False)


class Branches(nn.Module):
    """A model that export cannot capture."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_cannot_be_captured_runs_as_it_is_with_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sparse = apply(Branches(), MESSAGES, (torch.ones(3),))
        assert torch.equal(sparse(torch.ones(3)), torch.ones(3))
        assert torch.equal(sparse(-torch.ones(3)), torch.ones(3))
    assert len([w for w in caught if "source model runs" in str(w.message)]) == 1
    with pytest.raises(errors.CaptureError):
        apply(Branches(), MESSAGES, (torch.ones(3),), strict=True)


@pytest.mark.parametrize(
    "model, recipe, wrong, words",
    [
        (nn.Identity(), None, errors.RecipeError, "NoneType is no recipe; a path, a built-in name .*gcn, "),
        (torch.relu, "gcn", errors.CaptureError, "is no torch.nn.Module"),
    ],
)
def test_what_is_no_model_or_no_recipe(model, recipe, wrong, words):
    with pytest.raises(wrong, match=words):
        apply(model, recipe, (torch.ones(3),))


def test_captures_are_bounded(monkeypatch):
    monkeypatch.setattr(capture_call, "MAX_CAPTURES", 2)
    model, recipe, example = case("by hand")
    sparse = apply(model, recipe, example(), dynamic=())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for nodes in range(10, 15):
            x, edge_index = example(nodes, seed=nodes)
            assert torch.allclose(sparse(x, edge_index), model(x, edge_index), atol=1e-5)
    assert len([w for w in caught if "more than 2 captures" in str(w.message)]) == 1


def test_calls_in_turns_are_captured_once_each():
    model, recipe, example = case("by hand")
    sparse = apply(model, recipe, example())
    x, edge_index = example(12)
    one, many = (x[:1], edge_index * 0), (x, edge_index)
    for inputs in (one, many, one, many):
        assert torch.allclose(sparse(*inputs), model(*inputs), atol=1e-5)
    assert len(sparse.variants) == 2, "a graph of one node is captured apart, and replaces nothing"


def test_calls_that_the_model_refuses_end_as_there():
    model, recipe, example = case("by hand")
    sparse = apply(model, recipe, example())
    x, edge_index = example()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            sparse(x[:, :3], edge_index)
    assert torch.allclose(sparse(x, edge_index), model(x, edge_index), atol=1e-5)
    assert len(sparse._captures) == 1
    assert not sparse.report.warnings
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        apply(model, recipe, (x[:, :3], edge_index))


def test_a_kernel_that_cannot_be_built_leaves_the_nodes_dense(monkeypatch):
    def refuse(wanted):
        return [errors.CompilerNotFoundError("no C++ compiler", "install g++") for _ in wanted]

    monkeypatch.setattr(import_module("sparsify.passes.emit.emit"), "prepare_all", refuse)
    model, recipe, example = case("by hand")
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler"):
        sparse = apply(model, recipe, example())
    assert torch.equal(sparse(*example()), model(*example()))
    assert [entry.op for entry in sparse.report.dense] == ["relu", "index_add"]
    with pytest.raises(errors.CompilerNotFoundError):
        apply(model, recipe, example(), strict=True)


def test_a_kernel_that_fails_goes_over_to_the_dense_nodes():
    model, recipe, example = case("gcn")
    sparse = apply(model, recipe, example())

    def fail(*_):
        raise errors.KernelError(1, "out of memory")

    for region in sparse.variants[0].regions:
        region.kernel = fail
    with pytest.warns(RuntimeWarning, match="run densely from now on"):
        assert torch.allclose(sparse(*example()), model(*example()), atol=1e-5)
    assert torch.allclose(sparse(*example()), model(*example()), atol=1e-5)


def test_wrong_edges_are_an_error_of_ours():
    model, recipe, example = case("by hand")
    sparse = apply(model, recipe, example())
    x, edge_index = example()
    edge_index = edge_index.clone()
    edge_index[1, 4] = 99
    with pytest.raises(errors.InvalidTensorError, match="edge 4 has row 99, the matrix has 20"):
        sparse(x, edge_index)


class MeanOfNeighbours(torch.nn.Module):
    def forward(self, x, edge_index):
        degree = torch.zeros(x.shape[0]).scatter_add(0, edge_index[1], torch.ones(edge_index.shape[1]))
        found = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return found / degree.clamp(min=1)[:, None]


@pytest.mark.parametrize("place", [(0, 20), (1, 20), (1, -1)])
def test_indices_out_of_range_are_told_of_once(capfd, place):
    model = MeanOfNeighbours()
    sparse = apply(model, MESSAGES, graph())
    x, edge_index = graph()
    edge_index[place[0], 4] = place[1]
    with pytest.raises((IndexError, RuntimeError, errors.InvalidTensorError)) as caught:
        sparse(x, edge_index)
    text = str(caught.value)
    extremes = (
        f"edge_index has indices from {edge_index.min()} to {edge_index.max()}; x has {x.shape[0]} rows"
    )
    assert extremes in text or "edge 4 has" in text
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("error")
def test_graphs_without_edges_are_not_warned_of():
    x, edge_index = graph()
    model = MeanOfNeighbours()
    sparse = apply(model, MESSAGES, (x, edge_index[:, :0]))
    assert [entry.reason for entry in sparse.report.dense] == ["the example inputs have no edges"] * len(
        sparse.report.dense
    )
    torch.testing.assert_close(sparse(x, edge_index[:, :0]), model(x, edge_index[:, :0]))
    torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index))


def test_stages_are_dumped(tmp_path):
    model, recipe, example = case("gcn")
    with options.override(dump=("all",), dump_dir=tmp_path):
        apply(model, recipe, example())
    (folder,) = (path for path in tmp_path.iterdir() if (path / "00-graph.txt").exists())
    assert folder.name.startswith(f"{type(model).__name__}-")
    texts = {path.stem.partition("-")[2]: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert set(texts) == {"graph", *(step.name for step in PASSES)}
    assert "# adjacency" not in texts["graph"]
    assert "# adjacency" in texts["marked"]
    assert "Y[i,k] = relu(" in texts["general"] and "sum(j, " in texts["general"]
    assert "region_1(" in texts["emitted"]
    kernels = [path for path in tmp_path.iterdir() if path != folder]
    assert all(any(part.name.endswith("-cpp.txt") for part in path.iterdir()) for path in kernels)


class Counting(nn.Module):
    """A model that writes into its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x.add_(1)
        return self.linear(x)


@pytest.mark.parametrize("is_captured", [True, False])
def test_what_is_measured_and_verified_leaves_its_inputs(is_captured):
    pruned = {"targets": ["param:linear.weight"], "prune": {"method": "magnitude", "sparsity": 0.5}}
    recipe = {"schema": 1, "name": "pruned", "sparsify": [pruned]}
    sparse = apply(Counting().eval(), recipe, (torch.zeros(4, 6),), trainable=True)
    x = torch.zeros((4, 6) if is_captured else (2, 3, 6))
    assert sparse.verify_gradients(x) < 1e-4
    sparse.measure(x, repeats=2)
    assert not x.any()
