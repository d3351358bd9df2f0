"""The progress of long work: one line on standard error, if a terminal.

In: `with working("GPSConv"): stage("capturing")`. Out, once two seconds are over: `GPSConv: capturing, 2 s`. The next
stage overwrites the line, and the end of the work clears the line.
"""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sparsify.options import current

# Shorter work shows nothing.
QUIET_SECONDS: Final = 2.0
CLEAR: Final = "\r\033[K"


class Line:
    """The line of one piece of work.

    Attributes:
        subjects: names of the work and of the current nested parts.
        text: the stage.
    """

    def __init__(self, subject: str) -> None:
        self.subjects, self.text = [subject], ""
        self._begun, self._is_shown, self._is_over = time.monotonic(), False, False
        self._lock = threading.Lock()
        # The timer covers a long first stage; later stages show themselves, so that no thread runs beside timings.
        self._timer = threading.Timer(QUIET_SECONDS, self.show)
        self._timer.daemon = True
        self._timer.start()

    def show(self) -> None:
        """Shows the stage, if the work has taken long by now."""
        taken = time.monotonic() - self._begun
        with self._lock:
            if taken < QUIET_SECONDS or self._is_over or not self.text:
                return
            text = f"{', '.join(self.subjects)}: {self.text}, {taken:.0f} s"
            # The cursor returns to column 0: other output overwrites the line.
            write(f"{CLEAR}{text[: shutil.get_terminal_size().columns - 1]}\r")
            self._is_shown = True

    def clear(self) -> None:
        """Clears the line."""
        with self._lock:
            if self._is_shown:
                write(CLEAR)
            self._is_shown = False

    def end(self) -> None:
        """Clears the line permanently."""
        self._timer.cancel()
        self._is_over = True  # first, so that a fired timer shows nothing after `clear`
        self.clear()


_line: ContextVar[Line | None] = ContextVar("line", default=None)


@contextmanager
def working(subject: str) -> Iterator[None]:
    """Context that shows stages under the name of the work; a nested context is a part of the outer work.

    >>> with working("GCN"):
    ...     stage("capturing")
    """
    line = _line.get()
    if line is not None:
        line.subjects.append(subject)
        try:
            yield
        finally:
            line.subjects.pop()
        return
    if current().quiet or not sys.stderr.isatty():
        yield
        return
    line = Line(subject)
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)
        line.end()


def stage(text: str) -> None:
    """Sets the current stage, shown by `working`."""
    if (line := _line.get()) is not None:
        line.text = text
        line.show()


def clear() -> None:
    """Clears the line before other output."""
    if (line := _line.get()) is not None:
        line.clear()


def write(text: str) -> None:
    """Writes to standard error, at once."""
    print(text, end="", file=sys.stderr, flush=True)
