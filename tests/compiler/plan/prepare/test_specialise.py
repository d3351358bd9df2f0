"""Specialization: extents that become constants, and correct results for every extent."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import einsum_kernel, evaluate_kernel
from sparsify.compiler.plan.prepare import specialise
from sparsify.errors import ShapeError
from sparsify.options import override

SAMPLED = "ij,ik,jk->ij"


def operands(columns: int) -> tuple[torch.Tensor, ...]:
    """A sparse, and two dense matrices with so many columns."""
    draw = torch.Generator().manual_seed(columns)
    A = (torch.rand(9, 7, generator=draw) < 0.4) * torch.ones(())
    dense = (torch.randn(extent, columns, generator=draw) for extent in (9, 7))
    return sparsify.tensor(A, "csr"), *dense


@pytest.mark.parametrize("columns", [1, 5, 16, 40, 128])
@pytest.mark.parametrize("vector_bytes", [0, 32, 64])
def test_sampled_products(columns: int, vector_bytes: int) -> None:
    given = operands(columns)
    A, P, Q = given
    with override(vector_bytes=vector_bytes):
        found = sparsify.einsum(SAMPLED, *given)
        kernel, _ = einsum_kernel(SAMPLED, given, None, None)
    assert dict(kernel.program.extents) == {"k": columns}
    torch.testing.assert_close(found.to_dense(), A.to_dense() * (P @ Q.T))


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,ij->i", "ij,ij->ij", "ij,ik,jk->ik"])
def test_other_sums_have_no_constants(subscripts: str) -> None:
    shapes = {"ij": (3, 3), "jk": (3, 4), "ik": (3, 4)}
    dense = [torch.ones(shapes[part]) for part in subscripts.split("->")[0].split(",")[1:]]
    kernel, _ = einsum_kernel(subscripts, (sparsify.tensor(torch.eye(3), "csr"), *dense), None, None)
    assert kernel.program.extents == ()


def test_no_columns_are_no_constant() -> None:
    A, P, Q = operands(0)
    assert sparsify.einsum(SAMPLED, A, P, Q).values().tolist() == [0.0] * A.values().numel()


def test_a_program_has_a_few_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialise, "_given", {})
    monkeypatch.setattr(specialise, "MOST", 2)
    kernels = {}
    for columns in (201, 202, 203, 201):
        given = operands(columns)
        kernels[columns], _ = einsum_kernel(SAMPLED, given, None, None)
        A, P, Q = given
        expected = A.to_dense() * (P @ Q.T)
        torch.testing.assert_close(kernels[columns](*given).to_dense(), expected, rtol=1e-4, atol=1e-4)
    assert [dict(kernels[columns].program.extents) for columns in (201, 202, 203)] == [
        {"k": 201},
        {"k": 202},
        {},
    ]


ATTENTION = """
S[i,j] = where(stored(A[i,j]), sum(k, Q[i,k] * K[j,k]), -inf)
m[i] max= S[i,j]
P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))
d[i] += P[i,j]
Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [1, 16, 21])
def test_channels_of_attention(columns: int) -> None:
    A, Q, K = operands(columns)
    V = torch.linspace(-1, 1, 7 * 5).view(7, 5).requires_grad_()
    kernel = evaluate_kernel(ATTENTION, A=A, Q=Q, K=K, V=V)
    assert (
        dict(kernel.program.extents) == {"k": columns, "l": 5} == dict(kernel.adjoint(("V",)).program.extents)
    )
    scores = (Q @ K.T).double().masked_fill(A.to_dense() == 0, -torch.inf)
    expected = torch.softmax(scores, -1).nan_to_num().float() @ V
    found = sparsify.evaluate(ATTENTION, A=A, Q=Q, K=K, V=V)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(result.square().sum(), V)[0] for result in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "text",
    ["T[j,k] = X[j,l] * W[l,k]\nY[i,k] = A[i,j] * T[j,k]", "T[i,j] = A[i,j] * 2\nY[i,k] = T[i,j] * X[j,k]"],
)
def test_chains_without_numbers_of_rows_have_no_constants(text: str) -> None:
    A = operands(1)[0]
    given = {"X": torch.ones(7, 3), "W": torch.ones(3, 4)}
    read = {name: tensor for name, tensor in given.items() if f"{name}[" in text}
    assert evaluate_kernel(text, A=A, **read).program.extents == ()


def test_gradients() -> None:
    A, P, Q = operands(6)
    given = P.double().requires_grad_(), Q.double().requires_grad_()
    pattern = A.double()
    assert torch.autograd.gradcheck(
        lambda p, q: sparsify.einsum(SAMPLED, pattern, p, q).values(), given, fast_mode=True
    )


def test_graphs_for_every_extent_have_no_constants() -> None:
    pattern = operands(1)[0]

    def product(P: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
        return sparsify.einsum(SAMPLED, pattern, P, Q).to_dense()

    compiled = torch.compile(product, dynamic=True, backend="eager")
    for columns in (3, 5, 8):
        _, P, Q = operands(columns)
        torch.testing.assert_close(compiled(P, Q), pattern.to_dense() * (P @ Q.T))


def test_shortcuts_know_which_extents_are_constants() -> None:
    """Sizes of one class share a kernel with extents as arguments, but not a kernel with constant extents."""
    for columns in (128, 128, 128, 130, 140, 128):
        A, P, Q = operands(columns)
        found = sparsify.einsum(SAMPLED, A, P, Q)
        torch.testing.assert_close(found.to_dense(), A.to_dense() * (P @ Q.t()))
    kernel, _ = einsum_kernel(SAMPLED, operands(128), None, None)
    for _ in range(3):
        kernel(*operands(128))
    with pytest.raises(ShapeError, match="130"):
        kernel(*operands(130))
