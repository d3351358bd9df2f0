"""What runs a graph with tensors that have memory: parameters are read where modules keep them."""

import pytest
import torch
from graph_models import HandWritten, TwoLayers, graph
from torch.nn.utils import parametrize

from sparsify.passes.apply import apply
from sparsify.passes.module.variants.run_eager import running

RECIPE = {"schema": 1, "name": "own", "sparsify": [{"targets": ["op:message_passing"], "format": "csr"}]}


@pytest.fixture(scope="module")
def made():
    torch.manual_seed(0)
    model = TwoLayers(HandWritten).eval()
    return model, apply(model, RECIPE, graph())


def test_calls_of_known_shapes_take_the_short_way(made):
    model, sparse = made
    sparse(*graph())
    assert sparse._call_index.find(*sparse._call_index.read(graph(), {})) is sparse.variants[0]
    for nodes in range(5, 90):
        sparse(*graph(nodes, seed=nodes))
    assert len(sparse._call_index.variants) == 1  # sizes are no part of a key
    assert len(sparse.variants) == 1
    torch.testing.assert_close(sparse(*graph()), model(*graph()))


def test_new_parameters_are_read(made):
    _, sparse = made
    weight = sparse.c1.lin.weight
    before = sparse(*graph())
    sparse.c1.lin.weight = torch.nn.Parameter(weight.detach() * 2)
    twice = sparse(*graph())
    sparse.c1.lin.weight = weight
    assert not torch.equal(before, twice)
    assert torch.equal(sparse(*graph()), before)


def test_modules_that_take_the_place_of_others_are_read(made):
    _, sparse = made
    linear, before = sparse.c1.lin, sparse(*graph())
    rows, columns = linear.weight.shape
    sparse.c1.lin = torch.nn.Linear(columns, rows, bias=linear.bias is not None)
    after = sparse(*graph())
    sparse.c1.lin = linear
    assert not torch.equal(before, after)
    assert torch.equal(sparse(*graph()), before)


def test_computed_parameters_are_read(made):
    class Negated(torch.nn.Module):
        def forward(self, weight):
            return -weight

    _, sparse = made
    before = sparse(*graph())
    parametrize.register_parametrization(sparse.c1.lin, "weight", Negated())
    after = sparse(*graph())
    parametrize.remove_parametrizations(sparse.c1.lin, "weight", leave_parametrized=False)
    assert not torch.equal(before, after)
    assert torch.equal(sparse(*graph()), before)


def test_repeated_calls_are_found_without_a_key():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4)).eval()
    rule = {"targets": "param:*weight", "source": "given"}
    sparse = apply(model, {"schema": 1, "name": "given", "sparsify": [rule]}, torch.randn(6, 8))
    index = sparse._call_index
    x, wider = torch.randn(6, 8), torch.randn(9, 8)
    for given in (x, x, wider, x, wider, wider):
        torch.testing.assert_close(sparse(given), model(given))
    index = sparse._call_index
    assert index.repeated((wider,)) is index.latest.variant
    assert index.repeated((torch.ones_like(wider),)) is index.latest.variant
    for other in (x, wider.double(), torch.nn.Parameter(wider), wider.to_sparse(), 3, None):
        assert index.repeated((other,)) is None
    assert index.repeated((wider, wider)) is None
    sparse[1].train()
    assert index.repeated((wider,)) is None
    sparse.eval()
    assert index.repeated((wider,)) is index.latest.variant
    index.clear()
    assert index.repeated((wider,)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse(wider).dtype == torch.bfloat16
    sparse(wider), sparse(wider)
    assert torch.equal(sparse(input=wider), sparse(wider))


class Converted(torch.nn.Module):
    """Conversions to the dtype that a tensor has, and to another one."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(16, 16)

    def forward(self, x):
        y = self.lin(x.to(torch.float32))
        return y.to(torch.float32) * 2, y.to(torch.float64).exp()


def test_conversions_to_the_same_dtype_do_not_run():
    rule = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.5}}
    model, x = Converted().eval(), torch.randn(3, 16)
    sparse = apply(model, {"schema": 1, "name": "half", "sparsify": [rule]}, (x,), trainable=False)
    (variant,) = sparse.variants
    written = [str(node.target) for node in variant.captured.graph.nodes]
    run = [str(node.target) for node in running(variant.captured.graph, sparse).graph.nodes]
    assert (written.count("aten.to.dtype"), run.count("aten.to.dtype")) == (3, 1)
    found = sparse(x)
    assert [result.dtype for result in found] == [torch.float32, torch.float64]
    torch.testing.assert_close(found[1], (found[0] / 2).double().exp())
