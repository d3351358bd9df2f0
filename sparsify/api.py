"""The public functions: tensors, expressions, explanations and whole models.

In: `einsum("ij,jk->ik", A, B)`. Out: the result, dense or sparse by the rules of format inference.
"""

from typing import Any

import torch

from sparsify.compiler.evaluate import einsum, einsum_kernel, evaluate
from sparsify.compiler.explain import explain_kernel, printed
from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import SparsifyError
from sparsify.passes.apply import apply
from sparsify.passes.explain import explain_model
from sparsify.passes.save import load, save
from sparsify.passes.sparse_module import SparseModule
from sparsify.storage.interop import tensor

__all__ = ["apply", "einsum", "evaluate", "explain", "load", "save", "tensor"]


def explain(subject: Any, *operands: torch.Tensor, schedule: Schedule | str | None = None) -> str:
    """How an einsum or an applied model is computed, as text: formats, schedule, notation, loops and C++.

    Args:
        subject: subscripts with their operands, or what `apply` returned.
        schedule: of an einsum, instead of the chosen one.

    Raises:
        SparsifyError: the subject is neither.
    """
    if isinstance(subject, str):
        kernel, _ = einsum_kernel(subject, operands, None, schedule)
        return printed(explain_kernel(kernel))
    if isinstance(subject, SparseModule):
        return str(explain_model(subject))
    raise SparsifyError(
        f"explain was given {_a_kind(subject)}",
        'give subscripts with operands, explain("ij,jk->ik", A, B), or what sparsify.apply returned',
    )


def _a_kind(subject: Any) -> str:
    """What an object is, for messages: `a Linear`."""
    name = type(subject).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
