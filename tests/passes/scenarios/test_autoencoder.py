"""Autoencoders with sparse batches and sparse weights: a program for each layer, equal to dense float64."""

import copy

import pytest
import torch

import sparsify
from sparsify import options, recipe
from sparsify.models.autoencoder import Autoencoder
from sparsify.passes.apply import apply
from sparsify.passes.rules.prune import prune

FEATURES, HIDDEN = 96, 160
FIRST = "Y[i,k] = relu(sum(j, X[i,j] * W[j,k]) + b[k])"
RULES = recipe.load("autoencoder")


@pytest.fixture(scope="module", autouse=True)
def untimed():
    """Formats as they are expected to be fastest."""
    with options.override(tune_seconds=0):
        yield


def batch(rows):
    draws = torch.Generator().manual_seed(rows)
    x = torch.rand(rows, FEATURES, generator=draws)
    return x * (torch.rand(rows, FEATURES, generator=draws) < 0.2)


def made():
    torch.manual_seed(0)
    return Autoencoder(FEATURES, HIDDEN).eval()


FORMS = {
    "dense": lambda x: x,
    "sparsify": lambda x: sparsify.tensor(x, format="csr"),
    "torch CSR": lambda x: x.to_sparse_csr(),
    "torch COO": lambda x: x.to_sparse(),
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trainable", [False, True], ids=["frozen", "trainable"])
def test_batches(form, trainable):
    model = made()
    sparse = apply(model, RULES, FORMS[form](batch(40)), trainable=trainable)
    assert len(sparse.report.regions) == 2
    exact = copy.deepcopy(prune(model, RULES)).double()
    for rows in (40, 17):
        x = batch(rows)
        found, wanted = sparse(FORMS[form](x)), exact(x.double())
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)  # sums of some float32
        if trainable:
            compared_gradients(found, sparse, wanted, exact)
    assert len(sparse.variants) == 1


def compared_gradients(found, sparse, wanted, exact):
    """Asserts that gradients of parameters agree, those of weights where they are not pruned."""
    factor = torch.linspace(-1, 2, wanted.numel(), dtype=torch.float64).view_as(wanted)
    names = [name for name, _ in exact.named_parameters()]
    own, other = dict(sparse.named_parameters()), dict(exact.named_parameters())
    have = torch.autograd.grad((found.double() * factor).sum(), [own[n] for n in names])
    want = torch.autograd.grad((wanted * factor).sum(), [other[n] for n in names])
    for name, one, expected in zip(names, have, want, strict=True):
        kept = (other[name] != 0) if expected.dim() == 2 else torch.ones_like(expected, dtype=torch.bool)
        torch.testing.assert_close(
            one.to_dense().double()[kept], expected[kept], rtol=1e-4, atol=1e-5
        )  # of 40 rows


def test_a_sparse_batch_and_a_sparse_weight_are_one_region():
    sparse = apply(made(), RULES, FORMS["sparsify"](batch(40)))
    assert sparse.report.regions[0].einsum == "Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])"
    assert list(sparse.report.regions[0].formats) == ["X", "W"]


def test_zeros_of_a_dense_batch_are_left_out_where_a_rule_says_so():
    rules = RULES.model_copy(
        update={"sparsify": (RULES.rules[0].model_copy(update={"targets": ("input:*",)}), RULES.rules[1])}
    )
    sparse = apply(made(), rules, batch(40))
    assert sparse.report.regions[0].einsum == FIRST
    assert list(sparse.report.regions[0].formats) == ["X"]
