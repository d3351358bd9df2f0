"""Rounding: the nearest narrow values, scales whose products are exact, and what cannot be held."""

import pytest
import torch

from sparsify.errors import DtypeError
from sparsify.sparsification.rules.rounding import moved, narrowed, rounded, scales, widened


def weight(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of many magnitudes, one of zeros."""
    drawn = torch.randn(60, 33, dtype=dtype, generator=torch.Generator().manual_seed(0))
    sized = drawn * 10.0 ** torch.arange(-45, 15).view(60, 1).to(dtype)
    sized[7] = 0
    return sized


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_whole_numbers_with_scales(dtype):
    given = weight(dtype)
    found = rounded(given, "int8")
    scale = scales(given)
    assert found.dtype == dtype
    assert bool(((found - given).abs() <= 0.5001 * scale.unsqueeze(1)).all())
    assert torch.equal(rounded(found, "int8"), found)  # what is read back is what was stored
    assert torch.equal(narrowed(found, torch.int8), narrowed(given, torch.int8))
    whole = narrowed(given, torch.int8)
    assert torch.equal(widened(whole, scale, torch.float64), found.double())  # the products are exact
    large = given.abs().amax(1) > 1e-30
    assert torch.equal(whole[large].abs().amax(1), torch.full((int(large.sum()),), 127, dtype=torch.int8))


def test_scales_of_nothing():
    assert scales(torch.zeros(3, 0)).shape == (3,)
    assert not bool(rounded(torch.zeros(3, 4), "int8").any())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_floats(dtype):
    given = weight()[30:45]
    found = rounded(given, dtype)
    assert torch.equal(found, given.to(getattr(torch, dtype)).float())
    known = moved(given, found, dtype)
    assert known.largest == float((found - given).abs().max())
    assert known.relative == pytest.approx(float((found - given).norm() / given.norm()), rel=1e-4)


@pytest.mark.parametrize(
    ("given", "dtype", "words"),
    [
        (
            torch.tensor([[1.0, 1e6]]),
            "float16",
            "entries as large as 1e[+]06.*float16 holds up to 6.55e[+]04",
        ),
        (torch.tensor([[1.0, torch.nan]]), "int8", "not finite.*bfloat16"),
        (torch.ones(2, 2, dtype=torch.bfloat16), "int8", "torch.bfloat16, which holds too few digits"),
    ],
)
def test_what_cannot_be_held(given, dtype, words):
    with pytest.raises(DtypeError, match=words):
        rounded(given, dtype)
