"""Scalars that change from call to call: one kernel for all values, and the bits of a kernel with constants."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsify
from sparsify.compiler import evaluate
from sparsify.compiler.cpp.toolchain import cache
from sparsify.options import override

PROGRAMS = [
    "y[i] = a * x[i]",
    "y[i] = x[i] / a + b",
    "y[i] = (a * b - 1) * x[i]",
    "y[i] = a * A[i,j] * x[j]",
    "Y[i,j] = a * A[i,j] / b",
    "Y[i,j] = A[i,j] + a",
    "y[i] = sum(j, A[i,j] * (x[j] - a))",
    "y[i] = where(x[i] > a, x[i], b)",
    "y[i] = max(x[i], a) ** b",
    "y[i] = a * i + x[i]",
    "t[i] = a * x[i]; y[i] = t[i] * b + a",
    "Y[i,k] = relu(sum(j, A[i,j] * Q[j,k]) * a - b)",
]
# Each is multiplied with a tensor, added to a dense one or compared with one.
SHARED = [text for text in PROGRAMS if not re.search(r"\*\*|max|A\[i,j\] \+|, b\)", text)]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(cache, "_memory", cache._Memory())
    with override(cache_dir=tmp_path, compiler_flags=("-O0",)):
        yield


def operands(text: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The tensors that a program reads."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.randint(-5, 6, (9, 9), generator=generator).mul(torch.eye(9) + torch.eye(9).roll(2, 0)) / 4
    tensors = {
        "A": sparsify.tensor(dense.to(dtype), "csr"),
        "x": torch.randn(9, generator=generator).mul(9).to(dtype),
        "Q": torch.randn(9, 5, generator=generator).mul(9).to(dtype),
    }
    return {name: tensor for name, tensor in tensors.items() if re.search(rf"\b{name}\[", text)}


def scalars(text: str, a: float, b: float) -> dict[str, Any]:
    return {name: value for name, value in (("a", a), ("b", b)) if re.search(rf"\b{name}\b", text)}


def dense(found: Any) -> torch.Tensor:
    return found.to_dense() if isinstance(found, sparsify.SparseTensor) else found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(7), other.nan_to_num(7))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_values_are_those_of_constants(dtype: torch.dtype) -> None:
    is_usual = dtype == torch.float32
    for text in PROGRAMS if is_usual else PROGRAMS[1:3]:
        for a, b in ((0.3, -2.7), (3, 300))[: 2 - is_usual]:
            given = {**operands(text, dtype), **scalars(text, a, b)}
            kernel = evaluate.evaluate_kernel(text, **given)
            wanted = kernel(*[given[name] for name in kernel.program.inputs])
            found = sparsify.evaluate(text, **given)
            assert type(found) is type(wanted), text
            assert same_bits(dense(found), dense(wanted)), (text, a, b)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", SHARED)
def test_one_kernel_serves_all_values(text: str) -> None:
    given = operands(text)
    sparsify.evaluate(text, **given, **scalars(text, 0.123, 4.56))
    count = len(cache._memory.libraries)
    for number in range(40):
        sparsify.evaluate(text, **given, **scalars(text, 0.5 + number / 7, 3.3 - number / 9))
    assert len(cache._memory.libraries) == count


@pytest.mark.sampled(2)
def test_a_thousand_values() -> None:
    x = torch.randn(50)
    for number in range(1000):
        a = number / 999 - 0.5
        assert torch.equal(sparsify.evaluate("y[i] = a * x[i]", a=a, x=x), a * x)
    assert len(cache._memory.libraries) <= 2  # with that of the trampoline


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "a", [0.0, -0.0, 1.0, -1.0, float("inf"), float("nan"), 2**40, 1e300, 1e-320, True, 0]
)
def test_special_values(a: float) -> None:
    x = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("nan")])
    for text, wanted in (("y[i] = a * x[i]", a * x), ("y[i] = x[i] / a", x / a)):
        sparsify.evaluate(text, a=0.7, x=x)
        found = sparsify.evaluate(text, a=a, x=x)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert same_bits(found, wanted), text
        assert torch.equal(found.nan_to_num(1).signbit(), wanted.nan_to_num(1).signbit()), text


def test_gradients_are_those_of_constants() -> None:
    text = "y[i] = b * relu(sum(j, A[i,j] * x[j]) * a - b)"
    given = operands(text)
    gradients = []
    for is_constant in (False, True):
        x = given["x"].clone().requires_grad_()
        used = {"A": given["A"], "x": x, "a": 0.3, "b": -2.7}
        if is_constant:
            kernel = evaluate.evaluate_kernel(text, **used)
            found = kernel(*[used[name] for name in kernel.program.inputs])
        else:
            found = sparsify.evaluate(text, **used)
        found.sin().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_traced_graphs_keep_their_constants() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(5)
    text = "y[i] = a * x[i]"
    assert torch.equal(sparsify.evaluate(text, a=0.3, x=x), 0.3 * x)
    graph = make_fx(lambda x: sparsify.evaluate(text, a=0.3, x=x), tracing_mode="fake")(x)
    assert torch.equal(graph(x), 0.3 * x)
    mapped = torch.vmap(lambda x: sparsify.evaluate(text, a=0.3, x=x))(torch.stack([x, 2 * x]))
    assert torch.equal(mapped, 0.3 * torch.stack([x, 2 * x]))


def test_names_of_folded_numbers_collide_with_none() -> None:
    number, x = torch.randn(3), torch.randn(3)
    found = sparsify.evaluate("y[i] = (a * b) * x[i] + number[i]", a=0.3, b=0.4, x=x, number=number)
    assert torch.allclose(found, 0.12 * x + number)
