"""Aggregations over the same edges as one region of several results: equal to the model, whoever asks and however."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn
from torch.nn import functional as F

from sparsify.errors import KernelError
from sparsify.passes.apply import apply
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.explain import explain_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import PNAConv
    from torch_geometric.nn.aggr import MultiAggregation

KINDS = ["sum", "mean", "min", "max", "var", "std"]
SHAPES = ((20, 55, 0), (33, 130, 3))
EXACT = {"rtol": 1e-9, "atol": 1e-9}
# The kernels that a region of its own for each aggregation would have.
APART = {**MESSAGES, "fuse": {"enabled": False}}


class Statistics(nn.Module):
    """Largest entries and means of neighbours, apart, and the sum of something else."""

    def __init__(self, features=7):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x, edge_index):
        source, receiver = edge_index
        x = x * self.weight
        index = receiver[:, None].expand(-1, x.size(1))
        count = torch.zeros(x.size(0), dtype=x.dtype).scatter_add(
            0, receiver, torch.ones_like(receiver, dtype=x.dtype)
        )
        total = torch.zeros_like(x).scatter_add(0, index, x[source])
        most = torch.zeros_like(x).scatter_reduce(0, index, x[source], "amax", include_self=False)
        return total / count.clamp(min=1)[:, None], most.relu()


class Centred(Statistics):
    """The variance by means that are subtracted before: its sum depends on that of the means."""

    def forward(self, x, edge_index):
        mean, most = super().forward(x, edge_index)
        source, receiver = edge_index
        index = receiver[:, None].expand(-1, x.size(1))
        away = (x[source] - mean[receiver]).square()
        return torch.zeros_like(x).scatter_add(0, index, away) + most


class Drawn(nn.Module):
    """Between two aggregations numbers are drawn, which one of them reads."""

    def forward(self, x, edge_index):
        source, receiver = edge_index
        index = receiver[:, None].expand(-1, x.size(1))
        total = torch.zeros_like(x).scatter_add(0, index, x[source])
        dropped = F.dropout(x, 0.5, training=True)
        return total + torch.zeros_like(x).scatter_add(0, index, dropped[source])


class Branches(nn.Module):
    """Two sums over the same edges that have no message in common: each may be multiplied in either order."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(7, 5), nn.Linear(7, 5)

    def forward(self, x, edge_index):
        source, receiver = edge_index
        return tuple(
            torch.zeros(len(x), 5, dtype=x.dtype).index_add(0, receiver, linear(x)[source])
            for linear in (self.one, self.other)
        )


class Aggregated(nn.Module):
    """All of PyG's statistics of the neighbours of each node."""

    def __init__(self):
        super().__init__()
        self.aggr = MultiAggregation(KINDS)

    def forward(self, x, edge_index):
        return self.aggr(x[edge_index[0]], edge_index[1], dim_size=x.size(0))


class Graphs(nn.Module):
    """The statistics of neighbours and then of the nodes of each graph."""

    def __init__(self):
        super().__init__()
        self.neighbours, self.linear = Aggregated(), nn.Linear(len(KINDS) * 7, 5)
        self.nodes = MultiAggregation(KINDS)

    def forward(self, x, edge_index, graphs):
        return self.nodes(self.linear(self.neighbours(x, edge_index)).relu(), graphs)


class Network(nn.Module):
    """Two layers of PNA with all of its aggregators and scalers."""

    def __init__(self, edge_dim=None):
        super().__init__()
        scalers = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
        degrees = torch.tensor([1, 3, 5, 6, 2, 1, 1])
        self.first = PNAConv(7, 8, KINDS, scalers, degrees, edge_dim=edge_dim)
        self.second = PNAConv(8, 4, KINDS, scalers, degrees, edge_dim=edge_dim, towers=2, divide_input=True)

    def forward(self, x, edge_index, edges=None):
        return self.second(self.first(x, edge_index, edges).relu(), edge_index, edges)


