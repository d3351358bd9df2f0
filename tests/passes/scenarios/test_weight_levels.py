"""Layers whose weights have bits or slices are compiled, exported, copied and differentiated like others."""

import copy
import pickle

import pytest
import torch
from torch import nn

from sparsify.passes.apply import apply

FORMATS = {
    "bitmap": "i: dense, j/64: dense, j%64: bitmap",
    "sliced": "i/16: dense, j/64: dense, i%16: dense, j%64: sliced(16, crd=int8)",
}
RULE = {"targets": ["param:*weight"], "role": "weight", "source": "given"}


@pytest.fixture(scope="module", params=FORMATS)
def made(request):
    rule = {**RULE, "format": FORMATS[request.param]}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 40), nn.ReLU()).eval().requires_grad_(False)
    model[0].weight.mul_(torch.rand(40, 128) < 0.5)
    x = torch.randn(1, 128)
    sparse = apply(model, {"schema": 1, "name": "levels", "sparsify": [rule]}, (x,))
    assert request.param in str(sparse.report.weights[0].format)
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
