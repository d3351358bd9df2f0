"""The functions of index notation as torch operators.

In: `compute("mul", (x, y))`, tensors of the dtype of the computation. Out: their product, with broadcasting.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.counter_random import KEPT_BITS, kept_bits


def _cbrt(x: Tensor) -> Tensor:
    return x.sign() * x.abs().double().pow(1 / 3).to(x.dtype)


def _root(x: Tensor) -> Tensor:
    """The square root; its gradient is 0 at 0."""
    return torch.where(x == 0, 0, torch.where(x == 0, 1, x).sqrt())


def _mod(x: Tensor, y: Tensor) -> Tensor:
    """The remainder with the sign of the divisor; 0 for integers divided by 0."""
    if x.dtype.is_floating_point:
        return torch.remainder(x, y)
    return torch.where(y == 0, 0, torch.remainder(x, torch.where(y == 0, 1, y)))


def _power(x: Tensor, y: Tensor) -> Tensor:
    """`x ** y`; for integers with a negative exponent 0, unless x is 1 or -1."""
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return torch.pow(x, y)
    inverse = torch.where(x == 1, 1, torch.where(x == -1, torch.where(y % 2 != 0, -1, 1), 0)).to(x.dtype)
    return torch.where(y < 0, inverse, torch.pow(x, y.clamp(min=0)))


def _uniform(seed: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Counter-based random numbers in [0, 1), float32."""
    bits: Tensor = kept_bits(seed.long(), row.long(), column.long())
    return bits.float() * 2.0**-KEPT_BITS


def _dot_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    """The sum of the products of pairs of bfloat16, the halves of int32; float32."""
    pairs = [pair.int().contiguous().unsqueeze(-1).view(torch.bfloat16).float() for pair in (x, y)]
    return (pairs[0] * pairs[1]).sum(-1)


def _dot_uint8_int8(x: Tensor, y: Tensor) -> Tensor:
    """The sum of the products of four bytes without and with a sign, packed in int32; int32."""
    bytes_of = [packed.int().contiguous().unsqueeze(-1) for packed in (x, y)]
    products = bytes_of[0].view(torch.uint8).int() * bytes_of[1].view(torch.int8).int()
    return products.sum(-1, dtype=torch.int32)


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x)) if x.dtype.is_complex else torch.sigmoid(x)


TORCH: Final[dict[str, Callable[..., Any]]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": _power,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "log10": torch.log10,
    "sqrt": torch.sqrt,
    "root": _root,
    "cbrt": _cbrt,
    "abs": torch.abs,
    "sign": torch.sign,
    "detach": torch.positive,
    "round": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "square": lambda x: x * x,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "relu": torch.relu,
    "sigmoid": _sigmoid,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda x: x * _sigmoid(x),
    "erf": torch.erf,
    "logical_not": torch.logical_not,
    "conj": lambda x: x.conj().resolve_conj(),
    "real": lambda x: x.real if x.dtype.is_complex else x,
    "min": torch.minimum,
    "max": torch.maximum,
    "atan2": torch.atan2,
    "mod": _mod,
    "heaviside": torch.heaviside,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "uniform": _uniform,
    "dot_bfloat16": _dot_bfloat16,
    "dot_uint8_int8": _dot_uint8_int8,
}


def compute(function: str, args: tuple[Tensor, ...]) -> Tensor:
    """The values of a built-in function.

    >>> compute("mod", (torch.tensor([5, 5]), torch.tensor([3, 0]))).tolist()
    [2, 0]
    """
    result: Tensor = TORCH[function](*args)
    return result
