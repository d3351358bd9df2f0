"""16-bit floats of generated code against torch's, exhaustively."""

import pytest
import torch

import sparsify

ALL = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)


@pytest.mark.parametrize("vector_bytes", [0, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_number_is_read_right(dtype, vector_bytes):
    x = ALL.view(dtype)
    found = widened(x, vector_bytes)
    assert torch.equal(found.nan_to_num(nan=7.5), x.float().nan_to_num(nan=7.5))


def widened(x: torch.Tensor, vector_bytes: int) -> torch.Tensor:
    """Conversion of `x` to float32, by adding a float32 zero with modes."""
    with sparsify.options.override(vector_bytes=vector_bytes):
        return sparsify.evaluate("y[i] = x[i] + z[i]", x=x, z=torch.full(x.shape, -0.0))


@pytest.mark.parametrize("vector_bytes", [0, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_are_rounded_to_nearest(dtype, vector_bytes):
    """All 16-bit numbers, all midpoints and their neighbours, infinities and NaN."""
    exact = ALL.view(dtype).float()
    finite = exact[exact.isfinite()].sort().values
    middle = (finite[1:].double() + finite[:-1].double()).div(2).float()
    infinity = torch.tensor(float("inf"))
    wide = torch.cat([exact, middle, middle.nextafter(infinity), middle.nextafter(-infinity)])
    largest = torch.finfo(dtype).max
    wide = torch.cat([wide, torch.tensor([largest * 1.0001, largest * 1.01, -largest * 1.01, 1e38, 1e-45])])
    with sparsify.options.override(vector_bytes=vector_bytes):
        found = rounded(wide, dtype)
    wanted = wide.to(dtype)
    assert torch.equal(found.nan_to_num(nan=7.5), wanted.nan_to_num(nan=7.5))
    assert torch.equal(found.isnan(), wanted.isnan())


def rounded(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Conversion of `wide` to `dtype` by a kernel: the gradient of an operand has the operand's dtype."""
    x = torch.ones(len(wide), dtype=dtype, requires_grad=True)
    y = sparsify.evaluate("y[i] = x[i] * w[i]", x=x, w=wide)
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]
