"""torch's products in place of kernels' steps: the same results in every format, with all that stands behind them."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.passes.choose.torch_csr import FUNCTIONS, TorchProducts, products_of

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def matrix(rows: int = 9, columns: int = 7, form: str = "csr") -> torch.Tensor:
    draw = torch.Generator().manual_seed(rows)
    dense = torch.randn(rows, columns, generator=draw)
    dense[torch.rand(rows, columns, generator=draw) < 0.6] = 0
    return sparsify.tensor(dense, form)


def check(text: str, count: int = 1, **operands: torch.Tensor) -> None:
    kernel = evaluate_kernel(text, **operands)
    products = products_of(kernel)
    assert len(products) == count
    given = [operands[name] for name in kernel.program.inputs]
    found = TorchProducts(kernel, products)
    for _ in range(2):  # anew, and with what is remembered
        torch.testing.assert_close(found(given), kernel(*given), **CLOSE)


X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
b, c = X[0] + 3, torch.rand(9) + 1


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr", "bcsr(2,2)"])
def test_formats(form):
    check("Y[i,k] = sum(j, A[i,j] * X[j,k])", A=matrix(form=form), X=X)


@pytest.mark.parametrize(
    "text",
    [
        "Y[i,k] = relu(sum(j, X[j,k] * A[i,j]) + b[k])",
        "Y[i,k] = sum(j, A[i,j] * X[j,k]) / c[i]",
        "Y[i,k] = max(sum(j, A[i,j] * X[j,k]), 0.5) - 2 * Z[k,i]",
    ],
)
def test_what_stands_behind(text):
    known = {"b": b, "c": c, "Z": torch.randn(5, 9)}
    check(text, A=matrix(), X=X, **{name: value for name, value in known.items() if f"{name}[" in text})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    two = name in ("add", "sub", "mul", "div", "min", "max")
    symbol = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(name)
    product = "sum(j, A[i,j] * X[j,k])"
    value = (
        f"{name}({product})"
        if not two
        else f"{product} {symbol} b[k]"
        if symbol
        else f"{name}({product}, b[k])"
    )
    check(
        f"Y[i,k] = {value}",
        A=sparsify.tensor(matrix().to_dense().abs(), "csr"),
        X=X.abs(),
        **({"b": b} if two else {}),
    )


def test_vectors_transposes_and_double():
    check("y[i] = sum(j, A[i,j] * x[j])", A=matrix(), x=X[:, 0])
    check("Y[i,k] = sum(j, A[i,j] * X[k,j])", A=matrix(), X=X.t().contiguous())
    check("Y[i,k] = sum(j, A[i,j] * X[j,k])", A=matrix().double(), X=X.double())


def test_two_products_and_a_dense_one():
    text = "T[j,k] = sum(f, B[j,f] * W[f,k])\nY[i,k] = tanh(sum(j, A[i,j] * T[j,k]))"
    check(text, 2, A=matrix(), B=matrix(7, 8), W=torch.randn(8, 5))
    check(text, 1, A=matrix(), B=torch.randn(7, 8), W=torch.randn(8, 5))


@pytest.mark.parametrize(
    "text",
    [
        "Y[i,k] = max(j, A[i,j] * X[j,k])",
        "Y[i,k] = sum(j, relu(A[i,j]) * X[j,k])",
        "Y[i,k] = sum(j, A[i,j] * X[j,k] * X[j,k])",
        "Y[k,i] = sum(j, A[i,j] * X[j,k])",
        "Y[i,k] = erf(sum(j, A[i,j] * X[j,k]))",
    ],
)
def test_other_statements_have_none(text):
    assert products_of(evaluate_kernel(text, A=matrix(), X=X)) == []


def test_written_values_are_read_again():
    A = matrix()
    kernel = evaluate_kernel("Y[i,k] = sum(j, A[i,j] * X[j,k])", A=A, X=X)
    found = TorchProducts(kernel, products_of(kernel))
    before = found([A, X])
    with torch.no_grad():
        A.values().mul_(2)
    torch.testing.assert_close(found([A, X]), 2 * before)
    with torch.inference_mode():
        torch.testing.assert_close(found([matrix(), X]), before)


def with_rows_reversed(csr: torch.Tensor) -> torch.Tensor:
    """Another matrix in torch's CSR over the same values."""
    counts = csr.crow_indices().diff().flip(0)
    rows = torch.cat([torch.zeros(1, dtype=counts.dtype), counts.cumsum(0)])
    columns = torch.cat([torch.arange(count) for count in counts.tolist()])
    return torch.sparse_csr_tensor(rows, columns, csr.values(), csr.shape)


def test_matrices_that_share_values_have_their_own_forms():
    csr = matrix().to_torch()
    A, again, other = (sparsify.tensor(one) for one in (csr, csr, with_rows_reversed(csr)))
    assert A.values().data_ptr() == other.values().data_ptr()
    kernel = evaluate_kernel("Y[i,k] = sum(j, A[i,j] * X[j,k])", A=A, X=X)
    found = TorchProducts(kernel, products_of(kernel))
    for one in (A, other, again):
        torch.testing.assert_close(found([one, X]), one.to_dense() @ X, **CLOSE)
    assert len(found.memory) == 2
