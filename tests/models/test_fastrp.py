"""Features made from a graph."""

import numpy as np
import scipy.sparse

from sparsify.models.data.fastrp import HOP_WEIGHTS, fastrp


def two_cliques():
    """Two complete graphs of 20 nodes, joined by one edge."""
    block = np.ones((20, 20)) - np.eye(20)
    dense = np.kron(np.eye(2), block)
    dense[0, 20] = dense[20, 0] = 1
    return scipy.sparse.csr_array(dense)


def test_uses_hops_two_to_four():
    assert HOP_WEIGHTS == (0.0, 1.0, 1.0, 1.0)


def test_nodes_of_one_clique_are_alike():
    x = fastrp(two_cliques(), dimensions=64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    alike = x @ x.T
    assert alike[1:20, 1:20].min() > 0.8
    assert alike[1:20, 21:].max() < 0.5


def test_entries_have_unit_variance():
    np.testing.assert_allclose(fastrp(two_cliques(), dimensions=16).std(), 1.0, rtol=1e-5)


def test_lonely_nodes_get_zeros_not_nan():
    x = fastrp(scipy.sparse.csr_array((3, 3), dtype=np.float32), dimensions=4)
    assert np.array_equal(x, np.zeros((3, 4), dtype=np.float32))
