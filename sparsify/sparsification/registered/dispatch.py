"""Dispatch of torch's operators: a user's implementation, the compiler, a conversion, or a dense fallback.

In: `torch.mm(A, B)`, A in a user format. Out: the function registered for the operator; without one the compiler's
product if A becomes a `SparseTensor` without loss; else the dense product, with one warning that shows the missing
registration.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from sparsify.errors import SparsifierError, UnsupportedOperatorError
from sparsify.options import current
from sparsify.sparsification.registered import registry
from sparsify.sparsification.registered.layout import fits, layout_of, shown, shown_tuple
from sparsify.sparsification.registered.operator_name import (
    argument_names,
    arguments,
    canonical,
    is_in_place,
    written,
)
from sparsify.sparsification.registered.registry import Implementation, closest, registration
from sparsify.sparsification.registered.user_tensor import UserTensor, format_class, wrap
from sparsify.sparsification.rules.streaming import KeepAll
from sparsify.storage import tensor as storage
from sparsify.storage.format import Format
from sparsify.storage.level.levels import Grouped
from sparsify.storage.tensor import SparseTensor, values_at
from sparsify.warn import warn

Way = Literal["user", "compiler", "converted", "dense", "torch"]
Outputs = Sequence[tuple[Any, Any]]
# The default of plain calls: all entries, in any layout.
PLAIN: Outputs = ((KeepAll(), None),)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation of a call.

    Attributes:
        way: `user`, `compiler`, `converted`, `dense`, or `torch` without sparse arguments.
        reason: reason of the choice, in a few words.
        implementation: implementation of the user.
        formats: target format of converted arguments by argument, for an implementation.
    """

    way: Way
    reason: str
    implementation: Implementation | None = None
    formats: Mapping[int, Any] = field(default_factory=dict)


