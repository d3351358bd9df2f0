"""Kernels over every level format: products, sums with others, gradients, results on a known pattern."""

import pytest
import torch

import sparsify
from sparsify.errors import InvalidTensorError

SHAPES = {"whole": (8, 12), "cut": (7, 10), "one": (1, 3)}
FORMATS = ("nm(2, 4)", "nm(1, 4)", "nm(2, 4, group=4)", "ell", "j: dense, i: grouped", "dia", "dense, ragged")


def matrix(form, shape, fill=0.0):
    """A tensor that every format can store, and its dense form."""
    generator = torch.Generator().manual_seed(sum(shape))
    dense = torch.full(shape, fill, dtype=torch.float64)
    values = torch.rand(shape, generator=generator, dtype=torch.float64) + 2
    rows = torch.arange(shape[0])
    for block in range(0, shape[1], 4):
        columns = (rows // 4 + block // 4) % min(4, shape[1] - block) + block
        dense[rows, columns] = values[rows, columns]
    dense[shape[0] // 2 :, 0] = fill
    return sparsify.tensor(dense, form, fill=fill), dense


def close(found, expected):
    """Equal values, however the result is stored."""
    found = found.to_dense() if isinstance(found, sparsify.SparseTensor) else found
    torch.testing.assert_close(found, expected)


def arrays(shape):
    generator = torch.Generator().manual_seed(1)
    random = lambda *sizes: torch.rand(sizes, generator=generator, dtype=torch.float64)  # noqa: E731
    return random(shape[1], 5), random(shape[1]), random(3, shape[1]), random(*shape)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", FORMATS)
def test_products(form, shape):
    A, dense = matrix(form, shape)
    B, x, X, D = arrays(shape)
    close(sparsify.einsum("ij,jk->ik", A, B), dense @ B)
    close(sparsify.einsum("ij,j->i", A, x), dense @ x)
    close(sparsify.einsum("ij,ik->jk", A, D), dense.T @ D)
    close(sparsify.einsum("bj,ij->bi", X, A), X @ dense.T)
    close(torch.nn.functional.linear(X, A), X @ dense.T)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "form, other",
    [
        ("nm(2, 4)", "csc"),
        ("nm(2, 4)", "bcsr(2, 3)"),
        ("nm(1, 4)", "nm(2, 4)"),
        ("nm(2, 4, group=4)", "nm(3, 3)"),
        ("ell", "csr"),
        ("dia", "ell"),
        ("j: dense, i: grouped", "nm(2, 4)"),
        ("dense, ragged", "csr"),
        ("j: dense, i: ragged", "dense, ragged"),
    ],
)
def test_beside_others(form, other):
    shape = SHAPES["cut"]
    A, dense = matrix(form, shape)
    B, _, _, D = arrays(shape)
    S = sparsify.tensor(dense if "nm" in other else torch.where(D > 0.7, D, 0), other)
    expected = S.to_dense()
    sums = sparsify.evaluate("C[i,j] = A[i,j] + S[i,j] + D[i,j]", A=A, S=S, D=D)
    close(sums, dense + expected + D)
    sparse = sparsify.evaluate("C[i,j] = A[i,j] + S[i,j]", A=A, S=S)
    close(sparse, dense + expected)
    sampled = sparsify.evaluate(
        "C[i,j] = A[i,j] * S[i,j] * sum(k, X[i,k] * Y[j,k])", A=A, S=S, X=D[:, :3], Y=B[:, :3]
    )
    close(sampled, dense * expected * (D[:, :3] @ B[:, :3].T))


@pytest.mark.parametrize("form", FORMATS)
def test_results_on_a_known_pattern(form):
    A, dense = matrix(form, SHAPES["cut"])
    doubled = sparsify.evaluate("C[i,j] = A[i,j] * 2", format=A.format, A=A)
    assert doubled.pattern is A.pattern
    close(doubled, dense * 2)
    B, _, _, D = arrays(SHAPES["cut"])
    sampled = sparsify.evaluate("C[i,j] = A[i,j] * sum(k, X[i,k] * Y[j,k])", A=A, X=D[:, :3], Y=B[:, :3])
    assert sampled.pattern is A.pattern
    close(sampled, dense * (D[:, :3] @ B[:, :3].T))


@pytest.mark.parametrize("form", ["nm(2, 4)", "ell", "dia", "dense, ragged"])
def test_results_of_unknown_pattern_are_converted(form):
    A, dense = matrix(form, SHAPES["cut"])
    S = A.to(format="csr")
    found = sparsify.evaluate("C[i,j] = A[i,j] + S[i,j]", format=form, A=A, S=S)
    assert found.format == A.format
    close(found, 2 * dense)


def test_results_that_do_not_fit_their_groups_are_refused():
    A, _ = matrix("nm(2, 4)", SHAPES["cut"])
    S = sparsify.tensor(torch.ones(SHAPES["cut"], dtype=torch.float64), "csr")
    with pytest.raises(InvalidTensorError, match="4 entries in the group of i = 0, j/4 = 0, which holds 2"):
        sparsify.evaluate("C[i,j] = A[i,j] + S[i,j]", format="nm(2, 4)", A=A, S=S)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", [*FORMATS, "j-i: dense, i: dense"])
def test_gradients(form):
    A, _ = matrix(form, SHAPES["cut"])
    B, x, X, D = arrays(SHAPES["cut"])
    S = sparsify.tensor(torch.where(D > 0.5, D, 0), "csr")

    def of(values, B, x, X, s):
        T, U = A.with_values(values), S.with_values(s)
        mixed = sparsify.evaluate("C[i,j] = T[i,j] * U[i,j]", T=T, U=U)
        return (
            sparsify.einsum("ij,jk->ik", T, B),
            sparsify.einsum("ij,j->i", T, x),
            sparsify.einsum("bj,ij->bi", X, T),
            mixed.values(),
        )

    leaves = [t.detach().clone().requires_grad_() for t in (A.values(), B, x, X, S.values())]
    inside = A.pattern.inside()
    if inside is not None:  # padding outside of the tensor has no derivative
        leaves[0] = torch.where(inside, leaves[0].detach(), 0.0).requires_grad_()
    assert torch.autograd.gradcheck(of, leaves)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "form, fill",
    [
        ("nm(2, 4)", 1.0),
        ("nm(2, 4)", float("-inf")),
        ("nm(2, 4, group=4)", float("inf")),
        ("ell", -1.0),
        ("dia", 1.0),
        ("dia", float("inf")),
        ("j: dense, i: grouped", float("-inf")),
    ],
)
def test_fills(form, fill):
    A, dense = matrix(form, SHAPES["cut"], fill)
    _, _, _, D = arrays(SHAPES["cut"])
    close(sparsify.evaluate("C[i,j] = A[i,j] + D[i,j]", A=A, D=D), dense + D)
    for operator, reduced in (("max", dense.amax(1)), ("min", dense.amin(1))):
        close(sparsify.evaluate(f"y[i] = {operator}(j, A[i,j])", format="dense", A=A), reduced)
    found = sparsify.evaluate("C[i,j] = max(A[i,j], S[i,j])", A=A, S=A.to(format="csr"))
    close(found, dense)
    if form == "nm(2, 4)":
        assert sparsify.evaluate("C[i,j] = A[i,j] * 2", A=A).fill == 2 * fill
