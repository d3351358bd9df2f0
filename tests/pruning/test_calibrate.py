"""Pruning of whole models with calibration data."""

import pytest
import torch
from torch import nn

from sparsify.errors import DataError, ShapeError
from sparsify.pruning import calibrate
from sparsify.pruning.calibrate import prune_by_calibration
from sparsify.pruning.sparsegpt import sparsegpt
from sparsify.pruning.statistics import Moments
from sparsify.pruning.structure import Structure
from sparsify.recipe import Prune


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(torch.relu(self.q(x)) * self.k(x) + x)


def model() -> nn.Module:
    torch.manual_seed(0)
    return Residual().double()


def batches(count=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(10, 8, generator=generator, dtype=torch.float64) for _ in range(count)]


def pruned(net, how, data):
    jobs = {name: Prune(**how) for name, p in net.named_parameters() if p.dim() > 1}
    return prune_by_calibration(net, jobs, [lambda m, x=x: m(x) for x in data])


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_later_layers_see_pruned_ones(method):
    net, before = model(), model()
    outcome = pruned(net, {"method": method, "sparsity": 0.5}, batches())
    assert list(outcome.pruned) == ["q.weight", "k.weight", "out.weight"]
    assert outcome.passed == {}
    with torch.no_grad():
        x = torch.cat(batches())
        hidden = torch.relu(net.q(x)) * net.k(x) + x
        error = (hidden @ (net.out.weight - before.out.weight).t()).norm() / (
            hidden @ before.out.weight.t()
        ).norm()
    assert outcome.pruned["out.weight"].error == pytest.approx(float(error), rel=1e-9)
    assert all(float((p == 0).double().mean()) == 0.5 for p in net.parameters() if p.dim() > 1)
    again = pruned(model(), {"method": method, "sparsity": 0.5}, batches())
    assert all(torch.equal(again.pruned[n].weight, done.weight) for n, done in outcome.pruned.items())


def test_one_layer_of_sums_at_a_time(monkeypatch):
    alive, largest = [], []

    class Watched(Moments):
        def __init__(self, kinds):
            assert all(not found.of for found in alive)
            super().__init__(kinds)
            alive.append(self)
            largest.append(set(kinds))

    monkeypatch.setattr(calibrate, "Moments", Watched)
    pruned(model(), {"method": "sparsegpt", "sparsity": 0.5}, batches())
    assert largest == [{"q.weight", "k.weight"}, {"out.weight"}]


def test_transposed_weights_and_parts_of_weights():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
            self.turned = nn.Parameter(torch.randn(8, 4, dtype=torch.float64))

        def forward(self, x):
            return (x @ self.both[:4].t()).sum() + (x.exp() @ self.both[4:].t()).sum() + x @ self.turned

    torch.manual_seed(0)
    net = Packed()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    outcome = pruned(net, {"method": "sparsegpt", "sparsity": 0.5}, batches())
    x = torch.cat(batches())
    grams = x.t() @ x, x.exp().t() @ x.exp()
    for rows, gram in zip((slice(4), slice(4, 8)), grams, strict=True):
        _, wanted = sparsegpt(before["both"][rows], gram, Structure(), 0.5)
        torch.testing.assert_close(outcome.pruned["both"].weight[rows], wanted)
    _, wanted = sparsegpt(before["turned"].t(), grams[0], Structure(), 0.5)
    torch.testing.assert_close(net.turned.detach(), wanted.t())


def test_groups_of_channels_of_filters():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, groups=2))
    data = [torch.randn(2, 4, 9, 9)]
    outcome = pruned(net, {"method": "sparsegpt", "pattern": "2:4", "dim": 1}, data)
    for done in outcome.pruned.values():
        groups = done.mask.movedim(1, -1).reshape(-1, 4).sum(1)
        assert set(groups.tolist()) == {2}
        assert torch.equal(done.weight != 0, done.mask)


def test_weights_that_no_product_reads_stay():
    class Unread(Residual):
        def forward(self, x):
            return self.out(x @ (2 * self.q.weight).t())

    torch.manual_seed(0)
    outcome = pruned(Unread().double(), {"method": "wanda", "sparsity": 0.5}, batches())
    assert list(outcome.pruned) == ["out.weight"]
    assert set(outcome.passed) == {"q.weight", "k.weight"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "is empty"),
        ([torch.randn(3, 7, dtype=torch.float64)], "fails for batch 1"),
        ([*batches(1), torch.full((1, 8), torch.nan, dtype=torch.float64)], "NaN"),
    ],
)
def test_bad_data(data, text):
    with pytest.raises(DataError, match=text):
        pruned(model(), {"method": "wanda", "sparsity": 0.5}, data)


def test_structures_that_do_not_fit():
    with pytest.raises(ShapeError, match="groups of 5"):
        pruned(model(), {"method": "sparsegpt", "pattern": "2:5"}, batches())
