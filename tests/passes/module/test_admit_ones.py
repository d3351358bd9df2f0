"""Calls with extents of 1 run in the graph of calls with larger extents, where their captures have equal operators."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import sparsify
from sparsify import options
from sparsify.errors import CaptureError, VerificationError
from sparsify.passes.module import admit_ones
from sparsify.passes.served import kinds

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "given",
    "sparsify": [{"targets": ["param:*weight"], "role": "weight", "source": "given"}],
}
WIDTH, STEPS = 24, 6


@pytest.fixture(autouse=True, scope="module")
def untimed() -> Iterator[None]:
    with options.override(tune_seconds=0.0):
        yield


class Rows(nn.Module):
    """A layer with sparse weights, and a function of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.linear.weight.data *= torch.rand(WIDTH, WIDTH) < 0.1
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        return self.combined(torch.relu(self.linear(x)), x)

    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y


class Pooled(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y.mean(1), y.flatten(0, 1).view(x.shape[0], -1)


class Centred(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return (y - y.mean(0, keepdim=True)) / (1 + y.var(0, unbiased=False))


class WithToken(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1).transpose(0, 1).contiguous()


class Pairs(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y.unsqueeze(0) * y.unsqueeze(1)


class Scaled(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y * (x.shape[0] + 1) ** 0.5 + torch.arange(x.shape[0]).view(-1, 1, 1)


class Squeezed(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y.mean(2).squeeze()


class SqueezedMode(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y.squeeze(0)


class Branching(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y.sum(0) if x.shape[0] == 1 else y * 2


class BranchingLate(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y * (3 if x.shape[0] * x.shape[1] < STEPS + 1 else 2)


class ByContiguity(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        turned = y.transpose(0, 1)
        return turned.exp() if turned.is_contiguous() else turned.sin()


class ByStrides(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y * (2 if y.mean(1).expand(y.shape[0], WIDTH).stride(0) == WIDTH else 3)


class Broadcast(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y + (y[:1] if y.shape[0] > 1 else y.flip(1))


class Normed(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return functional.instance_norm(y.transpose(1, 2))


SHARED = [Rows, Pooled, Centred, WithToken, Pairs, Scaled, Normed]
SEPARATE = [Squeezed, SqueezedMode, Branching, BranchingLate, ByContiguity, Broadcast]


def model_of(kind: type[Rows]) -> Rows:
    torch.manual_seed(0)
    return kind().eval()


def batch(rows: int, steps: int = STEPS) -> torch.Tensor:
    return torch.randn(rows, steps, WIDTH, generator=torch.Generator().manual_seed(rows))


def require_right(sparse: nn.Module, model: nn.Module, *rows: int) -> None:
    for number in rows:
        torch.testing.assert_close(sparse(batch(number)), model(batch(number)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", SHARED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("first", [8, 1])
def test_one_graph_serves_all_numbers_of_rows(kind: type[Rows], first: int) -> None:
    model = model_of(kind)
    sparse = sparsify.apply(model, RECIPE, batch(first))
    require_right(sparse, model, *((1, 8, 2, 1, 5) if first > 1 else (8, 1, 2, 1, 5)))
    assert len(sparse.variants) == 1
    assert "s" in str(sparse.variants[0].captured.extents[0][0])


@pytest.mark.parametrize("kind", [*SEPARATE, ByStrides], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("first", [8, 1])
def test_calls_of_other_operators_have_their_graph(kind: type[Rows], first: int) -> None:
    model = model_of(kind)
    sparse = sparsify.apply(model, RECIPE, batch(first))
    require_right(sparse, model, 1, 8, 2, 1, 5)
    assert len(sparse.variants) == (2 if kind in SEPARATE else len(sparse.variants))


def test_each_set_of_extents_of_1_is_compared() -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    for rows, steps in ((1, 5), (4, 1), (1, 7), (3, 1), (1, 1)):
        x = batch(rows, steps)
        torch.testing.assert_close(sparse(x), model(x), rtol=1e-4, atol=1e-5)
    assert sorted(map(len, sparse.variants[0].captured.ones)) == [
        1,
        1,
    ]  # one row and step: a product of one row


class Sums(Rows):
    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> Any:
        return self.linear(x) + bias


def test_an_operand_of_one_row_is_not_one_of_all_rows() -> None:
    model = model_of(Sums)
    sparse = sparsify.apply(model, RECIPE, (batch(8), batch(8)))
    for rows, others in ((8, 1), (1, 1), (1, 8), (8, 8), (3, 3), (3, 1)):
        inputs = batch(rows), batch(others)
        torch.testing.assert_close(sparse(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 3


class SecondRow(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y[1]


def test_an_error_of_the_model_stays_an_error() -> None:
    model = model_of(SecondRow)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    for _ in range(2):
        with pytest.raises(IndexError):
            sparse(batch(1))
    require_right(sparse, model, 8, 2)
    assert len(sparse.variants) == 1


class Statistics(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return self.norm(y.mean(1))


def test_statistics_of_one_row_raise_in_training_alone() -> None:
    model = model_of(Statistics)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    require_right(sparse, model, 1, 8, 1)
    assert len(sparse.variants) == 1
    sparse.train()
    with pytest.warns(RuntimeWarning, match="statistics of a batch"):
        sparse(batch(8))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        sparse(batch(1))


def test_an_empty_batch_is_right() -> None:
    model = model_of(Rows)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    require_right(sparse, model, 1, 0, 1, 8)


def test_products_of_one_row_have_a_graph_of_their_own() -> None:
    model = model_of(Rows)
    sparse = sparsify.apply(model, RECIPE, torch.ones(8, WIDTH))
    for rows in (1, 8, 1):
        x = torch.ones(rows, WIDTH)
        torch.testing.assert_close(sparse(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 2


class Guarded(Rows):
    def combined(self, y: torch.Tensor, x: torch.Tensor) -> Any:
        return y * 2 if x.shape[1] * 3 > x.shape[0] * 20 else y


def test_guards_hold_for_calls_with_extents_of_1() -> None:
    model = model_of(Guarded)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    for rows, steps in ((1, 6), (1, 9), (1, 6), (1, 10), (2, 6), (2, 14)):
        x = batch(rows, steps)
        torch.testing.assert_close(sparse(x), model(x), rtol=1e-4, atol=1e-5)


def test_different_results_keep_a_graph_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(8))

    def differs(*_: Any) -> None:
        raise VerificationError("differs")

    monkeypatch.setattr(admit_ones, "verify", differs)
    require_right(sparse, model, 1, 8)
    assert len(sparse.variants) == 2
    assert not sparse.variants[0].captured.ones


def test_extents_of_1_are_not_admitted_before_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    (general,) = sparse.variants

    def interrupted(*_: Any) -> None:
        assert not general.admits((batch(1).shape,))
        raise KeyboardInterrupt

    monkeypatch.setattr(admit_ones, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sparse(batch(1))
    assert not general.captured.ones


def test_a_graph_of_one_row_stays_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(1))
    monkeypatch.setattr(admit_ones, "is_slower", lambda *_: True)
    require_right(sparse, model, 8, 1, 8, 1)
    assert len(sparse.variants) == 2


def test_gradients_of_one_row() -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(8), trainable=True)
    for rows in (1, 8, 1):
        expected, found = model(batch(rows)), sparse(batch(rows))
        wanted = torch.autograd.grad(expected[0].square().sum(), model.linear.bias)
        torch.testing.assert_close(
            torch.autograd.grad(found[0].square().sum(), sparse.linear.bias), wanted, rtol=1e-4, atol=1e-5
        )
    assert len(sparse.variants) == 1


@pytest.mark.parametrize("order", [(8, 1), (1, 8, 1)])
def test_a_folder_has_one_graph(order: tuple[int, ...], tmp_path: Any) -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(order[0]))
    require_right(sparse, model, *order)
    sparsify.save(sparse, tmp_path / "served", kernels=True)
    served = sparsify.load(tmp_path / "served")
    require_right(served, model, 1, 8, 3, 1)
    assert len(served.variants) == 1
    with pytest.raises(CaptureError, match="no graph"):
        served(batch(8, 1))


def test_copies_take_extents_of_1() -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    sparse(batch(1))
    copied = copy.deepcopy(sparse)
    require_right(copied, model, 1, 8)
    assert len(copied.variants) == 1


def test_traces_take_extents_of_1() -> None:
    model = model_of(Pooled)
    sparse = sparsify.apply(model, RECIPE, batch(8))
    sparse(batch(1))
    program = torch.export.export(sparse, (batch(1),))
    torch.testing.assert_close(program.module()(batch(1)), model(batch(1)), rtol=1e-4, atol=1e-5)
    compiled = torch.compile(sparse, backend="eager")
    require_right(compiled, model, 1, 8, 1)


def test_kinds_of_calls_in_folders_keep_extents_of_1() -> None:
    sparse = sparsify.apply(model_of(Pooled), RECIPE, batch(8))
    sparse(batch(1))
    captured = sparse.variants[0].captured
    data = json.loads(json.dumps(kinds.encoded_captured(captured)))
    assert kinds.decoded_captured(data, captured.graph, {}).ones.keys() == captured.ones.keys() != set()
    del data["ones"]  # as in folders of earlier versions
    assert not kinds.decoded_captured(data, captured.graph, {}).ones
