"""Products of dynamically quantised rows with a sparse weight of int8, four bytes an entry."""

import pytest
import torch

import sparsify

TEXT = "Y[t,n] = a[t] * s[n] * (sum(k, dot_uint8_int8(X[t,k], W[n,k])) - c[n])"


def quantised(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row as int8 and its scale, the largest magnitude over 127."""
    scales = numbers.abs().amax(1).clamp(min=1e-30) / 127
    return (numbers / scales[:, None]).round().to(torch.int8), scales


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """Four neighbours as one int32; zeros follow rows that four does not divide."""
    return torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % 4)).view(torch.int32)


@pytest.mark.parametrize("form", ["csr", "j/32: dense, i: dense, j%32: compressed(crd=int8)"])
@pytest.mark.parametrize(("tokens", "outputs", "columns"), [(33, 40, 200), (1, 5, 7), (64, 24, 515)])
def test_products(tokens, outputs, columns, form):
    generator = torch.Generator().manual_seed(columns)
    weight = torch.randn(outputs, columns, generator=generator)
    weight *= torch.rand(outputs, columns, generator=generator) < 0.2
    weight[::3] = 0  # rows without entries
    rows = torch.randn(tokens, columns, generator=generator)
    W, s = quantised(weight)
    X, a = quantised(rows)
    # Bytes of rows count from 0: 128 more than their number, and so much too much in sums.
    offset = 128 * W.sum(1, dtype=torch.int32)
    operands = {
        "X": packed((X.int() + 128).to(torch.uint8)),
        "W": sparsify.tensor(packed(W), form),
        "c": offset,
        "a": a,
        "s": s,
    }
    found = sparsify.evaluate(TEXT, **operands)
    exact = (X.double() @ W.double().T) * a[:, None].double() * s.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-9)
    # Each factor is at most half a step of its scale away, a sum of n products a few roots of n such steps.
    error = (found - rows @ weight.T).abs().max()
    assert error <= 4 * columns**0.5 * (a.max() * weight.abs().max() + s.max() * rows.abs().max())


def test_sums_are_int32():
    X = torch.full((1, 64), -1, dtype=torch.int32)  # bytes of 255
    W = torch.full((2, 64), 0x7F7F7F7F, dtype=torch.int32)
    W[1] = 0
    found = sparsify.evaluate(
        "Y[t,n] = sum(k, dot_uint8_int8(X[t,k], W[n,k]))", X=X, W=sparsify.tensor(W, "csr")
    )
    assert found.dtype == torch.int32
    assert found.tolist() == [[64 * 4 * 255 * 127, 0]]
