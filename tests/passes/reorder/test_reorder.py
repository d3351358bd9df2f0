"""Orders of nodes: the same results with few permutations, gradients, other graphs, traces, and errors."""

import copy

import pytest
import torch
from graph_models import HandWritten, Kipf, TwoLayers, adjacency, graph
from torch import nn
from torch.nn import functional as F

from sparsify.errors import RecipeError, ShapeError
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.program.translate import translate
from sparsify.passes.reorder import node_order
from sparsify.passes.reorder.rowwise import row_operands

MESSAGES, MATRIX, EDGES = "op:message_passing", "input:adj", "input:edge_index"
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def recipe(target=MESSAGES, order="rcm", static=True):
    rule = {"targets": [target], "role": "adjacency", "static": static, "reorder": order}
    return {"schema": 1, "name": "own", "sparsify": [rule]}


def gathers(sparse):
    """The permutations of a call."""
    return sparse.graph.find_nodes(op="call_function", target=torch.ops.aten.index_select.default)


class Layers(nn.Module):
    """Three layers on a sparse matrix, with what runs row by row between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Kipf(9, 6), Kipf(6, 6), Kipf(6, 4)
        self.norm, self.scale = nn.BatchNorm1d(6), nn.LayerNorm(6)

    def forward(self, x, adj):
        h = F.dropout(self.norm(self.first(x, adj)).relu(), 0.5, self.training)
        h = h + self.scale(self.second(h, adj))
        return F.log_softmax(self.third(h, adj), 1)


@pytest.fixture(scope="module")
def layers():
    """A model with running statistics of its own, its reordered form and their inputs."""
    torch.manual_seed(0)
    model = Layers()
    model.norm.running_mean.uniform_()
    x, adj = torch.randn(30, 9), adjacency(30).to_sparse_csr()
    return model, apply(model.eval(), recipe(MATRIX), (x, adj)), x, adj


def test_layers_share_one_permutation_in_and_one_out(layers):
    model, sparse, x, adj = layers
    torch.testing.assert_close(sparse(x, adj), model(x, adj), **CLOSE)
    (entry,) = sparse.report.orders
    # Six columns behind the first product are fewer than the nine in front of it.
    assert (len(gathers(sparse)), entry.columns) == (2, (6, 4))
    assert (entry.method, len(sparse.report.regions)) == ("rcm", 3)
    assert "rcm" in str(sparse.report)
    assert entry.seconds > 0
    assert entry.gather_us > 0
    assert set(sparse.state_dict()) == set(model.state_dict())


def test_gradients(layers):
    model, sparse, x, adj = layers
    x = x.clone().requires_grad_()
    tensors = [x, *model.parameters()]
    want = torch.autograd.grad(model(x, adj).square().sum(), tensors)
    have = torch.autograd.grad(sparse(x, adj).square().sum(), tensors)
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)


def test_other_graphs(layers):
    model, sparse, *_ = layers
    for nodes in (30, 17):
        x, adj = torch.randn(nodes, 9), adjacency(nodes, 0.2, seed=nodes).to_sparse_csr()
        torch.testing.assert_close(sparse(x, adj), model(x, adj), **CLOSE)
    assert len(sparse.variants) == 1


def test_a_copy(layers):
    _, sparse, x, adj = layers
    assert torch.equal(copy.deepcopy(sparse)(x, adj), sparse(x, adj))


def test_other_matrices_in_a_call_are_refused(layers):
    _, sparse, *_ = layers
    tall = torch.cat([adjacency(30), adjacency(30)])[:40].to_sparse_csr()
    with pytest.raises(ShapeError, match="extent 30 in operand 0 and 40"):  # the model's own
        sparse(torch.randn(30, 9), tall)


def test_random_operators_keep_the_order_of_the_nodes(layers):
    model, _, x, adj = layers
    training = copy.deepcopy(model).train()
    training.norm.eval()
    sparse = apply(training, recipe(MATRIX), (x, adj))
    assert sparse.verify_gradients(x, adj) < 1e-2
    assert len(gathers(sparse)) > 2


class Branches(nn.Module):
    """Convolutions whose results are pooled, indexed, sorted, multiplied from the left, and chained."""

    def __init__(self):
        super().__init__()
        self.first, self.second = HandWritten(7, 20), HandWritten(20, 20)
        self.mix = nn.Parameter(torch.randn(20, 20) * 0.1)  # as large as the number of nodes

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        pooled = h.mean(0), h[[3, 1]], h.sort(0).values, self.mix @ h, h.t() @ x, h.cumsum(0)
        return pooled, (h @ self.mix) * h.sum(1, keepdim=True), self.second(h, edge_index), h


@pytest.mark.parametrize("dynamic", [None, ()])
def test_what_needs_the_nodes_as_they_are_gets_them(dynamic):
    torch.manual_seed(0)
    model, inputs = Branches().eval(), graph(20)
    sparse = apply(model, recipe(), inputs, dynamic=dynamic)
    torch.testing.assert_close(sparse(*inputs), model(*inputs), rtol=1e-4, atol=1e-3)
    assert len(sparse.report.regions) >= 2


class Weighted(nn.Module):
    """Two steps over different edges of the same nodes, with edge weights that are learned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", graph()[1])
        self.weight = nn.Parameter(torch.rand(55))

    def forward(self, x):
        for to, start in ((self.edges[0], self.edges[1]), (self.edges[1], self.edges[0])):
            x = torch.zeros_like(x).index_add(0, to, self.weight.unsqueeze(1) * x[start]).tanh()
        return x


