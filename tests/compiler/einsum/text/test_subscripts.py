"""Subscripts as in torch.einsum."""

import numpy as np
import pytest
import torch

from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.einsum.text.subscripts import read_subscripts
from sparsify.errors import EinsumError, ShapeError
from tests.compiler.einsum.programs import operand

CASES = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij, jk", [(2, 3), (3, 4)]),
    ("ba,c", [(2, 3), (4,)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("ij->", [(2, 3)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
    ("...ij,jk", [(2, 2, 2, 3), (3, 4)]),
    ("b...,b...->...", [(2, 1, 4), (2, 3, 4)]),
    ("...a,...a->...", [(3, 4), (2, 3, 4)]),
    ("ij,ij->ij", [(1, 3), (2, 1)]),
    ("aB,Bc", [(2, 3), (3, 2)]),
    ("ijl,kj,lj->ik", [(2, 3, 4), (5, 3), (4, 3)]),
    ("i,i,i->i", [(3,), (3,), (3,)]),
    (",i->i", [(), (3,)]),
]


@pytest.mark.parametrize(("text", "shapes"), CASES, ids=[text for text, _ in CASES])
def test_as_torch(text, shapes):
    rng = np.random.default_rng(0)
    assign = read_subscripts(text, shapes, names=[f"X{n}" for n in range(len(shapes))])
    arrays = {f"X{n}": rng.standard_normal(shape) for n, shape in enumerate(shapes)}
    formats = {
        name: operand("dense", "float64")
        if a.ndim == 1
        else operand(", ".join(["dense"] * a.ndim) or "scalar")
        for name, a in arrays.items()
    }
    result = interpret(declare((assign,), formats), arrays)[assign.target.tensor][0]
    expected = torch.einsum(text, *map(torch.as_tensor, arrays.values())).numpy()
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_names():
    assert str(read_subscripts("ij,jk", [(2, 3), (3, 4)])) == "Y[i,k] = sum(j, A[i,j] * B[j,k])"
    assert str(read_subscripts("iA,A", [(2, 3), (3,)])) == "Y[i] = sum(A, B[i,A] * C[A])"


@pytest.mark.parametrize(
    ("text", "shapes", "error", "message"),
    [
        ("ij,jk->il", [(2, 3), (3, 4)], EinsumError, "l of the result is in no operand"),
        ("ij->ii", [(2, 3)], EinsumError, "i occurs 2 times in the result"),
        ("ij,jk", [(2, 3), (4, 4)], ShapeError, "j has extent 3 in operand 0 and 4 in operand 1"),
        ("ij", [(2,)], EinsumError, "operand 0 has 1 modes"),
        ("i,j", [(2,)], EinsumError, "names 2 operands, 1 were given"),
        ("i.j", [(2, 2)], EinsumError, "'.' in 'i.j'"),
        ("ij->...", [(2, 2)], EinsumError, "the result has '...'"),
        ("", [], EinsumError, "no operand"),
        (",".join(["i"] * 201), [(2,)] * 201, EinsumError, "200 at most"),
    ],
)
def test_mistakes(text, shapes, error, message):
    with pytest.raises(error, match=message):
        read_subscripts(text, shapes)
