"""Models, inputs and calls on `meta` and in inference mode."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify.errors import DataError

RULE = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.8}}
RECIPE = {"schema": 1, "name": "pruned", "sparsify": [RULE]}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU()).eval()


@pytest.mark.parametrize("inside", [(), ("model",), ("inputs",), ("model", "inputs", "apply"), ("apply",)])
def test_inference_mode(inside: Any) -> None:
    with torch.inference_mode("model" in inside):
        given = model()
    with torch.inference_mode("inputs" in inside):
        x = torch.randn(4, 32)
    with torch.inference_mode("apply" in inside), torch.no_grad() if "inputs" in inside else nullcontext():
        sparse = sparsify.apply(given, RECIPE, x)
        first = sparse(x)
    assert sparse.report.regions
    with torch.inference_mode():
        torch.testing.assert_close(first, sparse.original(x))
        torch.testing.assert_close(sparse(x.clone()), first)
    y = torch.randn(4, 32)
    torch.testing.assert_close(sparse(y), sparse.original(y))
    loaded = model()
    loaded.load_state_dict(sparse.state_dict())


def test_models_without_values() -> None:
    with torch.device("meta"):
        given = model()
    with pytest.raises(DataError, match=r"0\.weight is on the device meta, it has no values; give the model"):
        sparsify.apply(given, RECIPE, torch.randn(4, 32))


def test_models_that_lose_their_values() -> None:
    x: Tensor = torch.randn(4, 32)
    sparse = sparsify.apply(model(), RECIPE, x)
    lost = copy.deepcopy(sparse).to("meta")
    with pytest.warns(RuntimeWarning, match="on the device meta, kernels are for tensors in main memory"):
        assert lost(x.to("meta")).is_meta
    with pytest.raises(RuntimeError):
        sparse(x.to("meta"))
    assert sparse(x).device.type == "cpu"
