"""Formats on the pattern of another tensor with dense levels below, and the corresponding accesses."""

import numpy as np
import pytest

from sparsify.compiler.einsum.infer.shared_pattern import (
    further_extents,
    over_modes,
    root_access,
    shared_access,
    shared_format,
)
from sparsify.compiler.einsum.nodes import Access, Declaration, Index
from sparsify.storage.format import Format
from tests.compiler.einsum.programs import CSR, MATRIX, VECTOR, operand, program

RELATION = "dense, compressed, singleton"


def indices(names: str) -> tuple[Index, ...]:
    return tuple(map(Index, names))


@pytest.mark.parametrize(
    ("form", "places", "names", "letters"),
    [
        ("csr", "ij", "ij", "d0s1"),
        ("csr", "ij", "ijh", "d0s1d2"),
        ("csr", "ij", "hij", "d1s2d0"),
        ("csr", "ij", "ihjk", "d0s2d1d3"),
        ("csc", "ij", "ijh", "d1s0d2"),
        (RELATION, "iej", "iejh", "d0o1o2d3"),
        (RELATION, "iej", "hiej", "d1o2o3d0"),
        ("csr", "ij", "ji", None),  # in the other order there is nothing to share
        ("csr", "ij", "ik", None),
        ("csr", "ii", "ih", None),
        ("bcsr(2, 2)", "ij", "ijh", None),
        ("i: dense, j: bitmap", "ij", "ijh", None),
    ],
)
def test_shared_format(form: str, places: str, names: str, letters: str | None) -> None:
    root = Declaration("A", tuple(places), Format(form), "float32")
    found = shared_format(root, indices(places), indices(names))
    assert (None if found is None else found.letters) == letters


def test_accesses_and_masks_of_the_tensor_that_is_shared() -> None:
    root = Declaration("A", ("i", "j"), Format("csc"), "float32")
    format = shared_format(root, indices("ij"), indices("hij"))
    assert format is not None
    own = Declaration("S", ("h", "i", "j"), format, "float32", pattern_of="A")
    assert root_access(own, root, Access("S", indices("pqr"))) == Access("A", indices("qr"))
    assert further_extents(own, root) == ("h",)
    stored = np.array([[True, False, True], [False, False, True]])
    mask = over_modes(own, root, stored, (4, 2, 3))
    assert mask.shape == (4, 2, 3) and (mask == stored).all()


@pytest.mark.parametrize(
    ("text", "operands", "letters", "pattern_of"),
    [
        ("S[i,j,h] = A[i,j] * X[i,h]", {"A": CSR, "X": MATRIX}, "d0s1d2", "A"),
        ("S[i,h,j] = where(stored(A[i,j]), X[j,h], -inf)", {"A": operand("coo"), "X": MATRIX}, "o0o2d1", "A"),
        ("S[h,i,j] = A[i,j] * X[i,h]", {"A": operand("dcsr"), "X": MATRIX}, "s1s2d0", "A"),
        ("S[h,i,e,j] = E[i,e,j] * X[j,h]", {"E": operand(RELATION), "X": MATRIX}, "d1o2o3d0", "E"),
        # As before: rows of each head one after the other, and what is no entry of one operand.
        ("S[h,i,j] = A[i,j] * X[i,h]", {"A": CSR, "X": MATRIX}, "d0d1s2", None),
        ("S[i,j,h] = A[i,j] * B[j,h]", {"A": CSR, "B": CSR}, "s0s1s2", None),
        ("S[i,j,h] = A[i,j] + x[h]", {"A": CSR, "x": VECTOR}, "d0d1d2", None),
        ("S[i,j,h] = A[i,j] * X[i,h]", {"A": operand("bcsr(2, 2)"), "X": MATRIX}, "s0s1s2", None),
    ],
)
def test_results_with_further_modes(text, operands, letters, pattern_of) -> None:
    declared = program(text, **operands).declaration("S")
    assert (declared.format.letters, declared.pattern_of) == (letters, pattern_of)


def test_what_is_computed_of_them_shares_the_pattern_too() -> None:
    made = program(
        "S[h,i,e,j] = E[i,e,j] * X[j,h]\nP[h,i,e,j] = 2 * S[h,i,e,j]", E=operand(RELATION), X=MATRIX
    )
    assert made.declaration("P").format == made.declaration("S").format
    assert made.declaration("P").pattern_of == "E"
    assert shared_access(made, made.statements[1].target) == Access("E", indices("iej"))
