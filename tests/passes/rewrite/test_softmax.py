"""Attention over the edges of a graph: found by its operators, equal to what it replaces, results and gradients."""

import warnings

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn
from torch.nn import functional as F

import sparsify
from sparsify.passes.apply import apply
from sparsify.passes.call import region_operator
from sparsify.passes.graph.node_info import call_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric import nn as geometric


class HandWritten(nn.Module):
    """Attention by `scatter_reduce` and `index_add`, heads side by side."""

    def __init__(self, features, out, heads, shifted=True):
        super().__init__()
        self.lin, self.out, self.heads, self.shifted = nn.Linear(features, out * heads), out, heads, shifted
        self.left = nn.Parameter(torch.randn(heads, out))
        self.right = nn.Parameter(torch.randn(heads, out))

    def forward(self, x, edge_index):
        source, target = edge_index
        n, h = x.size(0), self.lin(x).view(-1, self.heads, self.out)
        s = F.elu((h * self.left).sum(-1)[source]) + (h * self.right).sum(-1)[target].tanh()
        spread = target[:, None].expand(-1, self.heads)
        if self.shifted:
            low = torch.full((n, self.heads), -torch.inf)
            s = s - low.scatter_reduce(0, spread, s, "amax")[target]
        p = s.exp()
        d = torch.zeros(n, self.heads).scatter_add(0, spread, p)
        w = p / d[target]
        return torch.zeros(n, self.heads, self.out).index_add(0, target, h[source] * w.unsqueeze(-1))


class OneHead(nn.Module):
    """Attention without a mode for heads."""

    def __init__(self, features, out):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(features, out) for _ in range(3))

    def forward(self, x, edge_index):
        source, target = edge_index
        s = (self.q(x)[target] * self.k(x)[source]).sum(-1) * 0.5
        p = (
            s - torch.zeros(x.size(0)).scatter_reduce(0, target, s, "amax", include_self=False)[target]
        ).exp()
        w = p / (torch.zeros(x.size(0)).index_add(0, target, p) + 1e-16)[target]
        return torch.zeros(x.size(0), 5).index_add_(0, target, w[:, None] * self.v(x)[source])


class TwoKinds(nn.Module):
    """Attention from nodes of one kind to those of another."""

    def __init__(self):
        super().__init__()
        self.conv = geometric.GATConv((7, 7), 4, heads=2, add_self_loops=False)

    def forward(self, x, edge_index):
        targets = x[:9]
        return self.conv((x, targets), torch.stack([edge_index[0], edge_index[1] % 9]))


LAYERS = {
    "GAT": lambda: geometric.GATConv(7, 4, heads=2),
    "GAT, mean of heads": lambda: geometric.GATConv(7, 4, heads=3, concat=False),
    "GAT, one head": lambda: geometric.GATConv(7, 4, add_self_loops=False),
    "GATv2": lambda: geometric.GATv2Conv(7, 4, heads=2),
    "TransformerConv": lambda: geometric.TransformerConv(7, 4, heads=2, beta=True),
    "hand-written": lambda: HandWritten(7, 4, 2),
    "no maximum": lambda: HandWritten(7, 4, 2, shifted=False),
    "no heads": lambda: OneHead(7, 5),
    "two kinds of nodes": TwoKinds,
}


def applied(name, **settings):
    torch.manual_seed(0)
    model = LAYERS[name]().eval()
    return model, apply(model, MESSAGES, graph(), **settings)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients(name):
    model, sparse = applied(name, trainable=True)
    assert len(sparse.report.regions) == 1
    assert not sparse.report.dense
    for seed, (nodes, edges) in enumerate([(20, 55), (31, 140)]):
        # Nodes that nothing leads to, edges that are there twice.
        x, edge_index = graph(nodes, edges, seed=seed)
        edge_index[1] = edge_index[1].clamp(max=nodes - 5)
        found, expected = ([x.clone().requires_grad_()] for _ in range(2))
        result, wanted = sparse(found[0], edge_index), model(expected[0], edge_index)
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)  # sums in another order
        factor = torch.randn_like(wanted)
        own = dict(sparse.named_parameters())
        for name_, parameter in model.named_parameters():
            expected.append(parameter)
            found.append(own[name_])
        for one, other in zip(
            torch.autograd.grad((result * factor).sum(), found),
            torch.autograd.grad((wanted * factor).sum(), expected),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not sparse.report.warnings


@pytest.mark.parametrize("name", ["GAT", "GATv2", "TransformerConv"])
def test_one_kernel(name):
    _, sparse = applied(name)
    call = call_of(next(node for node in sparse.graph.nodes if node.target is region_operator.call_region))
    assert len(call.kernel.steps) == 1
    # All heads of an edge are computed at once, where the widths of all sums are known.
    (step,) = call.kernel.generated
    assert "unroll k" in str(step.current.stages.schedule) or name == "GAT"
    assert {"k": 2, "l": 4}.items() <= dict(call.kernel.program.extents).items()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["GAT", "GATv2", "TransformerConv"])
