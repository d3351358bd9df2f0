"""Trainings in stages: zeros at once, then schedules; weights that go back to an earlier step."""

import copy

import pytest
import torch
from torch import nn

import sparsify
from sparsify.errors import SparsifyError
from sparsify.training import mask_of

pytestmark = pytest.mark.filterwarnings("error")
X, Y = torch.randn(32, 16, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).train()


def step(model, optimizer, pruner=None):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    if pruner is not None:
        pruner.step()


def test_sparsegpt_then_gradual_pruning():
    """A calibrated half at once, four in five while it trains; no entry comes back."""
    recipe = {
        "name": "own",
        "stages": [
            {
                "run": "oneshot",
                "sparsify": [
                    {
                        "id": "w",
                        "targets": "param:*.weight",
                        "types": "Linear",
                        "prune": {"method": "sparsegpt", "sparsity": 0.5},
                    }
                ],
            },
            {
                "run": "train",
                "sparsify": [
                    {
                        "ref": "w",
                        "prune": {"method": "gmp", "sparsity": 0.8},
                        "schedule": {"end": 6, "every": 2},
                    }
                ],
            },
        ],
    }
    model = sparsify.apply(net(), recipe, (X,), calibration=[(X,)])
    optimizer = torch.optim.AdamW(model.parameters())
    pruner = sparsify.Pruner(model, optimizer)
    weight = model.get_parameter("0.weight")
    first = mask_of(weight)
    assert int(first.sum()) == 256
    for _ in range(8):
        step(model, optimizer, pruner)
    assert [(u.step, u.rule) for u in pruner.report if u.rule == "w"] == [(2, "w"), (4, "w"), (6, "w")]
    last = mask_of(model.get_parameter("0.weight"))
    assert int(last.sum()) == round(512 * 0.2) and not bool((last & ~first).any())
    assert pruner.finish(X)(X).shape == (32, 4)


@pytest.mark.parametrize("is_applied", [False, True])
def test_lottery_tickets_rewind(is_applied):
    """Behind the search all weights, biases and statistics are those of the step, under the mask of the last ones."""
    recipe = sparsify.recipe.load("lottery80", search=6, rewind=2, train=4)
    model = net()
    twin = copy.deepcopy(model)
    if is_applied:
        model = sparsify.apply(model, recipe, (X,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    pruner = sparsify.Pruner(model, optimizer, None if is_applied else recipe)
    other = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    kept = None
    for at in range(1, 7):
        step(model, optimizer, pruner)
        step(twin, other)
        kept = copy.deepcopy(twin.state_dict()) if at == 2 else kept
    largest = sparsify.sparsifiers.ScalarFraction(0.8).mask(twin[0].weight.detach())
    found = {
        name: p.to_dense() if isinstance(p, sparsify.SparseTensor) else p
        for name, p in model.named_parameters()
    }
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found["0.weight"], torch.where(largest, kept["0.weight"], 0), **close)
    torch.testing.assert_close(found["0.bias"], kept["0.bias"], **close)
    torch.testing.assert_close(dict(model.named_buffers())["1.running_mean"], kept["1.running_mean"], **close)
    assert not optimizer.state
    step(model, optimizer, pruner)
    weight = model.get_parameter("0.weight")
    assert int(mask_of(weight).sum()) == 102 and torch.equal(mask_of(weight), largest)


def test_a_resumed_search_rewinds_to_the_same_weights():
    def run(stop):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        recipe = sparsify.recipe.load("lottery80", search=4, rewind=1, train=4)
        pruner = sparsify.Pruner(model, optimizer, recipe)
        for at in range(6):
            step(model, optimizer, pruner)
            if at == stop:
                states = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
                model = net()
                model.load_state_dict(states[0])
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                optimizer.load_state_dict(states[1])
                pruner = sparsify.Pruner(model, optimizer, recipe)
                pruner.load_state_dict(states[2])
        return model.state_dict()

    want, found = run(None), run(2)
    assert all(torch.equal(want[name], found[name]) for name in want)


def test_calibrated_methods_need_an_applied_model():
    model = net()
    recipe = {
        "name": "own",
        "sparsify": [{"targets": "param:0.weight", "prune": {"method": "wanda", "sparsity": 0.5}}],
    }
    with pytest.raises(SparsifyError, match="`method: wanda` needs inputs of the model"):
        sparsify.Pruner(model, torch.optim.SGD(model.parameters(), 0.1), recipe)
    assert bool((model[0].weight != 0).all())
