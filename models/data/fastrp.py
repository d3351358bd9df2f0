"""Node features generated from the graph alone.

In: an adjacency [n, n]. Out: features [n, dimensions], similar for nodes with common neighbours.
"""

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

HOP_WEIGHTS = (0.0, 1.0, 1.0, 1.0)
DEGREE_POWER = -0.5


def fastrp(adjacency: "scipy.sparse.csr_array", dimensions: int = 128, seed: int = 0) -> NDArray[np.float32]:
    """Random projections of the 2 to 4-step neighbourhoods of every node, [n, dimensions].

    A Gaussian matrix, its rows scaled by a power of the degrees, is averaged over neighbours hop by hop; the rows of
    hops 2, 3 and 4 are normalised and added, and the sum is scaled to unit variance. Labels and given features are not
    used.

    Args:
        adjacency: A [n, n], undirected, without weights.
        dimensions: columns of the result.
        seed: seed of the projection.

    Source: Chen, Sultan, Tian, Chen and Skiena, Fast and accurate network embeddings via very sparse random
    projection, CIKM 2019 (Gaussian instead of very sparse projections).

    >>> fastrp(scipy.sparse.csr_array([[0.0, 1.0], [1.0, 0.0]]), dimensions=3).shape
    (2, 3)
    """
    nodes = adjacency.shape[0]
    degrees = np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1.0)
    transition = scipy.sparse.csr_array(scipy.sparse.diags_array(1.0 / degrees) @ adjacency, dtype=np.float32)
    rng = np.random.default_rng(seed)
    hop = rng.standard_normal((nodes, dimensions), dtype=np.float32)
    hop *= (degrees / degrees.mean()).astype(np.float32)[:, None] ** np.float32(DEGREE_POWER)
    total = np.zeros_like(hop)
    for weight in HOP_WEIGHTS:
        hop = transition @ hop
        lengths = np.linalg.norm(hop, axis=1, keepdims=True)
        total += np.float32(weight) * hop / np.maximum(lengths, np.float32(1e-12))
    total /= max(total.std(), np.float32(1e-6))
    return total
