"""Optimizer state of another mask is an error before a step changes anything; dense state is read at the entries."""

import copy

import pytest
import torch
from torch import Tensor, nn, optim

import sparsify
from sparsify.errors import InvalidTensorError

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


def trained(seed: int, **how: object) -> tuple[nn.Linear, optim.Optimizer]:
    """A layer with a mask of its own after a step."""
    torch.manual_seed(seed)
    layer = nn.Linear(16, 8)
    kept = sparsify.sparsifiers.ScalarFraction(0.75)
    layer.weight = nn.Parameter(sparsify.sparsify(layer.weight.detach(), kept, "csr"))
    optimizer = optim.AdamW(layer.parameters(), 0.1, **how)
    layer(X).sum().backward()
    optimizer.step()
    return layer, optimizer


def weights(layer: nn.Module) -> list[Tensor]:
    return [value.detach().to_dense().clone() for value in layer.parameters()]


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}])
@pytest.mark.parametrize("part", ["model", "optimizer", "gradient"])
def test_another_mask(part, how):
    layer, optimizer = trained(0, **how)
    other, others = trained(1, **how)
    text = "'exp_avg' of AdamW"
    if part == "optimizer":
        optimizer.load_state_dict(others.state_dict())
    else:
        layer.load_state_dict(other.state_dict())
    if part == "gradient":  # of the mask before
        optimizer.load_state_dict(others.state_dict())
        text = "'grad' of AdamW"
    else:
        optimizer.zero_grad()
        layer(X).sum().backward()
    before = weights(layer)
    with pytest.raises(InvalidTensorError, match=text) as found:
        optimizer.step()
    assert "another mask" in str(found.value) and "set_mask" in str(found.value)
    assert all(map(torch.equal, weights(layer), before))


def test_state_of_the_same_checkpoint():
    layer, optimizer = trained(0)
    other, others = trained(1)
    layer.load_state_dict(other.state_dict())
    optimizer.load_state_dict(copy.deepcopy(others.state_dict()))
    for one, its in ((layer, optimizer), (other, others)):
        its.zero_grad()
        one(X).sum().backward()
        its.step()
    assert all(map(torch.equal, weights(layer), weights(other)))


def test_dense_state_of_a_run_whose_weights_were_dense():
    layer, optimizer = trained(0)
    state = copy.deepcopy(optimizer.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        state["state"][0][name] = state["state"][0][name].to_dense()
    again = copy.deepcopy(layer)
    others = optim.AdamW(again.parameters(), 0.1)
    others.load_state_dict(state)
    for one, its in ((layer, optimizer), (again, others)):
        its.zero_grad()
        one(X).sum().backward()
        its.step()
    assert others.state[again.weight]["exp_avg"].nnz == again.weight.nnz
    assert all(map(torch.equal, weights(layer), weights(again)))
