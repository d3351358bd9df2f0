"""The backend of torch.compile: graphs of Dynamo's by a recipe."""

from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from graph_models import HandWritten, TwoLayers, graph
from torch import Tensor, nn

import sparsify
from sparsify import options
from sparsify.errors import SparsifyError
from sparsify.passes.dynamo.torch_compile import Compiled, backend, input_name, member_name
from sparsify.passes.module.prune_and_capture import applied

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


def compiled(model: nn.Module, recipe: Any, **how: Any) -> Any:
    return torch.compile(model, backend=backend, options={"recipe": recipe, "inner": "eager"} | how)


def pruning(**more: Any) -> dict[str, Any]:
    rule = {"targets": ["param:0.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}, **more}
    return {"schema": 1, "name": "pruned", "sparsify": [rule]}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).eval()


def test_the_backend_is_listed():
    (found,) = [entry for entry in entry_points(group="torch_dynamo_backends") if entry.name == "sparsify"]
    assert found.load() is backend


def test_graph_models():
    model = TwoLayers(HandWritten).eval()
    x, edge_index = graph()
    found = compiled(model, "gcn")
    with torch.no_grad():
        torch.testing.assert_close(found(x, edge_index), model(x, edge_index), **CLOSE)


def test_gradients_reach_the_models_own_parameters():
    model = TwoLayers(HandWritten).eval()
    x, edge_index = graph()
    compiled(model, "gcn")(x, edge_index).square().sum().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x, edge_index).square().sum().backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
def test_packed_weights_follow_the_model():
    model, x = mlp(), torch.randn(64, 256)
    found = compiled(model, pruning())
    with torch.no_grad():
        for _ in range(2):
            expected = sparsify.apply(model, pruning(), x)(x)
            torch.testing.assert_close(found(x), expected, **CLOSE)
            assert not torch.allclose(expected, model(x), atol=1e-3)
            model[0].weight.mul_(-2)
        model[0].weight = nn.Parameter(torch.randn(256, 256))
        torch.testing.assert_close(found(x), sparsify.apply(model, pruning(), x)(x), **CLOSE)
    with pytest.raises(SparsifyError, match="pruned weights cannot be trained"):
        found(x)


def test_scopes_and_types_select():
    model, x = mlp(), torch.randn(64, 256)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="rule 1 of the recipe pruned matched nothing"):
        whole = compiled(model, pruning(targets=["param:*.weight"], types=["Conv2d"]))(x)
    torch.testing.assert_close(whole, model(x), **CLOSE)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x * 2, x - 1)
        return x


def masked(target: str) -> dict[str, Any]:
    rule = {"targets": [target], "mask": {"kind": "sliding_window", "before": 2, "block": 4}}
    return {"schema": 1, "name": "masked", "sparsify": [rule]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["op:scaled_dot_product_attention", "scope:layers.1"])
def test_attention_at_any_length(target):
    model = Layers()
    found = torch.compile(
        model, backend=backend, options={"recipe": masked(target), "inner": "eager"}, dynamic=True
    )
    for length in (24, 33):
        x = torch.randn(2, 2, length, 8)
        expected = sparsify.apply(model, masked(target), x, verify=False)(x)
        torch.testing.assert_close(found(x), expected, **CLOSE)
        assert not torch.allclose(expected, model(x), atol=1e-3)


def test_breaks_are_reported():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            x = x * 2
            torch._dynamo.graph_break()
            return self.inner(x)

    model, x = Broken(), torch.randn(64, 256)
    found = compiled(model, pruning(targets=["param:inner.0.weight"]))
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="torch.compile cut the graph"):
        result = found(x)
    with torch.no_grad():
        expected = sparsify.apply(mlp(), pruning(), 2 * x)(2 * x)
    torch.testing.assert_close(result, expected, **CLOSE)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "needs a recipe"),
        ({"recipe": "gcn", "iner": "eager"}, "no option 'iner'; did you mean 'inner'"),
        ({"recipe": "gnc"}, "gnc"),
    ],
)
def test_options_that_are_none(how, message):
    with pytest.raises(SparsifyError, match=message):
        backend(torch.fx.symbolic_trace(mlp()), [torch.randn(2, 256)], options=how)


def test_names():
    assert member_name("L['self']._modules['conv1']._parameters['weight']") == "conv1.weight"
    assert member_name("L['self'].layers[0]") == ""
    assert member_name("L['x']") == ""
    assert input_name("L['x']") == "x"
    assert input_name("L['batch']['ids']") == ""