class Context:
    """The context passed from an implementation to its gradient: saved tensors and attributes."""

    saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Saves tensors for the gradient."""
        self.saved_tensors = tensors


def choose(operator: Callable[..., Any], values: Sequence[Any], outputs: Outputs = PLAIN) -> Choice:
    """The implementation of a call with the given arguments.

    Args:
        operator: operator of torch.
        values: arguments in the order of the signature.
        outputs: for each result the sparsifier applied by the operator itself, and the requested layout.
    """
    registered = registry.operators.get(canonical(operator), ())
    if (implementation := closest(registered, values, outputs)) is not None:
        return Choice("user", f"{_called(implementation)} is registered for these layouts", implementation)
    leaves = tree_leaves(list(values))
    user_tensors = [v for v in leaves if isinstance(v, UserTensor)]
    if not user_tensors and not any(isinstance(v, SparseTensor) for v in leaves):
        return Choice("torch", "no argument is sparse")
    if not user_tensors and _is_compiled(operator):
        return Choice("compiler", "no registered pattern fits, the compiler has the operator")
    converted = _cheapest(registered, values, outputs)
    if converted is not None:
        return converted
    if user_tensors and _is_compiled(operator) and all(hasattr(v.wrapped, "to_sparse") for v in user_tensors):
        names = ", ".join(sorted({v.format.__name__ for v in user_tensors}))
        return Choice("converted", f"{names} becomes a SparseTensor without loss, for the compiler")
    return Choice("dense", "no registered pattern fits, nor does one behind a lossless conversion")


def _cheapest(registered: Sequence[Implementation], values: Sequence[Any], outputs: Outputs) -> Choice | None:
    """The registered implementation with the cheapest conversion of arguments, in entries moved."""
    candidates: list[tuple[float, int, Choice]] = []
    for implementation in registered:
        for formats, cost in _conversions(implementation, values):
            if (
                formats
                and implementation.closeness(_converted(values, formats, like=True), outputs) is not None
            ):
                names = ", ".join(f"argument {n} becomes {shown(f)}" for n, f in formats.items())
                choice = Choice(
                    "converted",
                    f"{names} without loss, for {_called(implementation)}",
                    implementation,
                    formats,
                )
                candidates.append((cost, -implementation.priority, choice))
    return min(candidates, key=lambda item: item[:2])[2] if candidates else None


def _conversions(
    implementation: Implementation, values: Sequence[Any]
) -> Iterator[tuple[dict[int, Any], float]]:
    """The target formats of sparse arguments, and the number of entries moved."""
    formats, cost = dict[int, Any](), 0.0
    for number, (value, pattern) in enumerate(zip(values, implementation.padded(len(values)), strict=False)):
        if (
            not isinstance(value, SparseTensor | UserTensor)
            or pattern is None
            or fits(value, pattern) is not None
        ):
            continue
        if isinstance(value, UserTensor) and not hasattr(value.wrapped, "to_sparse"):
            return
        target = _one_format(pattern, value.dim())
        if target is None or not _holds_any(target):
            return
        formats[number] = target
        cost += value.nnz if isinstance(value, SparseTensor) else value.numel()
    yield formats, cost


def _one_format(pattern: Any, rank: int) -> Format | None:
    """The single format named by a pattern."""
    if isinstance(pattern, Format):
        return pattern if pattern.rank == rank else None
    if not isinstance(pattern, str) or "*" in pattern or "|" in pattern or format_class(pattern) is not None:
        return None
    result = Format(pattern)
    return result if result.rank == rank else None


def _holds_any(format: Format) -> bool:
    """Whether a format can hold any set of entries; false for groups of a fixed size."""
    return not format.is_dense and not any(isinstance(stored.level, Grouped) for stored in format.levels)


def _converted(values: Sequence[Any], formats: Mapping[int, Any], *, like: bool = False) -> list[Any]:
    """The arguments in other formats; placeholders without entries if only layouts matter."""
    converted = list(values)
    for number, target in formats.items():
        value = converted[number]
        if like:
            empty = torch.empty((value.dim(), 0), dtype=torch.int64), torch.empty(0), tuple(value.shape)
            converted[number] = storage_tensor(empty, target)
            continue
        sparse = value.to_sparse_tensor() if isinstance(value, UserTensor) else value
        assert sparse is not None, "only what converts without loss is converted"
        converted[number] = sparse.to(format=target)
    return converted


def storage_tensor(data: Any, format: Any) -> SparseTensor:
    """A `SparseTensor` of coordinates."""
    from sparsify.storage.interop.tensors import tensor

    return tensor(data, format)


def call(
    operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Outputs = PLAIN
) -> tuple[Any, bool]:
    """The result of an operator, and whether an implementation of a user applied the sparsifiers of `outputs`."""
    values = arguments(operator, args, kwargs)
    choice = choose(operator, values, outputs)
    if choice.implementation is not None:
        return run(operator, choice.implementation, _converted(values, choice.formats), outputs), True
    has_own = any(isinstance(v, UserTensor) for v in tree_leaves(list(values)))
    if has_own and _writes(operator, values, kwargs):
        if getattr(operator, "__name__", "") == "__setitem__":
            raise UnsupportedOperatorError(
                "a write into a part of a tensor in a format of a user", "make it dense first, .to_dense()"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return operator(*args, **kwargs), False
    if choice.way == "converted":
        sparse_args, sparse_kwargs = tree_map(_sparse, (list(args), dict(kwargs)))
        return operator(*sparse_args, **sparse_kwargs), False
    if choice.way == "dense" and has_own:
        _refuse_or_warn(operator, values, outputs)
        dense_args, dense_kwargs = tree_map(_dense, (list(args), dict(kwargs)))
        return operator(*dense_args, **dense_kwargs), False
    return operator(*args, **kwargs), False


def _writes(operator: Callable[..., Any], values: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call writes into its arguments: `add_`, `+=`, `out=` and `inplace=True`."""
    named = dict(zip(argument_names(operator), values, strict=False)) | dict(kwargs)
    in_place = is_in_place(getattr(operator, "__name__", "")) or named.get("inplace") is True
    return in_place or named.get("out") is not None


def _sparse(value: Any) -> Any:
    """Tensors in user formats as `SparseTensor`s."""
    return value.to_sparse_tensor() if isinstance(value, UserTensor) else value


def _dense(value: Any) -> Any:
    """Tensors in user formats as dense ones."""
    return value.to_dense() if isinstance(value, UserTensor) else value


