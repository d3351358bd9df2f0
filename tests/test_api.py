"""The public functions on real tensors, through generated kernels, against torch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import sparsify
from sparsify.storage import validate

FORMATS = ("csr", "csc", "coo", "dcsr")
DTYPES = (torch.float32, torch.float64)
# Sums of about ten products of normal numbers: a few units in the last place of float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def sparse_matrix(
    rows: int, columns: int, dtype: torch.dtype, density: float = 0.2, seed: int = 0
) -> torch.Tensor:
    """A random matrix with zeros."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator, dtype=dtype)
    return torch.where(torch.rand(rows, columns, generator=generator) < density, values, 0)


def as_dense(found):
    """A result without its format."""
    return found.to_dense() if isinstance(found, sparsify.SparseTensor) else found


def dense(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    """A random tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 100])
def test_products(form, dtype, columns):
    matrix = sparse_matrix(13, 9, dtype)
    A = sparsify.tensor(matrix, form)
    x, y = dense(9, columns, dtype=dtype), dense(13, columns, dtype=dtype)
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", A, x), matrix @ x, **CLOSE)
    torch.testing.assert_close(sparsify.einsum("ij,ik->jk", A, y), matrix.T @ y, **CLOSE)


@pytest.mark.parametrize("form", FORMATS)
def test_product_with_vector(form):
    matrix, x = sparse_matrix(13, 9, torch.float64), dense(9)
    torch.testing.assert_close(sparsify.einsum("ij,j->i", sparsify.tensor(matrix, form), x), matrix @ x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("inner", [3, 8, 20])
def test_sampled_product_shares_the_pattern(form, inner):
    matrix, p, q = sparse_matrix(13, 9, torch.float64), dense(13, inner), dense(9, inner, seed=2)
    A = sparsify.tensor(matrix, form)
    S = sparsify.einsum("ij,ik,jk->ij", A, p, q)
    assert S.pattern is A.pattern
    torch.testing.assert_close(S.to_dense(), matrix * (p @ q.T))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_sum_of_different_patterns(form, density):
    first, second = sparse_matrix(13, 9, torch.float32, density), sparse_matrix(13, 9, torch.float32, 0.3, 5)
    C = sparsify.evaluate(
        "C[i,j] = A[i,j] + B[i,j]", A=sparsify.tensor(first, form), B=sparsify.tensor(second, form)
    )
    torch.testing.assert_close(C.to_dense(), first + second)
    assert C.nnz == int(((first != 0) | (second != 0)).sum())


@pytest.mark.parametrize("function", ["relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu"])
def test_epilogue(function):
    matrix, x, b = sparse_matrix(13, 9, torch.float64), dense(9, 21), dense(21, seed=3)
    text = f"Y[i,k] = {function}(A[i,j] * T[j,k] + b[k])"
    found = sparsify.evaluate(text, A=sparsify.tensor(matrix), T=x, b=b)
    functions = {
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }
    torch.testing.assert_close(found, functions[function](matrix @ x + b))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (1, 50)])
def test_small_shapes(shape):
    matrix = sparse_matrix(*shape, torch.float32, 0.5)
    x = dense(shape[1], 5, dtype=torch.float32)
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", sparsify.tensor(matrix), x), matrix @ x, **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", ["relu", "sigmoid", "gelu"])
def test_gradients(function):
    A = sparsify.tensor(sparse_matrix(6, 5, torch.float64), "csr")
    inputs = (A.values().clone(), dense(5, 3), dense(3, seed=4))

    def layer(values, T, b):
        matrix = sparsify.SparseTensor(A.pattern, values)
        return sparsify.evaluate(f"Y[i,k] = {function}(A[i,j] * T[j,k] + b[k])", A=matrix, T=T, b=b)

    inputs = tuple(t.requires_grad_() for t in inputs)
    assert torch.autograd.gradcheck(layer, inputs)


def test_second_gradients():
    A = sparsify.tensor(sparse_matrix(4, 5, torch.float64), "csr")
    inputs = (A.values().clone().requires_grad_(), dense(5, 3).requires_grad_())

    def layer(values, T):
        matrix = sparsify.SparseTensor(A.pattern, values)
        return sparsify.evaluate("Y[i,k] = sigmoid(A[i,j] * T[j,k])", A=matrix, T=T)

    assert torch.autograd.gradgradcheck(layer, inputs)


def test_gradients_of_sampled_product():
    A = sparsify.tensor(sparse_matrix(4, 5, torch.float64), "csr")
    inputs = tuple(t.requires_grad_() for t in (A.values().clone(), dense(4, 3), dense(5, 3, seed=2)))

    def sampled(values, p, q):
        return sparsify.einsum("ij,ik,jk->ij", sparsify.SparseTensor(A.pattern, values), p, q).values()

    assert torch.autograd.gradcheck(sampled, inputs)


def test_schedule_by_hand():
    matrix, x = sparse_matrix(13, 9, torch.float32), dense(9, 20, dtype=torch.float32)
    schedule = "split k ko ki 16 tail 8; order i, ko, j, ki; precompute s = Y at ko in register; vector ki"
    found = sparsify.einsum("ij,jk->ik", sparsify.tensor(matrix), x, schedule=schedule)
    torch.testing.assert_close(found, matrix @ x, **CLOSE)


def test_dense_product_by_schedule():
    p, q = dense(13, 9, dtype=torch.float32), dense(9, 20, dtype=torch.float32)
    schedule = (
        "split i io ii 4 tail 2 1; split k ko ki 16 tail 8; order io, ko, j, ii, ki; "
        "precompute s = Y at ko in register; vector ki; unroll ii; parallel io"
    )
    torch.testing.assert_close(sparsify.einsum("ij,jk->ik", p, q, schedule=schedule), p @ q, **CLOSE)


def test_explain_shows_every_stage():
    text = sparsify.explain(
        "ij,jk->ik", sparsify.tensor(sparse_matrix(3, 4, torch.float32)), dense(4, 8).float()
    )
    for stage in ("einsum", "schedule", "notation", "loops", "cpp", "parallel i"):
        assert stage in text


def test_explain_of_statements():
    A, x = sparsify.tensor(sparse_matrix(3, 4, torch.float32)), torch.ones(4)
    text = sparsify.explain("y[i] = A[i,j] * x[j]\nz[i] = relu(y[i])", A=A, x=x)
    for stage in ("z[i] = relu", "schedule", "notation", "loops", "cpp"):
        assert stage in text
    with pytest.raises(sparsify.SparsifyError, match="A=A"):
        sparsify.explain("y[i] = A[i,j] * x[j]", A, x)
    with pytest.raises(sparsify.SparsifyError, match="in order"):
        sparsify.explain("ij,j->i", A=A, x=x)


def test_wrong_size_names_the_index():
    with pytest.raises(sparsify.SparsifyError, match="j"):
        sparsify.einsum("ij,jk->ik", sparsify.tensor(sparse_matrix(3, 4, torch.float32)), torch.ones(5, 2))


def test_unknown_dtypes_are_refused():
    with pytest.raises(sparsify.SparsifyError, match="uint8"):
        sparsify.einsum("ij,jk->ik", sparsify.tensor(torch.eye(3)), torch.ones(3, 2, dtype=torch.uint8))


def test_wrong_schedule_word():
    with pytest.raises(sparsify.SparsifyError, match="is no directive"):
        sparsify.einsum("ij,jk->ik", sparsify.tensor(torch.eye(3)), torch.ones(3, 2), schedule="vektor k")


def test_extents_that_no_operand_has():
    v = torch.rand(3)
    found = sparsify.evaluate("Y[i,j] = v[i]", v=v, sizes={"j": 4})
    torch.testing.assert_close(found, v[:, None].expand(3, 4))
    with pytest.raises(sparsify.errors.EinsumError, match="sizes="):
        sparsify.evaluate("Y[i,j] = v[i]", v=v)


@pytest.mark.parametrize("size", [True, -1, 2.5, "3", 2**63])
def test_extents_that_are_none(size):
    with pytest.raises(sparsify.errors.ShapeError, match="a whole number from 0 to"):
        sparsify.evaluate("y[i] = 2 * i", sizes={"i": size})


def test_extents_of_any_size_are_loops():
    """Nothing is written out for each of so many coordinates."""
    wanted = 2 * torch.arange(100_003)
    assert torch.equal(sparsify.evaluate("y[i] = 2 * i", sizes={"i": 100_003}), wanted)
    for schedule in ("unroll i", "split i io ii 50000; unroll ii"):
        with pytest.raises(sparsify.errors.ScheduleError, match="written out is"):
            sparsify.evaluate("y[i] = 2 * i", sizes={"i": 100_003}, schedule=schedule)


def test_nested_tensors_are_refused():
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged)
    with pytest.raises(sparsify.errors.EinsumError, match="a nested tensor"):
        sparsify.einsum("ij->i", rows)


def test_scalars_are_values():
    v = torch.rand(3)
    for alpha in (2, 2.5, -1, np.float64(2.5), np.float32(2.5), np.int64(2), np.bool_(True)):
        found = sparsify.evaluate("y[i] = alpha * v[i]", v=v, alpha=alpha)
        torch.testing.assert_close(found, float(alpha) * v)
    turned = sparsify.evaluate("y[i] = alpha * v[i]", v=v, alpha=np.complex64(2j))
    torch.testing.assert_close(turned, 2j * v)


def test_named_formats_take_the_rank_of_the_result():
    A = sparsify.tensor(torch.eye(3), "csr")
    found = sparsify.einsum("ij,jk->ik", A, A, format="dense")
    assert type(found) is torch.Tensor
    assert sparsify.evaluate("Y[i,j] = A[i,j] * A[i,j]", A=A, format={"Y": "csr"}).format == sparsify.Format(
        "csr"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr"])
def test_diagonals_and_transposes_of_one_operand(format):
    D = torch.rand(5, 5) * (torch.rand(5, 5) < 0.6)
    D[2] = 0
    S = sparsify.tensor(D, format)
    torch.testing.assert_close(as_dense(sparsify.einsum("ii->", S)), D.trace())
    torch.testing.assert_close(as_dense(sparsify.einsum("ii->i", S)), D.diagonal())
    torch.testing.assert_close(as_dense(sparsify.evaluate("Y[i,j] = S[i,j] - S[j,i]", S=S)), D - D.t())
    with pytest.raises(sparsify.errors.ShapeError, match="i has extent"):
        sparsify.einsum("ii->i", sparsify.tensor(torch.ones(2, 3), format))


def test_gradient_of_a_diagonal():
    values = torch.rand(5, dtype=torch.float64, requires_grad=True)
    coordinates = torch.tensor([[0, 0, 1, 2, 2], [0, 2, 0, 1, 2]])

    def trace(values):
        return as_dense(sparsify.einsum("ii->i", sparsify.tensor((coordinates, values, (3, 3)), "csr")))

    assert torch.autograd.gradcheck(trace, values)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("result", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("sizes", [(5, 4, 6), (40, 30, 3000), (1, 0, 3)])
def test_sparse_products_store_what_meets(form, result, sizes):
    rows, inner, columns = sizes
    A = sparsify.tensor(sparse_matrix(rows, inner, torch.float64), form)
    B = sparsify.tensor(sparse_matrix(inner, columns, torch.float64, density=0.05, seed=1), "csr")
    found = sparsify.einsum("ij,jk->ik", A, B, format=result)
    torch.testing.assert_close(found.to_dense(), A.to_dense() @ B.to_dense())
    met = (A.to_dense() != 0).double() @ (B.to_dense() != 0).double()
    assert found.nnz == int((met > 0).sum())
    validate.pattern(found.pattern)


def test_function_of_a_sparse_product():
    A = sparsify.tensor(sparse_matrix(9, 9, torch.float64, density=0.4), "csr")
    found = sparsify.evaluate("Y[i,k] = relu(A[i,j] * A[j,k] - A[i,k])", A=A, format="csr")
    D = A.to_dense()
    torch.testing.assert_close(found.to_dense(), torch.relu(D @ D - D))


@pytest.mark.sampled(3)
def test_what_compiles_graphs_is_not_loaded_to_compile_kernels(tmp_path):
    """Dynamo and sympy take two seconds to import; torch loads them when something is traced."""
    script = (
        "import sys, torch; before = set(sys.modules); import sparsify; A = sparsify.tensor(torch.eye(3), 'csr')\n"
        "sparsify.einsum('ij,jk->ik', A, torch.ones(3, 2))\n"
        "print(*{'torch._dynamo', 'sympy', 'torch._inductor'} & set(sys.modules) - before)"
    )
    environment = {**os.environ, "SPARSIFY_CACHE_DIR": str(tmp_path), "SPARSIFY_CXXFLAGS": "-O0"}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout.strip()) == (0, ""), found.stderr
