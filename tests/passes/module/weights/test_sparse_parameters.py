"""Applied models whose pruned weights train as sparse parameters."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify import SparseTensor, options
from sparsify.passes.module.check import require_gain

RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {"targets": ["param:*.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.9}}
    ],
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


def example(rows: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 10, (rows,), generator=generator)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    ).double()


@pytest.fixture
def applied() -> sparsify.SparseModule:
    return sparsify.apply(mlp(), RECIPE, example()[:1])


def dense(parameter: Tensor) -> Tensor:
    found = parameter.detach()
    return found.to_dense() if isinstance(found, SparseTensor) else found.clone()


def twin_of(sparse: nn.Module) -> nn.Module:
    """The dense model with the same entries."""
    made = mlp()
    made.load_state_dict({name: dense(value) for name, value in sparse.state_dict().items()})
    return made


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, masks: dict[str, Tensor] | None = None
) -> float:
    """The loss after some steps; gradients are read under masks."""
    x, labels = example()
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        for name, mask in (masks or {}).items():
            model.get_parameter(name).grad *= mask
        optimizer.step()
    return loss.item()


def masks_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() != 0 for name, p in model.named_parameters() if name.endswith("weight")}


def names_of_sparse(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if isinstance(parameter, SparseTensor)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_the_masked_dense_model(applied, optimizer):
    twin = twin_of(applied)
    masks = masks_of(twin)
    assert names_of_sparse(applied) == ["0.weight", "2.weight", "4.weight"]
    before = applied.get_parameter("0.weight")
    make = OPTIMIZERS[optimizer]
    assert train(applied, make(applied.parameters())) == pytest.approx(
        train(twin, make(twin.parameters()), masks), rel=1e-12
    )
    assert applied.get_parameter("0.weight") is before
    for name, parameter in applied.named_parameters():
        torch.testing.assert_close(
            dense(parameter), twin.get_parameter(name).detach(), rtol=1e-12, atol=1e-12
        )
        if isinstance(parameter, SparseTensor):
            assert isinstance(parameter.grad, SparseTensor)
            assert parameter.grad.pattern.equals(parameter.pattern)


def test_state_is_as_large_as_the_entries(applied):
    optimizer = torch.optim.AdamW(applied.parameters())
    train(applied, optimizer)
    weight = applied.get_parameter("2.weight")
    kept = round(0.1 * 64 * 64)
    assert weight.nnz == weight.grad.nnz == kept
    assert all(state.nnz == kept for name, state in optimizer.state[weight].items() if name != "step")


@pytest.mark.sampled(3)
def test_other_calls_leave_the_parameters(applied):
    twin, weight = twin_of(applied), applied.get_parameter("0.weight")
    for rows in (1, 3, 200):
        x = example(rows)[0]
        torch.testing.assert_close(applied(x), twin(x), rtol=1e-10, atol=1e-12)
    applied.eval()
    with torch.no_grad():
        torch.testing.assert_close(applied(example()[0]), twin(example()[0]), rtol=1e-10, atol=1e-12)
    applied.train()
    train(applied, torch.optim.SGD(applied.parameters(), lr=0.1))
    applied.eval()
    with torch.no_grad():  # what follows from earlier entries is not read
        wanted = twin_of(applied)(example()[0])
        torch.testing.assert_close(applied(example()[0]), wanted, rtol=1e-10, atol=1e-12)
    assert applied.get_parameter("0.weight") is weight


def test_operators_of_torch_read_them_dense(applied):
    """Calls of another kind, which no kernel computes, have the same gradients."""
    x = example()[0]
    weight = applied.get_parameter("0.weight")
    applied.original(x).square().sum().backward()
    wanted, weight.grad = weight.grad, None
    applied(x).square().sum().backward()
    torch.testing.assert_close(weight.grad.values(), wanted.values(), rtol=1e-10, atol=1e-12)
    assert applied.verify_gradients(x) < 1e-10


def test_copies_and_files(applied):
    x = example()[0]
    state = copy.deepcopy(applied.state_dict())
    assert isinstance(state["0.weight"], SparseTensor)
    wanted = applied(x).detach()
    twins = [copy.deepcopy(applied)]
    for value in (applied, state):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        twins.append(torch.load(file, weights_only=value is state))
    train(applied, torch.optim.SGD(applied.parameters(), lr=0.1))
    assert not torch.allclose(applied(x), wanted)
    for twin in twins[:2]:
        assert names_of_sparse(twin) == names_of_sparse(applied)
        torch.testing.assert_close(twin(x), wanted, rtol=1e-12, atol=1e-12)
    applied.load_state_dict(twins[2])
    torch.testing.assert_close(applied(x), wanted, rtol=1e-12, atol=1e-12)


def test_compiled_steps(applied):
    twin, x = twin_of(applied), example()[0]
    compiled = torch.compile(applied, backend="aot_eager", fullgraph=True)
    compiled(x).square().sum().backward()
    twin(x).square().sum().backward()
    for name, parameter in applied.named_parameters():
        wanted, found = twin.get_parameter(name).grad, parameter.grad
        if isinstance(parameter, SparseTensor):
            wanted, found = wanted * (dense(parameter) != 0), found.to_dense()
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.sampled(2)
def test_conversions(applied):
    wanted = applied(example()[0]).detach()
    applied.float()
    assert names_of_sparse(applied) == ["0.weight", "2.weight", "4.weight"]
    torch.testing.assert_close(applied(example()[0].float()).detach(), wanted.float(), rtol=1e-4, atol=1e-5)


def test_the_report_says_what_is_held(applied):
    first = applied.report.weights[0]
    assert (first.name, first.format) == ("0.weight", "dense, compressed, trains sparse")
    assert first.bytes_after < first.bytes_before / 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("own", "is_sparse"), [(1.0, True), (1.02, True), (1.1, False)])
def test_weights_train_dense_where_that_is_faster(own, is_sparse, monkeypatch):
    monkeypatch.setattr(require_gain, "times_of", lambda *_: (1.0, own))
    with options.override(tune_seconds=0.001):
        applied = sparsify.apply(mlp(), RECIPE, example()[:1])
    assert bool(names_of_sparse(applied)) == is_sparse
    assert bool(applied.report.regions) == is_sparse
    reasons = [entry.reason for entry in applied.report.dense]
    assert all("trains faster dense: a step takes 1e+03 ms, and 1.1e+03 ms" in reason for reason in reasons)
    assert len(reasons) == (0 if is_sparse else 3)
    twin = twin_of(applied)
    masks = masks_of(twin)
    make = OPTIMIZERS["adamw"]
    assert train(applied, make(applied.parameters())) == pytest.approx(
        train(twin, make(twin.parameters()), masks), rel=1e-12
    )
    for name, mask in masks.items():
        assert not dense(applied.get_parameter(name))[~mask].any()