def arguments(nodes, edges, seed, width=0):
    """Features in float64, edges and their features; the last nodes have no neighbours."""
    x, edge_index = graph(nodes, edges, seed=seed)
    edge_index[1] = edge_index[1].clamp(max=nodes - 4)
    more = (torch.randn(edges, width, dtype=torch.float64),) if width else ()
    return x.double(), edge_index, *more


def small_graphs(sizes, seed=0):
    """A batch of graphs of so many nodes, three edges a node and none where a graph has one; the graph of each node."""
    generator = torch.Generator().manual_seed(seed)
    edges, first = [], 0
    for size in sizes:
        count = 3 * size if size > 1 else 0
        edges.append(first + torch.randint(0, size, (2, count), generator=generator))
        first += size
    x = torch.randn(first, 7, generator=generator, dtype=torch.float64)
    return x, torch.cat(edges, dim=1), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def small_graph(given, number):
    """One graph of a batch, as a batch of its own."""
    x, edge_index, graphs = given
    nodes = (graphs == number).nonzero()[:, 0]
    edges = edge_index[:, graphs[edge_index[0]] == number]
    return x[nodes], edges - nodes[0], torch.zeros_like(nodes)


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    model = Statistics().double().eval()
    return model, apply(model, MESSAGES, arguments(*SHAPES[0]), trainable=True)


def gradients(found, wanted, factors):
    """The gradients of the weighted sum of those results that have a factor."""
    loss = sum((one * factor).sum() for one, factor in zip(found, factors, strict=True) if factor is not None)
    return torch.autograd.grad(loss, wanted, allow_unused=True)


def require_equal(model, sparse, given, run=None):
    """Asserts that results and gradients are those of the model."""
    both = []
    for one in (model, sparse if run is None else run):
        x = given[0].clone().requires_grad_()
        results = one(x, *given[1:])
        results = results if isinstance(results, tuple) else (results,)
        torch.manual_seed(1)
        factors = [torch.randn_like(result) for result in results]
        parameters = [p for p in model.parameters() if p.requires_grad]
        both.append((results, gradients(results, [x, *parameters], factors)))
    (wanted, expected), (found, pulled) = both
    torch.testing.assert_close(found, wanted, **EXACT)
    for one, other in zip(pulled, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["MultiAggregation", "PNA", "PNA with features of edges"])
def test_layers_of_several_aggregations(name):
    torch.manual_seed(0)
    width = 3 if "edges" in name else 0
    model = Aggregated() if name == "MultiAggregation" else Network(edge_dim=width or None)
    model = model.double().eval()
    sparse = apply(model, MESSAGES, arguments(*SHAPES[0], width), trainable=True)
    assert len(sparse.report.regions) == (1 if name == "MultiAggregation" else 2)
    for region in sparse.variants[0].regions:
        assert region.is_several and len(region.kernel.steps) == 1
    for shape in SHAPES:
        require_equal(model, sparse, arguments(*shape, width))
    assert not sparse.report.warnings


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*is no extent of an input")
def test_batches_of_small_graphs():
    torch.manual_seed(0)
    model = Graphs().double().eval()
    sparse = apply(model, MESSAGES, small_graphs((4, 1, 6)), trainable=True)
    assert len(sparse.report.regions) == 2
    for region in sparse.variants[0].regions:
        assert region.is_several and len(region.kernel.steps) == 1
    for sizes in ((4, 1, 6), (3, 9), (2, 5, 2, 1, 2, 7)):
        require_equal(model, sparse, small_graphs(sizes, seed=len(sizes)))
    assert len(sparse.variants) == 1
    given = small_graphs((4, 1, 6))
    alone = torch.cat([sparse(*small_graph(given, number)) for number in range(3)])
    torch.testing.assert_close(sparse(*given), alone, **EXACT)


def test_what_is_computed_of_results_is_in_their_program(pair):
    _, sparse = pair
    (region,) = sparse.report.regions
    assert "relu(where(T[i] == 0, 0.0, max(j, where(stored(A[i,j]), X[j,k], -inf))))" in region.einsum
    assert "sum(j, A[i,j] * X[j,k]) / max(b[i], 1)" in region.einsum
    text = str(explain_model(sparse))
    assert "one kernel" in text and "rows of X are read once for all reductions" in text


