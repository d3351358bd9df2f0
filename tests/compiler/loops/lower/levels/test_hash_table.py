"""Hash levels in kernels: looked up beside other operands, iterated alone, read as lists in unions."""

import re

import pytest
import torch

import sparsify
from sparsify.errors import SparsifyError
from sparsify.storage.level.hash_table import RANGE

ROWS, COLUMNS = 13, 40
TABLES = (
    "dense, hash",
    "hash, hash",
    "hash, compressed",
    "j: dense, i: hash",
    "i/4: hash, j: hash, i%4: dense",
)
LISTS = ("csr", "csc", "coo", "dcsr", "dense, hash")


def matrix(seed, density=0.3, shape=(ROWS, COLUMNS)):
    random = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=random, dtype=torch.float64) + 0.5
    return torch.where(torch.rand(shape, generator=random) < density, values, 0)


def dense(found):
    return found.to_dense() if isinstance(found, sparsify.SparseTensor) else found


def loops_of(text, **operands):
    return re.search(r"\nloops\n(.*?)\n\n", sparsify.explain(text, **operands), re.S)[1]


def test_an_intersection_iterates_the_list_and_looks_up_the_table():
    A, H = sparsify.tensor(matrix(0), "csr"), sparsify.tensor(matrix(1), "dense, hash")
    for product in ("A[i,j] * H[i,j]", "H[i,j] * A[i,j]"):
        text = loops_of(f"y[i] = sum(j, {product})", A=A, H=H, format="dense")
        assert "for pA2 in int64(A2_pos[i])..int64(A2_pos[i + 1]):" in text and "for pH2" not in text
        assert (
            "pH2_begin + j % 2147483648 * 1327217885 % 2147483648 * (pH2_end - pH2_begin) // 2147483648"
            in text
        )
        assert "while int64(H2_crd[pH2]) != j and int64(H2_crd[pH2]) >= 0:" in text


def test_a_table_alone_is_iterated_without_its_empty_slots():
    H, x = sparsify.tensor(matrix(1), "dense, hash"), torch.ones(COLUMNS, dtype=torch.float64)
    text = loops_of("y[i] = sum(j, H[i,j] * x[j])", H=H, x=x)
    assert "for pH2 in int64(H2_pos[i])..int64(H2_pos[i + 1]):" in text and "if j >= 0:" in text


def test_of_two_tables_the_first_is_iterated():
    G, H = (sparsify.tensor(matrix(seed), "dense, hash") for seed in (0, 1))
    text = loops_of("y[i] = sum(j, G[i,j] * H[i,j])", G=G, H=H, format="dense")
    assert "for pG2 in" in text and "for pH2" not in text and "pH2 == pH2_end" in text


@pytest.mark.parametrize("text", ["A[i,j] + H[i,j]", "max(A[i,j], H[i,j])", "where(A[i,j] > 0, H[i,j], 2)"])
def test_other_functions_read_lists(text):
    A, H = sparsify.tensor(matrix(0), "csr"), sparsify.tensor(matrix(1), "dense, hash")
    found = sparsify.explain(f"C[i,j] = {text}", A=A, H=H, format="dense")
    assert "stored d0s1, once for each pattern: slots of H[i,j] have no order" in found
    assert "H2_pos" not in found and "2147483648" not in found
    expected = {"A[i,j] + H[i,j]": matrix(0) + matrix(1), "max(A[i,j], H[i,j])": matrix(0).maximum(matrix(1))}
    other = torch.where(matrix(0) > 0, matrix(1), 2)
    result = sparsify.evaluate(f"C[i,j] = {text}", A=A, H=H, format="dense")
    torch.testing.assert_close(result, expected.get(text, other))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("other", LISTS)
def test_fuzz_beside_others(form, other):
    for seed, density in enumerate((0.3, 0.0, 1.0, 0.02)):
        M, N = matrix(seed, 0.3), matrix(seed + 10, density)
        A, H = sparsify.tensor(M, other), sparsify.tensor(N, form)
        given = {"A": A, "H": H}
        checks = {
            "y[i] = sum(j, A[i,j] * H[i,j])": (M * N).sum(1),
            "C[i,j] = A[i,j] * H[i,j]": M * N,
            "C[i,j] = A[i,j] + H[i,j]": M + N,
            "C[i,k] = sum(j, A[i,j] * H[k,j])": M @ N.T,
            "C[i,k] = sum(j, H[j,i] * A[j,k])": N.T @ M,
        }
        for text, expected in checks.items():
            torch.testing.assert_close(dense(sparsify.evaluate(text, **given)), expected)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", TABLES)
