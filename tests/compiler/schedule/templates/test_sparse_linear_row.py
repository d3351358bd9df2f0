"""Schedules for one row times a sparse matrix: vectorized loops, and loops shared by threads."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import override
from tests.compiler.schedule.templates.test_panels import best

PRODUCT = "Y[t,n] = X[t,k] * W[n,k]"
SLICES = "i/8: dense, j/64: dense, i%8: dense, j%64: sliced(8, crd=int8)"
BITS = "i: dense, j/64: dense, j%64: bitmap"
SHARED = {
    SLICES: (
        "split no nos nop 4; order nos, t, nop, ko, ni, ki; order Y: nos, t, nop, ni; "
        "precompute sums = Y at nop in register; precompute part = sums at ko in register; "
        "pack table_X = X[ki] at ko in register; vector ni in sums; vector ni in part; vector ni in Y; "
        "vector ki in table_X; parallel nos dynamic chunks 4"
    ),
    BITS: (
        "split n ns np 30; order ns, t, np, ko, ki; precompute tile_Y = Y at t in thread; order Y: ns, t, np; "
        "precompute sums = tile_Y at np in register; precompute apart = sums over ki in register; vector ki; "
        "parallel ns dynamic chunks 4"
    ),
    "csr": (
        "pos k p W; split p po pi 8; split n ns np 30; order ns, t, np, po, pi; "
        "precompute tile_Y = Y at t in thread; order Y: ns, t, np; precompute sums = tile_Y at np in register; "
        "precompute apart = sums over pi in register; vector pi; parallel ns dynamic chunks 4"
    ),
}


def sizes(outputs: int = 240, stored: int = 24_000) -> Sizes:
    return Sizes({"t": 1, "n": outputs, "k": 256}, {"W": stored})


@pytest.mark.parametrize("format", SHARED)
def test_threads_share_the_outputs(format):
    assert best(PRODUCT, format, sizes()) == SHARED[format]


@pytest.mark.parametrize("format", SHARED)
def test_one_output_is_not_shared(format):
    found = best(PRODUCT, format, sizes(outputs=1)).split("; ")
    assert found[-1] == "parallel t dynamic chunks 4"
    assert not any(step.startswith("split n") for step in found)


def test_short_rows_have_fewer_sets_of_sums():
    expected = SHARED["csr"].replace("po pi 8", "po pi 4").replace("vector", "unroll")
    assert best(PRODUCT, "csr", sizes(stored=4_000)) == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", ["csr", "j/96: dense, i: dense, j%96: compressed(crd=int8)", BITS])
@pytest.mark.parametrize("vector_bytes", [0, 16, 32, 64])
def test_one_row_of_long_rows(dtype, format, vector_bytes):
    seeded = torch.Generator().manual_seed(0)
    W = torch.randint(-3, 4, (9, 301), generator=seeded) * (torch.rand(9, 301, generator=seeded) < 0.6)
    W[3], W[5, :40] = 0, 1
    X = torch.randint(-3, 4, (1, 301), generator=seeded)
    # Infinite where W has no entries: a column of zeros.
    W[:, 77], x = 0, X.double()
    X, wanted = X.to(dtype), x @ W.double().T
    X[0, 77] = torch.inf
    with override(vector_bytes=vector_bytes):
        kernel = evaluate_kernel(PRODUCT, X=X, W=sparsify.tensor(W.to(dtype), format))
        found = kernel(X, sparsify.tensor(W.to(dtype), format))
    assert torch.equal(found.double(), wanted.to(dtype).double())
