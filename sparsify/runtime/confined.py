"""Changes of modules and of the process that one thread alone sees.

In: `with substituted(math, "pow", power): ...`. Out: `math.pow` is `power` in this thread, and what it was in all
others; afterwards it is the original again, in whichever order such contexts of several threads end.
"""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import update_wrapper
from typing import Any


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


class Flag:
    """A truth value of one thread, over the one that was there before."""

    def __init__(self, before: Any) -> None:
        self.here, self.original, self.is_over = Here(), before, False

    def __bool__(self) -> bool:
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


class Choice:
    """A function that is `substitute` in the threads inside of its context, and `original` in all others."""

    def __init__(self, original: Any, substitute: Callable[..., Any]) -> None:
        self.here, self.original, self.is_over = Here(), original, False
        here = self.here

        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (substitute if here.inside else original)(*args, **kwargs)

        self.function: Any = chosen  # a function, which binds as a method
        update_wrapper(self.function, original)
        vars(chosen)["choice"] = self


def living(value: Any) -> Any:
    """The original behind substitutes whose contexts have ended.

    Another thread may have saved one of ours and put it back after its context: it acts as the original.
    """
    while (known := value if isinstance(value, Flag) else getattr(value, "choice", None)) is not None:
        if not isinstance(known, Flag | Choice) or not known.is_over:
            break
        value = known.original
    return value


@contextmanager
def substituted(owner: Any, name: str, substitute: Callable[..., Any]) -> Iterator[None]:
    """Within this context a function of a module or class is another one, for this thread."""
    choice = Choice(living(getattr(owner, name)), substitute)
    with _placed(owner, name, choice, choice.function):
        yield


@contextmanager
def flagged(owner: Any, name: str, others: Any) -> Iterator[None]:
    """Within this context a truth value of a module is `True` for this thread, and `others` for all others."""
    flag = Flag(living(others))
    with _placed(owner, name, flag, flag):
        yield


@contextmanager
def _placed(owner: Any, name: str, known: Flag | Choice, value: Any) -> Iterator[None]:
    setattr(owner, name, value)
    try:
        with known.here.entered():
            yield
    finally:
        known.is_over = True
        setattr(owner, name, living(getattr(owner, name)))


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
