"""Sums, differences, products and quotients of two tensors, by torch's rules of broadcasting.

In: `A * x` with A in CSR and x a dense vector. Out: `Y[i,j] = A[i,j] * x[j]`, on the pattern of A.

Operands of one pattern, and numbers, need no kernel: torch computes on the values.
"""

from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Tensor

from sparsify.compiler.evaluate import evaluate
from sparsify.errors import ShapeError
from sparsify.ops.table import operator, refuse
from sparsify.storage.tensor import SparseTensor

INDICES = "ijklmnopqr"


@operator(torch.add, Tensor.add)
def add(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`torch.add`: `input + alpha * other`."""
    return _combine(torch.add, "+", input, _scaled(other, alpha), out)


@operator(torch.sub, Tensor.sub, torch.subtract, Tensor.subtract)
def sub(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`torch.sub`: `input - alpha * other`."""
    return _combine(torch.sub, "-", input, _scaled(other, alpha), out)


@operator(torch.rsub, Tensor.__rsub__)
def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """`torch.rsub`: `other - alpha * input`."""
    return _combine(torch.sub, "-", other, _scaled(input, alpha), None)


@operator(torch.mul, Tensor.mul, torch.multiply, Tensor.multiply)
def mul(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    """`torch.mul`: entry by entry; sparse where an operand is."""
    return _combine(torch.mul, "*", input, other, out)


@operator(torch.div, Tensor.div, torch.divide, Tensor.divide, torch.true_divide, Tensor.true_divide)
def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """`torch.div`: entry by entry."""
    if rounding_mode is not None:
        raise refuse(f"a quotient rounded by {rounding_mode}")
    return _combine(torch.div, "/", input, other, out)


def _scaled(operand: Any, alpha: Any) -> Any:
    """`alpha * operand`."""
    return operand if alpha == 1 else mul(operand, alpha)


def _combine(function: Any, symbol: str, first: Any, second: Any, out: Tensor | None) -> Tensor:
    """`first symbol second`: by torch where values alone decide, else by a kernel."""
    if out is not None:
        raise refuse(f"{symbol} with out=", "use the result")
    if _on_values(first, second):
        return cast(Tensor, function(first, second))
    if isinstance(first, SparseTensor) and isinstance(second, SparseTensor):
        second = _stored_alike(first, second)
    shape = _broadcast(first, second)
    names = INDICES[: len(shape)]
    left, A = _access("A", first, shape, names)
    right, B = _access("B", second, shape, names)
    target = f"Y[{','.join(names)}]" if names else "Y"
    return cast(Tensor, evaluate(f"{target} = {left} {symbol} {right}", A=A, B=B))


def _on_values(first: Any, second: Any) -> bool:
    """Whether the result follows from the values: one pattern, a number beside a sparse tensor, nothing sparse."""
    if isinstance(first, SparseTensor) and isinstance(second, SparseTensor):
        return first.pattern.equals(second.pattern)
    if not (isinstance(first, SparseTensor) or isinstance(second, SparseTensor)):
        return True
    other = second if isinstance(first, SparseTensor) else first
    return not isinstance(other, Tensor) or not (other.dim() or other.requires_grad)


def _stored_alike(first: SparseTensor, second: SparseTensor) -> SparseTensor:
    """The second operand in the format of the first where their modes nest differently: CSC beside CSR."""
    formats = first.format, second.format
    if formats[0].ordering == formats[1].ordering or any(f.is_dense or not f.is_short for f in formats):
        return second
    return second.to(format=formats[0]) if first.dim() == second.dim() else second


def _broadcast(first: Tensor, second: Tensor) -> tuple[int, ...]:
    """The shape of the result."""
    shapes = tuple(first.shape), tuple(second.shape)
    found: list[int] = []
    for one, other in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        if one != other and 1 not in (one, other):
            raise ShapeError(
                f"shapes {list(shapes[0])} and {list(shapes[1])} do not broadcast together; equal extents or 1"
            )
        found.append(other if one == 1 else one)
    return tuple(reversed(found))


def _access(name: str, operand: Tensor, shape: tuple[int, ...], names: str) -> tuple[str, Tensor]:
    """An access of an operand, whose modes are the last ones of the result, and the operand without modes of 1."""
    used = names[len(names) - operand.dim() :]
    extents = shape[len(shape) - operand.dim() :]
    spread = [mode for mode, n in enumerate(operand.shape) if n == 1 and extents[mode] != 1]
    if spread and isinstance(operand, SparseTensor):
        raise refuse(f"spreading a sparse tensor of shape {list(operand.shape)} to {list(shape)}")
    kept = [letter for mode, letter in enumerate(used) if mode not in spread]
    squeezed = operand.squeeze(tuple(spread)) if spread else operand
    return (f"{name}[{','.join(kept)}]" if kept else name), squeezed
