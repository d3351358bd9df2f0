"""Tangents of `forward_ad` through sparse models: those of the dense model, with gradients and without."""

from contextlib import nullcontext

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, graph
from torch import nn
from torch.autograd import forward_ad

import sparsify
from sparsify import options

WEIGHTS = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {"targets": ["param:0.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.9}}
    ],
}


def tangent(model, x, direction, *others):
    """How the result changes with `x` in a direction."""
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(model(forward_ad.make_dual(x, direction), *others)).tangent
        return found if found is None else found.clone()


class Weighted(nn.Module):
    """Messages times the weights of edges."""

    def forward(self, weight, edge_index, x):
        messages = x[edge_index[0]] * weight[:, None]
        return torch.relu(torch.zeros_like(x).index_add(0, edge_index[1], messages))


def models():
    """By name a model, the recipe that makes it sparse, and its inputs."""
    torch.manual_seed(0)
    x, edges = graph()
    edges = torch.unique(edges, dim=1)
    weight = torch.rand(edges.shape[1])
    return {
        "rows": (nn.Sequential(nn.Linear(64, 64), nn.ReLU()), WEIGHTS, (torch.randn(5, 64),)),
        "images": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), WEIGHTS, (torch.randn(2, 8, 6, 6),)),
        "nodes": (TwoLayers(HandWritten), MESSAGES, (x, edges)),
        "weights of edges": (Weighted(), MESSAGES, (weight, edges, x)),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("name", models())
def test_as_of_the_dense_model(name, has_gradients):
    model, recipe, inputs = models()[name]
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(model.eval(), recipe, inputs)
    assert sparse.report.regions
    with nullcontext() if has_gradients else torch.no_grad():
        sparse(*inputs)  # what is remembered of this call has no tangents
        direction = torch.randn_like(inputs[0])
        expected = tangent(sparse.original, inputs[0], direction, *inputs[1:])
        found = tangent(sparse, inputs[0], direction, *inputs[1:])
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
