"""Norms along modes and distances: `norm vector_norm normalize cdist`. Unstored entries count as the fill.

In: `torch.linalg.vector_norm(A, dim=1)`. Out: `sqrt(sum(abs(A[i,j]) ** 2))`, a dense vector; A never is.
"""

import math
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.evaluate import einsum, evaluate
from sparsify.ops.pointwise.elementwise import div
from sparsify.ops.reduce import reductions
from sparsify.ops.reduce.reductions import Modes
from sparsify.ops.register.memory import check_shape
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor

MANY_ROWS: Final = 25
"""Euclidean distances of more rows come from a product of matrices, as in torch."""
BY_PRODUCT: Final = "use_mm_for_euclid_dist"
BY_DIFFERENCES: Final = "donot_use_mm_for_euclid_dist"


def vector_norm(input: SparseTensor, order: Any, dim: Modes, keepdim: bool) -> Tensor:
    """The norm of a numeric order over modes."""
    if not input.dtype.is_floating_point:
        raise refuse(f"a norm of {input.dtype}", "A.to(torch.float32)")
    if dim is None and not keepdim and input.fill == 0 and order >= 0 and input.nnz:
        return cast(Tensor, torch.linalg.vector_norm(input.values(), order))
    size = cast(SparseTensor, input.abs())
    if order in (math.inf, -math.inf):
        return (reductions.amax if order > 0 else reductions.amin)(size, () if dim is None else dim, keepdim)
    if order == 0:
        return reductions.sum(cast(SparseTensor, (size != 0).to(input.dtype)), dim, keepdim)
    if order == 1:
        return reductions.sum(size, dim, keepdim)
    return _root(reductions.sum(cast(SparseTensor, size**order), dim, keepdim), order)


def _root(total: Tensor, order: float) -> Tensor:
    """`total ** (1 / order)`, with gradient 0 at 0 as in torch, not infinite."""
    if isinstance(total, SparseTensor):
        return SparseTensor(total.pattern, _root(total.values(), order), total.fill ** (1 / order))
    is_zero = total == 0
    power = torch.where(is_zero, 1, total)
    return torch.where(is_zero, 0, power.sqrt() if order == 2 else power ** (1 / order))


def _norm_operand(input: Any, order: Any, out: Any, dtype: Any) -> SparseTensor:
    """The checked operand of a norm of a numeric order, in the requested dtype."""
    if out is not None or not isinstance(input, SparseTensor) or not isinstance(order, int | float):
        raise refuse(f"a norm of the order {order!r}, or with out=", "a number, or torch.linalg.norm of rows")
    if order < 0 and order != -math.inf:
        raise refuse(f"a norm of the order {order}", "0 or more")
    return input if dtype is None else input.to(dtype)


@operator(torch.linalg.vector_norm)
def linalg_vector_norm(
    x: SparseTensor,
    ord: Any = 2,
    dim: Modes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Tensor:
    """`torch.linalg.vector_norm`: over all modes or some."""
    return vector_norm(_norm_operand(x, ord, out, dtype), ord, dim, keepdim)


@operator(torch.norm, Tensor.norm)
def norm(
    input: SparseTensor,
    p: Any = "fro",
    dim: Modes = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`torch.norm`: over all modes or some; "fro" is 2."""
    order = 2 if p in ("fro", None) else p
    return vector_norm(_norm_operand(input, order, out, dtype), order, dim, keepdim)


@operator(functional.normalize)
def normalize(
    input: SparseTensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    """`torch.nn.functional.normalize`: rows divided by their norm, on the pattern of the operand."""
    length = vector_norm(_norm_operand(input, p, out, None), p, dim, True)
    return div(input, length.clamp_min(eps))


@operator(torch.cdist)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """`torch.cdist`: the distances of the rows of two matrices, dense [n, m]."""
    if x1.dim() != 2 or x2.dim() != 2 or x1.shape[1] != x2.shape[1] or not x1.shape[1]:
        raise refuse(f"cdist of {list(x1.shape)} and {list(x2.shape)}", "two matrices with equal columns")
    if not (x1.is_floating_point() and x1.dtype == x2.dtype and p > 0):
        raise refuse(f"cdist of {x1.dtype} and {x2.dtype}, p={p}", "one floating-point dtype, p above 0")
    check_shape("torch.cdist", (x1.shape[0], x2.shape[0]), x1.dtype, x1, x2)
    many = max(x1.shape[0], x2.shape[0]) > MANY_ROWS and compute_mode != BY_DIFFERENCES
    if p == 2 and (many or compute_mode == BY_PRODUCT):
        return _root(_squared_distances(x1, x2), 2)
    difference = "A[i,k] - B[j,k]"
    match p:
        case 1:
            text = f"Y[i,j] += abs({difference})"
        case 2:
            text = f"Y[i,j] += square({difference})"
        case math.inf:
            text = f"Y[i,j] max= abs({difference})"
        case _:
            text = f"Y[i,j] += abs({difference}) ** {float(p)!r}"
    distances = cast(Tensor, evaluate(text, A=x1, B=x2, format=dense_format(2))).to(x1.dtype)
    return distances if p in (1, math.inf) else _root(distances, p)


def _squared_distances(x1: Tensor, x2: Tensor) -> Tensor:
    """`sum(x1 ** 2) + sum(x2 ** 2) - 2 * x1 @ x2.T` of all pairs of rows, never below 0."""
    product = einsum("ik,jk->ij", x1, x2, format=dense_format(2))
    first, second = (
        cast(Tensor, evaluate("Y[i] += square(A[i,k])", A=x, format=dense_format(1))) for x in (x1, x2)
    )
    return (first.unsqueeze(1) + second - 2 * product).clamp_min(0)
