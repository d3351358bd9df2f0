"""What comes after a region may write to its results in place, as to those of torch's operators."""

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify.passes.apply import apply
from sparsify.passes.call.region_call import RegionCall

EXACT = {"rtol": 1e-9, "atol": 1e-9}


class Sums(nn.Module):
    """Two sums over the same edges, of which the first one reads no parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, dtype=torch.float64))

    def forward(self, x, edge_index):
        source, receiver = edge_index
        index = receiver[:, None].expand(-1, x.size(1))
        plain = torch.zeros_like(x).scatter_add(0, index, x[source])
        return plain, torch.zeros_like(x).scatter_add(0, index, (x[source] * self.weight).tanh())


class OneSum(Sums):
    """The second one alone."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index)[1]


class Read(Sums):
    """Sums under functions whose derivatives read their results."""

    def forward(self, x, edge_index):
        plain, bent = super().forward(x, edge_index)
        return plain.tanh(), bent.exp()


class OneRead(Sums):
    """The first one alone."""

    def forward(self, x, edge_index):
        return super().forward(x * self.weight, edge_index)[0].tanh()


class Followed(nn.Module):
    """A model whose results are written to in place."""

    def __init__(self, model, write):
        super().__init__()
        self.model, self.write = model, write

    def forward(self, x, edge_index):
        found = self.model(x, edge_index)
        results = found if isinstance(found, tuple) else (found,)
        return sum(self.write(one) * (place + 1) for place, one in enumerate(results))


WRITES = {
    "relu": nn.ReLU(inplace=True),
    "mul": lambda y: y.mul_(2),
    "add": lambda y: y.add_(1).square(),
    "fill": lambda y: y.masked_fill_(y > 0.5, 0.25) + y,
}


def arguments(seed=1):
    x, edge_index = graph(33, 130, seed=seed)
    return x.double().requires_grad_(), edge_index


def applied(kind):
    torch.manual_seed(0)
    model = kind()
    x, edge_index = graph(20, 55, seed=0)
    return model, apply(model, MESSAGES, (x.double(), edge_index), trainable=True)


def gradients(model, weight):
    """Those of the input and of the weight."""
    x, edge_index = arguments()
    y = model(x, edge_index)
    found = torch.autograd.grad(y.square().sum(), [x, weight], allow_unused=True)
    return [y.detach(), *found]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [OneSum, Sums])
@pytest.mark.parametrize("how", WRITES)
def test_results_may_be_written_to_in_the_first_step_and_later(kind, how):
    model, sparse = applied(kind)
    expected = gradients(Followed(model, WRITES[how]), model.weight)
    for _ in range(3):
        found = gradients(Followed(sparse, WRITES[how]), next(sparse.parameters()))
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("kind", [OneSum, Sums])
def test_results_may_be_written_to_in_traced_graphs(kind):
    model, sparse = applied(kind)
    expected = gradients(Followed(model, WRITES["relu"]), model.weight)
    compiled = torch.compile(Followed(sparse, WRITES["relu"]), backend="aot_eager")
    apart = torch.compile(sparse, backend="aot_eager")
    for called in (compiled, Followed(apart, WRITES["relu"])):
        found = gradients(called, next(sparse.parameters()))
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [OneSum, Sums])
def test_second_derivatives_pass_through_what_is_written_in_place(kind):
    def penalty(model):
        x, edge_index = arguments()
        y = Followed(model, WRITES["mul"])(x, edge_index)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *model.parameters()])

    model, sparse = applied(kind)
    expected = penalty(model)
    for _ in range(2):
        torch.testing.assert_close(penalty(sparse), expected, **EXACT)


@pytest.mark.parametrize("kind", [OneRead, Read])
def test_results_that_gradients_read_are_guarded_as_those_of_torch(kind):
    model, sparse = applied(kind)
    expected = gradients(Followed(model, torch.sin), model.weight)
    for _ in range(2):
        for called, weight in ((model, model.weight), (sparse, next(sparse.parameters()))):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradients(Followed(called, WRITES["mul"]), weight)
        found = gradients(Followed(sparse, torch.sin), next(sparse.parameters()))
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_by_the_dense_nodes_leave_out_results_that_have_none(monkeypatch, create_graph):
    model, sparse = applied(Sums)
    x, edge_index = arguments()
    x = x.detach()

    def found(called, weight, places, fails=False):
        y = called(x, edge_index)
        total = sum(y[place].square().sum() for place in places)
        with monkeypatch.context() as within:
            if fails:  # between the passes, as where a kernel for gradients cannot be built
                within.setattr(RegionCall, "has_kernel", lambda *_: False)
            return torch.autograd.grad(total, weight, create_graph=create_graph, materialize_grads=True)

    weight = next(sparse.parameters())
    for places in ([0, 1], [1], [0]):
        expected = found(model, model.weight, places) if places != [0] else (torch.zeros_like(weight),)
        torch.testing.assert_close(found(sparse, weight, places, fails=True), expected, **EXACT)
