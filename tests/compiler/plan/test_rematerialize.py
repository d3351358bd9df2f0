"""Values saved for backward or rematerialized, by their bytes."""

import pytest

from sparsify.compiler.plan.rematerialize import keeping, with_results
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from tests.compiler.einsum.programs import CSR, MATRIX, program
from tests.compiler.einsum.rewrite.test_softmax_shift import GUARDED, OPERANDS, SOFTMAX

ATTENTION = program(SOFTMAX + GUARDED, **OPERANDS)


def sizes(rows: int, stored: int, width: int) -> Sizes:
    extents = {"i": rows, "j": rows, "k": width, "l": width}
    return Sizes(extents, {"M": stored})


@pytest.mark.parametrize(
    ("known", "kept", "again"),
    [
        (sizes(1000, 100_000, 64), ("m", "d"), ("S", "P")),
        (sizes(1000, 1000, 64), ("S", "m", "P", "d"), ()),
        (UNKNOWN, (), ()),
        (Sizes({"i": 1000, "j": 1000, "k": 64, "l": 64}), (), ()),
    ],
)
def test_what_is_small_is_kept(known, kept, again):
    found = keeping(ATTENTION, known)
    assert (found.kept, found.again) == (kept, again)


def test_bytes():
    found = keeping(ATTENTION, sizes(1000, 100_000, 64))
    assert str(found) == (
        "gradients keep m (8,000 bytes), d (8,000 bytes) and compute again S (800,000 bytes), P (800,000 bytes) "
        "beside 2,848,000 bytes of operands and results"
    )


def test_dense_temporaries_that_are_large_have_kernels_of_their_own():
    layers = program("T[j,k] = X[j,f]*W[f,k]\nY[i,k] = relu(A[i,j]*T[j,k])", X=MATRIX, W=MATRIX, A=CSR)
    found = keeping(layers, Sizes({"i": 50, "j": 50, "k": 8, "f": 8}, {"A": 100}))
    assert (found.kept, found.again) == ((), ())


def test_results_are_temporaries_or_copies_of_them():
    assert with_results(ATTENTION, ("m",), copied=False).outputs == ("Y", "m")
    copied = with_results(ATTENTION, ("m",), copied=True)
    assert copied.outputs == ("Y", "kept_m")
    assert str(copied.statements[-1]) == "kept_m[i] = m[i]"
