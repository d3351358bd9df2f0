"""The graph made from a seed."""

import pytest
import torch

from sparsify.models.data.synthetic import synthetic


@pytest.fixture(scope="module")
def graph():
    return synthetic()


def test_has_the_size_of_pubmed(graph):
    assert graph.x.shape == (19_717, 500)
    assert graph.edge_index.shape == (2, 88_648)
    assert graph.classes == 3
    assert graph.x.dtype is torch.float32
    assert graph.edge_index.dtype is torch.int64


def test_equal_seeds_give_equal_bits(graph):
    assert synthetic(seed=0).fingerprint == graph.fingerprint


def test_other_seed_gives_another_graph():
    first, second = (synthetic(nodes=200, edges=800, features=20, seed=seed) for seed in (0, 1))
    assert first.fingerprint != second.fingerprint


def test_edges_are_undirected_single_and_no_loops(graph):
    source, target = graph.edge_index
    keys = source * graph.nodes + target
    assert bool((keys[1:] > keys[:-1]).all()), "sorted, so no edge twice"
    assert torch.equal(torch.sort(target * graph.nodes + source).values, keys)
    assert not bool((source == target).any())


def test_degrees_have_a_heavy_tail(graph):
    degrees = torch.bincount(graph.edge_index[0], minlength=graph.nodes).float()
    top = degrees.sort(descending=True).values[: graph.nodes // 100].sum() / degrees.sum()
    assert degrees.mean() == pytest.approx(4.5, abs=0.1)
    assert 80 < degrees.max() < 300
    # A random graph of this mean has its busiest hundredth hold 0.025 of all ends.
    assert top > 0.1


def test_degrees_follow_the_power_law(graph):
    """The slope of the tail's cumulative distribution is near 1 - exponent."""
    degrees = torch.bincount(graph.edge_index[0], minlength=graph.nodes).double()
    at = torch.tensor([6.0, 12.0, 24.0], dtype=torch.float64)
    share = torch.stack([(degrees >= d).double().mean() for d in at])
    slope = (share[-1].log() - share[0].log()) / (at[-1].log() - at[0].log())
    assert -1.9 < float(slope) < -1.2


def test_features_are_sparse_and_rows_sum_to_one(graph):
    assert graph.feature_density == pytest.approx(0.09, abs=0.003)
    sums = graph.x.sum(dim=1)
    assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all())


def test_words_and_edges_tell_the_class(graph):
    source, target = graph.edge_index
    assert (graph.y[source] == graph.y[target]).float().mean() > 0.7
    used = torch.stack([(graph.x[graph.y == c] > 0).float().mean(dim=0) for c in range(3)])
    assert bool((used.max(dim=0).values / used.min(dim=0).values.clamp(min=1e-3) > 1.5).sum() > 100)


def test_split_is_disjoint_and_balanced(graph):
    parts = torch.cat([graph.train, graph.val, graph.test])
    assert (len(graph.train), len(graph.val), len(graph.test)) == (60, 500, 1000)
    assert len(parts.unique()) == 1560
    assert torch.equal(torch.bincount(graph.y[graph.train]), torch.tensor([20, 20, 20]))


def test_small_graph_has_all_parts():
    graph = synthetic(nodes=40, edges=80, features=10)
    assert min(len(graph.train), len(graph.val), len(graph.test)) > 0


def test_too_many_edges_are_refused():
    with pytest.raises(ValueError, match="10 nodes are too few for 40 undirected edges"):
        synthetic(nodes=10, edges=80)