def test_buffers_are_static_and_each_adjacency_has_its_order():
    model, x = Weighted(), graph()[0]
    sparse = apply(model, recipe(static=False), (x,))
    assert len(sparse.report.orders) == 2
    torch.testing.assert_close(sparse(x), model(x), **CLOSE)
    want = torch.autograd.grad(model(x).square().sum(), model.weight)
    torch.testing.assert_close(torch.autograd.grad(sparse(x).square().sum(), model.weight), want, **CLOSE)


class Messages(nn.Module):
    """Messages that are computed from data of edges, too."""

    def forward(self, x, edge_index, edges):
        for _ in range(2):
            messages = (x[edge_index[0]] + edges).relu() * edges.sum(1, keepdim=True)
            x = torch.zeros_like(x).index_add(0, edge_index[1], messages).tanh()
        return x


def test_whatever_is_computed_over_edges_keeps_its_order():
    x, edge_index = graph()
    edges = torch.randn(edge_index.size(1), x.size(1))
    sparse = apply(Messages(), recipe(), (x, edge_index, edges))
    (entry,) = sparse.report.orders
    assert entry.columns == (x.size(1), x.size(1)), "steps share a permutation in and one out"
    torch.testing.assert_close(sparse(x, edge_index, edges), Messages()(x, edge_index, edges), **CLOSE)


def test_traces():
    model, (x, edge_index) = TwoLayers(HandWritten).eval(), graph()
    sparse = apply(model, recipe(EDGES), (x, edge_index))
    expected = model(x, edge_index)
    exported = torch.export.export(sparse, (x, edge_index))
    torch.testing.assert_close(exported.module()(x, edge_index), expected, **CLOSE)
    compiled = torch.compile(sparse, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, edge_index), expected, **CLOSE)
    want = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    have = torch.autograd.grad(compiled(x, edge_index).square().sum(), list(model.parameters()))
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    (conversion,) = [entry for entry in sparse.report.conversions if entry.name == "order"]
    assert conversion.count == 1, "the order is remembered"


@pytest.mark.parametrize("method", ["rcm", "degree", "metis"])
def test_methods(method):
    if method == "metis":
        pytest.importorskip("pymetis")
    nodes = 3000
    name = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))
    rows, columns = name[:-1], name[1:]  # a path whose nodes are shuffled
    order = node_order.METHODS[method](node_order.neighbours(rows, columns, nodes))
    assert torch.equal(order.sort().values, torch.arange(nodes))
    place = torch.argsort(order)
    before, after = (
        node_order.distance(rows, columns),
        node_order.distance(place[rows], place[columns]),
    )
    assert method == "degree" or after < before / 2