def _refuse_or_warn(operator: Callable[..., Any], values: Sequence[Any], outputs: Outputs) -> None:
    """One warning for an operator and layouts; an error under `sparsify.strict()`."""
    layouts = [layout_of(v) if isinstance(v, Tensor) else None for v in values]
    requested = [(s, layout) for s, layout in outputs if layout is not None]
    text = f"{written(operator)} of {shown_tuple(map(shown, layouts))} has no implementation"
    lines = registration(operator, layouts, requested)
    if current().strict:
        raise UnsupportedOperatorError(text, f"register one:\n{lines}")
    if text not in _warned:
        _warned.add(text)
        warn(
            f"{text}; it is computed densely, here and from now on without a warning. To register one:\n{lines}"
        )


def run(
    operator: Callable[..., Any], implementation: Implementation, values: Sequence[Any], outputs: Outputs
) -> Any:
    """The result of a user's implementation; gradients by registered functions, else by torch."""
    values = (*values, *[None] * (len(implementation.inputs) - len(values)))
    sparsifiers = [sparsifier for sparsifier, _ in outputs]
    leaves = [v for v in values if isinstance(v, Tensor) and v.requires_grad]
    if not leaves or not torch.is_grad_enabled():
        return _results(operator, implementation.compute(Context(), tuple(values), sparsifiers))
    if any(g.closeness(values, ()) is not None for g in registry.gradients.get(canonical(operator), ())):
        return _UserOperator.apply(operator, implementation, sparsifiers, *values)  # type: ignore[no-untyped-call]
    result = _results(operator, implementation.compute(Context(), tuple(values), sparsifiers))
    return tree_map(partial(_with_message, operator, values, leaves), result)


def _with_message(operator: Any, values: Sequence[Any], leaves: Sequence[Tensor], result: Any) -> Any:
    """A result; if torch lost the gradient, backward raises with the missing registration."""
    is_differentiable = isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex())
    if not is_differentiable or result.requires_grad:
        return result
    return _NoGradient.apply(operator, values, result, *leaves)  # type: ignore[no-untyped-call]


def _results(operator: Callable[..., Any], result: Any) -> Any:
    """The results of an implementation, as tensors.

    Raises:
        SparsifierError: something else.
    """
    if isinstance(result, tuple | list):
        return tuple(_results(operator, part) for part in result)
    if isinstance(result, Tensor):
        return result
    if format_class(type(result)) is not None:
        return wrap(result)
    raise SparsifierError(
        f"the implementation of {written(operator)} returned a {type(result).__name__}",
        "a tensor, an object of a registered format, or a tuple of them",
    )


class _UserOperator(torch.autograd.Function):
    """An implementation of a user with a registered gradient."""

    @staticmethod
    def forward(
        ctx: Any, operator: Any, implementation: Implementation, sparsifiers: Any, *values: Any
    ) -> Any:
        ctx.operator, ctx.user_context, ctx.values = operator, Context(), values
        ctx.set_materialize_grads(False)
        return _results(operator, implementation.compute(ctx.user_context, values, sparsifiers))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        requested = [(KeepAll(), layout_of(g) if g is not None else None) for g in grads]
        registered = registry.gradients.get(canonical(ctx.operator), ())
        implementation = closest(registered, ctx.values, requested)
        if implementation is None:
            raise UnsupportedOperatorError(_no_gradient(ctx.operator, ctx.values, grads))
        gradients = implementation.compute(ctx.user_context, tuple(grads), [KeepAll()] * len(ctx.values))
        gradients = tuple(gradients) if isinstance(gradients, tuple | list) else (gradients,)
        gradients += (None,) * (len(ctx.values) - len(gradients))
        return None, None, None, *map(_gradient_of, ctx.values, gradients[: len(ctx.values)])


def _gradient_of(value: Any, gradient: Any) -> Any:
    """A gradient in a layout accepted by the producer of the argument."""
    if gradient is None or not isinstance(value, Tensor) or not value.requires_grad:
        return None
    if format_class(type(gradient)) is not None:
        gradient = wrap(gradient)
    if isinstance(value, SparseTensor):
        dense = gradient.to_dense() if isinstance(gradient, UserTensor) else gradient
        is_own = isinstance(dense, SparseTensor) and dense.pattern.equals(value.pattern)
        dense = dense.to_dense() if isinstance(dense, SparseTensor) and not is_own else dense
        return dense if is_own else SparseTensor(value.pattern, values_at(dense, value.pattern))
    is_taken = takes_any(value)
    return (
        gradient.to_dense() if isinstance(gradient, UserTensor | SparseTensor) and not is_taken else gradient
    )


