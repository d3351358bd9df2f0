"""Message passing is recognised by its operators, however it is written."""

import pytest
import torch
from torch import nn

from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.reorder.gather_scatter import reason, recognise


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, rows, columns, w):
        return self.function(x, rows, columns, w)


def zeros(x):
    return torch.zeros(x.size(0), x.size(1))


def spread(i, x):
    return i.unsqueeze(-1).expand(-1, x.size(1))


FORMS = {
    "index_add": lambda x, r, c, w: zeros(x).index_add(0, r, w[:, None] * x[c]),
    "index_add in place": lambda x, r, c, w: zeros(x).index_add_(
        0, r, x.index_select(0, c) * w.unsqueeze(-1)
    ),
    "scatter_add": lambda x, r, c, w: zeros(x).scatter_add_(0, spread(r, x), w.view(-1, 1) * x[c]),
    "gather": lambda x, r, c, w: zeros(x).scatter_add(
        0, spread(r, x), w.view(-1, 1) * x.gather(0, spread(c, x))
    ),
    "scatter_reduce": lambda x, r, c, w: zeros(x).scatter_reduce(
        0, spread(r, x), w.view(-1, 1) * x[c], "sum"
    ),
    "index_put": lambda x, r, c, w: zeros(x).index_put_((r,), w.view(-1, 1) * x[c], accumulate=True),
    "embedding": lambda x, r, c, w: zeros(x).index_add(0, r, w.view(-1, 1) * nn.functional.embedding(c, x)),
    "scaled": lambda x, r, c, w: zeros(x).index_add(0, r, 0.5 * (x[c] * w.view(-1, 1)) / w.view(-1, 1)),
}


def scatters(function):
    args = (torch.rand(9, 4), torch.randint(0, 9, (30,)), torch.randint(0, 9, (30,)), torch.rand(30) + 1)
    model = Of(function)
    captured = capture(model, calls.flatten(calls.signature(model), args, {}))
    return list(captured.graph.nodes)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    found = [match for node in scatters(FORMS[name]) if (match := recognise(node))]
    assert len(found) == 1
    match = found[0]
    assert (match.rows.name, match.columns.name, match.features.name) == ("rows", "columns", "x")
    assert [weight.name for weight in match.weights] == ["w"]
    assert (match.scale, len(match.divisors)) == ((0.5, 1) if name == "scaled" else (1.0, 0))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, r, c, w: zeros(x).scatter_reduce(0, spread(r, x), x[c], "amax"), "scatters by amax"),
        (lambda x, r, c, w: x.index_add(0, r, x[c]), "a tensor that is not zero"),
        (lambda x, r, c, w: zeros(x).index_add(0, r, x[c].exp()), "it ends in exp"),
        (lambda x, r, c, w: zeros(x).index_add(0, r, x[c] * x[r]), "it ends in mul"),
    ],
)
def test_other_scatters_give_a_reason(function, words):
    nodes = scatters(function)
    assert not any(recognise(node) for node in nodes)
    assert words in " ".join(reason(node) for node in nodes)
