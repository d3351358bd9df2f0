"""Writes that torch does not count change the results of sparse models, as they change those of dense ones."""

from multiprocessing import shared_memory

import numpy as np
import pytest
import torch
from torch import nn

import sparsify
from sparsify.compiler.arrays.digest import digest
from sparsify.passes.operands import content_memo

NODES, EDGES = 40, 150
X = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(0))
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def edges(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, NODES, (2, EDGES))


class Sum(nn.Module):
    """Sums over neighbours by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 3)

    def forward(self, x, edge_index, edge_weight=None):
        messages = self.lin(x)[edge_index[0]]
        if edge_weight is not None:
            messages = messages * edge_weight[:, None]
        return torch.zeros(len(x), 3).index_add(0, edge_index[1], messages)


def recipe(static: bool = False) -> dict:
    rule = {"id": "adjacency", "targets": ["op:message_passing"], "role": "adjacency", "source": "given"}
    return {"schema": 1, "name": "sums", "sparsify": [{**rule, "static": static}]}


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    model = Sum().eval()
    return model, sparsify.apply(model, recipe(), (X, torch.from_numpy(edges(0))))


def through_numpy(edge_index: torch.Tensor, new: np.ndarray) -> None:
    edge_index.numpy()[:] = new


def through_data(edge_index: torch.Tensor, new: np.ndarray) -> None:
    edge_index.data.copy_(torch.from_numpy(new))


def through_dlpack(edge_index: torch.Tensor, new: np.ndarray) -> None:
    torch.from_dlpack(edge_index.detach()).copy_(torch.from_numpy(new))


def through_storage(edge_index: torch.Tensor, new: np.ndarray) -> None:
    edge_index.untyped_storage().copy_(torch.from_numpy(new).untyped_storage())


@pytest.mark.parametrize("write", [through_numpy, through_data, through_dlpack, through_storage])
@pytest.mark.parametrize("memory", ["torch", "numpy", "inference", "transposed"])
def test_edges(models, write, memory):
    model, sparse = models
    if memory == "transposed" and write is through_storage:
        pytest.skip("another order in memory")
    with torch.inference_mode(memory == "inference"), torch.no_grad():
        edge_index = torch.from_numpy(edges(1).copy())
        if memory != "numpy":
            edge_index = edge_index.clone()
        if memory == "transposed":
            edge_index = edge_index.t().contiguous().t()
        for seed in (2, 3, 2):
            write(edge_index, edges(seed))
            for _ in range(2):
                torch.testing.assert_close(sparse(X, edge_index), model(X, edge_index), **CLOSE)


def test_one_edge_among_many(models):
    model, sparse = models
    buffer = edges(4)
    edge_index = torch.from_numpy(buffer)
    with torch.no_grad():
        for place in range(0, EDGES, 7):
            buffer[1, place] = (buffer[1, place] + 1) % NODES
            buffer[:, place], buffer[:, place - 1] = buffer[:, place - 1].copy(), buffer[:, place].copy()
            torch.testing.assert_close(sparse(X, edge_index), model(X, edge_index), **CLOSE)


def test_memory_of_another_process(models):
    model, sparse = models
    block = shared_memory.SharedMemory(create=True, size=edges(0).nbytes)
    other = shared_memory.SharedMemory(name=block.name)
    try:
        here = np.ndarray((2, EDGES), np.int64, buffer=block.buf)
        there = np.ndarray((2, EDGES), np.int64, buffer=other.buf)
        edge_index = torch.from_numpy(here)
        for seed in (5, 6):
            there[:] = edges(seed)
            with torch.no_grad():
                torch.testing.assert_close(sparse(X, edge_index), model(X, edge_index), **CLOSE)
        del here, there, edge_index
    finally:
        other.close()
        block.close()
        block.unlink()


def test_edges_outside_are_refused_after_a_write(models):
    _, sparse = models
    edge_index = torch.from_numpy(edges(7))
    sparse(X, edge_index)
    edge_index.data[1, 3] = 10**9
    with pytest.raises((sparsify.SparsifyError, IndexError, RuntimeError)):
        sparse(X, edge_index)


def test_edge_weights_of_a_parameter():
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sum, self.w = Sum(), nn.Parameter(torch.rand(EDGES))

        def forward(self, x, edge_index):
            return self.sum(x, edge_index, self.w)

    torch.manual_seed(0)
    edge_index = torch.from_numpy(edges(8))
    for trainable in (False, True):
        model = Weighted().train(trainable)
        sparse = sparsify.apply(model, recipe(), (X, edge_index))
        weight = dict(sparse.named_parameters())["w"]
        optimizer = torch.optim.SGD([p for p in sparse.parameters() if p.requires_grad], 0.1)
        for write in (
            lambda w: w.data.clamp_(0, 0.1),
            lambda w: w.data.copy_(torch.ones(EDGES)),
            lambda w: w.detach().numpy().fill(0.5),
        ):
            write(weight)
            if trainable:
                optimizer.zero_grad()
                sparse(X, edge_index).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                expected = torch.func.functional_call(model, dict(sparse.named_parameters()), (X, edge_index))
                torch.testing.assert_close(sparse(X, edge_index), expected, **CLOSE)


def test_features():
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(60, 3)

        def forward(self, x):
            return self.lin(x)

    rule = {"targets": ["input:x"], "source": "given", "format": "csr"}
    x = (torch.rand(50, 60) < 0.1).float()
    model = Product().eval()
    sparse = sparsify.apply(model, {"schema": 1, "name": "features", "sparsify": [rule]}, (x,))
    assert sparse.report.regions
    with torch.no_grad():
        for change in (
            lambda: x.numpy().fill(0),
            lambda: x.data.copy_(torch.eye(50, 60)),
            lambda: x.data.neg_(),
        ):
            sparse(x)
            change()
            torch.testing.assert_close(sparse(x), model(x), **CLOSE)


@pytest.mark.parametrize("layout", ["sparsify", "coo", "csr"])
def test_values_and_indices_of_sparse_inputs(layout):
    class Product(nn.Module):
        def forward(self, adj, x):
            return adj @ x

    dense = (torch.rand(NODES, NODES) < 0.1).float()
    adj = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    values = adj._values() if layout == "coo" else adj.values()
    indices = adj._indices()[1] if layout == "coo" else adj.col_indices()
    if layout == "sparsify":
        adj = sparsify.tensor(adj)
    rule = {"targets": ["input:adj"], "role": "adjacency", "source": "given"}
    sparse = sparsify.apply(Product().eval(), {"schema": 1, "name": "p", "sparsify": [rule]}, (adj, X))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(sparse(adj, X), dense @ X, **CLOSE)
        values.data.mul_(3)
        torch.testing.assert_close(sparse(adj, X), 3 * dense @ X, **CLOSE)
        if layout != "sparsify":
            first = int(dense.sum(1).argmax())
            start = int(dense[:first].sum())
            entry = slice(start, start + int(dense[first].sum()))
            indices.data[entry] = torch.arange(entry.stop - entry.start)
            torch.testing.assert_close(sparse(adj, X), adj.to_dense() @ X, **CLOSE)


def test_static_inputs_are_converted_once_and_the_report_says_so():
    model, edge_index = Sum().eval(), torch.from_numpy(edges(9)).clone()
    sparse = sparsify.apply(model, recipe(static=True), (X, edge_index))
    with torch.no_grad():
        before = sparse(X, edge_index)
        edge_index.numpy()[:] = edges(10)
        assert torch.equal(sparse(X, edge_index), before)
        edge_index.copy_(torch.from_numpy(edges(11)))
        torch.testing.assert_close(sparse(X, edge_index), model(X, edge_index), **CLOSE)
    assert "edge_index (static)" in str(sparse.report)
    (conversion,) = [entry for entry in sparse.report.conversions if "edge_index" in entry.source]
    assert conversion.count == 2


def test_what_is_the_same_is_converted_once(models):
    _, sparse = models
    edge_index = torch.from_numpy(edges(12))
    (conversion,) = [entry for entry in sparse.report.conversions if "edge_index" in entry.source]
    before = conversion.count
    with torch.no_grad():
        for _ in range(3):
            sparse(X, edge_index)
            sparse(X, edge_index.clone())
    assert conversion.count == before + 1


def test_weights_of_compiled_models():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 48), nn.ReLU()).eval(), torch.randn(5, 32)
    rule = {"targets": ["param:*weight"], "role": "weight", "source": "given", "format": "csr"}
    recipe = {"schema": 1, "name": "given", "sparsify": [rule]}
    torch._dynamo.reset()
    with torch.no_grad():
        model[0].weight.mul_(torch.rand(48, 32) < 0.1)
        compiled = torch.compile(model, backend="sparsify", options={"recipe": recipe, "inner": "eager"})
        for change in (
            lambda: model[0].weight.data.mul_(2),
            lambda: model[0].weight.detach().numpy().__imul__(3),
            lambda: model[0].bias.data.add_(1),
        ):
            torch.testing.assert_close(compiled(x), model(x), **CLOSE)
            change()
        torch.testing.assert_close(compiled(x), model(x), **CLOSE)


def test_packed_weights():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(256, 384)).eval(), torch.randn(3, 256)
    rule = {
        "targets": ["param:*weight"],
        "prune": {"method": "magnitude", "sparsity": 0.95},
        "role": "weight",
    }
    sparse = sparsify.apply(model, {"schema": 1, "name": "pruned", "sparsify": [rule]}, (x,))
    weight = sparse.get_parameter("0.weight")
    assert isinstance(weight, sparsify.SparseTensor)
    with torch.no_grad():
        for change in (
            lambda: weight.data.mul_(2),
            lambda: weight.values().data.mul_(2),
            lambda: weight.values().numpy().__imul__(0.25),
        ):
            change()
            expected = nn.functional.linear(x, weight.to_dense(), model[0].bias)
            torch.testing.assert_close(sparse(x), expected, **CLOSE)
            many = x.repeat(500, 1)
            torch.testing.assert_close(sparse(many), expected.repeat(500, 1), **CLOSE)


def test_frozen_weights_are_sampled(monkeypatch):
    """A product with one row takes less time than reading all entries of the dense weight."""
    torch.manual_seed(0)
    read = []
    monkeypatch.setattr(content_memo, "digest", lambda tensor: read.append(tensor.numel()) or digest(tensor))
    model, x = nn.Sequential(nn.Linear(256, 384)).eval(), torch.randn(1, 256)
    rule = {
        "targets": ["param:*weight"],
        "prune": {"method": "magnitude", "sparsity": 0.95},
        "role": "weight",
    }
    sparse = sparsify.apply(model, {"schema": 1, "name": "pruned", "sparsify": [rule]}, (x,))
    with torch.no_grad():
        sparse(x)
    assert not [count for count in read if count >= 256 * 384]


def test_calls_without_backward_remember_what_they_read_of_weights():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 96)), torch.randn(4, 64)
    rule = {"targets": ["param:*weight"], "prune": {"method": "magnitude", "sparsity": 0.9}, "role": "weight"}
    sparse = sparsify.apply(model, {"schema": 1, "name": "pruned", "sparsify": [rule]}, (x,))
    (conversion,) = sparse.report.conversions
    sparse(x)
    before = conversion.count
    for _ in range(3):
        assert "FirstGradient" in type(sparse(x).grad_fn).__name__
    assert conversion.count == before
    sparse(x).sum().backward()
    assert sparse.get_parameter("0.weight").grad.count_nonzero() > 0