def test_attention_of_float64_to_the_last_bits(name):
    torch.manual_seed(0)
    model = LAYERS[name]().double().eval()
    x, edge_index = graph()
    sparse = apply(model, MESSAGES, (x.double(), edge_index))
    torch.testing.assert_close(
        sparse(x.double(), edge_index), model(x.double(), edge_index), rtol=1e-12, atol=1e-12
    )


def test_rows_without_edges_are_zero():
    _, sparse = applied("hand-written")
    x, _ = graph()
    found = sparse(x, torch.tensor([[0, 1, 1], [2, 2, 2]]))
    assert found[2].abs().sum() > 0
    assert found[[0, 1, *range(3, 20)]].abs().sum() == 0


def test_large_scores_do_not_overflow():
    model, sparse = applied("GAT")
    x, edge_index = graph()
    found = sparse(1e4 * x, edge_index)
    torch.testing.assert_close(found, model(1e4 * x, edge_index), rtol=1e-4, atol=1e-2)
    assert found.isfinite().all()


def test_weights_that_the_model_returns_stay():
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = geometric.GATConv(7, 4, heads=2)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index, return_attention_weights=True)

    torch.manual_seed(0)
    model, (x, edge_index) = Returning().eval(), graph()
    sparse = apply(model, MESSAGES, (x, edge_index))
    assert len(sparse.report.regions) == 1
    (found, (edges, weights)), (expected, (own, others)) = sparse(x, edge_index), model(x, edge_index)
    torch.testing.assert_close((found, edges, weights), (expected, own, others), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind, rate",
    [("GCNConv", 0.6), ("TransformerConv", 0.0)],
)
def test_training_drops_what_the_model_would(kind, rate):
    of = getattr(geometric, kind)
    torch.manual_seed(0)
    model = Dropping(of(7, 4) if kind == "GCNConv" else of(7, 4, dropout=rate), rate).double().train()
    x, edge_index = graph()
    x = x.double()
    sparse = apply(model, MESSAGES, (x, edge_index))
    assert sparse.report.regions
    outcomes = []
    for network in (sparse, model):
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        found = network(leaf, edge_index)
        wanted = [leaf, *model.parameters()]
        outcomes.append([found, *torch.autograd.grad(found.square().sum(), wanted)])
    torch.testing.assert_close(*outcomes, rtol=1e-9, atol=1e-9)
    other = sparse(x, edge_index)
    assert torch.allclose(other, outcomes[0][0]) == (rate == 0)  # drawn anew
    torch.testing.assert_close(
        sparse.eval()(x, edge_index), model.eval()(x, edge_index), rtol=1e-9, atol=1e-9
    )


def test_explain_shows_the_program():
    _, sparse = applied("GAT")
    text = sparsify.explain(sparse)
    assert "T, T1, T2, T3, Y: one kernel" in text


class Dropping(nn.Module):
    """A layer over a graph after dropout of features."""

    def __init__(self, layer, rate):
        super().__init__()
        self.layer, self.rate = layer, rate

    def forward(self, x, edge_index):
        return self.layer(F.dropout(x, self.rate, training=self.training), edge_index)


class TwoLayers(nn.Module):
    """Two layers over the same edges, loops taken away and added by each; the second one has one head."""

    def __init__(self):
        super().__init__()
        self.first, self.second = geometric.GATConv(7, 4, heads=2), geometric.GATConv(8, 5, concat=False)

    def forward(self, x, edge_index):
        return self.second(F.elu(self.first(x, edge_index)), edge_index)


def test_every_layer_over_shared_edges():
    model = TwoLayers().eval()
    sparse = apply(model, MESSAGES, graph(20, 50))
    assert len(sparse.report.regions) == 2
    for arguments in (graph(20, 50), graph(31, 90)):
        torch.testing.assert_close(sparse(*arguments), model(*arguments), rtol=1e-5, atol=1e-5)
    assert len(sparse.variants) == 1
