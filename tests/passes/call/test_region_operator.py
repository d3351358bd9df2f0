"""Regions under torch.compile and torch.export: one operator each, backward without a second forward."""

import gc

import pytest
import torch
from graph_models import MESSAGES, TwoLayers, applied, graph

from sparsify.errors import SparsifyError
from sparsify.passes.apply import apply
from sparsify.passes.call import region_operator
from sparsify.passes.call.region_call import RegionCall

geometric = pytest.importorskip("torch_geometric.nn")


@pytest.fixture
def counted(monkeypatch):
    """The names of the regions that run, in order."""
    names = []
    run = RegionCall.__call__

    def count(self, *arguments):
        names.append(self.name)
        return run(self, *arguments)

    monkeypatch.setattr(RegionCall, "__call__", count)
    return names


def gradients(run, parameters, *args):
    return torch.autograd.grad(run(*args).square().sum(), parameters)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layer", ["GCNConv", pytest.param("SAGEConv", marks=pytest.mark.slow)])
def test_compiled_backward_runs_no_forward_again(layer, counted):
    model, sparse = applied(getattr(geometric, layer))
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    parameters = list(model.parameters())
    expected = gradients(model, parameters, *graph())
    counted.clear()
    for want, have in zip(expected, gradients(compiled, parameters, *graph()), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)
    assert counted == ["region_1", "region_2"]


@pytest.mark.sampled(2)
def test_compiled_for_other_graphs_and_modes():
    model = TwoLayers(geometric.GCNConv).eval()
    x, edge_index = graph()
    sparse = apply(model, MESSAGES, (x, edge_index))
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager", dynamic=True)
    for inputs in ((x, edge_index), graph(31, 90, seed=2)):
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    sparse.train()  # the example inputs live, so this captures
    compiled(x, edge_index).sum().backward()
    assert len(sparse.variants) == 2


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_inductor():
    model, sparse = applied(geometric.GCNConv)
    compiled = torch.compile(sparse, fullgraph=True)
    torch.testing.assert_close(compiled(*graph()), model(*graph()), rtol=1e-4, atol=1e-5)
    parameters = list(model.parameters())
    for want, have in zip(
        gradients(model, parameters, *graph()), gradients(compiled, parameters, *graph()), strict=True
    ):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)


def test_what_was_never_captured_says_so_under_compile():
    sparse = apply(TwoLayers(geometric.GCNConv).eval(), MESSAGES)
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="has not been captured for this mode"):
        compiled(*graph())
    torch._dynamo.reset()
    loose = torch.compile(sparse, backend="aot_eager")
    torch.testing.assert_close(loose(*graph()), sparse.original(*graph()), rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 1


def test_exported_programs_keep_their_kernels():
    model = TwoLayers(geometric.GCNConv).eval()
    program = torch.export.export(apply(model, MESSAGES, graph()), graph(), strict=False)
    gc.collect()
    torch.testing.assert_close(program.module()(*graph()), model(*graph()), rtol=1e-4, atol=1e-5)


def test_a_region_of_another_process_is_an_error():
    tensors = [torch.zeros(2, 2)]
    with pytest.raises(
        SparsifyError, match="calls a kernel of a sparse model that this process does not have"
    ):
        torch.ops.sparsify.region(12345, tensors, [], [], "")


def test_results_of_the_backward_operator_share_no_memory():
    class Sum(torch.nn.Module):
        def forward(self, a, x, y):
            return a @ x + y

    a, x, y = torch.eye(3), torch.rand(3, 2), torch.rand(3, 2)
    recipe = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:a"], "role": "adjacency"}]}
    sparse = apply(Sum(), recipe, (a, x, y))
    (region,) = sparse.variants[0].regions
    node = next(n for n in sparse.graph.nodes if n.target is region_operator.call_region)
    values = {"a": a, "x": x, "y": y}
    tensors = [values[argument.name] for argument in node.args[1:] if argument.name in values]
    places = [at for at, argument in enumerate(node.args[1:]) if argument.name not in values]
    sizes = [3] * len(places)
    gradient = torch.rand(3, 2)
    needed = [position for position, tensor in enumerate(tensors) if tensor is not a]
    (result,) = torch.ops.sparsify.region(region.handle, tensors, sizes, places, "")
    found = torch.ops.sparsify.region_backward(
        region.handle, [gradient], [result], tensors, sizes, places, needed, ""
    )
    addresses = {tensor.data_ptr() for tensor in (gradient, result, *found)}
    assert len(addresses) == 4
    for value in found:
        torch.testing.assert_close(value, gradient)
