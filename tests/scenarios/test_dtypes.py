"""Programs of every dtype against dense tensors of torch: values and dtypes of the results."""

import pytest
import torch

import sparsify
from sparsify.errors import DtypeError, UnsupportedProgramError

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *COMPLEX, *INTEGERS, torch.bool)
# Each dtype with a stronger one, a weaker one and one of another category.
PAIRS = (
    *((dtype, dtype) for dtype in DTYPES),
    *((torch.float32, torch.float64), (torch.float64, torch.bfloat16), (torch.float16, torch.bfloat16)),
    *((torch.int8, torch.float16), (torch.float32, torch.int64), (torch.int16, torch.int8)),
    *((torch.bool, torch.float32), (torch.int32, torch.bool), (torch.bool, torch.bfloat16)),
    *((torch.complex64, torch.float64), (torch.int64, torch.complex64), (torch.complex64, torch.complex128)),
)
pairs = pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda d: str(d).removeprefix("torch."))


def drawn(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Small integers, half of them 0: all sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed + 17 * len(shape))
    values = torch.randint(-3, 4, shape, generator=generator).to(
        torch.complex64 if dtype.is_complex else dtype
    )
    if dtype.is_complex:
        values = values + 1j * torch.randint(-2, 3, shape, generator=generator)
    kept = torch.rand(shape, generator=generator) < 0.5
    return torch.where(kept, values.to(dtype), torch.zeros((), dtype=dtype))


