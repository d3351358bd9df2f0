"""The nodes of a region in their fastest dense form: equal results, packed weights, unchanged nodes otherwise."""

import pytest
import torch
from torch import nn

import sparsify
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose import linear_library
from sparsify.passes.choose.dense_forms import by_fastest_form
from sparsify.passes.choose.torch_convolution import Folded
from sparsify.passes.graph.node_info import info

RULE = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.8}}
RECIPE = {"schema": 1, "name": "pruned", "sparsify": [RULE], "compile": {"memory": "compact"}}


def region_of(net: nn.Module, x: torch.Tensor) -> tuple[RegionCall, list[object], torch.Tensor]:
    """The region of a pruned model, the dense arguments of its call, and its result."""
    sparse = sparsify.apply(net, RECIPE, x, trainable=False)
    (region,) = sparse.variants[0].regions
    (node,) = [node for node in sparse.graph.nodes if info(node).call is region]
    state = sparse.state_dict()
    known = {"placeholder": lambda one: x, "get_attr": lambda one: state[str(one.target)]}
    rows = lambda one: x.shape[0]  # noqa: E731
    arguments = [known.get(one.op, rows)(one) for one in node.args[1:]]
    with torch.no_grad():
        return region, arguments, sparse.original(x)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 48), nn.ReLU()).eval()
    return region_of(net, torch.randn(8, 32))


@pytest.fixture
def convolution():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()).eval()
    net[1].running_mean.uniform_()
    net[1].running_var.uniform_(0.5, 2.0)
    return region_of(net, torch.randn(2, 8, 12, 12))


def result_of(region, arguments, **how):
    with torch.no_grad():
        found = by_fastest_form(region, **how)(*arguments)
    return found[0] if isinstance(found, tuple | list) else found


@pytest.mark.parametrize("form", ["", "onednn"])
def test_layers(layer, form, monkeypatch):
    region, arguments, expected = layer
    packed = []
    pack = linear_library.LIBRARIES["onednn"].pack
    noted = linear_library.Library(
        "oneDNN",
        lambda weight: packed.append(weight.shape) or pack(weight),
        linear_library.multiply_dense,
        ("relu",),
    )
    monkeypatch.setitem(linear_library.LIBRARIES, "onednn", noted)
    region.dense_form = form
    torch.testing.assert_close(result_of(region, arguments), expected)
    assert packed == ([(48, 32)] if form else [])


def test_forms_that_copy_weights_may_be_forbidden(layer, monkeypatch):
    region, arguments, expected = layer
    region.dense_form = "onednn"
    monkeypatch.setattr(linear_library, "by_library", lambda *_: pytest.fail("no copies"))
    torch.testing.assert_close(result_of(region, arguments, can_copy=False), expected)


@pytest.mark.parametrize("form", ["", "rows", "channels"])
def test_convolutions(convolution, form, monkeypatch):
    region, arguments, expected = convolution
    folded = []
    computed = Folded.computed
    monkeypatch.setattr(Folded, "computed", lambda self, inputs: folded.append(1) or computed(self, inputs))
    region.dense_form = form
    torch.testing.assert_close(result_of(region, arguments), expected)
    assert len(folded) == bool(form), "the normalisation and the activation are part of the chain"