@pytest.mark.parametrize("nodes", [0, 1, 5])
def test_graphs_without_edges(nodes):
    none = torch.zeros(0, dtype=torch.int64)
    matrix = node_order.neighbours(none, none, max(nodes, 1))
    for method in ("rcm", "degree"):
        assert len(node_order.METHODS[method](matrix)) == max(nodes, 1)


ROWWISE = {
    "gelu": lambda x, w: F.gelu(x),
    "add of a row": lambda x, w: x + w[0],
    "sum of features": lambda x, w: x.sum(-1),
    "product": lambda x, w: x @ w,
    "linear": lambda x, w: F.linear(x, w),
    "softmax": lambda x, w: x.softmax(1),
    "heads": lambda x, w: x.view(x.size(0), 3, 2),
    "columns": lambda x, w: x[:, 1:3],
    "cat": lambda x, w: torch.cat([x, x], 1),
    "with itself": lambda x, w: x * x,
    "turned features": lambda x, w: x.view(-1, 2, 3).transpose(1, 2),
    "norm": lambda x, w: F.normalize(x, dim=1),
}
MIXED = {
    "sum over nodes": lambda x, w: x.sum(0, keepdim=True) + w[0],
    "softmax over nodes": lambda x, w: x.softmax(0),
    "product from the left": lambda x, w: w @ x,
    "other order": lambda x, w: x.flip(0),
    "cumsum": lambda x, w: x.cumsum(0),
    "as other": lambda x, w: x.t(),
    "with its transpose": lambda x, w: x * x.t(),
    "cat of nodes": lambda x, w: torch.cat([x[:3], w[3:]], 0),
    "same as both": lambda x, w: x @ x,
    "linear by itself": lambda x, w: F.linear(x, x),
    "noise": lambda x, w: F.dropout(x, 0.5),
    "rolled": lambda x, w: torch.roll(x, 1, 0),
}


class All(nn.Module):
    """Functions of one matrix, six by six: every mode looks like that of the nodes."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, x, w):
        return [function(x, w) for function in self.functions]


@pytest.mark.parametrize("functions", [ROWWISE, MIXED], ids=["rowwise", "mixed"])
def test_operators_that_compute_row_by_row(functions):
    model = All(list(functions.values()))
    x, w = torch.randn(6, 6), torch.randn(6, 6)
    captured = capture(model, calls.flatten(calls.signature(model), (x, w), {}), ())
    source, program = captured.graph.find_nodes(op="placeholder")[0], translate(captured.graph)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for name, function, node in zip(
        functions, model.functions, captured.graph.output_node().args[0], strict=True
    ):
        moves = depends_by_row(program, node, source)
        assert moves == (functions is ROWWISE), name
        if moves:
            torch.testing.assert_close(function(x, w)[order], function(x[order], w), msg=name)


def depends_by_row(program, node, source):
    """Whether a node follows from `source` by operators that compute row by row alone."""
    if node is source:
        return True
    operands = row_operands(program, node, lambda extent: extent == 6)
    return operands is not None and all(depends_by_row(program, operand, source) for operand in operands)


def test_inputs_that_may_change():
    with pytest.raises(RecipeError, match="follows from the input edge_index; say `static: true`"):
        apply(TwoLayers(HandWritten).eval(), recipe(static=False), graph())


def test_a_method_whose_package_is_missing(monkeypatch):
    monkeypatch.setattr(node_order, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="needs the package pymetis, which is not installed"):
        apply(TwoLayers(HandWritten).eval(), recipe(order="metis"), graph())


def test_dense_adjacencies_have_no_order():
    with pytest.raises(RecipeError, match="finds no message passing"):
        apply(TwoLayers(Kipf).eval(), recipe(EDGES), (graph()[0], adjacency()))


class Rectangular(nn.Module):
    """Messages from some nodes to others."""

    def forward(self, x, edge_index):
        return torch.zeros(9, x.size(1)).index_add(0, edge_index[1], x[edge_index[0]])


def test_rectangular_adjacencies_have_no_order():
    x, edge_index = graph()
    with pytest.raises(RecipeError, match="is 9 by 20"):
        apply(Rectangular(), recipe(), (x, edge_index % 9))


def test_a_method_that_is_none():
    with pytest.raises(RecipeError, match="rcm"):
        apply(TwoLayers(HandWritten).eval(), recipe(order="random"), graph())