def takes_any(tensor: Tensor) -> bool:
    """Whether the gradient of a tensor goes to a user's own gradient, in any layout."""
    node = tensor.grad_fn
    return isinstance(tensor, UserTensor) or (
        node is not None and type(node).__name__ == "_UserOperatorBackward"
    )


class _NoGradient(torch.autograd.Function):
    """A result of an implementation not differentiable by torch; backward raises with the missing registration."""

    @staticmethod
    def forward(ctx: Any, operator: Any, values: Any, result: Tensor, *leaves: Tensor) -> Tensor:
        ctx.operator, ctx.values = operator, values
        return (
            wrap(result.wrapped, tuple(result.shape), result.dtype)
            if isinstance(result, UserTensor)
            else result.clone()
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedOperatorError(_no_gradient(ctx.operator, ctx.values, grads))


def _no_gradient(operator: Any, values: Sequence[Any], grads: Sequence[Any]) -> str:
    """The missing gradient, and the lines of code that register one."""
    layouts = shown_tuple(shown(layout_of(v)) if isinstance(v, Tensor) else "None" for v in values)
    gradients = shown_tuple(shown(layout_of(g)) if isinstance(g, Tensor) else "'*'" for g in grads)
    return (
        f"{written(operator)} of {layouts} has an implementation and no gradient for {gradients}; register one:\n"
        f"@sparsify.register_backward({written(operator)}, inputs={layouts}, grad_outputs={gradients})\n"
        "def gradient(ctx, grad_outputs, input_sparsifiers): ..."
    )


def explain_call(
    operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> str:
    """The implementation of a call, its reason, and the registration that would change the choice.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> print(explain_call(torch.mm, (tensor(torch.eye(2), "csr"), torch.ones(2, 2))).splitlines()[1])
      way: compiler: no registered pattern fits, the compiler has the operator
    """
    values = arguments(operator, args, kwargs or {})
    choice = choose(operator, values)
    layouts = [layout_of(v) if isinstance(v, Tensor) else None for v in values]
    lines = [
        f"{written(operator)} of {shown_tuple(map(shown, layouts))}",
        f"  way: {choice.way}: {choice.reason}",
    ]
    for registered in registry.operators.get(canonical(operator), ()):
        mark = "taken" if registered is choice.implementation else "does not fit"
        if registered is not choice.implementation and registered.closeness(values, PLAIN) is not None:
            mark = "fits less closely"
        lines.append(
            f"  registered: {_called(registered)} for {shown_tuple(map(shown, registered.inputs))}: {mark}"
        )
    if choice.implementation is None:
        lines += [
            "  to register one:",
            *(f"    {line}" for line in registration(operator, layouts).splitlines()),
        ]
    return "\n".join(lines)


def _called(implementation: Implementation) -> str:
    """The name of a function."""
    return str(getattr(implementation.function, "__qualname__", implementation.function))


def _is_compiled(operator: Callable[..., Any]) -> bool:
    """Whether the compiler's table has an operator."""
    if not storage._is_filled:
        storage._fill()
    return operator in storage.operators or canonical(operator) in storage.operators


def _override(operator: Any, args: Any, kwargs: Any) -> Any:
    """A user's implementation for `SparseTensor`s, `NotImplemented` if none fits."""
    registered = registry.operators.get(canonical(operator))
    if not registered:
        return NotImplemented
    values = arguments(operator, args, kwargs)
    implementation = closest(registered, values, PLAIN)
    return NotImplemented if implementation is None else run(operator, implementation, values, PLAIN)


def _convert_first(operator: Any, args: Any, kwargs: Any, reason: Any) -> Any:
    """An operator without compiler support: by the implementation with the cheapest conversion, else densely."""
    values = arguments(operator, args, kwargs)
    choice = _cheapest(registry.operators.get(canonical(operator), ()), values, PLAIN)
    if choice is not None and choice.implementation is not None:
        return run(operator, choice.implementation, _converted(values, choice.formats), PLAIN)
    return _without_conversion[0](operator, args, kwargs, reason)


_without_conversion: list[Any] = []


def install() -> None:
    """Makes sparse tensors dispatch to users' implementations first."""
    if _without_conversion:
        return
    if not storage._is_filled:
        storage._fill()
    storage.overriding.append(_override)
    _without_conversion.append(storage.unsupported[0])
    storage.unsupported.insert(0, _convert_first)
