"""Registration of operators: an implementation, and torch's names for the operator.

In: `@operator(torch.mm, Tensor.mm)` above a function. Out: `torch.mm(A, B)` calls the function; unsupported calls
fall back to dense results.
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
from sparsify.ops.register.fallback import name_of, run_densely
from sparsify.storage.tensor import Operator, operators

Compute = TypeVar("Compute", bound=Operator)
Unsupported = (UnsupportedOperatorError, UnsupportedProgramError, DiscordantError, DtypeError)


def operator(*functions: Operator) -> Callable[[Compute], Compute]:
    """Registers an implementation for each of torch's `functions`, with the same arguments."""

    def enter(compute: Compute) -> Compute:
        for function in functions:
            operators[function] = _guarded(compute, function)
        return compute

    return enter


def _guarded(compute: Operator, function: Operator) -> Operator:
    """`compute`, with the dense fallback for unsupported calls."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            # Attributes of sparse operands are read without dispatch; implementations call functions of this package
            # directly.
            with torch._C.DisableTorchFunctionSubclass():
                return compute(*args, **kwargs)
        except SparsifyError as error:
            if isinstance(error, DenseSizeError) or not isinstance(error, Unsupported):
                raise shortened(error) from error.__cause__
            reason = error
        except AttributeError as error:  # from an argument that is no tensor
            raise TypeError(f"{name_of(function)}: {error}") from error
        return run_densely(function, args, kwargs, reason)

    return run


def refuse(
    subject: str, remedy: str = "sparsify.einsum or sparsify.evaluate may say it"
) -> UnsupportedOperatorError:
    """The error for arguments without a sparse kernel."""
    return UnsupportedOperatorError(f"{subject} has no sparse kernel", remedy)
