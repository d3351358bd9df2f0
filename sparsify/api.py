"""The public functions: tensors, expressions, explanations and whole models.

In: `einsum("ij,jk->ik", A, B)`. Out: the result, dense or sparse by the rules of format inference.
"""

from collections.abc import Mapping
from typing import Any

import torch

from sparsify.compiler.evaluate import einsum, einsum_kernel, evaluate, evaluate_kernel
from sparsify.compiler.explain import explain_kernel, printed
from sparsify.compiler.operands.sort_operands import ascending
from sparsify.compiler.plan.prepare.sparsified import LAST, by_block, in_kernel
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.errors import SparsifyError, public
from sparsify.passes.apply import apply
from sparsify.passes.explain import explain_model
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.save import load, save
from sparsify.sparsification.registered.dispatch import explain_call
from sparsify.storage.interop.tensors import tensor

__all__ = ["apply", "einsum", "evaluate", "explain", "load", "save", "tensor"]


@public
def explain(
    subject: Any, *operands: torch.Tensor, schedule: Schedule | str | None = None, **named: Any
) -> str:
    """Explanation of an expression or an applied model: formats, schedule, notation, loops and C++.

    Args:
        subject: subscripts with operands, statements with operands by name, an operator of torch with arguments (for
            the chosen computation and the reason), or the result of `apply`.
        schedule: schedule of an expression, in place of the chosen one.
        named: arguments of `evaluate`, operands by name and the rest.

    Raises:
        SparsifyError: another kind of subject.

    >>> A = tensor(torch.eye(2), "csr")
    >>> "schedule" in explain("y[i] = A[i,j] * x[j]", A=A, x=torch.ones(2))
    True
    """
    if isinstance(subject, str) and "=" in subject:
        if operands:
            raise SparsifyError(
                "explain was given statements with operands that have no names",
                'give them by name, explain("y[i] = A[i,j] * x[j]", A=A, x=x)',
            )
        subject, named, after = _with_conditions(subject, named)
        kernel = evaluate_kernel(subject, schedule=schedule, **named)
        given = [ascending(named[name]) for name in kernel.program.inputs]
        return printed(explain_kernel(kernel, sizes_of(kernel.program, given))) + after
    if named:
        raise SparsifyError(
            f"explain was given {', '.join(named)} by name",
            'name the operands of statements, explain("y[i] = A[i,j] * x[j]", A=A, x=x); an einsum takes them in order',
        )
    if isinstance(subject, str):
        kernel, order = einsum_kernel(subject, operands, None, schedule)
        given = [ascending(operands[place]) for place in order]
        return printed(explain_kernel(kernel, sizes_of(kernel.program, given)))
    if isinstance(subject, SparseModule):
        return str(explain_model(subject))
    if callable(subject) and operands and not isinstance(subject, torch.nn.Module):
        return explain_call(subject, operands)
    raise SparsifyError(
        f"explain was given {_a_kind(subject)}",
        'give subscripts with operands, explain("ij,jk->ik", A, B), statements with theirs by name, or what '
        "sparsify.apply returned",
    )


def _with_conditions(text: str, named: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Arguments of `evaluate_kernel` without sparsifiers, and lines about sparsifiers run after the kernel."""
    sparsifier = named.pop("sparsifier", None)
    if sparsifier is None:
        return text, named, ""
    keys = ("outputs", "format", "schedule", "sizes")
    operands = {name: value for name, value in named.items() if name not in keys}
    blocks = by_block(
        text, named.get("outputs"), named.get("format"), sparsifier, named.get("sizes") or {}, operands
    )
    if blocks is not None:
        moved = "" if blocks.rows == blocks.asked else f"\n\nafter the kernel\n  conversion to {blocks.asked}"
        return text, named | {"outputs": blocks.output, "format": {blocks.output: blocks.format}}, moved
    format, operands, left = in_kernel(named.get("format"), sparsifier, named.get("outputs"))
    wanted = format if isinstance(format, Mapping) else {LAST: format}
    lines = [f"  {name or 'the result'}: {s}, then {wanted.get(name) or 'csr'}" for name, s in left.items()]
    kept = {name: form for name, form in wanted.items() if name not in left and form is not None}
    after = "\n\nafter the kernel\n" + "\n".join(lines) if left else ""
    return text, named | operands | {"format": kept.get(LAST, kept or None)}, after


def _a_kind(subject: Any) -> str:
    """The kind of an object, for messages: `a Linear`."""
    name = type(subject).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
