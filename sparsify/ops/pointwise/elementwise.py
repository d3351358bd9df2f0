"""Functions of two tensors, entry by entry, by torch's rules of broadcasting: arithmetic, comparisons, logic.

In: `A * x` with A in CSR and x a dense vector. Out: `Y[i,j] = A[i,j] * x[j]`, on the pattern of A.

Operands of one pattern, and numbers, need no kernel: torch computes on the values.
"""

from collections.abc import Sequence
from functools import cache, reduce
from itertools import zip_longest
from math import isfinite
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from sparsify.compiler.evaluate import evaluate, evaluate_pair
from sparsify.compiler.kernel.tracing import is_traced
from sparsify.errors import DtypeError, EinsumError, ShapeError
from sparsify.ops.entries import lookup
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.register.memory import check_shape
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor, wrap

INDICES = "ijklmnopqr"
TEXTS = {
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "maximum": "max({}, {})",
    "minimum": "min({}, {})",
    "pow": "{} ** {}",
    "remainder": "mod({}, {})",
    "atan2": "atan2({}, {})",
    "heaviside": "heaviside({}, {})",
    "logical_and": "logical_and({}, {})",
    "logical_or": "logical_or({}, {})",
    "logical_xor": "logical_xor({}, {})",
}
"""torch's functions of two tensors and how index notation says them."""
KEEP_ZERO = frozenset({torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum})
"""Functions that map two fills of 0 to a fill of 0."""
SCALE = frozenset({torch.mul, torch.div})
"""Functions that map a fill of 0 and a finite number other than 0 to a fill of 0."""


