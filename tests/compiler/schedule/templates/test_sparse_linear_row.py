"""Schedules for one row times a sparse matrix: vectorized loops, and loops shared by threads."""

import pytest

from sparsify.compiler.schedule.sizes import Sizes
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
        "precompute apart = sums over pi in register; unroll pi; parallel ns dynamic chunks 4"
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
    assert best(PRODUCT, "csr", sizes(stored=4_000)) == SHARED["csr"].replace("po pi 8", "po pi 4")
