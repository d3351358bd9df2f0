"""The way of operators into the table: a function that computes, and torch's names for it.

In: `@operator(torch.mm, Tensor.mm)` above a function. Out: `torch.mm(A, B)` calls it; what it cannot compute
becomes dense.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from sparsify.errors import (
    DenseSizeError,
    DiscordantError,
    DtypeError,
    SparsifyError,
    UnsupportedOperatorError,
    UnsupportedProgramError,
    shortened,
)
from sparsify.ops.fallback import name_of, run_densely
from sparsify.storage.tensor import Operator, operators

Compute = TypeVar("Compute", bound=Operator)
Unsupported = (UnsupportedOperatorError, UnsupportedProgramError, DiscordantError, DtypeError)


def operator(*functions: Operator) -> Callable[[Compute], Compute]:
    """Enters a function for each of torch's `functions`; it takes their arguments."""

    def enter(compute: Compute) -> Compute:
        for function in functions:
            operators[function] = _guarded(compute, function)
        return compute

    return enter


def _guarded(compute: Operator, function: Operator) -> Operator:
    """`compute`, or the dense result where it cannot."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            # Attributes of sparse operands are read without going through the table; what computes calls the
            # functions of this package by their own names.
            with torch._C.DisableTorchFunctionSubclass():
                return compute(*args, **kwargs)
        except SparsifyError as error:
            if isinstance(error, DenseSizeError) or not isinstance(error, Unsupported):
                raise shortened(error) from error.__cause__
            reason = error
        except AttributeError as error:  # of an argument that is no tensor
            raise TypeError(f"{name_of(function)}: {error}") from error
        return run_densely(function, args, kwargs, reason)

    return run


def refuse(
    asked: str, remedy: str = "sparsify.einsum or sparsify.evaluate may say it"
) -> UnsupportedOperatorError:
    """The error for arguments that no kernel is generated for."""
    return UnsupportedOperatorError(f"{asked} has no sparse kernel", remedy)