@operator(torch.add, Tensor.add)
def add(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`torch.add`: `input + alpha * other`."""
    return _combine(torch.add, "{} + {}", input, scaled(other, alpha, input), out)


@operator(torch.sub, Tensor.sub, torch.subtract, Tensor.subtract)
def sub(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`torch.sub`: `input - alpha * other`."""
    return _combine(torch.sub, "{} - {}", input, scaled(other, alpha, input), out)


@operator(torch.rsub, Tensor.__rsub__)
def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """`torch.rsub`: `other - alpha * input`."""
    return _combine(torch.sub, "{} - {}", other, scaled(input, alpha, other), None)


@operator(torch.mul, Tensor.mul, torch.multiply, Tensor.multiply)
def mul(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    """`torch.mul`: entry by entry; sparse if an operand is."""
    return _combine(torch.mul, "{} * {}", input, other, out)


@operator(torch.div, Tensor.div, torch.divide, Tensor.divide, torch.true_divide, Tensor.true_divide)
def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """`torch.div`: entry by entry."""
    if rounding_mode is not None:
        if out is None and _on_values(input, other):
            return torch.div(input, other, rounding_mode=rounding_mode)
        raise refuse(f"a quotient of different patterns rounded by {rounding_mode}", "torch.floor(A / B)")
    return _combine(torch.div, "{} / {}", input, other, out)


def scaled(operand: Any, alpha: Any, other: Any) -> Any:
    """`alpha * operand`, a term of a sum with `other`; integers need an integer `alpha`."""
    dtype = torch.result_type(operand, other)
    if isinstance(alpha, float) and not (dtype.is_floating_point or dtype.is_complex):
        raise EinsumError(f"{alpha} times integers beside integers", "a factor that is an integer")
    return operand if alpha == 1 else mul(operand, alpha)


def _by_text(function: Any, text: str) -> Any:
    """The implementation of a function of two tensors expressible in index notation."""

    def compute(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
        return _combine(function, text, input, other, out)

    return compute


for _name, _text in TEXTS.items():
    _functions = [getattr(torch, _name), getattr(Tensor, _name)]
    _functions += [getattr(Tensor, f"__{_name}__")] if hasattr(Tensor, f"__{_name}__") else []
    operator(*_functions)(_by_text(_functions[0], _text))


@operator(torch.where, Tensor.where)
def where(condition: Any, input: Any = None, other: Any = None, *, out: Tensor | None = None) -> Any:
    """`torch.where`: of three tensors or numbers; of a condition alone, the coordinates of true entries."""
    if input is None and other is None and isinstance(condition, SparseTensor):
        return lookup.nonzero(condition, as_tuple=True)
    if input is None or other is None or out is not None:
        raise refuse("where without both choices, or with out=", "nonzero of .values()")
    if not isinstance(condition, Tensor):
        raise DtypeError(f"where of a condition {condition!r}; a tensor of bool")
    if condition.dtype != torch.bool:
        raise DtypeError(f"where of a condition of {condition.dtype}; a comparison, or condition.bool()")
    operands = condition, input, other
    tensors = [operand for operand in operands if isinstance(operand, Tensor) and operand.dim()]
    patterns = [tensor.pattern for tensor in tensors if isinstance(tensor, SparseTensor)]
    if len(patterns) == len(tensors) and all(pattern.equals(patterns[0]) for pattern in patterns):
        return torch.where(condition, input, other)
    shape = reduce(_broadcast, tensors, tuple(tensors[0].shape))
    names = INDICES[: len(shape)]
    accesses = dict(
        zip("CAB", (_access(n, o, shape, names) for n, o in zip("CAB", operands, strict=True)), strict=True)
    )
    text = f"Y[{','.join(names)}] = where({', '.join(access for access, _ in accesses.values())})"
    return evaluate(text, **{name: operand for name, (_, operand) in accesses.items()})


def _combine(function: Any, text: str, first: Any, second: Any, out: Tensor | None) -> Tensor:
    """The function `text` of two accesses: by torch if values alone suffice, else by a kernel."""
    if _on_values(first, second):
        if out is not None:
            return cast(Tensor, function(first, second, out=out))
        if function in KEEP_ZERO and _is_plain(first) and not is_traced((first, second)):
            if _is_plain(second):
                return wrap(first._pattern, function(first._vals, second._vals), 0)
            if function in SCALE and type(second) in (int, float) and second and isfinite(second):
                return wrap(first._pattern, function(first._vals, second), 0)
        return cast(Tensor, function(first, second))
    if out is not None:
        raise refuse(f"torch.{function.__name__} of different patterns with out=", "use the result")
    if isinstance(first, SparseTensor) and isinstance(second, SparseTensor):
        second = _stored_alike(first, second)
    if first.shape == second.shape and not is_dynamo_compiling():  # Dynamo would trace the memo
        return cast(Tensor, evaluate_pair(_alike(text, first.dim()), first, second))
    shape = _broadcast(tuple(first.shape), second)
    if function not in SCALE:  # products and quotients keep the sparsity of the sparse operand
        check_shape(f"torch.{function.__name__}", shape, first.dtype, first, second)
    names = INDICES[: len(shape)]
    left, A = _access("A", first, shape, names)
    right, B = _access("B", second, shape, names)
    return cast(Tensor, evaluate(f"Y[{','.join(names)}] = {text.format(left, right)}", A=A, B=B))


@cache
def _alike(text: str, rank: int) -> str:
    """The statement of a function of two tensors of one shape."""
    indices = f"[{','.join(INDICES[:rank])}]" if rank else ""
    return f"Y{indices} = {text.format(f'A{indices}', f'B{indices}')}"


def _on_values(first: Any, second: Any) -> bool:
    """Whether the values suffice: one pattern, a number next to a sparse tensor, or nothing sparse."""
    if isinstance(first, SparseTensor) and isinstance(second, SparseTensor):
        return first.pattern.equals(second.pattern)
    if not (isinstance(first, SparseTensor) or isinstance(second, SparseTensor)):
        return True
    other = second if isinstance(first, SparseTensor) else first
    return not isinstance(other, Tensor) or not (other.dim() or other.requires_grad)


def _is_plain(operand: Any) -> bool:
    """Whether an operand is sparse with the fill 0, without differentiation."""
    if not isinstance(operand, SparseTensor) or operand._fill != 0 or is_dynamo_compiling():
        return False
    return not (torch.is_grad_enabled() and operand.requires_grad)


def _stored_alike(first: SparseTensor, second: SparseTensor) -> SparseTensor:
    """The second operand converted to the format of the first if the mode orderings differ: CSC next to CSR."""
    formats = first.format, second.format
    if formats[0].ordering == formats[1].ordering or any(f.is_dense or not f.is_short for f in formats):
        return second
    return second.to(format=formats[0]) if first.dim() == second.dim() else second


def _broadcast(first: tuple[int, ...], second: Tensor) -> tuple[int, ...]:
    """The shape of the result."""
    shapes = first, tuple(second.shape)
    extents: list[int] = []
    for one, other in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        if one != other and 1 not in (one, other):
            raise ShapeError(
                f"shapes {list(shapes[0])} and {list(shapes[1])} do not broadcast together; equal extents or 1"
            )
        extents.append(other if one == 1 else one)
    return tuple(reversed(extents))


def _access(name: str, operand: Any, shape: tuple[int, ...], names: str) -> tuple[str, Any]:
    """An access of an operand along the last modes of the result, and the operand without modes of extent 1."""
    if not isinstance(operand, Tensor):
        return name, operand
    used = names[len(names) - operand.dim() :]
    extents = shape[len(shape) - operand.dim() :]
    spread = [mode for mode, n in enumerate(operand.shape) if n == 1 and extents[mode] != 1]
    remaining = [letter for mode, letter in enumerate(used) if mode not in spread]
    return (f"{name}[{','.join(remaining)}]" if remaining else name), _squeezed(operand, spread)


def _squeezed(operand: Tensor, modes: Sequence[int]) -> Tensor:
    """The operand without modes of extent 1."""
    if not modes:
        return operand
    shape = [extent for mode, extent in enumerate(operand.shape) if mode not in modes]
    if not isinstance(operand, SparseTensor):
        return operand.reshape(shape)
    return reshaped(operand, shape) if shape else operand.to_dense().reshape(())
