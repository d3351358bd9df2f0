"""Recurrent layers with sparse weights: captured step by step, or left to torch with a reason."""

import copy
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import sparsify
from sparsify.errors import CaptureError
from sparsify.options import override
from sparsify.passes.choose.autotune import Winner

recurrent = import_module("sparsify.passes.module.recurrent")
pack = import_module("sparsify.passes.choose.pack")
FEATURES, HIDDEN, STEPS, BATCH = 5, 6, 2, 2


class Wrapped(nn.Module):
    """A recurrent layer inside of a model."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.rnn(x, state)


class Packing(nn.Module):
    """A model that packs its texts, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, HIDDEN)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed, _ = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(packed)[0]


def recipe(targets: str = "param:rnn.weight_*", form: str = "csr", **more: Any) -> dict[str, Any]:
    rule = {"targets": [targets], "source": "given", "format": form, **more}
    return {"schema": 1, "name": "recurrent", "sparsify": [rule]}


def pruned(model: nn.Module, density: float = 0.4) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= torch.rand_like(parameter) < density
    return model


def model_of(kind: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return pruned(Wrapped(kind(FEATURES, HIDDEN, *args, **kwargs))).double().eval()


def sequence(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (STEPS, BATCH, FEATURES), dtype=torch.float64)


def tensors(result: Any) -> list[torch.Tensor]:
    return list(torch.utils._pytree.tree_leaves(result))


def assert_same(found: Any, expected: Any) -> None:
    for own, theirs in zip(tensors(found), tensors(expected), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-12)


KINDS = [nn.LSTM, nn.GRU, nn.RNN]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False, "num_layers": 2},
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(variant) or "plain")
def test_layers(kind: Callable[..., nn.Module], variant: dict[str, Any]) -> None:
    model, x = model_of(kind, **variant), sequence()
    sparse = sparsify.apply(model, recipe(), (x,), verify=False)
    directions = 2 if variant.get("bidirectional") else 1
    assert len(sparse.report.regions) == variant.get("num_layers", 1) * directions * (1 + STEPS)
    assert not sparse.report.dense
    assert not sparse.report.warnings
    assert_same(sparse(x), model(x))
    assert list(sparse.state_dict()) == list(model.state_dict())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.LSTM, {"proj_size": 4}),
        (nn.LSTM, {"proj_size": 4, "bidirectional": True}),
    ],
)
def test_activations_and_projections(kind: Callable[..., nn.Module], more: dict[str, Any]) -> None:
    model, x = model_of(kind, **more), sequence()
    sparse = sparsify.apply(model, recipe(), (x,), verify=False)
    assert sparse.report.regions
    assert_same(sparse(x), model(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_unbatched_with_initial_state(kind: Callable[..., nn.Module]) -> None:
    model, x = model_of(kind), sequence(STEPS, FEATURES)
    state: Any = sequence(1, HIDDEN)
    state = (state, sequence(1, HIDDEN)) if kind is nn.LSTM else state
    sparse = sparsify.apply(model, recipe(), (x, state), verify=False)
    assert len(sparse.report.regions) == 1 + STEPS
    assert_same(sparse(x, state), model(x, state))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("has_state", [True, False])
def test_cells(kind: Callable[..., nn.Module], has_state: bool) -> None:
    model, x = model_of(kind, bias=has_state), sequence(BATCH, FEATURES)
    state: Any = (sequence(BATCH, HIDDEN),) * (2 if kind is nn.LSTMCell else 1) if has_state else None
    state = state[0] if has_state and kind is not nn.LSTMCell else state
    call = (x, state) if has_state else (x,)
    sparse = sparsify.apply(model, recipe(), call, verify=False)
    assert len(sparse.report.regions) == 2
    assert_same(sparse(*call), model(*call))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [*KINDS, nn.LSTMCell])
def test_gradients(kind: Callable[..., nn.Module]) -> None:
    model, x = model_of(kind), sequence(*((BATCH, FEATURES) if kind is nn.LSTMCell else ()))
    sparse = sparsify.apply(model, recipe(), (x,), trainable=True, verify=False)
    gradients = []
    for run in (model, sparse):
        loss = sum(leaf.square().sum() for leaf in tensors(run(x)))
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))  # type: ignore[arg-type]
    for parameter, expected, found in zip(model.parameters(), *gradients, strict=True):
        kept = parameter != 0 if parameter.dim() > 1 else torch.ones_like(parameter)
        torch.testing.assert_close(found, expected * kept, rtol=1e-9, atol=1e-12)


