"""Mirrors of models: the same tensors in modules of their own."""

import functools

import pytest
import torch
from torch import nn

import sparsify
from sparsify.passes.capture.shell import modes
from sparsify.passes.module.weights.mirror import Mirror

GIVEN = {
    "schema": 1,
    "name": "given",
    "sparsify": [{"targets": ["param:*.weight"], "source": "given"}],
}
OUTSIDE = nn.Linear(32, 32)


class Ways(nn.Module):
    """A model that finds its layers by every way but a global variable."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.norm = nn.BatchNorm1d(32)
        self.again = self.layers[0]
        self.plain = {"one": [self.layers[1]], "many": (self.layers[2], 3)}
        self.bound = self.layers[3].forward
        self.part = functools.partial(torch.add, alpha=2)
        last = self.layers[4]
        self.closed = lambda x: last(x)
        self.calls, self.log = 0, []

    def forward(self, x):
        self.calls += 1
        self.log.append("call")
        x = self.part(self.again(x), self.plain["one"][0](x))
        return self.norm(self.closed(self.bound(self.plain["many"][0](x))))


class Global(nn.Module):
    """A model whose code finds a layer of it as a global variable."""

    def __init__(self):
        super().__init__()
        self.outside = OUTSIDE

    def forward(self, x):
        return OUTSIDE(x).relu()


def test_all_ways_lead_to_the_copy():
    model, x = Ways().train(), torch.randn(4, 32)
    mirror = Mirror(model)
    reached = []
    for copy in mirror.model.layers:
        copy.register_forward_hook(lambda module, *_: reached.append(module))
        copy.forward = functools.partial(type(copy).forward, copy)
    mirror.copy_buffers()
    mirror.set_modes((False,) * len(modes(model)))
    expected = Ways().eval()(x)
    torch.testing.assert_close(mirror.model(x), expected)
    assert {id(module) for module in reached} >= {id(mirror.model.layers[at]) for at in (0, 1, 2, 4)}
    assert model.training
    assert (model.calls, model.log) == (0, [])
    assert all(a is b for a, b in zip(mirror.model.parameters(), model.parameters(), strict=True))
    assert mirror.of(model.layers[0]) is mirror.model.again is mirror.model.layers[0]


def test_attributes_are_written_back():
    model = Ways()
    mirror = Mirror(model, is_isolated=False)
    mirror.model(torch.randn(4, 32))
    mirror.model.again = mirror.model.layers[1]
    mirror.write_back()
    assert (model.calls, model.log) == (1, ["call"])
    assert model.norm.num_batches_tracked == 1
    assert model.training


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [Ways, Global])
def test_models_are_captured_whatever_way_leads_to_their_modules(kind):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(16, 32)
    for parameter in model.parameters():
        parameter.data *= torch.rand(parameter.shape) < 0.1
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    sparse = sparsify.apply(model, GIVEN, x)
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert len(sparse.report.regions) > 0
