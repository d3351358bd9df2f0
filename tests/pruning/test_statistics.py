"""Second moments of the inputs of weights, for each spelling of a product."""

import pytest
import torch
from torch import nn

from sparsify.errors import DataError
from sparsify.pruning.statistics import Moments, Part, Reader, relative_error


def moments(model: nn.Module, *calls: torch.Tensor, kind: str = "gram"):
    weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    found = Moments(dict.fromkeys(weights, kind))
    with torch.no_grad(), Reader(weights, found.add):
        for x in calls:
            model(x)
    return found.of


class Spelled(nn.Module):
    def __init__(self, spell, shape=(6, 4)):
        super().__init__()
        self.w = nn.Parameter(torch.randn(shape, dtype=torch.float64))
        self.spell = spell

    def forward(self, x):
        return self.spell(self.w, x)


@pytest.mark.parametrize(
    ("spell", "part"),
    [
        (lambda w, x: nn.functional.linear(x, w), Part(0, 6)),
        (lambda w, x: x @ w.t(), Part(0, 6)),
        (lambda w, x: torch.einsum("oi,bti->bto", w, x), Part(0, 6)),
        (lambda w, x: torch.einsum("oi,bti->bot", w, x), Part(0, 6)),
        (lambda w, x: x @ w[2:5].t(), Part(2, 5)),
        (lambda w, x: torch.addmm(torch.ones(6, dtype=x.dtype), x[0], w.data.t()), Part(0, 6)),
        (lambda w, x: w @ x[0, 0], Part(0, 6)),
    ],
)
def test_spellings_of_a_product(spell, part):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    model = Spelled(spell)
    ((found, moment),) = moments(model, x)["w"].items()
    rows = x.reshape(-1, 4)[: moment.count]
    assert found == part
    assert moment.count in (1, 5, 10)
    torch.testing.assert_close(moment.total, rows.t() @ rows, rtol=1e-12, atol=1e-12)


def test_weights_that_are_stored_the_other_way():
    x = torch.randn(3, 6, dtype=torch.float64)
    ((found, moment),) = moments(Spelled(lambda w, x: x @ w), x)["w"].items()
    assert found == Part(0, 4, True)
    torch.testing.assert_close(moment.total, x.t() @ x)


def test_products_with_something_else_are_none():
    x = torch.randn(3, 4, dtype=torch.float64)
    assert moments(Spelled(lambda w, x: x @ (w * 2).t()), x) == {}
    assert moments(Spelled(lambda w, x: x[:, :2] @ w[:, :2].t()), x) == {}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("how", [{"padding": 1}, {"stride": 2, "dilation": 2}])
def test_patches_of_convolutions(groups, how):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, bias=False, groups=groups, **how).double()
    x = torch.randn(2, 4, 7, 8, dtype=torch.float64)
    found = moments(layer, x)["weight"]
    assert len(found) == groups
    with torch.no_grad():
        for part, moment in found.items():
            own = layer.weight[part.start : part.stop].flatten(1)
            wanted = layer(x)[:, part.start : part.stop].square().sum()
            torch.testing.assert_close((own @ moment.total * own).sum(), wanted)


def test_norms_are_the_diagonal_and_batches_add_up():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    x = torch.randn(9, 5, dtype=torch.float64)
    whole, parts, norms = moments(model, x), moments(model, x[:4], x[4:]), moments(model, x, kind="norm")
    for name in ("0.weight", "2.weight"):
        (one,), (two,), (norm,) = (found[name].values() for found in (whole, parts, norms))
        torch.testing.assert_close(one.total, two.total)
        torch.testing.assert_close(norm.squares, one.squares)
        assert norm.total.dim() == 1
        assert one.count == two.count == norm.count == 9


def test_a_call_that_is_not_finite():
    with pytest.raises(DataError, match=r"0\.weight that are NaN"):
        moments(nn.Sequential(nn.Linear(2, 2)), torch.tensor([[1.0, torch.nan]]))


def test_relative_errors():
    torch.manual_seed(0)
    x, before, after = torch.randn(20, 5), torch.randn(3, 5), torch.randn(3, 5)
    wanted = (x @ (before - after).t()).norm() / (x @ before.t()).norm()
    assert relative_error(before, after, x.t() @ x) == pytest.approx(float(wanted), rel=1e-5)
    assert relative_error(before, before, x.t() @ x) == 0.0


def test_convolutions_that_read_one_image():
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 2, 3)

        def forward(self, x):
            return self.wide(x), self.narrow(x)

    found = moments(Two(), torch.randn(1, 3, 5, 5))
    counts = {name: moment.count for name, parts in found.items() for moment in parts.values()}
    assert counts == {"wide.weight": 25, "narrow.weight": 9}
