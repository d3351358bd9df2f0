import math
from math import inf

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.plan.plan import collect
from sparsify.compiler.plan.prepare.count_unstored import count_unstored
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from tests.compiler.random_programs.operands import operand

COUNT = "sum(j, where(stored(A[i,j]), 1, 0))"


def rewritten(text, forms, sizes=UNKNOWN):
    program = collect(declare(parse(text), {name: operand(form) for name, form in forms.items()}))
    return [str(statement) for statement in count_unstored(program, sizes).statements]


@pytest.mark.parametrize(
    "text, forms, after",
    [
        (
            "m[i] max= A[i,j]",
            {"A": "csr"},
            "m[i] = max(max(j, where(stored(A[i,j]), A[i,j], -inf)), "
            f"where(float64({COUNT}) / float64(extent(j)) == 1.0, -inf, 0.0))",
        ),
        (
            "s[i] += exp(A[i,j]) + b[i]",
            {"A": "csr", "b": "dense"},
            "s[i] = sum(j, where(stored(A[i,j]), exp(A[i,j]) + b[i], 0.0)) + "
            f"where(float64({COUNT}) / float64(extent(j)) == 1.0, 0.0, (1.0 + b[i]) * "
            f"float64(extent(j) - {COUNT}))",
        ),
        # What is stored in both counts: the product is 0 where one is not.
        (
            "m max= A[i,j] * B[i,j]",
            {"A": "csr", "B": "csr"},
            "m = max(max(i, j, where(logical_and(stored(A[i,j]), stored(B[i,j])), A[i,j] * B[i,j], -inf)), "
            "where(float64(sum(i, j, where(logical_and(stored(A[i,j]), stored(B[i,j])), 1, 0))) / "
            "(float64(extent(i)) * float64(extent(j))) == 1.0, -inf, 0.0))",
        ),
        # A sum meets nothing where nothing is stored.
        ("s[i] += A[i,j]", {"A": "csr"}, "s[i] = sum(j, A[i,j])"),
        # Dense operands differ from coordinate to coordinate.
        (
            "m[i] max= A[i,j] + x[j]",
            {"A": "csr", "x": "dense"},
            "m[i] = max(j, A[i,j] + x[j])",
        ),
        ("m[i] max= A[i,j]", {"A": "dense, dense"}, "m[i] = max(j, A[i,j])"),
    ],
)
def test_rewritten(text, forms, after):
    assert rewritten(text, forms) == [after]


ROW, COLUMN = "where(stored(A[i,k]), 1, 0)", "where(stored(B[k,j]), 1, 0)"
PRODUCT = [
    "w[j,i] = max(k, where(logical_and(stored(A[i,k]), stored(B[k,j])), A[i,k] * B[k,j], -inf))",
    f"n[i] = sum(k, {ROW})",
    f"n1[j] = sum(k, {COLUMN})",
    "C[j,i] = where(stored(w[j,i]), max(w[j,i], where(logical_and(float64(n[i]) / float64(extent(k)) == 1.0, "
    "float64(n1[j]) / float64(extent(k)) == 1.0), -inf, 0.0)), 0.0)",
]


def test_of_a_product_rows_and_columns_are_counted():
    text, forms = "C[j,i] max= A[i,k] * B[k,j]", {"A": "csr", "B": "csr"}
    assert rewritten(text, forms) == PRODUCT
    assert rewritten(text, forms, Sizes({"i": 9, "j": 9, "k": 9}, {"A": 9, "B": 9})) == PRODUCT
    # No vector for modes that have far more places than entries.
    assert len(rewritten(text, forms, Sizes({"i": 9, "j": 10**9, "k": 9}, {"A": 9, "B": 9}))) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("most", ["max", "min"])
def test_values_of_a_product(most):
    """Full rows and columns, rows and columns of one sign, and empty ones."""
    a, b = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64)
    a[0], a[1], a[2, 1] = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -3.0, -2.0]), 5.0
    b[:, 0], b[:, 1], b[1, 2] = 2.0, -1.0, 4.0
    A, B = sparsify.tensor(a, "csr").requires_grad_(), sparsify.tensor(b, "csr")
    found = sparsify.evaluate(f"C[i,j] {most}= A[i,k] * B[k,j]", A=A, B=B)
    assert found.nnz == 9 and found.fill == 0
    x = a.clone().requires_grad_()
    wanted = getattr(torch, f"a{most}")(x[:, :, None] * b, 1)
    torch.testing.assert_close(found.to_dense(), wanted)
    weights = torch.arange(20.0, dtype=torch.float64).reshape(4, 5)
    (slope,) = torch.autograd.grad((found.to_dense() * weights).sum(), A)
    (other,) = torch.autograd.grad((wanted * weights).sum(), x)
    torch.testing.assert_close(slope.values(), other[tuple(A.coordinates())])


