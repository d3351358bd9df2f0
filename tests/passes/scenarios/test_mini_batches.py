"""Mini-batches: each call brings another graph of another size, plans nothing and captures nothing."""

import copy

import pytest
import torch
from torch import nn

from sparsify import apply
from sparsify.compiler.kernel.variants import Variants
from sparsify.passes.operands.cached_operands import Structure

RECIPE = {
    "schema": 1,
    "name": "batches",
    "sparsify": [{"targets": ["op:message_passing"], "role": "adjacency", "source": "given"}],
}
FEATURES, BATCHES = 8, 14


class MeanLayer(nn.Module):
    """The mean over neighbours, through a linear layer, beside the node itself."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.of_neighbours = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        total = torch.zeros_like(x).index_add(0, target, x[source])
        degree = x.new_zeros(x.size(0)).index_add(0, target, x.new_ones(source.size(0)))
        return self.own(x) + self.of_neighbours(total / degree.clamp(min=1)[:, None])


class NormalisedLayer(nn.Module):
    """Propagation with the symmetric normalisation of a graph with self loops."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        loops = torch.arange(x.size(0)).expand(2, -1)
        source, target = torch.cat([edge_index, loops], 1)
        degree = x.new_zeros(x.size(0)).index_add(0, target, x.new_ones(source.size(0)))
        root = degree.rsqrt()
        weights = root[source] * root[target]
        return torch.zeros_like(x).index_add(0, target, self.linear(x)[source] * weights[:, None])


class Net(nn.Module):
    """Two layers and the sum over each graph of a batch."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.last = layer(), layer(), nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        h = self.second(self.first(x, edge_index).relu(), edge_index)
        graphs = x.new_zeros(batch.max().item() + 1, FEATURES).index_add(0, batch, h)
        return self.last(graphs)


def batch_of(seed: int, graphs: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch of small graphs, the nodes of each side by side, some edges more than once."""
    seeded = torch.Generator().manual_seed(seed)
    sizes = torch.randint(7, 16, (graphs,), generator=seeded)
    starts = sizes.cumsum(0) - sizes
    edges = [
        start + torch.randint(0, int(size), (2, 2 * int(size)), generator=seeded)
        for start, size in zip(starts.tolist(), sizes, strict=True)
    ]
    x = torch.randn(int(sizes.sum()), FEATURES, generator=seeded, dtype=torch.float64)
    return x, torch.cat(edges, 1), torch.arange(graphs).repeat_interleave(sizes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layer", [MeanLayer, NormalisedLayer])
@pytest.mark.parametrize("is_training", [False, True])
def test_new_graphs_plan_and_capture_nothing(
    monkeypatch: pytest.MonkeyPatch, layer: type[nn.Module], is_training: bool
) -> None:
    torch.manual_seed(0)
    dense = Net(layer).double().train(is_training)
    sparse = apply(copy.deepcopy(dense), RECIPE, batch_of(0))
    planned: list[object] = []
    best = Variants.best
    monkeypatch.setattr(Variants, "best", lambda self, sizes: (planned.append(sizes), best(self, sizes))[1])
    for turn in range(BATCHES):
        if turn == BATCHES // 2:
            planned.clear()
        inputs = batch_of(turn + 1)
        found, expected = sparse(*inputs), dense(*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        if is_training:
            sparse.zero_grad()
            dense.zero_grad()
            found.square().sum().backward()
            expected.square().sum().backward()
            for own, other in zip(sparse.parameters(), dense.parameters(), strict=True):
                torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-9)
    assert not planned
    assert len(sparse.variants) == 1
    assert len(sparse.report.regions) >= 2


@pytest.mark.parametrize("layer", [MeanLayer, NormalisedLayer])
def test_layers_share_one_conversion_of_a_graph(
    monkeypatch: pytest.MonkeyPatch, layer: type[nn.Module]
) -> None:
    sparse = apply(Net(layer).double().eval(), RECIPE, batch_of(0))
    computed: list[Structure] = []
    compute = Structure.compute
    monkeypatch.setattr(
        Structure, "compute", lambda self, leaves: (computed.append(self), compute(self, leaves))[1]
    )
    sparse(*batch_of(1))
    assert len(computed) == 2  # of the edges, and of the graphs that nodes belong to
    sparse(*batch_of(1))
    assert len(computed) == 2  # the same entries