def test_beside_dense_operands(form):
    N, D = matrix(3), torch.rand(COLUMNS, ROWS, dtype=torch.float64)
    H, X = sparsify.tensor(N, form), torch.rand(ROWS, 5, dtype=torch.float64)
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", H, D), N @ D)
    torch.testing.assert_close(sparsify.einsum("ji,jk->ik", H, D.T), N.T @ D.T)
    sampled = sparsify.evaluate("C[i,j] = H[i,j] * sum(k, X[i,k] * Y[j,k])", H=H, X=X, Y=D[:, :5])
    torch.testing.assert_close(sampled.to_dense(), N * (X @ D[:, :5].T))
    doubled = sparsify.evaluate("C[i,j] = H[i,j] * 2", H=H, format=H.format)
    assert doubled.pattern is H.pattern
    torch.testing.assert_close(doubled.to_dense(), N * 2)
    low = sparsify.evaluate("y[i] = min(j, H[i,j] - 2)", H=H, format="dense")
    torch.testing.assert_close(low, (N - 2).amin(1))


def test_results_are_converted_to_tables():
    A, B = (sparsify.tensor(matrix(seed), "csr") for seed in (0, 1))
    found = sparsify.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="dense, hash")
    assert str(found.format) == "dense, hash"
    torch.testing.assert_close(found.to_dense(), matrix(0) + matrix(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["dense, hash", "hash, hash"])
def test_gradients(form):
    H, A = sparsify.tensor(matrix(0, shape=(4, 6)), form), sparsify.tensor(matrix(1, shape=(4, 6)), "csr")
    D = torch.rand(6, 3, dtype=torch.float64, requires_grad=True)
    inside = H.pattern.inside()

    def of(values, others, D):
        T, U = H.with_values(torch.where(inside, values, 0.0)), A.with_values(others)
        together = sparsify.evaluate("y[i] = sum(j, T[i,j] * U[i,j])", T=T, U=U, format="dense")
        return sparsify.einsum("ij,jk->ik", T, D), together

    leaves = H.values().clone().requires_grad_(), A.values().clone().requires_grad_(), D
    assert torch.autograd.gradcheck(of, leaves)


@pytest.mark.parametrize("columns", [[0, 3, 5, 8], [7], []], ids=str)
def test_coordinates_of_64_bits_in_one_home(columns):
    extent = RANGE * 10
    places = torch.tensor([[0] * len(columns), [RANGE * c for c in columns]]).view(2, -1)
    values = torch.arange(1.0, len(columns) + 1, dtype=torch.float64)
    H = sparsify.tensor((places, values, (1, extent)), "dense, hash")
    others = torch.tensor([[0, 0, 0, 0], [0, 1, RANGE * 3, RANGE * 7]])
    A = sparsify.tensor((others, torch.tensor([2.0, 3, 5, 7], dtype=torch.float64), (1, extent)), "csr")
    found = sparsify.evaluate("y[i] = sum(j, A[i,j] * H[i,j])", A=A, H=H, format="dense")
    stored = {RANGE * c: value for c, value in zip(columns, values.tolist(), strict=True)}
    expected = 2 * stored.get(0, 0) + 5 * stored.get(RANGE * 3, 0) + 7 * stored.get(RANGE * 7, 0)
    assert found.tolist() == [expected]


def test_loops_that_need_an_order_are_refused():
    H = sparsify.tensor(matrix(1), "dense, hash")
    with pytest.raises(SparsifyError, match=r"a position along j of H\[i,j\], whose slots have no order"):
        sparsify.evaluate(
            "y[i] = sum(j, H[i,j] * x[j])",
            schedule="pos j p H; order i, p; vector p",
            H=H,
            x=torch.ones(COLUMNS, dtype=torch.float64),
        )