def test_modes_without_coordinates_stay():
    assert rewritten("m[i] max= A[i,j]", {"A": "csr"}, Sizes({"i": 3, "j": 0})) == ["m[i] = max(j, A[i,j])"]


@pytest.mark.parametrize("form", ["csr", "dcsr"])
def test_a_kernel_for_a_mode_that_loses_its_coordinates(form):
    """A kernel chosen for other sizes starts with the identity for empty reductions."""
    full = sparsify.tensor(torch.tensor([[1.0, 0, -2], [0, 0, 0]]), form)
    none = sparsify.tensor(torch.zeros(2, 0), form)
    kernel = evaluate_kernel("m[i] max= A[i,j]", A=full)
    for A, most in ((full, [1.0, 0.0]), (none, [-inf, -inf]), (none, [-inf, -inf]), (full, [1.0, 0.0])):
        assert kernel(A).to_dense().tolist() == most


def test_sums_over_no_coordinates_need_no_other_kernel(monkeypatch):
    full = sparsify.tensor(torch.tensor([[1.0, 0, -2], [0, 0, 0]]), "csr")
    none = sparsify.tensor(torch.zeros(2, 0), "csr")
    kernel = evaluate_kernel("y[i] = A[i,j] * x[j]", A=full, x=torch.ones(3))
    monkeypatch.setattr("sparsify.compiler.kernel.kernel._plan", None)
    assert kernel(none, torch.ones(0)).tolist() == [0.0, 0.0]
    assert kernel(full, torch.ones(3)).tolist() == [-1.0, 0.0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("format", ["csr", "coo"])
@pytest.mark.parametrize("fill", [0.0, -2.0])
def test_values_and_gradients(format, fill):
    """A full row, an empty one and others; the largest entry stored, unstored or both."""
    dense = torch.full((4, 3), fill, dtype=torch.float64)
    dense[0] = torch.tensor([-3.0, -4.0, -5.0])
    dense[2, 1], dense[3, 2] = 0.5, -7.0
    x = dense.clone().requires_grad_()
    A = sparsify.tensor(dense, format, fill=fill).requires_grad_()
    b = torch.arange(4.0, dtype=torch.float64)
    text = "m[i] max= A[i,j]\ns[i] += exp(A[i,j]) - b[i]\nl min= A[i,j]"
    m, s, low = sparsify.evaluate(text, outputs=("m", "s", "l"), A=A, b=b)
    m = m.to_dense()
    (found,) = torch.autograd.grad(m.sin().sum() + (s * b).sum() + low, A)
    wanted = x.amax(1), (x.exp() - b[:, None]).sum(1), x.amin()
    for ours, theirs in zip((m, s, low), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    (slope,) = torch.autograd.grad(wanted[0].sin().sum() + (wanted[1] * b).sum() + wanted[2], x)
    torch.testing.assert_close(found.values(), slope[tuple(A.coordinates())])


@pytest.mark.parametrize("value", ["tanh(1.0)", "tanh(1.0) * sqrt(2.0)"])
def test_numbers_that_are_counted_are_as_wide_as_the_sum(value):
    dense = torch.eye(5, dtype=torch.float64)
    found = sparsify.evaluate(f"s[i] = sum(j, {value} + A[i,j])", A=sparsify.tensor(dense, "csr"))
    number = math.tanh(1.0) * (math.sqrt(2.0) if "sqrt" in value else 1.0)
    torch.testing.assert_close(found, (dense + number).sum(1), rtol=1e-14, atol=0.0)


def test_work_follows_what_is_stored():
    n = 10**9
    places = torch.tensor([[3, 3, n - 1], [5, n - 2, 0]])
    A = sparsify.tensor((places, torch.tensor([-1.0, 2.0, -3.0]), (n, n)), "dcsr")
    assert A.amax() == 2 and A.amin() == -3
    rows = sparsify.evaluate("m[i] max= A[i,j]", A=A)
    assert rows.fill == 0 and torch.equal(rows.values(), torch.tensor([2.0, 0.0]))
    A = A.detach().requires_grad_()
    sparsify.evaluate("m[i] max= A[i,j]", A=A).values().sum().backward()
    assert A.grad.values().tolist() == [0, 1, 0]
