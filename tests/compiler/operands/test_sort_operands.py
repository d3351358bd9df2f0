"""Operands with unordered levels are read in ascending order."""

import pytest
import torch

import sparsify
from sparsify.compiler.operands.sort_operands import ascending, ordered
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

EXTENT = 12


@pytest.fixture
def dense() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    kept = torch.rand(EXTENT, EXTENT, generator=draw) < 0.4
    return torch.randn(EXTENT, EXTENT, generator=draw) * kept


def shuffled(dense: torch.Tensor) -> SparseTensor:
    at = dense.nonzero().T
    at = at[:, torch.randperm(at.shape[1], generator=torch.Generator().manual_seed(1))]
    values = dense[at[0], at[1]]
    return sparsify.tensor((at, values, tuple(dense.shape)), "coordinate(unordered), coordinate")


def test_results_are_those_of_dense_tensors(dense: torch.Tensor) -> None:
    A = shuffled(dense)
    B, x, b = sparsify.tensor(dense.T, "csr"), dense[0], dense[1]
    torch.testing.assert_close((A + B).to_dense(), dense + dense.T)
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", A, dense), dense @ dense)
    torch.testing.assert_close(A.amax(1), dense.amax(1))
    found = sparsify.evaluate("y[i] = relu(sum(j, A[i,j] * x[j]) + b[i])", A=A, x=x, b=b)
    torch.testing.assert_close(found, torch.relu(dense @ x + b))


def test_gradients_go_to_the_entries_where_they_are(dense: torch.Tensor) -> None:
    A, X = shuffled(dense).requires_grad_(), dense.clone().requires_grad_()
    sparsify.einsum("ij,jk->ik", A, X).square().sum().backward()
    plain, other = dense.clone().requires_grad_(), dense.clone().requires_grad_()
    (plain @ other).square().sum().backward()
    assert X.grad is not None and plain.grad is not None
    torch.testing.assert_close(X.grad, other.grad)
    assert isinstance(A.grad, SparseTensor)
    rows, columns = A.coordinates().long()
    torch.testing.assert_close(A.grad.values(), plain.grad[rows, columns])


def test_sorted_once(dense: torch.Tensor) -> None:
    A = shuffled(dense)
    assert ascending(A).pattern is ascending(A).pattern
    assert ascending(dense) is dense
    csr = sparsify.tensor(dense, "csr")
    assert ascending(csr) is csr


@pytest.mark.parametrize(
    ("text", "sorted_text"),
    [
        ("coordinate(unordered), coordinate", "coordinate, coordinate"),
        ("compressed(unordered, crd=int64), dense", "compressed(crd=int64), dense"),
        ("csr", "csr"),
    ],
)
def test_formats(text: str, sorted_text: str) -> None:
    assert ordered(Format(text)) == Format(sorted_text)