@pytest.mark.sampled(2)
def test_dropout_in_training() -> None:
    model, x = model_of(nn.GRU, num_layers=2, dropout=0.5).train(), sequence()
    sparse = sparsify.apply(model, recipe(), (x,), verify=False)
    assert sparse.report.regions
    results = []
    for run in (model, sparse):
        torch.manual_seed(1)
        results.append(run(x))
    assert_same(results[1], results[0])
    sparse.eval()
    assert_same(sparse(x), model.eval()(x))


def test_lengths() -> None:
    model = model_of(nn.LSTM, batch_first=True)
    sparse = sparsify.apply(model, recipe(), (sequence(BATCH, 3, FEATURES),), verify=False)
    assert "x[1] = 3" in sparse.report.specialised
    assert "x[0] = 2" not in sparse.report.specialised
    for shape in ((BATCH, 3), (4, 3), (BATCH, 4)):
        x = sequence(*shape, FEATURES)
        assert_same(sparse(x), model(x))
    assert [len(variant.report.regions) for variant in sparse.variants] == [4, 5]


def test_more_lengths_than_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsify.passes.module.capture_call.MAX_CAPTURES", 2)
    model = model_of(nn.RNN)
    sparse = sparsify.apply(model, recipe(), (sequence(2, BATCH, FEATURES),), verify=False)
    sparse(sequence(3, BATCH, FEATURES))
    x = sequence(4, BATCH, FEATURES)
    with pytest.warns(RuntimeWarning, match="more than 2 captures"):
        found = sparse(x)
    assert_same(found, model(x))


def test_only_selected_layers() -> None:
    model = nn.ModuleDict({"one": nn.GRU(FEATURES, HIDDEN), "two": nn.GRU(HIDDEN, HIDDEN)})
    model = pruned(
        type("Two", (nn.ModuleDict,), {"forward": lambda self, x: self.two(self.one(x)[0])[0]})(model)
    )
    x = torch.randn(STEPS, BATCH, FEATURES)
    sparse = sparsify.apply(model.eval(), recipe("param:two.weight_hh_l0"), (x,))
    assert len(sparse.report.regions) == STEPS
    assert {scope for region in sparse.report.regions for scope in region.scopes} == {"two"}
    assert sum(getattr(node.target, "__name__", "") == "gru.input" for node in sparse.graph.nodes) == 1
    torch.testing.assert_close(sparse(x), model(x), rtol=1e-5, atol=1e-6)


def left_dense(sparse: Any) -> list[tuple[str, str]]:
    return [(entry.op, entry.scope) for entry in sparse.report.dense]


def test_long_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "MOST_STEPS", 3)
    model, x = model_of(nn.GRU, num_layers=2), sequence()
    with pytest.warns(
        RuntimeWarning, match="the recurrent layers rnn stay dense: a graph holds 3 time steps"
    ) as said:
        sparse = sparsify.apply(model, recipe(), (x,))
    assert len(said) == 1
    assert left_dense(sparse) == [("gru", "rnn")]
    assert_same(sparse(x), model(x))
    with pytest.raises(CaptureError, match="rnn stays dense: a graph holds 3 time steps"):
        sparsify.apply(model, recipe(), (x,), strict=True)


@pytest.mark.parametrize("is_strict", [True, False])
def test_packed_sequences(is_strict: bool) -> None:
    model, x, lengths = pruned(Packing()).eval(), torch.randn(4, 2, FEATURES), torch.tensor([4, 2])
    if is_strict:
        with pytest.raises(CaptureError, match="packed sequences"):
            sparsify.apply(model, recipe(), (x, lengths), strict=True)
        return
    with pytest.warns(RuntimeWarning, match="packed sequences are not captured") as said:
        sparse = sparsify.apply(model, recipe(), (x, lengths))
    assert len(said) == 1
    assert left_dense(sparse) == [("LSTM", "rnn")]
    torch.testing.assert_close(sparse(x, lengths), model(x, lengths))


def test_given_packed_sequence() -> None:
    model, packed = model_of(nn.LSTM), pack_padded_sequence(sequence(), torch.tensor([2, 1]))
    with pytest.warns(RuntimeWarning, match="packed sequences are not captured"):
        sparse = sparsify.apply(model, recipe(), (packed,))
    assert left_dense(sparse) == [("LSTM", "rnn")]
    assert_same(sparse(packed), model(packed))


