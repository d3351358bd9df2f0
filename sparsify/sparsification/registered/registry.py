"""Registered implementations: of operators, their gradients and sparsifiers, by patterns of layouts.

In: `@register_operator(torch.mm, inputs=("nm(*)", torch.Tensor))` above a function. Out: `torch.mm` of matching tensors
calls the function.

The closest pattern wins: first by `priority`, then by the number of exactly named layouts, then the last registered.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 3 and A.3.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from sparsify.errors import SparsifierError
from sparsify.sparsification.registered.layout import (
    ANY,
    fits,
    fits_layout,
    require_pattern,
    shown,
    shown_tuple,
)
from sparsify.sparsification.registered.operator_name import canonical, written
from sparsify.sparsification.rules.sparsifier import Sparsifier
from sparsify.sparsification.rules.streaming import KeepAll

F = TypeVar("F", bound=Callable[..., Any])
_numbers = count()
# The currently running implementations.
_running: ContextVar[frozenset[int]] = ContextVar("running", default=frozenset())


@dataclass(frozen=True, slots=True)
class Implementation:
    """A function of a user and the patterns of its arguments.

    Attributes:
        inputs: patterns of the arguments, in order.
        outputs: a pair of a class of sparsifiers and a pattern for each result; empty for any.
        function: the implementation.
        priority: the largest one wins.
        number: the last one wins.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[tuple[Any, Any], ...]
    function: Callable[..., Any]
    priority: int
    number: int

    def closeness(self, values: Sequence[Any], outputs: Sequence[tuple[Any, Any]]) -> tuple[int, ...] | None:
        """Closeness of values and of requested results to the patterns; `None` for a mismatch."""
        degrees = [fits(v, p) for v, p in zip(values, self.padded(len(values)), strict=False)]
        degrees += [fits(None, p) for p in self.inputs[len(values) :]]
        for (sparsifier, layout), (kind, pattern) in zip(outputs, self.outputs, strict=False):
            degrees.append(_fits_sparsifier(sparsifier, kind))
            degrees.append(0 if layout is None else fits_layout(layout, pattern))
        if any(n is None for n in degrees):
            return None
        return self.priority, sum(n for n in degrees if n is not None), self.number

    def compute(self, *args: Any) -> Any:
        """The result of the function; a nested call of the same operator goes to the next implementation."""
        token = _running.set(_running.get() | {self.number})
        try:
            return self.function(*args)
        finally:
            _running.reset(token)

    def padded(self, length: int) -> tuple[Any, ...]:
        """The patterns for a number of inputs, padded by "no tensor"."""
        return (*self.inputs, *[None] * (length - len(self.inputs)))


operators: dict[Any, list[Implementation]] = {}
gradients: dict[Any, list[Implementation]] = {}
sparsifiers: list[tuple[type, Implementation]] = []


def register_operator(
    operator: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any] = (),
    priority: int = 0,
) -> Callable[[F], F]:
    """Registers a function as the implementation of an operator for some layouts; a decorator.

    The function is called with `(ctx, inputs, output_sparsifiers)`: an object with `save_for_backward`, the arguments
    of the operator in the order of the signature, and for each result the sparsifier to be applied by the function. The
    function returns the result, a tensor or an object of a registered format, or a tuple of results. The same operator
    on the same layouts within the function is computed without the registration.

    Args:
        operator: operator of torch or of a user, `torch.mm`; methods and signs, `A @ B`, are included.
        inputs: a pattern for each argument, as in `sparsify.sparsification.registered.layout`;
            arguments behind the last one are no tensors, and arguments missing in a call are `None`.
        outputs: for each result a pattern of the layout, or a pair of a class of sparsifiers and a pattern; results
            of plain calls have `KeepAll`. By default any result.
        priority: the implementation with the largest one is taken, among equals the closest pattern.

    Raises:
        SparsifierError: not an operator, pattern or class of sparsifiers.
        FormatError: a pattern with an unknown format.

    Source: STen, section 3, operator implementations, and appendix A.3.

    >>> import torch
    >>> from sparsify.storage.interop.tensors import tensor
    >>> @register_operator(torch.mm, inputs=("dcsr", torch.Tensor))
    ... def product(ctx, inputs, output_sparsifiers):
    ...     return inputs[0].to_dense() @ inputs[1]
    >>> torch.mm(tensor(torch.eye(2), "dcsr"), torch.ones(2, 1)).tolist()
    [[1.0], [1.0]]
    >>> unregister(torch.mm)
    """
    _require_operator(operator)
    input_patterns = tuple(require_pattern(pattern) for pattern in _listed("inputs", inputs))
    results = tuple(map(_output, _listed("outputs", outputs)))
    from sparsify.sparsification.registered.dispatch import install

    install()
    return _registering(operators.setdefault(canonical(operator), []), input_patterns, results, priority)


def register_backward(
    operator: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    grad_outputs: Sequence[Any] = (),
    grad_inputs: Sequence[Any] = (),
    priority: int = 0,
) -> Callable[[F], F]:
    """Registers a function as the gradient of an operator for some layouts; a decorator.

    The function is called with `(ctx, grad_outputs, input_sparsifiers)`: the context object of the implementation, with
    `saved_tensors`, the gradients of the results, and for each argument the sparsifier of its gradient. The function
    returns a gradient for each argument, or `None`.

    Args:
        operator: as of `register_operator`.
        inputs: patterns of the arguments of the operator.
        grad_outputs: patterns of the gradients of the results; by default any.
        grad_inputs: for each argument the pattern of its gradient, or a pair with a class of sparsifiers; a note for
            readers.
        priority: as of `register_operator`.

    Raises:
        SparsifierError, FormatError: as of `register_operator`.

    Source: STen, section 3, backpropagation, and appendix A.3.
    """
    _require_operator(operator)
    input_patterns = tuple(require_pattern(pattern) for pattern in _listed("inputs", inputs))
    for pattern in _listed("grad_inputs", grad_inputs):
        _output(pattern)
    results = tuple((ANY, require_pattern(pattern)) for pattern in _listed("grad_outputs", grad_outputs))
    return _registering(gradients.setdefault(canonical(operator), []), input_patterns, results, priority)


