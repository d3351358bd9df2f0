"""Operators with sparsified results and gradients, by the four parts of STen.

In: `sparsified(torch.add, Parts(external=RandomFraction(0.5), format="csr"))`. Out: a function like `torch.add` with a
`SparseTensor` with about half of the entries as result.

| part | is |
|---|---|
| `inline` | the sparsifier applied by the operator while writing |
| `temporary` | the format of the written tensor |
| `external` | the sparsifier applied to the written tensor |
| `format` | the format of the result |

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, sections 2.1 and A.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import SparsifierError, UnsupportedOperatorError
from sparsify.sparsification.apply import sparsify
from sparsify.sparsification.registered import dispatch
from sparsify.sparsification.registered.layout import layout_of
from sparsify.sparsification.registered.operator_name import written
from sparsify.sparsification.registered.user_tensor import UserTensor
from sparsify.sparsification.rules.streaming import KeepAll
from sparsify.storage.tensor import SparseTensor

ALL = KeepAll()


@dataclass(frozen=True, slots=True)
class Parts:
    """The four parts of the sparsification of a result or a gradient.

    Attributes:
        inline: sparsifier applied by the operator while writing.
        temporary: format of the written tensor; `None`: chosen by the operator.
        external: sparsifier applied to the written tensor.
        format: format of the result; `None`: the format of the temporary.

    Source: STen, appendix A.1, `inline_sparsifier`, `tmp_format`, `external_sparsifier`, `out_format`.

    >>> Parts(external=KeepAll(), format="csr").is_plain
    False
    """

    inline: Any = ALL
    temporary: Any = None
    external: Any = ALL
    format: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether results are unchanged."""
        keep = isinstance(self.inline, KeepAll) and isinstance(self.external, KeepAll)
        return keep and self.temporary in (None, torch.Tensor) and self.format in (None, torch.Tensor)

    @staticmethod
    def of(parts: Any) -> "Parts":
        """The parts, from a tuple of four, a dictionary by name or `None` for unchanged results.

        Raises:
            SparsifierError: another value.
        """
        if isinstance(parts, Parts):
            return parts
        if parts is None:
            return Parts()
        if isinstance(parts, tuple) and len(parts) == 4:
            return Parts(*parts)
        if isinstance(parts, dict) and parts.keys() <= {"inline", "temporary", "external", "format"}:
            return Parts(**parts)
        raise SparsifierError(
            f"the parts {parts!r}", "Parts(inline, temporary, external, format), or a tuple of these four"
        )

    def apply(self, result: Tensor, *, is_inlined: bool = False) -> Tensor:
        """A result, sparsified.

        Args:
            result: result of an operator.
            is_inlined: whether the operator applied the inline sparsifier already.
        """
        sparse = result
        if not is_inlined and not (
            isinstance(self.inline, KeepAll) and self.temporary in (None, torch.Tensor)
        ):
            sparse = sparsify(sparse, self.inline, torch.Tensor if self.temporary is None else self.temporary)
        if isinstance(self.external, KeepAll) and (self.format is None or layout_of(sparse) is self.format):
            return sparse
        final = layout_of(sparse) if self.format is None else self.format
        return sparsify(sparse, self.external, final)


def sparsified(
    operator: Callable[..., Any], outputs: Any = None, gradients: Any = None
) -> Callable[..., Any]:
    """The operator with sparse results and gradients.

    Args:
        operator: operator of torch or of a user, `torch.add`.
        outputs: `Parts`, or a tuple of the four parts, of the result; a list for operators with several results.
        gradients: likewise for the gradients of the results, as received by the operator.

    Raises:
        SparsifierError: invalid parts, fewer parts than results.

    Source: STen, appendix A, `sparsified_op`.

    >>> from sparsify.sparsification.sparsifiers import ScalarThreshold
    >>> add = sparsified(torch.add, Parts(ScalarThreshold(2.0), "coo", format="csr"))
    >>> add(torch.tensor([[1.0, 2.0]]), 0.5).values()
    tensor([2.5000])
    """
    if not callable(operator):
        raise SparsifierError(f"sparsified({operator!r})", "a function, torch.add")
    results = _listed(outputs)
    back = _listed(gradients)

    @wraps(operator)
    def compute(*args: Any, **kwargs: Any) -> Any:
        requested = tuple((parts.inline, parts.temporary) for parts in results)
        results_of, is_inlined = dispatch.call(operator, args, kwargs, requested)
        many = list(results_of) if isinstance(results_of, tuple | list) else [results_of]
        if len(many) != len(results) or len(back) not in (1, len(many)):
            raise SparsifierError(
                f"{written(operator)} has {len(many)} results and parts for {len(results)}",
                "parts for each result",
            )
        sparse_results = [
            _with_gradient(parts.apply(r, is_inlined=is_inlined), r, g)
            for r, parts, g in zip(many, results, back * (len(many) if len(back) == 1 else 1), strict=True)
        ]
        return tuple(sparse_results) if isinstance(results_of, tuple | list) else sparse_results[0]

    return compute


def _listed(parts: Any) -> list[Parts]:
    """Parts for each result."""
    is_many = isinstance(parts, Sequence) and not (isinstance(parts, tuple) and not _holds_parts(parts))
    return [Parts.of(part) for part in parts] if is_many else [Parts.of(parts)]


def _holds_parts(parts: tuple[Any, ...]) -> bool:
    """Whether a tuple has parts for results, and is not the four parts of one."""
    return all(isinstance(part, Parts | tuple | dict) or part is None for part in parts) and len(parts) > 0


def _with_gradient(result: Tensor, sparse: Tensor, parts: Parts) -> Tensor:
    """The result, with the gradient sparsified on the way to the operator."""
    if parts.is_plain or not result.requires_grad:
        return result
    takes_any = dispatch.takes_any(sparse) and result is sparse
    with_hook: Tensor = _Gradient.apply(result, parts, takes_any)  # type: ignore[no-untyped-call]
    return with_hook


class _Gradient(torch.autograd.Function):
    """`x -> x`; the gradient is sparsified."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, parts: Parts, takes_any: bool) -> Tensor:
        ctx.parts, ctx.takes_any = parts, takes_any
        return result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        sparse = ctx.parts.apply(gradient.detach())
        is_sparse = isinstance(sparse, SparseTensor | UserTensor)
        sparse = sparse.to_dense() if is_sparse and not ctx.takes_any else sparse
        if torch.is_grad_enabled() and gradient.requires_grad:
            sparse = _FirstGradient.apply(gradient, sparse)  # type: ignore[no-untyped-call]
        return sparse, None, None


class _FirstGradient(torch.autograd.Function):
    """`(g, sparsified g) -> sparsified g`; no second derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, sparse: Tensor) -> Tensor:
        return sparse.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedOperatorError(
            "a second gradient through a sparsified gradient", "first gradients alone"
        )
