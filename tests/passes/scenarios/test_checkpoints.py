"""Checkpoints: the recomputation of a call saves as many tensors as its first call, whatever happened between."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sparsify
from sparsify import options
from sparsify.errors import CompilerError
from sparsify.passes.call.region_call import RegionCall
from sparsify.runtime.saved_tensors import are_hooked, unhooked

ADJACENCY = {"id": "adjacency", "targets": ["op:message_passing"], "role": "adjacency", "source": "given"}
PRUNED = {"id": "w", "targets": ["*.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}}


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x, edge_index):
        messages = self.lin(x).index_select(0, edge_index[0])
        return torch.zeros_like(x).index_add(0, edge_index[1], messages).relu()


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, _):
        return self.b(self.a(x).relu())


def applied(model, rule, seconds=0.0):
    """The model with a recipe of one rule; choices by measurement have some seconds."""
    torch.manual_seed(0)
    with options.override(tune_seconds=seconds):
        return sparsify.apply(model.eval(), example_inputs=graph(0), recipe={"name": "c", "sparsify": [rule]})


def graph(seed, nodes=40, edges=90):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(nodes, 8, generator=generator)
    return features, torch.randint(0, nodes, (2, edges), generator=generator)


def checkpointed(model, *inputs):
    return checkpoint(model, *inputs, use_reentrant=False)


def gradient_of_two_calls(run, model):
    """The input's gradient through two calls of one model, each a checkpoint of its own."""
    x, edges = graph(9)
    x.requires_grad_()
    loss = run(model, run(model, x, edges), edges).square().sum()
    return torch.autograd.grad(loss, x)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seconds", [0.0, 0.01])
@pytest.mark.parametrize(("model", "rule"), [(Messages, ADJACENCY), (Perceptron, PRUNED)])
def test_a_gradient_kernel_that_is_built_between_changes_nothing(model, rule, seconds):
    """The first call captures and compares; the backward pass of the second call builds the kernel of the first."""
    model = applied(model(), rule, seconds).train()
    found = [gradient_of_two_calls(checkpointed, model) for _ in range(3)]
    wanted = gradient_of_two_calls(lambda run, *inputs: run(*inputs), model)
    for one in found:
        torch.testing.assert_close(one, wanted)


def test_graphs_that_come_for_the_first_time():
    model = applied(Messages(), ADJACENCY).train()
    for nodes in (40, 60, 300):
        x, edges = graph(nodes, nodes, 3 * nodes)
        x.requires_grad_()
        found = torch.autograd.grad(checkpointed(model, x, edges).square().sum(), x)[0]
        wanted = torch.autograd.grad(model.original(x, edges).square().sum(), x)[0]
        torch.testing.assert_close(found, wanted)


def test_gradient_kernels_that_fail_between(monkeypatch):
    """The dense nodes compute the gradients, as outside of checkpoints."""

    def fail(*_):
        raise CompilerError("the compiler failed")

    model = applied(Messages(), ADJACENCY).train()
    monkeypatch.setattr(RegionCall, "operand_gradients", fail)
    with pytest.warns(RuntimeWarning, match="gradients of sparse regions are computed densely"):
        found = gradient_of_two_calls(checkpointed, model)
    torch.testing.assert_close(
        found, gradient_of_two_calls(lambda run, *inputs: run(*inputs), model.original)
    )


def test_hooks_of_the_caller_get_nothing_inside():
    seen = []
    weight = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: seen.append(tensor) or tensor, lambda tensor: tensor
    ):
        assert are_hooked()
        with unhooked():
            weight.square()
        assert not seen
        weight.square()
    assert len(seen) == 1
    assert not are_hooked()