def test_weights_without_zeros() -> None:
    model, x = Wrapped(nn.LSTM(64, 64)).eval(), torch.randn(2, BATCH, 64)
    with pytest.warns(RuntimeWarning, match="the recurrent layers rnn stay dense: the weight"):
        sparse = sparsify.apply(model, recipe(form="auto"), (x,), trainable=False)
    assert left_dense(sparse) == [("lstm", "rnn")]
    assert not sparse.report.regions


def test_limits_of_a_rule() -> None:
    model, x = model_of(nn.LSTM), sequence()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse = sparsify.apply(model, recipe(form="auto", when={"max_density": 0.01}), (x,))
    assert [entry.op for entry in sparse.report.dense] == ["param", "param"]
    assert any(node.name == "lstm" for node in sparse.graph.nodes)


def test_only_biases() -> None:
    with pytest.warns(RuntimeWarning, match="none of its matrices is selected"):
        sparse = sparsify.apply(model_of(nn.GRU), recipe("param:rnn.bias_ih_l0"), (sequence(),))
    assert left_dense(sparse) == [("gru", "rnn")]


@pytest.mark.parametrize(("us", "is_kept"), [((40.0, 50.0), True), ((60.0, 50.0), False)])
def test_race(monkeypatch: pytest.MonkeyPatch, us: tuple[float, float], is_kept: bool) -> None:
    def compare(kind: str, candidates: Any, seconds: float) -> Any:
        for candidate in candidates:
            candidate.call()
        return Winner(kind, tuple((one.name, taken) for one, taken in zip(candidates, us, strict=True)))

    monkeypatch.setattr(recurrent, "compare", compare)
    # The formats of the weights are those of least expected time: measured, each machine has its own winner.
    monkeypatch.setattr(pack, "tune", lambda *args: None)
    torch.manual_seed(0)
    model, x = pruned(Wrapped(nn.LSTM(64, 64)), 0.05).eval(), torch.randn(2, BATCH, 64)
    asked = recipe(form="auto") | {"compile": {"memory": "fast"}}
    with override(tune_seconds=0.01), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = sparsify.apply(model, asked, (x,), trainable=False)
    said = [note for region in sparse.report.regions for note in region.notes]
    said += [entry.reason for entry in sparse.report.dense]
    assert any(f"timed {us[0]:.0f} us step by step, torch's 50" in text for text in said)
    assert bool(sparse.report.regions) is is_kept


def test_packed_weights_are_those_that_run() -> None:
    model, x = pruned(Wrapped(nn.LSTM(64, 64)), 0.05).eval(), torch.randn(2, BATCH, 64)
    sparse = sparsify.apply(model, recipe(form="auto"), (x,), trainable=False)
    source = sparse._source.rnn
    assert isinstance(source.weight_hh_l0, sparsify.SparseTensor)
    assert all(
        held is own for held, own in zip(source._flat_weights, source._parameters.values(), strict=True)
    )
    other = pruned(Wrapped(nn.LSTM(64, 64)), 0.05).eval()
    for parameter in other.parameters():
        parameter.data *= 0.5
    sparse.load_state_dict(other.state_dict())
    torch.testing.assert_close(sparse.original(x)[0], other(x)[0])
    torch.testing.assert_close(sparse(x)[0], other(x)[0], rtol=1e-5, atol=1e-6)
    y = torch.randn(3, BATCH, 64)
    torch.testing.assert_close(sparse(y)[0], other(y)[0], rtol=1e-5, atol=1e-6)
    twin = copy.deepcopy(sparse).double()
    torch.testing.assert_close(twin(x.double())[0], other.double()(x.double())[0])


def test_steps_of_training() -> None:
    model, x = model_of(nn.LSTM).train(), sequence()
    twin = copy.deepcopy(model)
    sparse = sparsify.apply(model, recipe(), (x,), verify=False)
    masks = [parameter != 0 for parameter in twin.parameters()]
    for run in (sparse, twin):
        optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            run(x)[0].square().sum().backward()
            if run is twin:
                for parameter, mask in zip(twin.parameters(), masks, strict=True):
                    parameter.grad *= mask  # type: ignore[operator]
            optimizer.step()
    assert_same(sparse.eval()(x), twin.eval()(x))
    assert_same(sparse.original(x), twin(x))


def test_under_dynamo() -> None:
    import torch._dynamo

    model, x = pruned(Wrapped(nn.GRU(FEATURES, HIDDEN))).eval(), torch.randn(STEPS, BATCH, FEATURES)
    compiled = torch.compile(model, backend="sparsify", options={"recipe": recipe(), "inner": "eager"})
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
