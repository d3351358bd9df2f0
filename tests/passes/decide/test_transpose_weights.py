"""Dense weights behind sparse operands are read by rows, and only where each read gathers columns."""

import torch
from torch import nn

import sparsify
from sparsify import options

RULES = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:*"], "role": "activation"}]}


def features(rows, seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 96, generator=draws)
    return x * (torch.rand(rows, 96, generator=draws) < 0.1)


class Twice(nn.Module):
    """A weight that one product reads by rows, and another one by columns."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(96, 96))

    def forward(self, x):
        return nn.functional.linear(x, self.weight) + x @ self.weight


def applied(model, **how):
    with options.override(tune_seconds=0):
        return sparsify.apply(model, RULES, (sparsify.tensor(features(40), format="csr"),), **how)


def compared(model, sparse):
    for rows in (40, 17):
        x = features(rows, seed=rows)
        found = sparse(sparsify.tensor(x, format="csr"))
        torch.testing.assert_close(found.double(), model.double()(x.double()), rtol=1e-5, atol=1e-5)
        model.float()


def test_rows_of_a_dense_weight_are_gathered():
    torch.manual_seed(0)
    model = nn.Linear(96, 64).eval()
    sparse = applied(model)
    assert [region.einsum for region in sparse.report.regions] == ["Y[i,k] = sum(j, X[i,j] * W[j,k]) + b[k]"]
    compared(model, sparse)


def test_a_new_weight_is_transposed_anew():
    torch.manual_seed(0)
    model = nn.Linear(96, 64).eval()
    sparse = applied(model, trainable=True)
    with torch.no_grad():
        for layer in (model, sparse):
            layer.weight.copy_(torch.randn(64, 96, generator=torch.Generator().manual_seed(1)))
    compared(model, sparse)


def test_a_weight_that_is_read_both_ways_stays():
    torch.manual_seed(0)
    model = Twice().eval()
    sparse = applied(model)
    assert [region.einsum for region in sparse.report.regions] == [
        "T[i,k] = sum(j, X[i,j] * W[j,k]); Y[i,k] = sum(j, X[i,j] * W[k,j]) + T[i,k]"
    ]
    compared(model, sparse)
