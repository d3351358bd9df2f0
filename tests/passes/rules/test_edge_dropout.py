"""Dropout of attention over edges in training: which weights are dropped, how many, and gradients of the others."""

import warnings

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn
from torch.nn import functional

import sparsify
from sparsify import options
from sparsify.compiler.einsum.counter_random import uniform
from sparsify.errors import UnsupportedProgramError
from sparsify.passes.graph.draws import SEEDS, dropped_edges, repetitions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric import nn as geometric
    from torch_geometric.utils import add_self_loops, coalesce, remove_self_loops

RATE = 0.4


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


class OneHead(nn.Module):
    """Attention without a mode for heads, whose weights are dropped as a column."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(7, 5) for _ in range(3))

    def forward(self, x, edge_index):
        source, target = edge_index
        s = (self.q(x)[target] * self.k(x)[source]).sum(-1)
        top = torch.zeros(x.size(0), dtype=x.dtype).scatter_reduce(0, target, s, "amax", include_self=False)
        p = (s - top[target]).exp()
        w = p / torch.zeros(x.size(0), dtype=x.dtype).index_add(0, target, p)[target]
        w = functional.dropout(w[:, None], RATE, self.training)
        return torch.zeros(x.size(0), 5, dtype=x.dtype).index_add(0, target, w * self.v(x)[source])


LAYERS = {
    "GAT": lambda: geometric.GATConv(7, 4, heads=2, dropout=RATE),
    "GATv2": lambda: geometric.GATv2Conv(7, 4, heads=3, dropout=RATE),
    "TransformerConv": lambda: geometric.TransformerConv(7, 4, heads=2, dropout=RATE),
    "one head": OneHead,
}
HEADS = {"GAT": (2,), "GATv2": (3,), "TransformerConv": (2,), "one head": (1,)}


def simple_graph(nodes=20, edges=55, seed=0):
    """A graph without edges that are there twice."""
    x, edge_index = graph(nodes, edges, seed=seed)
    return x, coalesce(edge_index)


def applied(name, example=None, **settings):
    torch.manual_seed(0)
    model = LAYERS[name]().train()
    return model, sparsify.apply(model, MESSAGES, example or simple_graph(), **settings)


def weights_kept(name, seed, nodes, edge_index):
    """What the next call after `manual_seed` keeps, [edges, heads]: the seeds of heads are all that it draws."""
    if name.startswith("GAT"):
        edge_index, _ = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=nodes)
    torch.manual_seed(seed)
    heads = torch.randint(SEEDS, HEADS[name])
    source, target = edge_index
    torch.manual_seed(seed)
    return torch.from_numpy(uniform(heads, target[:, None], source[:, None]) >= RATE)


def expected(model, kept, x, edge_index, monkeypatch):
    """The model's result in float64 with these weights kept."""
    with monkeypatch.context() as patched:
        patched.setattr(functional, "dropout", lambda w, p, training=True: w * kept / (1 - p))
        return model(x, edge_index)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients(name, monkeypatch):
    model, sparse = applied(name, trainable=True, strict=True)
    assert "uniform(" in sparse.report.regions[0].einsum
    double = LAYERS[name]().double().train()
    double.load_state_dict(model.state_dict())
    for seed, (nodes, edges) in enumerate([(20, 55), (31, 140)]):
        x, edge_index = simple_graph(nodes, edges, seed)
        kept = weights_kept(name, seed, nodes, edge_index)
        assert 0 < kept.float().mean() < 1
        inputs = [x.clone().requires_grad_(), *sparse.parameters()]
        found = sparse(inputs[0], edge_index)
        doubles = [x.double().requires_grad_(), *double.parameters()]
        wanted = expected(double, kept, doubles[0], edge_index, monkeypatch)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)  # sums of float32
        factor = torch.randn_like(found)
        for one, other in zip(
            torch.autograd.grad(found, inputs, factor),
            torch.autograd.grad(wanted, doubles, factor.double()),
            strict=True,
        ):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    assert not sparse.report.warnings


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "backward"), [("GAT", 2), ("GATv2", 3), ("TransformerConv", 2)])
def test_as_many_kernels_as_without_dropout(name, backward):
    """Forwards one; for gradients one over rows and one over columns, and what both share of the scores of GATv2."""
    x, edge_index = simple_graph(300, 6000)
    _, sparse = applied(name, (x, edge_index), trainable=True)
    (call,) = sparse.variants[0].regions
    assert len(call.kernel.steps) == 1
    sparse(x.requires_grad_(), edge_index).sum().backward()
    (adjoint,) = call.kernel._adjoints.values()
    assert len(adjoint.steps) == backward


def test_modes_and_seeds():
    """In evaluation nothing is dropped; in training each call draws anew, the same after `manual_seed`."""
    model, sparse = applied("GAT")
    x, edge_index = simple_graph()
    torch.manual_seed(1)
    first, second = sparse(x, edge_index), sparse(x, edge_index)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(sparse(x, edge_index), first)
    torch.testing.assert_close(
        sparse.eval()(x, edge_index), model.eval()(x, edge_index), rtol=1e-5, atol=1e-5
    )
    torch.manual_seed(1)
    assert torch.equal(sparse.train()(x, edge_index), first)


