"""Extents that the data decides, in estimates and benchmarks: those of the example."""

from dataclasses import replace

import pytest
import torch
from graph_models import graph
from torch import nn

from sparsify import options
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls
from sparsify.passes.capture.example_extents import deciders, note_extents
from sparsify.passes.capture.export import capture
from sparsify.passes.choose import autotune
from sparsify.passes.graph.operators import known_size


class Positive(nn.Module):
    """Rows whose first entry is above zero."""

    def forward(self, x):
        return x[x[:, 0] > 0] * 2


def test_extents_that_the_data_decides_are_those_of_the_example():
    model, x = Positive(), torch.randn(50, 3)
    captured = capture(model, calls.flatten(calls.signature(model), (x,), {}))
    node = next(deciders(captured.graph))
    extent = node.meta["val"].shape[0]
    assert known_size(extent, 7) == 7
    note_extents(captured.graph, {"x": x}, lambda name: captured.tensor(model, name))
    assert known_size(extent, 7) == int((x[:, 0] > 0).sum())


class Counted(nn.Module):
    """Rows of so many groups as a vector names, and of those above zero, with memory that is written meanwhile."""

    def forward(self, x, groups):
        count = groups.max().item() + 1
        room = x.new_zeros(x.shape[0] + 1)
        room[1:] = x[:, 0]
        return x.new_zeros(count, 3).index_add(0, groups, x), room[room > 0]


def test_numbers_that_the_data_decides_and_memory_that_is_written():
    model, x = Counted(), torch.randn(50, 3)
    groups, before = torch.arange(50) % 9, x.clone()
    captured = capture(model, calls.flatten(calls.signature(model), (x, groups), {}))
    note_extents(captured.graph, {"x": x, "groups": groups}, lambda name: captured.tensor(model, name))
    sums, kept = captured.graph.output_node().args[0]
    assert known_size(sums.meta["val"].shape[0], 7) == 9
    assert known_size(kept.meta["val"].shape[0], 7) == int((x[:, 0] > 0).sum())
    assert torch.equal(x, before)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", ["AGNNConv", "FAConv"])
def test_schedules_are_timed_for_edges_that_are_left(layer, monkeypatch):
    geometric = pytest.importorskip("torch_geometric.nn")
    threshold = replace(autotune.THRESHOLDS["schedule"], least_us=0.0)
    monkeypatch.setitem(autotune.THRESHOLDS, "schedule", threshold)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = getattr(geometric, layer)(*([] if layer == "AGNNConv" else [7]))

        def forward(self, x, edge_index):
            return self.conv(*([x] if layer == "AGNNConv" else [x, x * 1]), edge_index)

    model = Layer().eval()
    with options.override(tune_seconds=0.01):
        sparse = apply(model, "gcn", graph(40, 300))
    assert sparse.report.regions
    torch.testing.assert_close(sparse(*graph(30, 200, seed=3)), model(*graph(30, 200, seed=3)))


class Averaged(nn.Module):
    """A product with an adjacency without self loops, and the mean of its results over calls."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, edges):
        if self.training:
            self.calls.add_(1)
        source, target = edges[:, edges[0] != edges[1]]
        return self.norm(torch.zeros_like(x).index_add(0, target, x[source]))


def test_apply_leaves_buffers_as_they_are():
    model = Averaged().train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x, edges = torch.randn(9, 4), torch.randint(9, (2, 30))
    sparse = apply(model, "gcn", (x, edges))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    sparse(x, edges)
    sparse(x, edges)
    assert int(model.norm.num_batches_tracked) == int(model.calls) == 2