def test_inner_backends():
    model, x = mlp(), torch.randn(64, 256)
    found = compiled(model, pruning(), inner="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(found(x), sparsify.apply(model, pruning(), x)(x), **CLOSE)
    assert Compiled.__doc__


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return scale - self.linear(x) * scale


class Sloped(Scaled):
    def forward(self, x: Tensor, slope: float) -> Tensor:
        return nn.functional.leaky_relu(self.linear(x), slope)


@pytest.fixture
def captures(monkeypatch):
    """The modules that the backend applies a recipe to."""
    found = []

    def counted(module: nn.Module, *rest: Any) -> Any:
        found.append(module)
        return applied(module, *rest)

    monkeypatch.setattr("sparsify.passes.dynamo.torch_compile.applied", counted)
    return found


FORMATTED = {
    "schema": 1,
    "name": "formatted",
    "sparsify": [{"targets": ["param:*weight"], "format": "csr"}],
}


def test_numbers_beside_tensors_vary(captures):
    model, x = Scaled().eval(), torch.randn(4, 6)
    found = torch.compile(
        model, backend=backend, options={"recipe": FORMATTED, "inner": "eager"}, dynamic=True
    )
    with torch.no_grad():
        for scale in (1.5, 2.5, 0.1, 3.5):
            torch.testing.assert_close(found(x, scale), model(x, scale), **CLOSE)
    assert len(captures) == 1


def test_numbers_of_operators_are_captured_a_few_times(captures):
    model, x = Sloped().eval(), torch.randn(4, 6)
    how = {"backend": backend, "dynamic": True}
    found = torch.compile(model, options={"recipe": FORMATTED, "inner": "eager"}, **how)
    with torch.no_grad():
        for slope in (0.1, 0.2):
            torch.testing.assert_close(found(x, slope), model(x, slope), **CLOSE)
        with pytest.warns(RuntimeWarning, match=r"L\['slope'\] had more than 2 values"):
            found(x, 0.3)
        for slope in (0.3, 0.4, 0.1):
            torch.testing.assert_close(found(x, slope), model(x, slope), **CLOSE)
        assert len(captures) == 2
        model.linear.weight.mul_(2)
        for slope in (0.1, 0.3, 0.2):
            torch.testing.assert_close(found(x, slope), model(x, slope), **CLOSE)
        assert len(captures) == 4  # other numbers between them take nothing from those that were captured
        pruned = torch.compile(
            model, options={"recipe": pruning(targets=["param:linear.weight"]), "inner": "eager"}, **how
        )
        pruned(x, 0.1), pruned(x, 0.2)
        with pytest.raises(SparsifyError, match="give a tensor of no modes in its place"):
            pruned(x, 0.3)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("is_norm_first", [False, True])
@pytest.mark.parametrize("kind", [None, "keys", "scores"])
def test_fused_layers_have_patterns_too(kind, is_norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, "gelu", batch_first=True, norm_first=is_norm_first)
    given = {}
    if kind == "keys":
        given["src_key_padding_mask"] = torch.arange(20) >= torch.tensor([20, 15])[:, None]
    if kind == "scores":
        given["src_mask"] = torch.zeros(20, 20).masked_fill(torch.rand(20, 20) > 0.9, -torch.inf)
    rule = {
        "targets": ["op:scaled_dot_product_attention"],
        "mask": {"kind": "sliding_window", "before": 4, "block": 4},
    }
    found = compiled(layer.eval(), {"schema": 1, "name": "masked", "sparsify": [rule]})
    x, places = torch.randn(2, 20, 16), torch.arange(20)
    near = torch.zeros(20, 20).masked_fill((places[:, None] - places).abs() > 4, -torch.inf)
    mask = near + given.get("src_mask", 0)
    padding = given.get("src_key_padding_mask")
    wanted = layer(x, mask, None if padding is None else torch.zeros(2, 20).masked_fill(padding, -torch.inf))
    torch.testing.assert_close(found(x, **given), wanted, rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # torch runs one operator then
        torch.testing.assert_close(found(x, **given), wanted, rtol=1e-4, atol=1e-5)


def test_rules_that_match_nothing_are_reported():
    rule = {"targets": ["op:mesage_passing"]}
    x, edge_index = graph()
    found = compiled(TwoLayers(HandWritten).eval(), {"schema": 1, "name": "lost", "sparsify": [rule]})
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="rule 1 of the recipe lost matched nothing"):
        found(x, edge_index)
    found(x, edge_index)  # said once


def test_models_that_count_their_calls():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.calls = nn.Linear(8, 8), 0
            self.register_buffer("shift", torch.ones(8))

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            self.calls += 1
            h = self.lin(x) * self.calls + self.shift
            return torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])

    torch._dynamo.reset()
    model, x, edges = Counting().eval(), torch.randn(20, 8), torch.randint(0, 20, (2, 60))
    run = compiled(model, "gcn")
    with torch.no_grad():
        for calls in (1, 2, 3):
            found = run(x, edges)
            assert model.calls == calls
            h = model.lin(x) * calls + model.shift
            torch.testing.assert_close(
                found, torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]]), **CLOSE
            )


class Counting(nn.Module):
    """Messages to as many nodes as an integer says, which no tensor of the call has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 5)

    def forward(self, x: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
        return x.new_zeros(nodes, 5).index_add(0, edge_index[1], self.linear(x)[edge_index[0]])


@pytest.mark.sampled(2)
def test_integers_are_inputs(recwarn):
    torch.manual_seed(0)
    model = Counting().eval()
    found = compiled(model, "gcn", strict=True)
    run = torch.compile(model, backend=backend, dynamic=True, options={"recipe": "gcn", "inner": "eager"})
    x, edge_index = graph()
    for nodes in (20, 24, 31, 40):
        for call in (found, run):
            torch.testing.assert_close(call(x, edge_index, nodes), model(x, edge_index, nodes), **CLOSE)
    assert not [warning for warning in recwarn if "stays dense" in str(warning.message)]
