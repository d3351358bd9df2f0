"""Applied models on inputs of all kinds: strange graphs, dtypes, layouts, tuples, gradients of inputs."""

import copy

import pytest
import torch
from graph_models import MESSAGES, HandWritten, Kipf, TwoLayers, adjacency, applied, graph
from torch import nn

import sparsify
from sparsify.errors import CaptureError
from sparsify.passes.apply import apply
from sparsify.runtime.buffers import POOL
from sparsify.storage.tensor import wrap

geometric = pytest.importorskip("torch_geometric.nn")
ADJACENCY = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:edge_index"], "format": "csr"}]}


def loops(x, edge_index):
    every = torch.arange(len(x)).repeat(2, 1)
    return x, torch.cat([edge_index, every, every], 1)


GRAPHS = {
    "self loops": loops,
    "duplicates": lambda x, e: (x, torch.cat([e, e, e], 1)),
    "isolated nodes": lambda x, e: (x, e % 7),
    "turned features": lambda x, e: (x.t().contiguous().t(), e),
    "turned edges": lambda x, e: (x, e.t().contiguous().t()),
    "no edge": lambda x, e: (x, e[:, :0]),
    "one node": lambda x, e: (x[:1], e[:, :3] * 0),
    "no node": lambda x, e: (x[:0], e[:, :0]),
}
LAYERS = {"gcn": geometric.GCNConv, "sage": geometric.SAGEConv}
SHARED = [(layer, name) for layer in LAYERS for name in list(GRAPHS)[:5]]
CAPTURED = [("sage", name) for name in list(GRAPHS)[5:]]  # extents of 0 and 1 are graphs of their own


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("layer", "name"), SHARED + CAPTURED)
def test_strange_graphs(layer, name):
    model, sparse = applied(LAYERS[layer])
    inputs = GRAPHS[name](*graph())
    torch.testing.assert_close(sparse(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    parameters = list(model.parameters())
    want = torch.autograd.grad(model(*inputs).square().sum(), parameters)
    have = torch.autograd.grad(sparse(*inputs).square().sum(), parameters)
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-3)


def test_edges_that_change_between_calls():
    model, sparse = applied(geometric.GCNConv)
    x, edge_index = graph()
    for change in (lambda: None, lambda: edge_index[0].fill_(3), lambda: edge_index.copy_(graph(seed=9)[1])):
        change()
        torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sparse(x, edge_index[:, :30]), model(x, edge_index[:, :30]))


