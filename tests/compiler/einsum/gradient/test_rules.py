"""Derivatives at points without a derivative equal torch's."""

import pytest
import torch

import sparsify
from sparsify.options import override

AT_CORNERS = {
    "max(x[i], 1)": lambda x, z: x.clamp(min=1),
    "max(-1, x[i])": lambda x, z: x.clamp(min=-1),
    "min(x[i], 1)": lambda x, z: x.clamp(max=1),
    "min(max(2 * x[i], -2), 2)": lambda x, z: (2 * x).clamp(-2, 2),
    "max(x[i], z[i])": torch.maximum,
    "min(x[i], z[i])": torch.minimum,
    "relu(x[i])": lambda x, z: torch.relu(x),
    "abs(x[i])": lambda x, z: x.abs(),
}


@pytest.mark.parametrize("text", AT_CORNERS)
def test_slopes_at_corners_are_those_of_torch(text):
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], requires_grad=True)
    z = torch.tensor([-2.0, 0.0, 0.0, 1.0, 1.0])
    given = {"x": x} | ({"z": z} if "z[" in text else {})
    with override(compiler_flags=("-O0",)):
        (found,) = torch.autograd.grad(sparsify.evaluate(f"y[i] = {text}", **given).sum(), x)
    (wanted,) = torch.autograd.grad(AT_CORNERS[text](x, z).sum(), x)
    assert torch.equal(found, wanted)
