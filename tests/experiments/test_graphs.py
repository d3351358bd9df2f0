"""What is measured on: sizes, and that real data is told from generated."""

import pytest
import torch

from experiments import graphs


def test_mesh_has_three_rows_of_one_pattern():
    found = graphs.mesh(40)
    assert found.shape == (120, 120)
    counts = found.crow_indices().diff()
    assert torch.equal(counts[0::3], counts[1::3])
    assert 20 < counts.float().mean() < 60


@pytest.mark.parametrize("name", [*graphs.SIZES, "fem"])
def test_generated_matrices_say_so(name):
    found = graphs.matrix(name, None, 0.005)
    assert "generated" in found.source
    assert found.csr.col_indices().dtype == torch.int32
    assert int(found.csr.col_indices().max()) < found.rows


def test_real_graphs_say_so(data_root):
    found = graphs.matrix("cora", data_root)
    assert (found.rows, found.nnz, found.source) == (2708, 13264, "real")


def test_conversions_keep_the_matrix():
    found = graphs.mesh(10)
    assert torch.equal(graphs.widened(found).to_dense(), found.to_dense())
    assert torch.equal(torch.from_numpy(graphs.scipy_of(found).toarray()), found.to_dense())
