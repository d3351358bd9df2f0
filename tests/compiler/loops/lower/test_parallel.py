"""Loops over threads: parts of what runs in a tile that the edge cuts."""

import pytest
import torch

import sparsify

BLOCKS = "j/4: dense, i: dense, j%4: compressed"


@pytest.mark.parametrize("rest", ["", "; split i io ii 2 tail 1"])
def test_threads_share_no_more_of_a_block_than_the_edge_leaves(rest):
    """11 = 2 blocks of 4 and 3: all coordinates of a block run, stored or not."""
    a, b = (torch.randn(11, 11, generator=torch.Generator().manual_seed(n)) for n in range(2))
    a = a * (a > 0.3)
    found = sparsify.evaluate(
        "Y[i,j] = A[i,j] + B[i,j] * B[j,i]",
        A=sparsify.tensor(a, BLOCKS),
        B=b,
        schedule=f"order jo, i, ji{rest}; parallel ji",
    )
    torch.testing.assert_close(found, a + b * b.t())
