"""Sampled neighbourhoods: parts of the graph, as many neighbours as asked for, each at most once."""

import pytest
import torch

from sparsify.models.neighbours import NeighbourSampler

NODES, EDGES = 40, 300


@pytest.fixture
def edges():
    drawn = torch.Generator().manual_seed(0)
    key = torch.randint(0, NODES * NODES, (EDGES,), generator=drawn).unique()
    return torch.stack([key // NODES, key % NODES])


@pytest.mark.parametrize("fanout", [(3,), (4, 2), (1, 1, 1), (1000, 1000)])
def test_edges_are_some_of_the_graph(edges, fanout):
    sampler = NeighbourSampler(edges, NODES, fanout)
    batch = torch.tensor([7, 3, 21])
    found = sampler.sample(batch)
    assert torch.equal(found.nodes[:3], batch)
    assert len(found.nodes.unique()) == len(found.nodes)
    given = {tuple(pair) for pair in edges.t().tolist()}
    drawn = [tuple(pair) for pair in found.nodes[found.edge_index].t().tolist()]
    assert set(drawn) <= given and len(set(drawn)) == len(drawn)
    degrees = torch.bincount(edges[1], minlength=NODES)
    counts = torch.bincount(found.edge_index[1], minlength=len(found.nodes))
    for place, node in enumerate(batch.tolist()):
        assert counts[place] == min(fanout[0], int(degrees[node]))
    assert int(counts.max()) <= max(fanout)


def test_all_neighbours_are_the_graph_around_a_node(edges):
    sampler = NeighbourSampler(edges, NODES, (NODES,))
    found = sampler.sample(torch.tensor([5]))
    sources = found.nodes[found.edge_index[0]].sort().values
    assert torch.equal(sources, edges[0][edges[1] == 5].sort().values)


def test_neighbours_are_drawn_evenly(edges):
    node = int(torch.bincount(edges[1], minlength=NODES).argmax())
    sampler = NeighbourSampler(edges, NODES, (2,), seed=1)
    counts = torch.zeros(NODES)
    for _ in range(400):
        found = sampler.sample(torch.tensor([node]))
        counts[found.nodes[found.edge_index[0]]] += 1
    expected = 800 / int((edges[1] == node).sum())
    drawn = counts[edges[0][edges[1] == node]]
    assert float(drawn.min()) > expected / 2 and float(drawn.max()) < expected * 2


def test_each_node_is_in_one_batch(edges):
    sampler = NeighbourSampler(edges, NODES, (2, 2))
    nodes = torch.arange(5, 28)
    batches = [batch for batch, _ in sampler.batches(nodes, 10)]
    assert [len(batch) for batch in batches] == [10, 10, 3]
    assert torch.equal(torch.cat(batches).sort().values, nodes)
    assert not torch.equal(torch.cat(batches), nodes)


def test_seeds_decide(edges):
    batch = torch.arange(10)
    first, again, other = (NeighbourSampler(edges, NODES, (2,), seed).sample(batch) for seed in (0, 0, 1))
    assert torch.equal(first.edge_index, again.edge_index)
    assert not torch.equal(first.nodes, other.nodes) or not torch.equal(first.edge_index, other.edge_index)


def test_nodes_without_neighbours():
    found = NeighbourSampler(torch.tensor([[0], [1]]), 4, (3, 3)).sample(torch.tensor([2, 3]))
    assert found.nodes.tolist() == [2, 3] and found.edge_index.shape == (2, 0)
