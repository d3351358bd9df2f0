"""Products: matmul and its relatives, `linear`, `addmm`, `einsum`.

In: `torch.matmul(A, x)`. Out: `einsum("ij,j->i", A, x)`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.evaluate import einsum, evaluate
from sparsify.errors import ShapeError
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.pointwise.elementwise import INDICES, add, scaled
from sparsify.ops.register.fallback import is_dense
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor

BATCH = "abcdefgh"


@operator(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__)
def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.matmul`: vectors, matrices and batches of matrices."""
    _no_out(out)
    if input.dim() == 2 == other.dim():
        return einsum("ij,jk->ik", input, other)
    if not input.dim() or not other.dim():
        raise ShapeError(f"matmul of {list(input.shape)} and {list(other.shape)}; both need one mode or more")
    rows, columns = input.shape[-2:-1], other.shape[-1:] if other.dim() > 1 else other.shape[:0]
    if is_dense(input) and input.dim() > 2 and other.dim() <= 2:
        # The rows of all matrices are the rows of one.
        flat = matmul(input.reshape(-1, input.shape[-1]), other)
        return flat.reshape(*input.shape[:-1], *columns)
    batches = max(input.dim() - 2, 0), max(other.dim() - 2, 0)
    letters = BATCH[: max(batches)]
    left = letters[len(letters) - batches[0] :] + ("i" if rows else "") + "j"
    right = letters[len(letters) - batches[1] :] + "j" + ("k" if columns else "")
    result = letters + ("i" if rows else "") + ("k" if columns else "")
    return _einsum(f"{left},{right}->{result}", input, other)


@operator(torch.mm, Tensor.mm, torch.sparse.mm)
def mm(input: Tensor, mat2: Tensor, reduce: str | None = None, *, out: Tensor | None = None) -> Tensor:
    """`torch.mm`, `torch.sparse.mm`: a product of matrices."""
    _no_out(out)
    if reduce not in (None, "sum"):
        raise refuse(f"a product reduced by {reduce}")
    return _product("mm", "ij,jk->ik", input, mat2)


@operator(torch.mv, Tensor.mv)
def mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.mv`: a matrix by a vector."""
    _no_out(out)
    return _product("mv", "ij,j->i", input, vec)


@operator(torch.bmm, Tensor.bmm)
def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.bmm`: a batch of matrix products."""
    _no_out(out)
    return _product("bmm", "bij,bjk->bik", input, mat2)


def _product(name: str, subscripts: str, first: Tensor, second: Tensor) -> Tensor:
    """An einsum of two operands, with checked ranks."""
    ranks = [len(part) for part in subscripts.split("->")[0].split(",")]
    if [first.dim(), second.dim()] != ranks:
        raise ShapeError(
            f"torch.{name} of {list(first.shape)} and {list(second.shape)}; operands of "
            f"{ranks[0]} and {ranks[1]} modes"
        )
    return _einsum(subscripts, first, second)


def _einsum(subscripts: str, first: Tensor, second: Tensor) -> Tensor:
    """The product of two operands; dense if one of them is."""
    result = len(subscripts.split("->")[1])
    if max(first.dim(), second.dim()) < 3 or not (is_dense(first) or is_dense(second)):
        # Default format inference for matrices and vectors.
        return einsum(subscripts, first, second)
    return einsum(subscripts, first, second, format=dense_format(result))


@operator(torch.addmm, Tensor.addmm, torch.sparse.addmm)
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """`torch.addmm`: `beta * input + alpha * mat1 @ mat2`."""
    _no_out(out)
    return _added(input, mm(mat1, mat2), beta, alpha)


@operator(torch.addmv, Tensor.addmv)
def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """`torch.addmv`: `beta * input + alpha * mat @ vec`."""
    _no_out(out)
    return _added(input, mv(mat, vec), beta, alpha)


@operator(torch.baddbmm, Tensor.baddbmm)
def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """`torch.baddbmm`: `beta * input + alpha * batch1 @ batch2`."""
    _no_out(out)
    return _added(input, bmm(batch1, batch2), beta, alpha)


def _added(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """`beta * input + alpha * product`; an input with `beta` 0 is not read, as in torch."""
    input_shape, product_shape = tuple(input.shape), tuple(product.shape)
    fits = len(input_shape) <= len(product_shape) and all(
        n in (1, m) for n, m in zip(input_shape[::-1], product_shape[::-1], strict=False)
    )
    if not fits:
        raise ShapeError(f"an input of shape {list(input.shape)} beside a product of {list(product.shape)}")
    product = scaled(product, alpha, input)
    if beta == 0:
        return product.to(torch.result_type(input, product))
    return add(product, scaled(input, beta, product))


@operator(torch.dot, Tensor.dot)
def dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.dot`: the sum of the products of two vectors."""
    _no_out(out)
    return _product("dot", "i,i->", input, tensor)


