"""Functions of Python compute what the operators compute that they stand for, in every row of the operator table."""

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from sparsify.passes.graph.direct_calls import call_directly, direct
from tests.passes.scenarios.test_operator_table import EXAMPLES, instance

aten = torch.ops.aten
SIZES = dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("example", EXAMPLES)
def test_functions_compute_what_operators_do(example):
    function, tensors = instance(example, SIZES, torch.Generator().manual_seed(0))
    traced = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors)
    expected = traced(*tensors)
    call_directly(traced.graph)
    found = fx.GraphModule(traced, traced.graph)(*tensors)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (aten.zeros.default, ([3],), {"dtype": torch.float64, "device": torch.device("cpu")}),
        (aten.arange.start, (2, 9), {"dtype": torch.int32}),
        (aten.add.Tensor, (torch.ones(3), 2), {"alpha": 4}),
        (aten.div.Tensor_mode, (torch.arange(5), 2), {"rounding_mode": "floor"}),
        (aten.max.default, (torch.arange(5),), {}),
        (aten.item.default, (torch.tensor(5),), {}),
        (aten.expand.default, (torch.ones(3, 1), [3, 4]), {}),
        (aten.view.default, (torch.ones(6), [2, -1]), {}),
        (aten.cat.default, ([torch.ones(2), torch.zeros(3)],), {}),
        (aten.scatter_reduce.two, (torch.zeros(3), 0, torch.tensor([2, 0]), torch.ones(2), "amax"), {}),
        (aten.repeat_interleave.self_Tensor, (torch.ones(2), torch.tensor([2, 1]), 0), {"output_size": 3}),
    ],
    ids=str,
)
def test_other_operators(target, args, kwargs):
    function = direct(target)
    assert function is not None
    torch.testing.assert_close(function(*args, **kwargs), target(*args, **kwargs), rtol=0, atol=0)


@pytest.mark.parametrize(
    "target", [aten.add_.Tensor, aten.relu_.default, torch.ops.prims.add.default, torch.add]
)
def test_what_stays(target):
    assert direct(target) is None


def test_indices_that_are_none_stay():
    """No function of Python takes None for an index, as `y[:, i] = v` has it."""
    assert direct(aten.index_put.default) is None
