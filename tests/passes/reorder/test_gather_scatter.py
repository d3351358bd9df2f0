"""Message passing is recognised by its operators, however it is written."""

import pytest
import torch
from torch import nn

from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.reorder.gather_scatter import recognise


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
    "computed over edges": lambda x, r, c, w: zeros(x).index_add(0, r, (x[c].exp() + w[:, None]).relu()),
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
    assert {weight.name for weight in match.weights} == {"w"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, r, c, w: zeros(x).scatter_reduce(0, spread(r, x), x[c], "amax"),
        lambda x, r, c, w: x.index_add(0, r, x[c]),
        lambda x, r, c, w: zeros(x).index_add(0, r, x[c] * x[r]),
    ],
    ids=["amax", "not into zeros", "both ends"],
)
def test_other_scatters(function):
    assert not any(recognise(node) for node in scatters(function))
