"""Affine indices that do not fit int64 are refused: they would wrap around into their mode."""

import pytest
import torch

import sparsify
from sparsify.errors import ShapeError

D, x = torch.arange(16.0).reshape(4, 4), torch.arange(4.0)


@pytest.mark.parametrize(
    "index",
    [
        "D[i, 4611686019427387904*i]",  # 2**62 and more: wraps around to a small negative coordinate
        "D[i, 9223372036854775807*i + i]",
        "D[i, 9223372036854775808*i]",  # no literal of int64
        "D[-9223372036854775807*i - 9, i]",
        "D[i, (4611686018427387904*i + 2) / 2]",
        f"D[i, {10**400}*i]",
    ],
)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_refused(index, is_sparse):
    operand = sparsify.tensor(D) if is_sparse else D
    with pytest.raises(ShapeError, match=r"int64; smaller factors"):
        sparsify.evaluate(f"y[i] = {index}", D=operand)


def test_refused_for_large_extents_alone():
    text, large = "y[i] = x[3037000500*i]", 3037000500
    found = sparsify.evaluate(text, x=x, sizes={"i": 4})
    assert found.tolist() == [0.0] * 4 and x[0] == 0
    with pytest.raises(ShapeError, match="int64"):
        sparsify.evaluate(text, x=x, sizes={"i": large})


def test_large_indices_that_fit_are_outside():
    assert sparsify.evaluate("y[i] = D[i, 1152921504606846976*i]", D=D).tolist() == [0.0, 0.0, 0.0, 0.0]
    shifted = sparsify.evaluate("y[i] = x[i - 1152921504606846976]", x=x, sizes={"i": 4})
    assert shifted.tolist() == [0.0] * 4
