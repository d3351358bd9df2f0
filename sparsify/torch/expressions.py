"""`einsum` of the namespace: torch's for dense operands, a generated kernel for sparse ones.

In: `einsum("ij,jk->ik", A, B)`, A in a layout of torch or a `SparseTensor`. Out: dense or sparse by format inference.
"""

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from sparsify.errors import EinsumError

if TYPE_CHECKING:
    from sparsify.compiler.schedule.directives import Schedule
    from sparsify.storage.format import Format

LETTERS: Final = ascii_uppercase + ascii_lowercase
"""The index variable of each number of a list of subscripts, as torch numbers them."""


def einsum(
    equation: Any,
    *operands: Any,
    format: "Format | str | None" = None,
    schedule: "Schedule | str | None" = None,
) -> Tensor:
    """`torch.einsum` over any mix of dense and sparse operands.

    Dense operands alone, without `format` and `schedule`, go to torch.

    Args:
        equation: subscripts as in torch, `"ij,jk->ik"`; or the first operand, with lists of numbers after the
            operands: `einsum(A, [0, 1], B, [1, 2], [0, 2])`.
        operands: dense tensors, `SparseTensor`s and tensors of torch's sparse layouts, one by one or in a list.
        format: format of the result; inferred by default.
        schedule: schedule in the notation of `sparsify.explain`; chosen by default.

    Raises:
        EinsumError, ShapeError, DtypeError: a mismatch, with the index variable.

    >>> A = torch.eye(2).to_sparse()
    >>> einsum("ij,jk->ik", A, torch.ones(2, 3)).shape
    torch.Size([2, 3])

    Source: Scorch, 2024, algorithm 2.
    """
    from sparsify.compiler import evaluate
    from sparsify.storage.tensor import SparseTensor

    if isinstance(equation, Tensor):
        equation, operands = equation_of_lists((equation, *operands))
    listed = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    given = tuple(map(as_sparse, listed))
    has_sparse = any(isinstance(operand, SparseTensor) for operand in given)
    if not (has_sparse or format or schedule):
        return torch.einsum(equation, *operands)
    return evaluate.einsum(equation, *given, format=format, schedule=schedule)


def equation_of_lists(arguments: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of `einsum` with lists of subscripts.

    Raises:
        EinsumError: a list is missing, or a number has no letter.

    >>> equation_of_lists(("A", [0, ..., 1], "B", [1, 2], [0, 2]))
    ('A...B,BC->AC', ('A', 'B'))
    """
    pairs, result = (arguments[:-1], arguments[-1]) if len(arguments) % 2 else (arguments, None)
    lists = [*pairs[1::2], *([] if result is None else [result])]
    if not all(isinstance(numbers, list | tuple) for numbers in lists):
        found = ", ".join(type(argument).__name__ for argument in arguments)
        raise EinsumError(
            f"einsum of ({found}); each operand has its list of subscripts behind it: A, [0, 1]"
        )
    texts = ["".join(map(_letter, numbers)) for numbers in lists]
    inputs = ",".join(texts[: len(pairs) // 2])
    return inputs if result is None else f"{inputs}->{texts[-1]}", tuple(pairs[::2])


def _letter(number: Any) -> str:
    """The index variable of a number; an ellipsis stays one."""
    if number is Ellipsis:
        return "..."
    if not isinstance(number, int) or not 0 <= number < len(LETTERS):
        raise EinsumError(
            f"subscript {number!r} in a list of subscripts; numbers from 0 to {len(LETTERS) - 1}, or ..."
        )
    return LETTERS[number]


def as_sparse(operand: Any) -> Any:
    """A tensor of a sparse layout of torch as a `SparseTensor`; anything else unchanged."""
    if type(operand) is not Tensor or operand.layout == torch.strided:
        return operand
    from sparsify.storage.interop.tensors import tensor

    return tensor(operand, None, duplicates="sum")