def register_sparsifier(
    cls: Any = None, *, sparsifier: type | None = None, input: Any = ANY, output: Any = ANY, priority: int = 0
) -> Any:
    """Registers a function as the implementation of a class of sparsifiers for some layouts; a decorator.

    Above a class, the decorator marks the class for readers. Above a function, with `sparsifier=`, the function is
    called with `(sparsifier, tensor)` and returns the tensor without the dropped entries, or an object of a registered
    format. A class derived from `sparsifiers.Sparsifier` has a mask, and needs no implementation.

    Args:
        cls: a class of sparsifiers; the decorator without arguments.
        sparsifier: the implemented class.
        input, output: patterns of the argument and of the result.
        priority: as of `register_operator`.

    Raises:
        SparsifierError: not a class, or not a pattern.

    Source: STen, section 2 and appendix A.3, `register_sparsifier_implementation`.

    >>> import torch
    >>> from sparsify.sparsification.apply import sparsify
    >>> @register_sparsifier
    ... class Halved:
    ...     pass
    >>> @register_sparsifier(sparsifier=Halved, output="csr")
    ... def halve(sparsifier, tensor):
    ...     return tensor.tril()
    >>> sparsify(torch.ones(2, 2), Halved(), "csr").nnz
    3
    """
    if cls is not None:
        if not isinstance(cls, type):
            raise SparsifierError(f"register_sparsifier of {cls!r}", "a class, or sparsifier= and a function")
        return cls
    if not isinstance(sparsifier, type):
        raise SparsifierError(f"register_sparsifier(sparsifier={sparsifier!r})", "a class of sparsifiers")
    kind, implementations = sparsifier, list[Implementation]()
    register = _registering(
        implementations, (require_pattern(input),), ((ANY, require_pattern(output)),), priority
    )

    def decorate(function: F) -> F:
        register(function)
        sparsifiers.append((kind, implementations[-1]))
        return function

    return decorate


def unregister(operator: Callable[..., Any]) -> None:
    """Removes all implementations and gradients of an operator."""
    operators.pop(canonical(operator), None)
    gradients.pop(canonical(operator), None)


def closest(
    registered: Sequence[Implementation], values: Sequence[Any], outputs: Sequence[tuple[Any, Any]] = ()
) -> Implementation | None:
    """The best matching implementation, `None` without a match."""
    free = [i for i in registered if i.number not in _running.get()]
    ranked = [(closeness, i) for i in free if (closeness := i.closeness(values, outputs)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def closest_sparsifier(sparsifier: Any, tensor: Any, output: Any) -> Implementation | None:
    """The implementation of a sparsifier for a tensor and the requested layout."""
    candidates = [i for kind, i in sparsifiers if isinstance(sparsifier, kind)]
    return closest(candidates, (tensor,), ((sparsifier, output),))


def registration(operator: Callable[..., Any], layouts: Sequence[Any], outputs: Sequence[Any] = ()) -> str:
    """The lines of code that register an implementation for the layouts, to paste."""
    inputs = shown_tuple(map(shown, layouts))
    results = f", outputs={shown_tuple(f'({type(s).__name__}, {shown(f)})' for s, f in outputs)}"
    return (
        f"@sparsify.register_operator({written(operator)}, inputs={inputs}{results if outputs else ''})\n"
        "def implementation(ctx, inputs, output_sparsifiers): ..."
    )


def _registering(
    into: list[Implementation], inputs: tuple[Any, ...], outputs: tuple[tuple[Any, Any], ...], priority: int
) -> Callable[[F], F]:
    """A decorator that adds a function with its patterns."""
    if not isinstance(priority, int):
        raise SparsifierError(f"priority={priority!r}", "a whole number; the largest one wins")

    def decorate(function: F) -> F:
        if not callable(function):
            raise SparsifierError(f"an implementation {function!r}", "a function; it is a decorator")
        into.append(Implementation(inputs, outputs, function, priority, next(_numbers)))
        return function

    return decorate


def _require_operator(operator: Any) -> None:
    """Raises for a value that is not callable."""
    if not callable(operator):
        raise SparsifierError(f"the operator {operator!r}", "a function, torch.mm")


def _listed(name: str, patterns: Any) -> Sequence[Any]:
    """Patterns as a sequence."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise SparsifierError(
            f"{name}={patterns!r}", "a tuple with a pattern for each, ('csr', torch.Tensor)"
        )
    return patterns


def _output(output: Any) -> tuple[Any, Any]:
    """A class of sparsifiers and a pattern, from a pair or from a pattern alone."""
    if output is None:
        return ANY, ANY
    kind, pattern = output if isinstance(output, tuple | list) and len(output) == 2 else (KeepAll, output)
    if kind != ANY and not isinstance(kind, type):
        raise SparsifierError(f"the sparsifier {kind!r} of a result", "a class, sparsifiers.RandomFraction")
    return kind, require_pattern(pattern)


def _fits_sparsifier(sparsifier: Any, kind: Any) -> int | None:
    """Closeness of a sparsifier to a class."""
    if isinstance(kind, str):
        return 0
    if type(sparsifier) is kind:
        return 2
    return (
        1
        if isinstance(sparsifier, kind) and kind is not Sparsifier
        else 0
        if isinstance(sparsifier, kind)
        else None
    )
