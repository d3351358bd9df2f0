"""Thread-local changes of modules and of process state.

In: `with substituted(math, "pow", power): ...`. Out: `math.pow` is `power` in this thread and unchanged in all
others; afterwards `math.pow` is the original again, in whichever order contexts of several threads end.

Other code may save a substitute and restore it after the context. The stale substitute acts as the original, and its
next use removes it.
"""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from typing import Any, Final

import torch

from sparsify.runtime.locks import Lock

# Guards reads and writes of substituted attributes.
CHANGES: Final = Lock()


class Here(threading.local):
    """Whether the calling thread is inside a context."""

    inside = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Context manager: the thread is inside."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before


class Change:
    """One substitution of an attribute: the original value, and whether the context has ended.

    Attributes:
        owner: module, class or object with the attribute.
        name: name of the attribute.
        original: value for threads outside the context.
        is_over: whether the context has ended, so that all threads get the original.
    """

    def __init__(self, owner: Any, name: str, original: Any) -> None:
        self.owner, self.name, self.original = owner, name, original
        self.here, self.is_over = Here(), False

    def end(self) -> None:
        """Restores the original, or the substitute of another context still open."""
        self.is_over = True
        restore(self.owner, self.name)


class Flag(Change):
    """Truth value of one thread, overriding the previous value."""

    def __bool__(self) -> bool:
        if self.is_over:
            restore(self.owner, self.name)
        return self.here.inside or bool(self.original)

    def __index__(self) -> int:
        return int(bool(self))

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    __hash__ = object.__hash__
    __ror__, __rand__ = __or__, __and__


class Choice(Change):
    """Function dispatching to `substitute` in threads inside the context, and to `original` in all others."""

    def __init__(self, owner: Any, name: str, original: Any, substitute: Callable[..., Any]) -> None:
        super().__init__(owner, name, original)
        here = self.here

        def chosen(*args: Any, **kwargs: Any) -> Any:
            if self.is_over and not torch.compiler.is_compiling():
                restore(owner, name)
            return (substitute if here.inside else original)(*args, **kwargs)

        self.function: Any = chosen  # a function, because functions bind as methods
        update_wrapper(self.function, original)
        vars(chosen)["choice"] = self


def living(value: Any) -> Any:
    """The original behind substitutes of ended contexts."""
    while (substitute := value if isinstance(value, Flag) else getattr(value, "choice", None)) is not None:
        if not isinstance(substitute, Change) or not substitute.is_over:
            break
        value = substitute.original
    return value


def restore(owner: Any, name: str) -> None:
    """Removes a substitute from an attribute if the context of the substitute has ended."""
    with CHANGES:
        attribute = getattr(owner, name)
        value = living(attribute)
        if value is not attribute:
            setattr(owner, name, value)


@contextmanager
def substituted(owner: Any, name: str, substitute: Callable[..., Any]) -> Iterator[None]:
    """Context manager: replaces a function of a module or class for this thread."""
    with CHANGES:
        choice = Choice(owner, name, living(getattr(owner, name)), substitute)
        setattr(owner, name, choice.function)
    with _entered(choice):
        yield


@contextmanager
def flagged(owner: Any, name: str) -> Iterator[None]:
    """Context manager: a truth value of a module is `True` for this thread, and unchanged for all others."""
    with CHANGES:
        flag = Flag(owner, name, living(getattr(owner, name)))
        setattr(owner, name, flag)
    with _entered(flag):
        yield


@contextmanager
def _entered(change: Change) -> Iterator[None]:
    """Context manager: the thread is inside a change; the change ends with the context."""
    try:
        with change.here.entered():
            yield
    finally:
        change.end()


class Stream:
    """Stream wrapper: drops the output of threads inside the context and forwards the rest."""

    def __init__(self, stream: Any, here: Here) -> None:
        self.stream, self.here = stream, here

    def write(self, text: str) -> int:
        """Writes or drops a text."""
        return len(text) if self.here.inside else int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Inside:
    """Pattern for a warnings filter: matches every text in threads inside the context."""

    def __init__(self, here: Here) -> None:
        self.here = here

    def match(self, text: str) -> bool:
        """Whether the warning thread is inside."""
        return self.here.inside


@contextmanager
def silenced(loggers: Sequence[str]) -> Iterator[None]:
    """Context manager: silences warnings, standard error and loggers for this thread."""
    here = Here()
    silence: Any = ("ignore", Inside(here), Warning, None, 0)

    def speaks(_: logging.LogRecord) -> bool:
        return not here.inside

    with ExitStack() as changes:
        filters = warnings.filters  # a separate list if other contexts are open inside
        filters.insert(0, silence)  # type: ignore[attr-defined]
        changes.callback(_remove, filters, silence)
        for log in map(logging.getLogger, loggers):
            log.addFilter(speaks)
            changes.callback(log.removeFilter, speaks)
        before = sys.stderr
        shown: Any = Stream(before, here)
        sys.stderr = shown
        changes.callback(lambda: setattr(sys, "stderr", before) if sys.stderr is shown else None)
        with here.entered():
            yield


def _remove(filters: Any, silence: Any) -> None:
    """Removes a filter from a list, possibly emptied meanwhile."""
    if silence in filters:
        filters.remove(silence)
