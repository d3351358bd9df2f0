"""Gradients of complex numbers, of 16-bit floats and of operands of different dtypes."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparsify

COORDINATES = torch.tensor([[0, 0, 1, 3, 3], [0, 2, 1, 0, 2]])
PROGRAMS = (
    "Y[i,k] = A[i,j] * x[j,k]",
    "Y[i,k] = exp(A[i,j] * x[j,k]) / (2 + square(z[i,k]))",
    "Y[i,j] = A[i,j] * sum(k, z[i,k] * x[j,k])",
    "y[i] = abs(sum(j, A[i,j] * sum(k, x[j,k])))",
    "y[i] = real(sum(k, z[i,k] * conj(z[i,k]) + sum(j, A[i,j] * x[j,k])))",
)


def drawn(*shape, dtype=torch.complex128, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator, requires_grad=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", PROGRAMS)
@pytest.mark.parametrize("kinds", ["ccc", "rcc", "crr"])
def test_complex_gradients(text, kinds):
    dtypes = [torch.complex128 if kind == "c" else torch.float64 for kind in kinds]
    values = drawn(5, dtype=dtypes[0])
    x, z = drawn(3, 2, dtype=dtypes[1], seed=1), drawn(4, 2, dtype=dtypes[2], seed=2)
    names = [name for name in "xz" if f"{name}[" in text]
    given = [value for name, value in zip("xz", (x, z), strict=True) if name in names]

    def compute(entries, *others):
        A = sparsify.tensor((COORDINATES, entries, (4, 3)), "csr")
        found = sparsify.evaluate(text, A=A, **dict(zip(names, others, strict=True)))
        return found.values() if isinstance(found, sparsify.SparseTensor) else found

    assert gradcheck(compute, (values, *given))


def test_second_derivatives_of_complex_numbers():
    values, x = drawn(5), drawn(3, 2, seed=1)

    def compute(entries, other):
        A = sparsify.tensor((COORDINATES, entries, (4, 3)), "csr")
        return sparsify.evaluate("Y[i,k] = square(A[i,j] * x[j,k])", A=A, x=other)

    assert gradgradcheck(compute, (values, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_16_bit_floats(dtype):
    """Gradients of 16-bit floats equal the float32 gradients, rounded once: sums are not accumulated in 16 bits."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(40, 300, generator=generator).to(dtype)
    x = torch.randn(300, 8, generator=generator).to(dtype)
    stored, given = sparsify.tensor(A, "csr").requires_grad_(), x.clone().requires_grad_()
    wide, wide_x = A.float().requires_grad_(), x.float().requires_grad_()
    found, wanted = torch.relu(stored @ given), torch.relu(wide @ wide_x)
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), wanted, rtol=rounding, atol=rounding)
    found.sum().backward()
    wanted.sum().backward()
    assert given.grad.dtype == stored.grad.dtype == dtype
    torch.testing.assert_close(given.grad.float(), wide_x.grad, rtol=rounding, atol=4 * rounding)
    torch.testing.assert_close(stored.grad.to_dense().float(), wide.grad, rtol=rounding, atol=4 * rounding)


def test_gradients_have_the_dtypes_of_operands():
    values, x = drawn(5, dtype=torch.float32), drawn(3, 2, dtype=torch.float64)
    A = sparsify.tensor((COORDINATES, values, (4, 3)), "csr")
    found = sparsify.evaluate("Y[i,k] = A[i,j] * x[j,k]", A=A, x=x)
    assert found.dtype == torch.float64
    found.sum().backward()
    assert values.grad.dtype == torch.float32
    assert x.grad.dtype == torch.float64
    rows, columns = COORDINATES
    torch.testing.assert_close(values.grad, x.detach().sum(1)[columns].float())
    counted = torch.zeros(3).index_add(0, columns, values.detach()).double()
    torch.testing.assert_close(x.grad, counted[:, None].expand(3, 2))
    assert rows.shape == columns.shape


def test_conjugated_operands():
    """A lazily conjugated tensor of torch is read with its conjugate values."""
    A, x = drawn(4, 3).detach(), drawn(3, 2, seed=1).detach()
    stored = sparsify.tensor(A, "csr")
    torch.testing.assert_close(stored @ x.conj(), A @ x.conj())
    other = sparsify.tensor((COORDINATES, drawn(5).detach().conj(), (4, 3)), "csr")
    torch.testing.assert_close(other @ x, other.to_dense() @ x)
    torch.testing.assert_close(
        sparsify.tensor(A.conj(), "csr") @ x.conj().imag[:, :1], A.conj() @ x.conj().imag[:, :1].to(A.dtype)
    )
