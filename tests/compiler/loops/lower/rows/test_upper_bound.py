"""Sums of sparse rows in memory of an upper bound: correct with any number of threads, trimmed to stored entries."""

import pytest
import torch

import sparsify
from sparsify import options

SUM = "Y[i,j] = A[i,j] + B[i,j]"
THREADS = "order i, j; parallel i dynamic A"


def random(shape, seed, density):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * (torch.rand(shape, generator=draw) < density)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(300, 40), (1, 1), (0, 4), (4, 0)], ids=str)
def test_sums_are_right_and_sorted(shape, threads):
    """Empty rows, equal patterns and disjoint patterns: gaps between rows must be closed."""
    a, b = random(shape, 0, 0.2), random(shape, 1, 0.2)
    a[shape[0] // 2 :] = 0
    with options.override(threads=threads, serial_threshold=0):
        for x, y in ((a, b), (b, a), (a, a * 2), (a, torch.zeros(shape))):
            X, Y = sparsify.tensor(x, "csr"), sparsify.tensor(y, "csr")
            found = sparsify.evaluate(SUM, A=X, B=Y, format="csr", schedule=THREADS)
            torch.testing.assert_close(found.to_dense(), x + y)
            sparsify.tensor(found.to_torch())  # refuses what is not sorted or stored twice
            assert len(found.values()) == found.pattern.nnz == int(((x != 0) | (y != 0)).sum())


def test_an_intersection_takes_the_room_of_one_operand():
    """A result far below its upper bound is copied to memory of its exact size."""
    a, b = random((400, 300), 0, 0.5), random((400, 300), 1, 0.01)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    found = sparsify.evaluate("Y[i,j] = A[i,j] * B[i,j]", A=A, B=B, format="csr")
    torch.testing.assert_close(found.to_dense(), a * b)
    assert found.values().untyped_storage().nbytes() <= 4 * found.pattern.nnz * 9 // 8 + 64


def test_two_modes_make_the_rows():
    shape = (5, 6, 70)
    a, b, c = (random(shape, seed, 0.3) for seed in range(3))
    A, B, C = (sparsify.tensor(x, "dense, dense, compressed") for x in (a, b, c))
    with options.override(threads=2, serial_threshold=0):
        found = sparsify.evaluate(
            "Y[i,j,k] = A[i,j,k] + B[i,j,k] * C[i,j,k]", A=A, B=B, C=C, format="dense, dense, compressed"
        )
    torch.testing.assert_close(found.to_dense(), a + b * c)