def test_narrow_edges():
    model, sparse = applied(HandWritten)
    x, edge_index = graph()
    torch.testing.assert_close(sparse(x, edge_index.int()), model(x, edge_index), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
def test_double_precision():
    model = TwoLayers(geometric.GCNConv).double().eval()
    x, edge_index = graph()
    sparse = apply(model, MESSAGES, (x.double(), edge_index))
    assert len(sparse.report.regions) == 2
    torch.testing.assert_close(
        sparse(x.double(), edge_index), model(x.double(), edge_index), rtol=1e-12, atol=1e-12
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", [geometric.SAGEConv, geometric.GCNConv, geometric.GATConv])
def test_half_precision(layer, dtype):
    model = TwoLayers(layer).eval()
    x, edge_index = graph()
    wide = copy.deepcopy(model).double()
    sparse = apply(model.to(dtype), MESSAGES, (x.to(dtype), edge_index))
    assert len(sparse.report.regions) == 2
    assert not sparse.report.warnings
    gradient = torch.randn(wide(x.double(), edge_index).shape)

    def results(model, dtype):
        found = model(x.to(dtype), edge_index)
        return found.detach(), *torch.autograd.grad(found, list(model.parameters()), gradient.to(dtype))

    mine, torchs, exact = results(sparse, dtype), results(model, dtype), results(wide, torch.float64)
    for own, dense, other in zip(mine, torchs, exact, strict=True):
        assert own.dtype == dtype
        # Weights, features and results of layers are rounded, sums are not: no larger errors than torch's.
        rounding = 8 * torch.finfo(dtype).eps * float(other.abs().max())
        limit = max(2 * float((dense - other).abs().max()), rounding)
        torch.testing.assert_close(own.double(), other, rtol=0, atol=limit)


def test_gradients_of_inputs():
    model, sparse = applied(geometric.GCNConv)
    x, edge_index = graph()
    x.requires_grad_()
    want = torch.autograd.grad(model(x, edge_index).square().sum(), x)
    have = torch.autograd.grad(sparse(x, edge_index).square().sum(), x)
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)


class Bipartite(nn.Module):
    """Messages from one set of nodes to another."""

    def __init__(self):
        super().__init__()
        self.layer = geometric.SAGEConv((7, 5), 4)

    def forward(self, x, edge_index):
        return self.layer(x, edge_index).relu()


def test_bipartite_tuples():
    model = Bipartite().eval()

    def example(senders, receivers):
        edges = torch.stack([torch.randint(0, senders, (30,)), torch.randint(0, receivers, (30,))])
        return (torch.randn(senders, 7), torch.randn(receivers, 5)), edges

    sparse = apply(model, MESSAGES, example(11, 6))
    assert len(sparse.report.regions) == 1
    for inputs in (example(11, 6), example(20, 9)):
        torch.testing.assert_close(sparse(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 1


def test_our_own_sparse_tensors():
    model = TwoLayers(Kipf).eval()
    x, dense = graph()[0], adjacency()
    sparse = apply(model, ADJACENCY, (x, sparsify.tensor(dense, "csr")))
    for matrix in (dense, adjacency(seed=3)):
        found = sparse(x, sparsify.tensor(matrix, "csr"))
        torch.testing.assert_close(found, model(x, matrix), rtol=1e-4, atol=1e-5)


OPERATORS = {
    "product": lambda a, x, w: a @ x,
    "sampled product": lambda a, x, w: a * (w @ x @ x.T),
    "sum": lambda a, x, w: a.sum(1),
    "pointwise": lambda a, x, w: torch.relu(a) @ x,
    "addition": lambda a, x, w: a + w,
}
BLOCKS = {
    "bsr": lambda a: a.to_sparse_bsr((2, 2)),
    "bsc": lambda a: a.to_sparse_bsc((2, 2)),
    "csc": torch.Tensor.to_sparse_csc,
    "duplicates": lambda a: twice(a),
}


def twice(dense):
    """Every entry in two halves."""
    found = dense.to_sparse().coalesce()
    indices, values = found.indices(), found.values() / 2
    return torch.sparse_coo_tensor(torch.cat([indices] * 2, 1), torch.cat([values] * 2), dense.shape)


class Computed(nn.Module):
    """A function of three tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a, x, w):
        return self.function(a, x, w)


def sparse_input(function, *inputs):
    """A model of a function whose first input is sparse."""
    rule = {"targets": ["input:a"], "format": "csr", "optional": True}
    return apply(Computed(function).eval(), {"schema": 1, "name": "input", "sparsify": [rule]}, inputs)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", BLOCKS)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore::RuntimeWarning")
def test_layouts_of_torch(name, layout):
    """Layouts for which torch itself has no such operator."""
    torch.manual_seed(0)
    dense = torch.randn(8, 6) * (torch.rand(8, 6) < 0.4)
    x, w = torch.randn(6, 4), torch.randn(8, 6)
    sparse = sparse_input(OPERATORS[name], BLOCKS[layout](dense), x, w)
    found = sparse(BLOCKS[layout](dense), x, w)
    found = found if type(found) is torch.Tensor and found.layout is torch.strided else found.to_dense()
    torch.testing.assert_close(found, OPERATORS[name](dense, x, w), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore::RuntimeWarning")
def test_errors_are_those_of_the_dense_model_or_say_that_inputs_are_sparse():
    x, w, matrix = torch.randn(6, 4), torch.randn(8, 6), torch.eye(5).to_sparse_csr()
    sparse = sparse_input(lambda a, x, w: torch.cat([a, w]), torch.eye(6).to_sparse_csr(), x, w)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match except in dimension 0"):
        sparse(matrix, x, w)

    def strided(a, x, w):
        if type(a) is not torch.Tensor or a.layout is not torch.strided:
            raise RuntimeError("a layout without strides")
        return a.sum()

    sparse = sparse_input(strided, torch.eye(6), x, w)
    assert sparse(torch.eye(6), x, w) == 6
    with pytest.raises(NotImplementedError, match=r"does not take sparse inputs.*give dense ones"):
        sparse(matrix, x, w)


@pytest.mark.parametrize("layout", ["csc", "bsr"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore::RuntimeWarning")
def test_arrays_of_layouts_are_in_the_order_of_torch(layout):
    """Graphs hold entries row by row; the model itself runs where it reads how other layouts store them."""
    torch.manual_seed(0)
    matrix = BLOCKS[layout](torch.randn(4, 6) * (torch.rand(4, 6) < 0.5))
    x, w = torch.randn(6, 4), torch.randn(4, 6)
    sparse = sparse_input(lambda a, x, w: a.values() * 2, matrix, x, w)
    assert torch.equal(sparse(matrix, x, w), matrix.values() * 2)
    assert not sparse.report.regions


def test_results_stay_as_they_are_in_recycled_memory():
    model = TwoLayers(HandWritten, features=8, hidden=64, classes=64).eval()
    x, edge_index = graph(2000, 4000, features=8)
    sparse = apply(model, MESSAGES, (x, edge_index), verify=False)
    first = sparse(x, edge_index)
    copy = first.detach().clone()
    with torch.no_grad():
        kept = [sparse(x * number, edge_index) for number in range(4)]
        assert len({result.data_ptr() for result in kept}) == 4
        del kept
        held = POOL.held_bytes
        for _ in range(4):
            sparse(x, edge_index)
        assert POOL.held_bytes == held > first.nbytes, "intermediates and results use memory again"
    assert torch.equal(first, copy)
    first.square().sum().backward()
    expected = torch.autograd.grad(model(x, edge_index).square().sum(), list(model.parameters()))
    for parameter, want in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, want, rtol=1e-3, atol=1e-1)


def test_sparse_inputs_are_0_where_nothing_is_stored():
    stored = sparsify.tensor(torch.eye(5), "csr")
    adj = wrap(stored.pattern, stored.values(), 1.0)
    with pytest.raises(CaptureError, match="whose fill is 1"):
        apply(Kipf(3, 2), ADJACENCY, (torch.ones(5, 3), adj))
