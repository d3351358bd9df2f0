"""Layers whose weights have a bit for each column are compiled, exported, copied and differentiated like others."""

import copy
import pickle

import pytest
import torch
from torch import nn

from sparsify.passes.apply import apply

RULE = {"targets": ["param:*weight"], "role": "weight", "format": "i: dense, j/64: dense, j%64: bitmap"}
RECIPE = {"schema": 1, "name": "bits", "sparsify": [{**RULE, "source": "given"}]}


@pytest.fixture(scope="module")
def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 32), nn.ReLU()).eval().requires_grad_(False)
    model[0].weight.mul_(torch.rand(32, 128) < 0.5)
    x = torch.randn(1, 128)
    sparse = apply(model, RECIPE, (x,))
    assert "bitmap" in str(sparse.report.weights[0].format)
    return model, sparse, x


USES = {
    "copied": lambda sparse, x: copy.deepcopy(sparse),
    "pickled": lambda sparse, x: pickle.loads(pickle.dumps(sparse)),
    "compiled": lambda sparse, x: torch.compile(sparse, fullgraph=True, backend="aot_eager"),
    "exported": lambda sparse, x: torch.export.export(sparse, (x,)).module(),
    "loaded": lambda sparse, x: loaded(copy.deepcopy(sparse), sparse.state_dict()),
}


def loaded(sparse, state):
    sparse.load_state_dict(state)
    return sparse


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_used_as_any_model(made, use):
    model, sparse, x = made
    used, inputs = use(sparse, x), [x.clone().requires_grad_() for _ in range(2)]
    for run, given in zip((used, model), inputs, strict=True):
        found = run(given)
        torch.testing.assert_close(found, model(x))
        found.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
