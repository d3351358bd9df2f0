"""ogbn-arxiv: its files, its split by year, features with and without the feature file."""

import gzip

import numpy as np
import pytest
import scipy.sparse
import torch

from sparsify.errors import DataError
from sparsify.models import data


def write(folder, name, rows):
    with gzip.open(folder / name, "wt") as stream:
        stream.writelines(f"{row}\n" for row in rows)


@pytest.fixture
def root(tmp_path):
    """Four papers: 0 cites 1 and itself, 2 cites 0, 1 cites 0; 3 is alone."""
    raw = tmp_path / "ogbn_arxiv/raw"
    raw.mkdir(parents=True)
    write(raw, "node-label.csv.gz", [0, 1, 0, 2])
    write(raw, "node_year.csv.gz", [2010, 2017, 2018, 2019])
    write(raw, "edge.csv.gz", ["0,1", "0,0", "2,0", "1,0"])
    return tmp_path


def test_edges_go_both_ways_once_without_loops(root):
    graph = data.load("ogbn-arxiv", root)
    assert graph.edge_index.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert graph.classes == 3


def test_split_by_year(root):
    graph = data.load("ogbn-arxiv", root)
    assert (graph.train.tolist(), graph.val.tolist(), graph.test.tolist()) == ([0, 1], [2], [3])


def test_matrix_file_gives_the_same_graph(root):
    raw = root / "ogbn_arxiv/raw"
    matrix = scipy.sparse.csr_matrix((np.ones(4, dtype=bool), ([0, 0, 2, 1], [1, 0, 0, 0])), shape=(4, 4))
    from_edges = data.load("ogbn-arxiv", root)
    scipy.sparse.save_npz(raw / "adj_full.npz", matrix)
    assert data.load("ogbn-arxiv", root).fingerprint == from_edges.fingerprint


def test_made_features_are_named_and_seeded(root):
    first, again, other = (data.load("ogbn-arxiv", root, seed=seed) for seed in (0, 0, 1))
    assert first.x.shape == (4, 128)
    assert "made from the graph" in first.features
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


def test_feature_file_is_used_when_there(root):
    write(root / "ogbn_arxiv/raw", "node-feat.csv.gz", ["1,2", "3,4", "5,6", "7,8.5"])
    graph = data.load("ogbn-arxiv", root)
    assert graph.x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8.5]]
    assert "benchmark's own" in graph.features


def test_feature_file_of_another_length(root):
    write(root / "ogbn_arxiv/raw", "node-feat.csv.gz", ["1,2", "3,4"])
    with pytest.raises(DataError, match="2 rows for 4 nodes"):
        data.load("ogbn-arxiv", root)


@pytest.mark.parametrize("missing", ["edge.csv.gz", "node_year.csv.gz", "node-label.csv.gz"])
def test_missing_file_is_named(root, missing):
    (root / "ogbn_arxiv/raw" / missing).unlink()
    with pytest.raises(DataError, match=missing):
        data.load("ogbn-arxiv", root)


def test_without_root_the_error_says_what_to_do():
    with pytest.raises(DataError, match=r"ogbn_arxiv/raw/node-label.csv.gz .*--data-root DIR"):
        data.load("ogbn-arxiv")


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_real_graph_has_the_published_sizes(data_root):
    graph = data.load("ogbn-arxiv", data_root)
    assert (graph.nodes, graph.edges, graph.classes) == (169_343, 2_315_598, 40)
    assert (len(graph.train), len(graph.val), len(graph.test)) == (90_941, 29_799, 48_603)
