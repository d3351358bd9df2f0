"""Dot products of packed numbers: exact products, sums in float32 or int32, all special values."""

from math import inf, nan

import numpy as np
import pytest
import torch

from sparsify.compiler.einsum.packed_numbers import dot_bfloat16, dot_uint8_int8
from sparsify.compiler.reference.functions import compute


def pairs(*numbers: float) -> torch.Tensor:
    """Two numbers as the bits of an int32."""
    return torch.tensor(numbers, dtype=torch.bfloat16).view(torch.int32)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ((1, 2), (3, 4), 11),
        ((-0.5, 2**100), (8, 2**-99), -2),
        ((1, -1), (2**-130, 0), 2**-130),
        ((inf, 1), (0, 1), nan),
        ((inf, 1), (-1, 1), -inf),
        ((nan, 0), (1, 1), nan),
        ((2**127, 2**127), (2, -2), nan),
    ],
)
def test_values(x, y, expected):
    found = dot_bfloat16(pairs(*x).numpy(), pairs(*y).numpy())
    np.testing.assert_array_equal(found, np.asarray([expected], np.float32))
    by_torch = compute("dot_bfloat16", (pairs(*x), pairs(*y)))
    assert by_torch.dtype == torch.float32
    np.testing.assert_array_equal(by_torch, np.asarray([expected], np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_of_any_width_added_to_a_sum(dtype):
    x, y = (pairs(*numbers).numpy().astype(dtype) for numbers in ((1, -2), (3, 4)))
    assert dot_bfloat16(x, y, np.float32(7)).tolist() == [2.0]
    assert dot_bfloat16(x[0], y[0]) == -5.0


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bytes_without_and_with_signs(dtype):
    x, y = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 50)).astype(np.int32)
    wanted = (x.view(np.uint8).reshape(-1, 4).astype(int) * y.view(np.int8).reshape(-1, 4)).sum(1)
    found = dot_uint8_int8(x.astype(dtype), y.astype(dtype))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(dot_uint8_int8(x, y, 7), wanted + 7)
    by_torch = compute("dot_uint8_int8", (torch.from_numpy(x), torch.from_numpy(y)))
    assert by_torch.dtype == torch.int32
    np.testing.assert_array_equal(by_torch, wanted)


@pytest.mark.parametrize(
    ("x", "y", "expected"), [(-1, 0x7F7F7F7F, 4 * 255 * 127), (-1, -0x7F7F7F80, -4 * 255 * 128)]
)
def test_largest_and_smallest_sums_of_bytes(x, y, expected):
    assert dot_uint8_int8(x, y) == expected