@pytest.mark.sampled(2)
def test_verified_against_the_same_draws():
    """Other dropout is torch's, and drawn in the same order."""

    class TwoLayers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = geometric.GATConv(7, 4, heads=2, dropout=RATE)
            self.second = geometric.GATv2Conv(8, 3, dropout=RATE)

        def forward(self, x, edge_index):
            x = functional.dropout(x, 0.3, self.training)
            x = functional.dropout(self.first(x, edge_index).relu(), 0.3, self.training)
            return self.second(x, edge_index)

    torch.manual_seed(0)
    sparse = sparsify.apply(TwoLayers().train(), MESSAGES, simple_graph(), trainable=True, strict=True)
    assert len(sparse.report.regions) == 2
    assert sparse.report.largest_error < 1e-3  # of gradients, too
    assert sparse.verify_gradients(*simple_graph(31, 140)) < 1e-4


def test_rate_and_mean():
    """Equal scores: a row of results says how many of its weights were kept."""
    torch.manual_seed(0)
    model = geometric.TransformerConv(3, 1, heads=4, dropout=RATE, root_weight=False).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.lin_value.bias.fill_(1)
    nodes = 48
    every = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).T.contiguous()
    x = torch.randn(nodes, 3)
    sparse = sparsify.apply(model, MESSAGES, (x, every), strict=True)
    with torch.no_grad():
        steps = torch.stack([sparse(x, every) for _ in range(12)])  # [steps, nodes, heads]
    share = steps.double() * (1 - RATE)
    assert abs(share.mean() - (1 - RATE)) < 4 * (RATE * (1 - RATE) / (steps.numel() * nodes)) ** 0.5
    # Rows of different steps, nodes and heads are not alike, and vary as much as numbers drawn one by one.
    centred = share - (1 - RATE)
    spread = centred.square().mean()
    assert abs(spread * nodes / (RATE * (1 - RATE)) - 1) < 4 * (2 / steps.numel()) ** 0.5
    for mode in range(3):
        alike = (centred * centred.roll(1, mode)).mean() / spread
        assert abs(alike) < 4 / steps.numel() ** 0.5


def test_messages_of_edges():
    """Scores that read features of edges are drawn by the numbers of edges, of which two may join the same nodes."""
    torch.manual_seed(0)
    model = geometric.TransformerConv(7, 4, heads=2, edge_dim=3, dropout=RATE).train()
    x, edge_index = graph()
    features = torch.randn(edge_index.shape[1], 3)
    sparse = sparsify.apply(model, MESSAGES, (x, edge_index, features), trainable=True, strict=True)
    assert "uniform(" in sparse.report.regions[0].einsum
    assert sparse.report.largest_error < 1e-3  # of gradients, too
    assert sparse.verify_gradients(x, edge_index, features) < 1e-4


def test_edges_that_are_there_twice_are_dropped_each_by_itself():
    model, sparse = applied("TransformerConv", trainable=True)
    x, edge_index = simple_graph()
    twice = torch.cat([edge_index, edge_index[:, :5]], 1)
    with pytest.warns(RuntimeWarning, match="5 join the same nodes as others"):
        sparse(x, twice)
    assert sparse.verify_gradients(x, twice) == 0
    sparse(x, torch.cat([edge_index, edge_index[:, :2]], 1))  # without another warning
    assert "5 join the same nodes as others" in str(sparse.report)
    (call,) = sparse.variants[0].regions
    assert call.failure is None and call.gradient_failure is None, "other graphs have the kernel"
    with pytest.raises(UnsupportedProgramError, match="and dropout draws for each by itself"):
        sparsify.apply(model, MESSAGES, (x, edge_index), strict=True)(x, twice)


@pytest.mark.sampled(2)
def test_weights_that_the_model_returns_are_those_that_count():
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = geometric.GATConv(7, 1, heads=2, dropout=RATE, bias=False)

        def forward(self, x, edge_index):
            found, (edges, weights) = self.conv(x, edge_index, return_attention_weights=True)
            return found, edges, weights

    torch.manual_seed(0)
    model, (x, edge_index) = Returning().train(), simple_graph()
    sparse = sparsify.apply(model, MESSAGES, (x, edge_index), strict=True)
    found, (source, target), weights = sparse(x, edge_index)
    values = model.conv.lin(x)
    torch.testing.assert_close(found, torch.zeros_like(found).index_add(0, target, weights * values[source]))
    assert (weights == 0).any()


def test_dropped_edges():
    weights, rows, columns = (
        torch.rand(6, 2) + 1,
        torch.tensor([0, 3, 0, 0, 2, 0]),
        torch.tensor([1, 1, 1, 2, 3, 1]),
    )
    assert repetitions(rows, columns).tolist() == [0, 0, 1, 0, 0, 2]
    assert repetitions(rows[:0], columns[:0]).tolist() == []
    seed = torch.tensor([5, 6], dtype=torch.int32)
    found = dropped_edges(weights, seed, rows, columns, rate=RATE)
    keys = seed.long() + (repetitions(rows, columns) << 32)[:, None]
    kept = torch.from_numpy(uniform(keys, rows[:, None], columns[:, None]) >= RATE)
    torch.testing.assert_close(found, torch.where(kept, weights / (1 - RATE), 0))
    assert dropped_edges(weights, seed, rows, columns, rate=1.0).abs().sum() == 0
