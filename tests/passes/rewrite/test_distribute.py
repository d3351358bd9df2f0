"""Sums over a sparse tensor and something else, term by term."""

import pytest
import torch
from torch import nn

import sparsify

N, K = 50, 12


def adjacency(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(N, N, generator=draw) * (torch.rand(N, N, generator=draw) < 0.1)


def symmetric(self, a, x):
    a = a + torch.eye(N)
    d = a.sum(1).rsqrt()
    return (d[:, None] * a * d) @ x


# A model of a sparse matrix and a dense one, and its program.
MODELS = {
    "loops": (
        symmetric,
        "T[i] = 1 / sqrt(sum(j, A[i,j]) + 1.0); "
        "Y[i,k] = sum(j, T[i] * A[i,j] * T[j] * X[j,k]) + T[i] * 1.0 * T[i] * X[i,k]",
    ),
    "laplacian": (
        lambda self, a, x: (torch.diag(a.sum(1)) - a) @ x,
        "T[i] = sum(j, A[i,j]); Y[i,k] = T[i] * X[i,k] - sum(j, A[i,j] * X[j,k])",
    ),
    "from the left": (
        lambda self, a, x: x.T @ (a - torch.diag_embed(x[:, 0])),
        "Y[i,k] = sum(j, X[j,i] * A[j,k]) - X[k,i] * b[k]",
    ),
    "diagonals": (
        lambda self, a, x: torch.diag(x[:, 0]) @ a @ torch.diag(x[:, 1]) @ x,
        "Y[i,k] = sum(j, b[i] * A[i,j] * b1[j] * X[j,k])",
    ),
    "centred": (
        lambda self, a, x: (a - a.mean(1, keepdim=True)) @ x,
        "T[i] = sum(j, A[i,j]) / extent(j); T1[k] = sum(f, X[f,k]); Y[i,k] = sum(j, A[i,j] * X[j,k]) - T[i] * T1[k]",
    ),
    "shifted": (
        lambda self, a, x: (a + 0.5) @ x,
        "T[k] = sum(j, X[j,k]); Y[i,k] = sum(j, A[i,j] * X[j,k]) + 0.5 * T[k]",
    ),
    "low rank": (
        lambda self, a, x: (a + x[:, :3] @ x[:, 3:6].T) @ x,
        "T[i,k] = sum(f, j, X[i,j] * X1[f,j] * X2[f,k]); Y[i,k] = sum(f, A[i,f] * X2[f,k]) + T[i,k]",
    ),
}  # fmt: skip


def applied(forward, a, x, **options):
    model = type("Model", (nn.Module,), {"forward": forward})().eval()
    rule = {"targets": ["input:a"], "source": "given", "format": "csr", "role": "adjacency"}
    sparse = sparsify.apply(
        model, {"schema": 1, "name": "test", "sparsify": [rule]}, (a, x), strict=True, **options
    )
    return model, sparse


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_terms_are_summed_one_by_one(name):
    forward, text = MODELS[name]
    a, x = adjacency(), torch.randn(N, K, generator=torch.Generator().manual_seed(1))
    model, sparse = applied(forward, a, x)
    with torch.no_grad():
        found, exact = sparse(a, x), model(a.double(), x.double().clone()) if name != "loops" else model(a, x)
    torch.testing.assert_close(found.double(), exact.double(), rtol=1e-4, atol=1e-4)
    assert [region.einsum for region in sparse.report.regions] == [text]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["loops", "laplacian", "centred", "low rank"])
def test_gradients(name):
    inputs = [adjacency(), torch.randn(N, K, generator=torch.Generator().manual_seed(1))]
    model, sparse = applied(MODELS[name][0], *inputs)
    grads = []
    for call, dtype in ((sparse, torch.float32), (model, torch.float64)):
        given = [tensor.to(dtype).requires_grad_(place == 1) for place, tensor in enumerate(inputs)]
        torch.set_default_dtype(dtype)
        try:
            out = call(*given)
            grads.append(
                torch.autograd.grad(
                    out, given[1:], torch.cos(torch.arange(out.numel(), dtype=dtype)).view_as(out)
                )
            )
        finally:
            torch.set_default_dtype(torch.float32)
    for have, want in zip(*grads, strict=True):
        torch.testing.assert_close(have.double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, a, x: (a + torch.eye(N)).exp() @ x,  # no sum of its terms
        lambda self, a, x: a + torch.eye(N) + x[:, :1],  # read by the caller
        lambda self, a, x: (a + x @ x.T) @ x,  # wide products are cheaper once added up
    ],
    ids=["function", "result", "wide"],
)
@pytest.mark.filterwarnings("ignore:Model. stays dense")
def test_other_sums_stay(forward):
    rule = {"targets": ["input:a"], "source": "given", "format": "csr", "role": "adjacency"}
    model = type("Model", (nn.Module,), {"forward": forward})().eval()
    a, x = adjacency(), torch.randn(N, 40, generator=torch.Generator().manual_seed(1))
    sparse = sparsify.apply(model, {"schema": 1, "name": "test", "sparsify": [rule]}, (a, x))
    assert not sparse.report.regions and sparse.report.dense
    torch.testing.assert_close(sparse(a, x), model(a, x))
