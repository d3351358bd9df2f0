"""Sparse parameters taken apart: values stay the parameter, coordinates become buffers."""

import pytest
import torch
from torch import nn

from sparsify.storage.interop.tensors import tensor
from sparsify.storage.subclass.parametrized import take_apart


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
def test_values_are_the_parameter(form):
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    owner = nn.Module()
    owner.layer = nn.Module()
    owner.layer.weight = nn.Parameter(tensor(dense, form))
    owner.layer.bias = nn.Parameter(torch.ones(2))
    before = owner.layer.weight
    take_apart(owner)
    names = {name: value.shape for name, value in owner.named_parameters()}
    assert names == {"layer.bias": (2,), "layer.parametrizations.weight.original0": (3,)}
    assert not any(buffer.is_floating_point() for buffer in owner.buffers())
    assert owner.layer.weight.pattern is before.pattern
    assert torch.equal(owner.layer.weight.to_dense(), dense)
    owner.layer.weight.values().square().sum().backward()
    values = owner.layer.parametrizations.weight.original0
    assert torch.equal(values.grad, 2 * before.values())
