"""Whether two tensors are equal but for rounding: `allclose`.

In: `torch.allclose(A, B)`. Out: whether `abs(A[i,j] - B[i,j]) <= atol + rtol * abs(B[i,j])` holds everywhere.
"""

import torch
from torch import Tensor

from sparsify.compiler.evaluate import evaluate
from sparsify.errors import ShapeError
from sparsify.ops.pointwise.elementwise import INDICES
from sparsify.ops.register.table import operator
from sparsify.storage.tensor import SparseTensor


@operator(torch.allclose, Tensor.allclose)
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """`torch.allclose`: of two tensors, one of them or both sparse."""
    input, other = input.detach(), other.detach()
    if _are_alike(input, other):
        return all(
            torch.allclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=equal_nan)
            for mine, theirs in zip(_parts(input), _parts(other), strict=True)
        )
    if input.shape != other.shape:
        raise ShapeError(f"allclose of shapes {list(input.shape)} and {list(other.shape)}; the same shape")
    at = f"[{','.join(INDICES[: input.dim()])}]"
    close = (
        f"logical_or(A{at} == B{at}, abs(A{at} - B{at}) <= {float(atol)!r} + {float(rtol)!r} * abs(B{at}))"
    )
    if equal_nan:
        close = f"logical_or({close}, logical_and(A{at} != A{at}, B{at} != B{at}))"
    return bool(evaluate(f"y &= {close}", A=input, B=other))


def _are_alike(first: Tensor, second: Tensor) -> bool:
    """Whether both are sparse, with equal patterns and dtypes."""
    if not (isinstance(first, SparseTensor) and isinstance(second, SparseTensor)):
        return False
    return first.dtype == second.dtype and first.pattern.equals(second.pattern)


def _parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The values of a sparse tensor, and the fill."""
    assert isinstance(tensor, SparseTensor), "asked of sparse tensors only"
    return tensor.values(), torch.full((), tensor.fill, dtype=tensor.dtype)
