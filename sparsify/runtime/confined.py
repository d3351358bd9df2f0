"""Changes of modules and of the process that one thread alone sees.

In: `with substituted(math, "pow", power): ...`. Out: `math.pow` is `power` in this thread, and what it was in all
others; afterwards it is the original again, in whichever order such contexts of several threads end.

Other code may save a substitute and put it back after its context. It acts as the original, and its next use
removes it.
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

# Reads and writes of attributes that have substitutes.
CHANGES: Final = Lock()


class Here(threading.local):
    """Whether the thread that asks is inside of a context."""

    inside = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within this context the thread is inside."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before


class Change:
    """One substitution of an attribute: the original behind it, and whether its context has ended.

    Attributes:
        owner: module, class or object that has the attribute.
        name: of the attribute.
        original: the value for threads that are not inside.
        is_over: whether the context has ended, so that the original is the value for all threads.
    """

    def __init__(self, owner: Any, name: str, original: Any) -> None:
        self.owner, self.name, self.original = owner, name, original
        self.here, self.is_over = Here(), False

    def end(self) -> None:
        """Puts the original in place, or the substitute of another context that has not ended."""
        self.is_over = True
        restore(self.owner, self.name)


class Flag(Change):
    """A truth value of one thread, over the one that was there before."""

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
    """A function that is `substitute` in the threads inside of its context, and `original` in all others."""

    def __init__(self, owner: Any, name: str, original: Any, substitute: Callable[..., Any]) -> None:
        super().__init__(owner, name, original)
        here = self.here

        def chosen(*args: Any, **kwargs: Any) -> Any:
            if self.is_over and not torch.compiler.is_compiling():
                restore(owner, name)
            return (substitute if here.inside else original)(*args, **kwargs)

        self.function: Any = chosen  # a function, which binds as a method
        update_wrapper(self.function, original)
        vars(chosen)["choice"] = self


def living(value: Any) -> Any:
    """The original behind substitutes whose contexts have ended."""
    while (known := value if isinstance(value, Flag) else getattr(value, "choice", None)) is not None:
        if not isinstance(known, Change) or not known.is_over:
            break
        value = known.original
    return value


def restore(owner: Any, name: str) -> None:
    """Removes a substitute from an attribute if the context of the substitute has ended."""
    with CHANGES:
        found = getattr(owner, name)
        value = living(found)
        if value is not found:
            setattr(owner, name, value)


@contextmanager
def substituted(owner: Any, name: str, substitute: Callable[..., Any]) -> Iterator[None]:
    """Within this context a function of a module or class is another one, for this thread."""
    with CHANGES:
        choice = Choice(owner, name, living(getattr(owner, name)), substitute)
        setattr(owner, name, choice.function)
    with _entered(choice):
        yield


@contextmanager
def flagged(owner: Any, name: str) -> Iterator[None]:
    """Within this context a truth value of a module is `True` for this thread, and as before for all others."""
    with CHANGES:
        flag = Flag(owner, name, living(getattr(owner, name)))
        setattr(owner, name, flag)
    with _entered(flag):
        yield


@contextmanager
def _entered(change: Change) -> Iterator[None]:
    """Within this context the thread is inside of a change, which ends with the context."""
    try:
        with change.here.entered():
            yield
    finally:
        change.end()


class Stream:
    """A stream that drops what threads inside write, and hands on the rest."""

    def __init__(self, stream: Any, here: Here) -> None:
        self.stream, self.here = stream, here

    def write(self, text: str) -> int:
        """Writes a text, or drops it."""
        return len(text) if self.here.inside else int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Inside:
    """A pattern, for a filter of warnings, that matches every text in threads inside."""

    def __init__(self, here: Here) -> None:
        self.here = here

    def match(self, text: str) -> bool:
        """Whether the thread that warns is inside."""
        return self.here.inside


@contextmanager
def silenced(loggers: Sequence[str]) -> Iterator[None]:
    """Within this context warnings, standard error and loggers say nothing of what this thread does."""
    here = Here()
    silence: Any = ("ignore", Inside(here), Warning, None, 0)

    def speaks(_: logging.LogRecord) -> bool:
        return not here.inside

    with ExitStack() as changes:
        filters = warnings.filters  # a list of its own where other contexts are inside of this one
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
    """Takes a filter out of a list that may have been emptied meanwhile."""
    if silence in filters:
        filters.remove(silence)
