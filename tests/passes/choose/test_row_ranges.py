"""The numbers of rows for which an alternative runs, by times that are given; in files and in compiled models."""

from math import inf

import pytest
import torch
from torch import nn

import sparsify
from sparsify.options import override
from sparsify.passes.call.alternative import ByRows
from sparsify.passes.choose import row_ranges
from sparsify.passes.choose.autotune import Winner
from sparsify.passes.choose.expert_products import ExpertProducts
from sparsify.passes.choose.row_ranges import NAME, described, ranges, timed

EXPERTS, WIDTH, HIDDEN = 5, 12, 20
RECIPE = {
    "schema": 1,
    "name": "experts",
    "sparsify": [{"targets": ["op:experts"], "role": "gate", "source": "computed"}],
}


class Mixture(nn.Module):
    """Two of the experts for each token."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        gate = torch.zeros(x.shape[0], EXPERTS).scatter(1, chosen, weights)
        rows = torch.relu(torch.einsum("td,ehd->teh", x, self.up))
        return x + torch.einsum("te,teo->to", gate, torch.einsum("teh,eoh->teo", rows, self.down))


@pytest.fixture
def mixture(monkeypatch):
    """A mixture and its sparse model, in which torch's products compute calls with fewer than 8 tokens."""
    torch.manual_seed(0)
    monkeypatch.setattr(
        row_ranges, "race", lambda *given: winner(2.0, 1.0) if given[-1] < 8 else winner(1.0, 2.0)
    )
    with override(compiler_flags=("-O1",), tune_seconds=0.01):
        model = Mixture().eval()
        sparse = sparsify.apply(model, RECIPE, (torch.randn(16, WIDTH),), trainable=False)
        yield model, sparse


@pytest.fixture
def computed_by_products(monkeypatch):
    """The numbers of tokens of calls that torch's products compute."""
    counts = []
    compute = ExpertProducts.__call__

    def noted(self, operands):
        result = compute(self, operands)
        counts.append(result.shape[0])
        return result

    monkeypatch.setattr(ExpertProducts, "__call__", noted)
    return counts


def same_as_model(model, call, rows):
    """Whether a call with random rows has the model's result."""
    x = torch.randn(rows, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-5)


def test_tokens_decide_at_the_call(mixture, computed_by_products):
    model, sparse = mixture
    (call,) = sparse.variants[0].regions
    assert isinstance(call.preferred, ByRows)
    assert call.preferred.ranges == ((0, 8.0),)
    for rows in (2, 7, 8, 40, 3):
        same_as_model(model, sparse, rows)
    assert computed_by_products == [2, 7, 3]


def test_tokens_decide_in_a_loaded_model(mixture, computed_by_products, tmp_path):
    model, sparse = mixture
    for rows in (2, 16):
        same_as_model(model, sparse, rows)
    computed_by_products.clear()
    loaded = sparsify.load(sparsify.save(sparse, tmp_path, kernels=True))
    (call,) = loaded.variants[0].regions
    assert isinstance(call.preferred, ByRows)
    assert call.preferred.ranges == ((0, 8.0),)
    for rows in (2, 16, 5, 9):
        same_as_model(model, loaded, rows)
    assert computed_by_products == [2, 5]


def test_tokens_decide_in_a_compiled_model(mixture, computed_by_products):
    model, sparse = mixture
    torch.compiler.reset()
    compiled = torch.compile(sparse, backend="aot_eager", dynamic=True, fullgraph=True)
    for rows in (16, 4, 40, 5):
        same_as_model(model, compiled, rows)
    assert [rows for rows in computed_by_products if rows >= 8] == []
    assert set(computed_by_products) == {4, 5}


@pytest.mark.sampled(2)
def test_gradients_run_in_the_kernel(mixture, computed_by_products):
    model, sparse = mixture
    for call in range(2):
        x = torch.randn(4, WIDTH)
        given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
        computed_by_products.clear()
        sparse(given).square().sum().backward()
        model(expected).square().sum().backward()
        torch.testing.assert_close(given.grad, expected.grad, rtol=1e-4, atol=1e-4)
        # The forward pass of the first call, which builds the kernel of the gradients, may run without it.
        assert call == 0 or computed_by_products == []


def winner(kernel: float, products: float) -> Winner:
    return Winner("rows", (("kernel", kernel), (NAME, products)))


@pytest.mark.parametrize(
    ("is_faster", "expected"),
    [
        (lambda rows: rows < 10, [4, 16]),
        (lambda rows: rows > 30, [4, 16, 64]),
        (lambda rows: True, [4, 16, 64, 256]),
        (lambda rows: False, [4, 16, 64, 256]),
    ],
)
def test_rows_that_are_timed(is_faster, expected):
    def race(rows):
        return winner(2.0, 1.0) if is_faster(rows) else winner(1.0, 2.0)

    found = timed(16, True, race)
    assert [rows for rows in found if rows <= max(expected)] == expected
    assert list(timed(16, False, race)) == [16]


@pytest.mark.parametrize(
    ("ratios", "expected", "text"),
    [
        ({4: 2.0, 16: 0.5}, ((0, 8.0),), "below 8 rows"),
        ({4: 0.5, 16: 2.0}, ((8.0, inf),), "from 8 rows on"),
        ({4: 2.0, 16: 0.5, 64: 4.0}, ((0, 8.0), (25.398, inf)), "below 8 rows and from 25 rows on"),
        ({16: 2.0}, ((0, inf),), "for all rows"),
        ({16: 0.5}, (), "the kernel runs"),
        ({4: 0.5, 16: 2.0, 64: 0.5}, ((8.0, 32.0),), "from 8 to 32 rows"),
    ],
)
def test_ranges(ratios, expected, text):
    found = ranges(ratios, {rows: ratio > 1 for rows, ratio in ratios.items()})
    assert found == expected
    times = {rows: winner(100 * ratio, 100.0) for rows, ratio in ratios.items()}
    assert text in described(times, found)