@operator(torch.outer, Tensor.outer)
def outer(input: Tensor, vec2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.outer`: all products of the entries of two vectors."""
    _no_out(out)
    return _product("outer", "i,j->ij", input, vec2)


@operator(torch.kron, Tensor.kron)
def kron(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.kron`: a scaled copy of the second matrix for each entry of the first."""
    _no_out(out)
    if input.dim() != 2 or other.dim() != 2:
        raise refuse(f"kron of {list(input.shape)} and {list(other.shape)}", "two matrices")
    result = einsum("ij,kl->ikjl", input, other)
    shape = [one * two for one, two in zip(input.shape, other.shape, strict=True)]
    return reshaped(result, shape) if isinstance(result, SparseTensor) else result.reshape(shape)


@operator(torch.linalg.multi_dot)
def multi_dot(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """`torch.linalg.multi_dot`: a product of several matrices, in the cheapest order."""
    _no_out(out)
    if any(tensor.dim() != 2 for tensor in tensors):
        raise refuse("multi_dot of vectors", "einsum, or @")
    letters = INDICES[: len(tensors) + 1]
    terms = ",".join(first + second for first, second in pairwise(letters))
    result: Tensor = einsum(f"{terms}->{letters[0]}{letters[-1]}", *tensors)
    return result


@operator(torch.matrix_power, Tensor.matrix_power, torch.linalg.matrix_power)
def matrix_power(input: SparseTensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """`torch.matrix_power`: a product of `n` equal matrices by repeated squaring."""
    _no_out(out)
    if n < 1 or input.dim() < 2 or input.shape[-1] != input.shape[-2]:
        raise refuse(f"the power {n} of {list(input.shape)}", "a power of 1 or more of a square matrix")
    result: Tensor | None = None
    square: Tensor = input
    while True:
        if n % 2:
            result = square if result is None else matmul(result, square)
        n //= 2
        if not n:
            assert result is not None, "the highest bit is set"
            return result
        square = matmul(square, square)


@operator(torch.tensordot)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Tensor | None = None) -> Tensor:
    """`torch.tensordot`: summed over pairs of modes, or the last of one and the first of the other."""
    _no_out(out)
    if isinstance(dims, int):
        dims = [range(a.dim() - dims, a.dim()), range(dims)]
    left, right = ([int(mode) for mode in modes] for modes in dims)
    first = INDICES[: a.dim()]
    second = list("abcdefgh"[: b.dim()])
    for mine, theirs in zip(left, right, strict=True):
        second[theirs] = first[mine]
    free = [n for n in (*first, *second) if (n in first) != (n in second)]
    return _einsum(f"{first},{''.join(second)}->{''.join(free)}", a, b)


@operator(functional.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: `input @ weight.T + bias`."""
    if weight.dim() != 2 or not input.dim():
        raise refuse(f"linear of a weight of {weight.dim()} modes")
    if is_dense(input) and input.dim() != 2:
        flat = linear(input.reshape(-1, input.shape[-1]), weight, bias)
        return flat.reshape(*input.shape[:-1], weight.shape[0])
    if input.dim() != 2:
        raise refuse(f"linear of a sparse input of {input.dim()} modes")
    if bias is None:
        return _einsum("nk,ok->no", input, weight)
    result: Tensor = evaluate("Y[n,o] = sum(k, X[n,k] * W[o,k]) + b[o]", X=input, W=weight, b=bias)
    return result


@operator(torch.einsum)
def torch_einsum(equation: Any, *operands: Any) -> Tensor:
    """`torch.einsum` over operands one by one or in a list."""
    if not isinstance(equation, str):
        raise refuse("einsum with lists of subscripts", "subscripts as text")
    listed = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    result: Tensor = einsum(equation, *listed)
    return result


def _no_out(out: Tensor | None) -> None:
    """Raises for `out=`."""
    if out is not None:
        raise refuse("a product with out=", "use the result")
