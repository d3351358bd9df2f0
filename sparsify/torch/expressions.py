"""`einsum` of the namespace: torch's for dense operands, a generated kernel where one is sparse.

In: `einsum("ij,jk->ik", A, B)`, A in a layout of torch or a `SparseTensor`. Out: dense or sparse by format inference.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sparsify.compiler.schedule.directives import Schedule
    from sparsify.storage.format import Format


def einsum(
    equation: Any,
    *operands: Any,
    format: "Format | str | None" = None,
    schedule: "Schedule | str | None" = None,
) -> Tensor:
    """`torch.einsum` over any mix of dense and sparse operands.

    Dense operands alone, without `format` and `schedule`, go to torch.

    Args:
        equation: subscripts as torch's, `"ij,jk->ik"`.
        operands: dense tensors, `SparseTensor`s and tensors of torch's sparse layouts, one by one or in a list.
        format: of the result; inferred without it.
        schedule: text as `sparsify.explain` prints it; chosen without it.

    Raises:
        EinsumError, ShapeError, DtypeError: what does not fit, with the index variable.

    >>> A = torch.eye(2).to_sparse()
    >>> einsum("ij,jk->ik", A, torch.ones(2, 3)).shape
    torch.Size([2, 3])

    Source: Scorch, 2024, algorithm 2.
    """
    from sparsify.compiler import evaluate
    from sparsify.storage.tensor import SparseTensor

    listed = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    given = tuple(map(as_sparse, listed))
    has_sparse = any(isinstance(operand, SparseTensor) for operand in given)
    is_torchs = not isinstance(equation, str) or not (has_sparse or format or schedule)
    if is_torchs:
        return torch.einsum(equation, *operands)
    return evaluate.einsum(equation, *given, format=format, schedule=schedule)


def as_sparse(operand: Any) -> Any:
    """A tensor of one of torch's sparse layouts as a `SparseTensor`; anything else as it is."""
    if type(operand) is not Tensor or operand.layout == torch.strided:
        return operand
    from sparsify.storage.interop import tensor

    return tensor(operand, None, duplicates="sum")
