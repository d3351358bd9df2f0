"""Expected densities against manual and random patterns, and results that become dense."""

from dataclasses import replace

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.infer.density import expected_density
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.kernel import compile_program
from tests.compiler.einsum.programs import CSR, MATRIX, VECTOR, operand, program

DENSITIES = {"A": 0.1, "B": 0.2, "E": 0.5}
EXTENTS = {"i": 10, "j": 100, "k": 20}
RELATION = operand("dense, compressed, singleton")
MINUS_INF = operand("csr", fill=-float("inf"))


@pytest.mark.parametrize(
    ("text", "density"),
    [
        ("Y[i,j] = A[i,j]", 0.1),
        ("Y[i,j] = stored(A[i,j])", 0.1),
        ("Y[i,j] = U[i,j]", 0.0),  # nothing is said of U
        ("Y[i,j] = X[i,j] * 2", 1.0),
        ("Y[i,j] = 3 * relu(A[i,j])", 0.1),
        ("Y[i,j] = A[i,j] * B[i,j]", 0.1 * 0.2),
        ("Y[i,j] = A[i,j] * X[i,j]", 0.1),
        ("Y[i,j] = A[i,j] * A[i,j]", 0.1),
        ("Y[i,j] = A[i,j] + B[i,j]", 0.1 + 0.2),
        ("Y[i,j] = A[i,j] - A[i,j]", 0.1),
        ("Y[i,j] = A[i,j] + 1", 0.1),
        ("Y[i,j] = A[i,j] + X[i,j]", 1.0),
        ("Y[i,j] = E[i,j,i] + E[j,i,j] + E[i,i,j]", 1.0),
        ("Y[i,j] = A[i,j] / B[i,j]", 0.1),
        ("Y[i,j] = where(stored(A[i,j]), X[i,j], 0)", 0.1),
        ("Y[i,j] = where(stored(A[i,j]), X[i,j], B[i,j])", 0.1 + 0.2),
        ("Y[i,j] = where(X[i,j] > 0, A[i,j], B[i,j])", 0.1 + 0.2),
        ("Y[i,j] = where(X[i,j] > 0, A[i,j], 0)", 0.1),
        ("Y[i,j] = where(stored(A[i,j]), X[i,j], 1)", 0.1),
        ("Y[i,k] = sum(j, A[i,j] * B[j,k])", 1 - (1 - 0.1 * 0.2) ** 100),
        ("Y[i] = sum(j, A[i,j])", 1 - 0.9**100),
        ("Y[i,j] = sum(k, A[i,j] * X[i,k] * X[j,k])", 0.1),
        ("Y[i,k] = sum(j, A[i,j] * B[j,k] * A[i,k])", 0.1 * (1 - (1 - 0.1 * 0.2) ** 100)),
        ("Y[i,k] = max(j, M[i,j] + M[j,k])", 1 - (1 - 0.04) ** 100),
        ("Y[i,j] = sum(k, A[i,j] + X[j,k])", 1.0),
        ("Y = sum(i, j, A[i,j])", 1 - 0.9**1000),
    ],
)
def test_rules(text: str, density: float) -> None:
    kinds = {"A": CSR, "B": CSR, "U": CSR, "E": RELATION, "X": MATRIX, "M": MINUS_INF}
    made = program(text, **{name: kind for name, kind in kinds.items() if f"{name}[" in text})
    known = {declared.name: declared for declared in made.declarations}
    found = expected_density(made.statements[0].value, known, {**DENSITIES, "M": 0.2}, EXTENTS)
    assert found == pytest.approx(density)


def test_what_shares_a_pattern_is_as_dense() -> None:
    made = program("S[i,j,h] = A[i,j] * X[j,h]\nP[i,j,h] = S[i,j,h] * A[i,j]", A=CSR, X=MATRIX)
    known = {declared.name: declared for declared in made.declarations}
    assert expected_density(made.statements[1].value, known, DENSITIES, EXTENTS) == 0.1


def test_products_of_random_patterns_are_as_dense_as_expected() -> None:
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.rand(*shape, generator=drawn) < 0.1 for shape in ((200, 50), (50, 300)))
    made = program("C[i,k] = sum(j, A[i,j] * B[j,k])", A=CSR, B=CSR)
    known = {declared.name: declared for declared in made.declarations}
    densities = {"A": a.float().mean().item(), "B": b.float().mean().item()}
    found = expected_density(made.statements[0].value, known, densities, {"j": 50})
    assert found == pytest.approx(((a.float() @ b.float()) > 0).float().mean().item(), rel=0.03)


@pytest.mark.parametrize(
    ("text", "densities", "is_dense"),
    [
        ("C[i,k] = sum(j, A[i,j] * B[j,k])", None, False),
        ("C[i,k] = sum(j, A[i,j] * B[j,k])", {}, False),
        ("C[i,k] = sum(j, A[i,j] * B[j,k])", {"A": 0.1}, False),
        ("C[i,k] = sum(j, A[i,j] * B[j,k])", {"A": 0.01, "B": 0.01}, False),
        ("C[i,k] = sum(j, A[i,j] * B[j,k])", {"A": 0.1, "B": 0.1}, True),
        ("C[i,k] += A[i,j] * B[j,k]", {"A": 0.1, "B": 0.1}, True),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": 0.2, "B": 0.2}, True),
        ("C[i,j] = A[i,j] * x[i]", {"A": 0.9}, False),  # its pattern is known
        ("T[i,k] = sum(j, A[i,j] * B[j,k])\nC[i,l] = sum(k, T[i,k] * B[k,l])", {"A": 0.04, "B": 0.04}, True),
    ],
)
def test_results_that_are_expected_to_be_full_are_dense(text, densities, is_dense) -> None:
    operands = {"A": CSR, "B": CSR, "x": VECTOR}
    operands = {name: kind for name, kind in operands.items() if f"{name}[" in text}
    shapes = {"A": (100, 100), "B": (100, 100), "x": (100,)}
    given = {name: shapes[name] for name in operands}
    made = declare(parse(text), operands, ("C",), shapes=given, densities=densities)
    assert made.declaration("C").format.is_dense == is_dense


def test_dense_results_have_the_same_values() -> None:
    drawn = torch.Generator().manual_seed(1)
    a, b = (torch.rand(30, 30, dtype=torch.float64, generator=drawn) for _ in range(2))
    a, b = torch.where(a < 0.3, a, 0), torch.where(b < 0.3, b, 0)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    text = "C[i,k] = sum(j, A[i,j] * B[j,k])"
    plain = evaluate_kernel(text, A=A, B=B).program
    assert not plain.declaration("C").format.is_dense
    kept = tuple(d for d in plain.declarations if d.name in plain.inputs)
    made = infer_format(replace(plain, declarations=kept), {"A": 0.3, "B": 0.3}, {"j": 30})
    torch.testing.assert_close(compile_program(made)(A, B), a @ b)
