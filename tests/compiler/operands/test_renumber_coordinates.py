"""Work and memory grow with stored entries: extents of 10^9, and equal results after renumbering coordinates."""

import resource

import pytest
import scipy.sparse
import torch

import sparsify
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.compiler.operands import renumber_coordinates
from sparsify.storage.format import Format
from tests.compiler.kernel.test_pattern_cache import nothing_known, random  # noqa: F401

HUGE = 10**9
# In kilobytes: half of what one byte for each row takes.
MOST = 512 * 1024


def huge(form, seed=0, stored=1000):
    """A matrix of 10^9 x 10^9 with matching row and column coordinates."""
    draw = torch.Generator().manual_seed(seed)
    rows, columns = torch.randint(0, HUGE, (2, stored), generator=draw)
    columns[: stored // 2] = rows[torch.randperm(stored, generator=draw)[: stored // 2]]
    values = torch.randn(stored, generator=draw, dtype=torch.float64)
    return sparsify.tensor((torch.stack([rows, columns]), values, (HUGE, HUGE)), form)


def entries(tensor):
    """The stored entries by coordinates."""
    values = tensor.values().tolist()
    return {tuple(at): value for at, value in zip(tensor.coordinates().T.tolist(), values, strict=True)}


def product_of(A):
    """The entries of A times itself."""
    rows = {}
    for (i, j), value in entries(A).items():
        rows.setdefault(i, []).append((j, value))
    found = {}
    for (i, j), value in entries(A).items():
        for k, other in rows.get(j, []):
            found[i, k] = found.get((i, k), 0.0) + value * other
    return found


@pytest.fixture
def memory():
    """Fails when the peak of the process grows by more than any array over the shape takes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST


@pytest.mark.parametrize("form", ["coo", "dcsr", "dcsc"])
def test_a_hypersparse_matrix_times_itself(form, memory):
    A = huge(form)
    wanted = product_of(A)
    for _ in range(2):
        found = entries(sparsify.einsum("ij,jk->ik", A, A, format=form))
        assert found.keys() == wanted.keys()
        assert all(abs(found[at] - value) < 1e-9 for at, value in wanted.items())


@pytest.mark.parametrize("form", ["coo", "dcsr"])
def test_a_hypersparse_matrix_and_sums(form, memory):
    A = huge(form)
    total = entries(A + A)
    assert total == {at: 2 * value for at, value in entries(A).items()}
    assert entries(A.T) == {(j, i): value for (i, j), value in entries(A).items()}
    assert abs(float(A.sum()) - sum(entries(A).values())) < 1e-9
    sums = sparsify.einsum("ij->i", A)
    assert sums.shape == (HUGE,) and sums.nnz <= 1000
    rows = {}
    for (i, _), value in entries(A).items():
        rows[i] = rows.get(i, 0.0) + value
    assert all(abs(value - rows[i]) < 1e-9 for (i,), value in entries(sums).items())


def test_a_hypersparse_matrix_times_a_hypersparse_vector(memory):
    A = huge("dcsr")
    at = A.coordinates()[1].unique()[::2]
    x = sparsify.tensor((at[None], torch.ones(len(at), dtype=torch.float64), (HUGE,)), "compressed")
    found = entries(sparsify.einsum("ij,j->i", A, x))
    wanted = {}
    for (i, j), value in entries(A).items():
        if j in set(at.tolist()):
            wanted[i] = wanted.get(i, 0.0) + value
    assert all(abs(found[i,] - value) < 1e-9 for i, value in wanted.items())


def test_gradients_of_huge_products_are_sparse(memory):
    A = huge("dcsr").requires_grad_()
    (gradient,) = torch.autograd.grad(sparsify.einsum("ij,jk->ik", A, A).values().sum(), A)
    assert gradient.pattern is A.pattern
    by_row, by_column = {}, {}
    for (i, j), value in entries(A.detach()).items():
        by_row[i] = by_row.get(i, 0.0) + value
        by_column[j] = by_column.get(j, 0.0) + value
    for (i, j), value in entries(gradient).items():
        assert abs(value - by_row.get(j, 0.0) - by_column.get(i, 0.0)) < 1e-9


@pytest.mark.sampled(3)
def test_csr_products_whose_dense_form_would_not_fit(memory):
    """300,000 x 300,000: 360 GB as a dense matrix."""
    rows = 300_000
    draw = torch.Generator().manual_seed(0)
    at = torch.randint(0, rows, (2, 2 * rows), generator=draw).unique(dim=1)
    A = sparsify.tensor((at, torch.ones(at.shape[1]), (rows, rows)), "csr").requires_grad_()
    plain = scipy.sparse.csr_array((torch.ones(at.shape[1]).numpy(), at.numpy()), shape=(rows, rows))
    found = A @ A
    assert found.nnz == (plain @ plain).nnz
    (gradient,) = torch.autograd.grad((found + A).values().sum(), A)
    assert gradient.pattern is A.pattern


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["dcsr", "coo", "dcsc"])
@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,ik->jk", "ij->j", "ij,kj->ki"])
def test_coordinates_counted_anew_give_the_same(subscripts, form, monkeypatch):
    monkeypatch.setattr(renumber_coordinates, "LARGE", 0)
    monkeypatch.setattr(renumber_coordinates, "TIMES", 0)
    A, B = random(40, 40, 0, form), random(40, 40, 1, form)
    used = (A, B)[: subscripts.count(",") + 1]
    for _ in range(2):
        found = sparsify.einsum(subscripts, *used)
        torch.testing.assert_close(found.to_dense(), torch.einsum(subscripts, *(A.to_dense() for A in used)))


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("Y[i,k] = A[i,j] * B[j,k]", {"i", "j", "k"}),
        ("Y[i,j] = A[i,j] * B[i,j]", set()),  # no sum, no workspace
        ("Y[i,k] = A[i,j] * B[j,k] * j", set()),  # coordinates as numbers
        ("Y[i] = min(j, A[i,j] * B[i,j])", set()),  # what is not stored counts
        ("Y[i] = A[i,j] * B[i,j+1]", set()),
    ],
)
def test_what_may_be_counted_anew(text, counted):
    form = Format("dcsr")
    operands = {name: Operand(form, "float32", 0.0, result_index_dtypes(form)) for name in "AB"}
    assert renumber_coordinates.compactable(declare(parse(text), operands)) == counted
