"""Products of small dense matrices in C, against torch."""

import itertools
from typing import Any

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.plan.products import small_product as module
from sparsify.compiler.plan.products.small_product import MOST, is_small, small_product

SHAPES = [(1, 1, 1), (3, 8, 5), (2, 17, 9), (10, 16, 16), (1, 64, 40), (7, 1, 300)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("left_transposed", [False, True])
@pytest.mark.parametrize("right_transposed", [False, True])
def test_all_layouts(dtype: torch.dtype, left_transposed: bool, right_transposed: bool) -> None:
    for (rows, inner, columns), has_bias in itertools.product(SHAPES, [False, True]):
        seeded = torch.Generator().manual_seed(rows)
        X, W = torch.randn(rows, inner, generator=seeded), torch.randn(inner, columns, generator=seeded)
        X, W = X.to(dtype), W.to(dtype)
        b = torch.randn(columns, generator=seeded).to(dtype) if has_bias else None
        left = X.t().contiguous() if left_transposed else X
        right = W.t().contiguous() if right_transposed else W
        found = small_product(left, right, b, left_transposed, right_transposed)
        assert found is not None
        torch.testing.assert_close(found, X @ W if b is None else X @ W + b)


def test_special_values() -> None:
    X = torch.tensor([[torch.inf, 1.0], [torch.nan, 0.0], [0.0, 0.0]])
    W = torch.tensor([[0.0, 2.0], [1.0, 3.0]])
    for right, is_turned in ((W, False), (W.t().contiguous(), True)):
        found = small_product(X, right, None, False, is_turned)
        torch.testing.assert_close(found, X @ W, equal_nan=True)


class Noted(torch.Tensor):
    """A class of its own."""


def shrunk() -> torch.Tensor:
    made = torch.ones(4, 4)
    made.untyped_storage().resize_(16)
    return made


OTHERS: dict[str, Any] = {
    "strided": lambda: torch.ones(4, 8)[:, ::2],
    "negated": lambda: torch._neg_view(torch.ones(4, 4)),
    "with a gradient": lambda: torch.ones(4, 4, requires_grad=True),
    "half precision": lambda: torch.ones(4, 4).half(),
    "of another dtype": lambda: torch.ones(4, 4).double(),
    "of a class": lambda: torch.ones(4, 4).as_subclass(Noted),
    "meta": lambda: torch.ones(4, 4, device="meta"),
    "of other extents": lambda: torch.ones(5, 4),
    "without entries": lambda: torch.ones(4, 0),
    "with less memory": shrunk,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_torch_computes_the_others(kind: str) -> None:
    assert small_product(torch.ones(4, 4), OTHERS[kind](), None, False, False) is None


def test_large_products_are_those_of_torch() -> None:
    assert is_small(16, 16, 16) and not is_small(16, 16, 17) and not is_small(0, 16, 16)
    assert small_product(torch.ones(1, MOST), torch.ones(MOST, 1), None, False, False) is not None
    assert small_product(torch.ones(1, MOST), torch.ones(MOST, 2), None, False, False) is None


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "address", lambda: None)
    assert small_product(torch.ones(4, 4), torch.ones(4, 4), None, False, False) is None


def test_all_calls_round_alike() -> None:
    """The first calls, and those by the fast path."""
    text = "T[j,m] = sum(k, X[j,k] * W[m,k]) + b[m]\nY[i,m] = sum(j, A[i,j] * T[j,m])"
    seeded = torch.Generator().manual_seed(0)
    given = {
        "X": torch.randn(9, 13, generator=seeded),
        "W": torch.randn(7, 13, generator=seeded),
        "b": torch.randn(7, generator=seeded),
        "A": sparsify.tensor(torch.eye(9).flip(0), "csr"),
    }
    kernel = evaluate_kernel(text, **given)
    results = [kernel(*[given[name] for name in kernel.program.inputs]) for _ in range(5)]
    assert all(torch.equal(result, results[0]) for result in results)
    expected = torch.nn.functional.linear(given["X"], given["W"], given["b"]).flip(0)
    torch.testing.assert_close(results[0], expected)
