"""Optimizers that hold weights in whose places `apply` has put others."""

import warnings

import pytest
import torch
from torch import nn, optim

import sparsify

RECIPE = {
    "name": "x",
    "sparsify": [
        {"targets": "param:*.weight", "prune": {"method": "magnitude", "sparsity": 0.75}, "format": "csr"}
    ],
}
X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inplace", [False, True])
def test_made_before_apply(inplace):
    model = net()
    optimizer = optim.Adam(model.parameters())
    sparse = sparsify.apply(model, RECIPE, X, trainable=True, inplace=inplace)
    sparse(X).sum().backward()
    with pytest.warns(RuntimeWarning, match=r"Adam holds 0\.weight, 2\.weight of the model before `apply`"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse(X).sum().backward()
        optimizer.step()  # once


def test_made_after_apply_and_of_the_dense_model():
    model = net()
    sparse = sparsify.apply(model, RECIPE, X, trainable=True)
    for one in (sparse, model):
        optimizer = optim.Adam(one.parameters())
        optimizer.zero_grad()
        one(X).sum().backward()
        optimizer.step()


def test_part_of_the_dense_model_trains_beside_the_sparse_one():
    model = net()
    sparse = sparsify.apply(model, RECIPE, X, trainable=True)
    sparse(X).sum().backward()
    model[0](X).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.SGD(model.parameters(), 0.1).step()


def test_both_in_one_optimizer():
    model = net()
    optimizer = optim.Adam(model.parameters())
    sparse = sparsify.apply(model, RECIPE, X, trainable=True)
    optimizer.add_param_group({"params": [sparse[0].weight, sparse[2].weight]})
    sparse(X).sum().backward()
    optimizer.step()