@pytest.mark.parametrize("used", [0, 1])
def test_a_result_that_nothing_reads_has_no_gradient(pair, used):
    model, sparse = pair
    for run in (sparse, torch.compile(sparse, fullgraph=True, backend="aot_eager")):
        found = []
        for one in (model, run):
            x, edge_index = arguments(*SHAPES[1])
            x.requires_grad_()
            factors = [None, None]
            factors[used] = torch.arange(float(x.numel())).double().view_as(x)
            found.append(gradients(one(x, edge_index), [x, model.weight], factors))
        torch.testing.assert_close(found[1], found[0], **EXACT)
    torch._dynamo.reset()


def test_gradients_of_gradients(pair):
    model, sparse = pair
    found = []
    for one in (model, sparse):
        x, edge_index = arguments(*SHAPES[0])
        x.requires_grad_()
        (first,) = torch.autograd.grad(one(x, edge_index)[0].pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(found[1], found[0], **EXACT)


def test_traces_have_one_operator(pair, monkeypatch):
    model, sparse = pair
    names, run = [], RegionCall.__call__
    monkeypatch.setattr(
        RegionCall, "__call__", lambda self, *args: [names.append(self.name), run(self, *args)][1]
    )
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in SHAPES:
        names.clear()
        require_equal(model, sparse, arguments(*shape), run=compiled)
        assert names == ["region_1"]  # backward runs no forward again
    torch._dynamo.reset()
    program = torch.export.export(sparse, arguments(*SHAPES[0]), strict=False)
    gc.collect()
    assert torch.ops.sparsify.region.default in {node.target for node in program.graph.nodes}
    torch.testing.assert_close(
        program.module()(*arguments(*SHAPES[0])), model(*arguments(*SHAPES[0])), **EXACT
    )


def test_copies_and_pickles(pair):
    model, sparse = pair
    given = arguments(*SHAPES[1])
    for twin in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse))):
        torch.testing.assert_close(twin(*given), model(*given), **EXACT)


def test_transforms_pass_through(pair):
    model, sparse = pair
    x, edge_index = arguments(*SHAPES[0])
    found, wanted = (
        torch.func.grad(lambda x, one=one: sum(part.square().sum() for part in one(x, edge_index)))(x)
        for one in (sparse, model)
    )
    torch.testing.assert_close(found, wanted, **EXACT)


def test_dense_nodes_compute_all_results_where_the_kernel_fails():
    torch.manual_seed(0)
    model = Statistics().double().eval()
    given = arguments(*SHAPES[0])
    sparse = apply(model, MESSAGES, given, trainable=True)
    (region,) = sparse.variants[0].regions

    def fail(*operands):
        raise KernelError(3, "broken")

    region.kernel = fail
    with pytest.warns(RuntimeWarning, match="sparse regions run densely from now on"), torch.no_grad():
        torch.testing.assert_close(sparse(*given), model(*given), **EXACT)
    require_equal(model, sparse, given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "regions"),
    [(Centred(), 1), (Drawn(), 1), (Branches(), 1)],
    ids=["dependent", "drawn", "other messages"],
)
def test_other_aggregations_over_the_same_edges(model, regions):
    model = model.double().eval()
    given = arguments(*SHAPES[0])
    sparse = apply(model, MESSAGES, given, trainable=True)
    assert len(sparse.report.regions) == regions
    for shape in SHAPES:
        found = []
        for one in (model, sparse):
            torch.manual_seed(0)
            found.append(one(*arguments(*shape)))
        torch.testing.assert_close(found[1], found[0], **EXACT)


def test_recipes_may_keep_them_apart():
    given = arguments(*SHAPES[0])
    model = Statistics().double().eval()
    sparse = apply(model, APART, given, trainable=True)
    assert len(sparse.report.regions) == 2
    require_equal(model, sparse, given)