def contracted(subscripts: str, *operands: torch.Tensor) -> torch.Tensor:
    """`torch.einsum` in float64 or complex128, rounded to the common dtype, which torch may not support."""
    dtype = operands[0].dtype
    for operand in operands[1:]:
        dtype = torch.promote_types(dtype, operand.dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    found = torch.einsum(subscripts, *(operand.to(wide) for operand in operands))
    return found != 0 if dtype is torch.bool else found.to(dtype)


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal in dtype, and in values up to the last places of the narrower 16-bit floats."""
    found = found.to_dense() if isinstance(found, sparsify.SparseTensor) else found
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.sampled(6)
@pairs
def test_products(one, other):
    A, S, X = drawn(one, 7, 9), drawn(other, 9, 6), drawn(other, 9, 5, seed=1)
    stored = sparsify.tensor(A, "csr")
    check(sparsify.einsum("ij,jk->ik", stored, X), contracted("ij,jk->ik", A, X))
    check(sparsify.einsum("ij,jk->ik", stored, sparsify.tensor(S, "csr")), contracted("ij,jk->ik", A, S))
    check(sparsify.einsum("ij,j->i", stored, X[:, 0]), contracted("ij,j->i", A, X[:, 0]))
    Q, K = drawn(other, 7, 4, seed=2), drawn(other, 9, 4, seed=3)
    check(sparsify.einsum("ij,ik,jk->ij", stored, Q, K), contracted("ij,ik,jk->ij", A, Q, K))


@pytest.mark.sampled(6)
@pairs
def test_sums_and_products_of_patterns(one, other):
    A, B = drawn(one, 7, 9), drawn(other, 7, 9, seed=1)
    stored, more = sparsify.tensor(A, "csr"), sparsify.tensor(B, "csr")
    check(stored + more, A + B)
    check(stored * more, A * B)
    check(stored * B, A * B)
    check(sparsify.evaluate("Y[i,j] = A[i,j] * 2 + B[i,j]", A=stored, B=B), A * 2 + B)
    ones = torch.where(B == 0, torch.ones((), dtype=other), B)
    check(stored / ones, A / ones)


@pytest.mark.sampled(3)
@pairs
def test_comparisons(one, other):
    A, B = drawn(one, 7, 9), drawn(other, 7, 9, seed=1)
    stored = sparsify.tensor(A, "csr")
    check(sparsify.evaluate("Y[i,j] = A[i,j] == B[i,j]", A=stored, B=B), A == B)
    if one.is_complex or other.is_complex:
        with pytest.raises(DtypeError, match="complex"):
            sparsify.evaluate("Y[i,j] = A[i,j] < B[i,j]", A=stored, B=B)
    else:
        check(sparsify.evaluate("Y[i,j] = A[i,j] < B[i,j]", A=stored, B=B), A < B)
        check(sparsify.evaluate("Y[i,j] = max(A[i,j], B[i,j])", A=stored, B=B), torch.maximum(A, B))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype):
    A = drawn(dtype, 7, 9)
    stored = sparsify.tensor(A, "csr")
    check(sparsify.evaluate("y[i] = sum(j, A[i,j])", A=stored), A.sum(1))
    check(stored.sum(0), A.sum(0))
    check(sparsify.evaluate("y[i] *= A[i,j]", A=stored), A.prod(1))
    check(sparsify.evaluate("y[i] |= A[i,j]", A=stored), (A != 0).any(1))
    if dtype.is_complex:
        with pytest.raises(DtypeError, match="max of complex numbers"):
            sparsify.evaluate("y[i] = max(j, A[i,j])", A=stored)
    else:
        check(stored.amax(1), A.amax(1))
        check(stored.amin(1), A.amin(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_keep_their_dtype(dtype):
    A = drawn(dtype, 7, 9)
    stored = sparsify.tensor(A, "csr")
    assert stored.dtype == dtype
    assert torch.equal(stored.to_dense(), A)
    for other in DTYPES:
        if dtype.is_complex and not other.is_complex:
            continue  # torch drops the imaginary parts and warns
        converted = stored.to(other)
        assert converted.dtype == other
        assert torch.equal(converted.to_dense(), A.to(other))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around_and_round_as_in_torch(dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    A = torch.tensor([[low, high, 0, -7], [3, -1, low, 100]], dtype=dtype)
    stored = sparsify.tensor(A, "csr")
    check(sparsify.evaluate("Y[i,j] = A[i,j] + B[i,j]", A=stored, B=A), A + A)
    check(sparsify.evaluate("Y[i,j] = A[i,j] * B[i,j]", A=stored, B=A), A * A)
    check(sparsify.evaluate("Y[i,j] = abs(A[i,j])", A=stored), A.abs())
    check(sparsify.evaluate("Y[i,j] = mod(A[i,j], 5)", A=stored), torch.remainder(A, 5))
    check(sparsify.evaluate("Y[i,j] = mod(A[i,j], -1)", A=stored), torch.remainder(A, -1))
    check(sparsify.evaluate("Y[i,j] = A[i,j] ** 3", A=stored), A**3)
    ones = torch.ones_like(A.T)
    check(sparsify.einsum("ij,jk->ik", stored, ones), A @ ones)
    divisor = torch.where(A == 0, 1, A)  # torch raises where numpy and kernels leave 0
    expected = torch.where(A == 0, 0, torch.remainder(A, divisor))
    check(sparsify.evaluate("Y[i,j] = mod(B[i,j], A[i,j])", A=stored, B=A), expected)
    rests = torch.remainder(A, torch.arange(1, 5)).to(dtype)
    check(sparsify.evaluate("Y[i,j] = mod(A[i,j], j + 1)", A=stored), rests)
    with pytest.raises(DtypeError, match="a divisor other than 0"):
        sparsify.evaluate("Y[i,j] = mod(A[i,j], 0)", A=stored)


UNARY = (
    *("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "sigmoid", "reciprocal"),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_functions_of_complex_numbers(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, dtype=dtype, generator=generator)
    for name in UNARY:
        check(sparsify.evaluate(f"y[i] = {name}(x[i])", x=x), getattr(torch, name)(x))
    check(sparsify.evaluate("y[i] = silu(x[i])", x=x), torch.nn.functional.silu(x))
    check(sparsify.evaluate("y[i] = abs(x[i]) + square(x[i])", x=x), x.abs() + x.square())
    check(
        sparsify.evaluate("y[i] = a * x[i] / z[i]", x=x, z=x.flip(0), a=0.5 + 2j), (0.5 + 2j) * x / x.flip(0)
    )
    for name in ("relu", "sign", "erf", "gelu"):
        with pytest.raises(DtypeError, match=f"{name} of complex numbers"):
            sparsify.evaluate(f"y[i] = {name}(x[i])", x=x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_functions_of_16_bit_floats(dtype):
    """In float32, rounded once."""
    x = torch.linspace(-3, 3, 61).to(dtype)
    for name in ("exp", "tanh", "sigmoid", "sin", "erf", "relu"):
        check(sparsify.evaluate(f"y[i] = {name}(x[i])", x=x), getattr(torch, name)(x.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_numbers_from_matrices_of_16_bit_floats(form, dtype):
    A, x = torch.randint(0, 3, (6, 5)).to(dtype), torch.randint(-4, 5, (5,)).to(dtype)
    stored = sparsify.tensor(A, form)
    check(sparsify.evaluate("s = A[i,j]", A=stored), A.float().sum().to(dtype))
    check(sparsify.evaluate("s = A[i,j] * x[j]", A=stored, x=x), (A.float() @ x.float()).sum().to(dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc"])
def test_roundings(name, dtype):
    """Round half to even, infinities, NaN and signed zeros as in torch, in vectors and in remainders."""
    special = [0.5, 1.5, 2.5, -0.5, -1.5, -0.0, 0.49999997, 1e30, float("inf"), -float("inf"), float("nan")]
    x = torch.arange(-17, 20).div(4).to(dtype)
    if dtype.is_floating_point:
        x = torch.cat([torch.tensor(special, dtype=dtype), x])
    found, expected = sparsify.evaluate(f"y[i] = {name}(x[i])", x=x), getattr(torch, name)(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if dtype.is_floating_point:
        assert torch.equal(found.signbit() & (found == 0), expected.signbit() & (expected == 0))
        steps = x[torch.isfinite(x)].requires_grad_()
        (slope,) = torch.autograd.grad(sparsify.evaluate(f"y[i] = {name}(x[i]) + x[i]", x=steps).sum(), steps)
        assert torch.equal(slope, torch.ones_like(steps))
    A = torch.where(x.outer(x) > 0, x[:, None], 0).nan_to_num()
    check(sparsify.evaluate(f"Y[i,j] = {name}(A[i,j])", A=sparsify.tensor(A, "csr")), getattr(torch, name)(A))


def test_functions_of_truth_values():
    A = drawn(torch.bool, 7, 9)
    stored = sparsify.tensor(A, "csr")
    check(sparsify.evaluate("Y[i,j] = exp(A[i,j])", A=stored), torch.exp(A))
    check(sparsify.evaluate("Y[i,j] = A[i,j] * 3", A=stored), A * 3)
    # In float32 also beside wider numbers.
    B = drawn(torch.float64, 5)
    assert torch.equal(
        sparsify.evaluate("Y[j,k] = exp(or(i, A[i,j])) * B[k]", A=stored, B=B).to_dense(),
        torch.exp(A.any(0))[:, None] * B,
    )
    for text in ("-A[i,j]", "A[i,j] - B[i,j]", "abs(A[i,j])", "relu(A[i,j])"):
        with pytest.raises(DtypeError, match="truth values"):
            sparsify.evaluate(f"Y[i,j] = {text} + B[i,j]", A=stored, B=A)


def test_statements_add_in_the_dtype_of_their_result():
    """`Y += A + B; Y += C`: each statement computes in the dtype of its operands, then accumulates in that of Y."""
    one, other, third = (drawn(torch.bool, 5, 4, seed=seed) for seed in (1, 2, 3))
    text = "Y[i,j] += A[i,j] + B[i,j]; Y[i,j] += C[i,j] + D[i]"
    given = {"A": sparsify.tensor(one, "csr"), "B": sparsify.tensor(other, "csr"), "C": third, "D": one[:, 0]}
    check(sparsify.evaluate(text, **given), (one | other).long() + (third | one[:, :1]))
    many = torch.full((5, 4), 100, dtype=torch.int8)
    found = sparsify.evaluate(
        "y[i] += A[i,j] + B[i,j]; y[i] += B[i,1]", A=sparsify.tensor(many, "csr"), B=many
    )
    check(found, (many + many).sum(1) + 100)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.bool], ids=str)
def test_diagonals_keep_their_dtype(dtype):
    """Entries of sparse operands along a diagonal are found by a sum, and sums are int64."""
    A = torch.tensor([[100, 3, 0], [0, 0, 1], [5, 0, 120]]).to(dtype)
    x = torch.tensor([100, 1, 1]).to(dtype)
    diagonal = sparsify.evaluate("Y[i] = A[i,i] + x[i]", A=sparsify.tensor(A, "csr"), x=x)
    assert diagonal.dtype == dtype
    assert torch.equal(diagonal, A.diagonal() + x)
    nothing = sparsify.evaluate("Y[i] = max(k, A[i,i] + x[k])", A=sparsify.tensor(A, "csr"), x=x[:0])
    lowest = False if dtype == torch.bool else torch.iinfo(dtype).min
    assert nothing.to_dense().tolist() == [lowest] * 3


def test_zeros_keep_their_signs():
    """Programs with 0.0 and -0.0 are distinct."""
    x = torch.tensor([1.0, -1.0])
    for zero in (0.0, -0.0):
        found = sparsify.evaluate(f"Y[i] = x[i] * {zero}", x=x)
        assert torch.equal(found.signbit(), (x * zero).signbit())
        assert torch.equal(sparsify.evaluate("Y[i] = x[i] / a", x=x, a=zero), x / zero)


def test_truth_values_of_sums_are_taken_at_the_end():
    """Rows of a new pattern hold the sums, not whether a summand is other than zero."""
    F = torch.zeros(3, 2, 4)
    F[0, 0, 1], F[2, 0, 1], F[1, 1, 2], F[1, 0, 3] = 0.5, -0.5, 0.5, 0.25
    stored = sparsify.tensor(F, "i: dense, k: dense, j: compressed")
    found = sparsify.evaluate("Y[j,k] &= sum(i, F[i,k,j])", F=stored)
    assert isinstance(found, sparsify.SparseTensor) and found.dtype == torch.bool
    assert torch.equal(found.to_dense(), (F.sum(0) != 0).T)


def test_truth_values_of_numbers_are_collected_as_such():
    E = torch.tensor([1.5, -2.0])
    for value, wanted in (("or(k, 3.0)", 1.0), ("and(k, k < 2)", 0.0), ("sum(k, k < 2)", 2.0)):
        found = sparsify.evaluate(f"Y[i] = {value} + E[i]", E=E, sizes={"k": 3})
        torch.testing.assert_close(found, E + wanted)


def test_truth_values_are_not_collected_in_numbers_of_a_new_pattern():
    """The remedies of the error give the correct result."""
    A, B = drawn(torch.float32, 4, 3), drawn(torch.float32, 3, 3, seed=1)
    given = {"A": sparsify.tensor(A, "csr"), "B": sparsify.tensor(B, "csr")}
    text, wanted = "Y[j,i] += or(l, A[l,i] * B[j,i])", ((A[:, None] * B) != 0).any(0)
    with pytest.raises(UnsupportedProgramError, match="collects truth values"):
        sparsify.evaluate(text, **given)
    apart = sparsify.evaluate("w[j,i] = or(l, A[l,i] * B[j,i]); Y[j,i] += w[j,i]", **given)
    dense = sparsify.evaluate(text, **given, format="dense, dense")
    assert apart.dtype == dense.dtype == torch.int64
    assert torch.equal(apart.to_dense(), wanted.long())
    assert torch.equal(dense, wanted.long())
