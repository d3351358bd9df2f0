"""Suppression of a model's prints during capture, which runs the model many times.

In: `with SILENT: ...`. Out: prints of this thread within the context are dropped; other threads print as usual.
"""

import sys
import threading
from typing import Any, Final


class Filter:
    """A stream that drops the text of silent threads.

    Args:
        stream: the stream of all other threads.
        silent: identities of the silent threads.
    """

    def __init__(self, stream: Any, silent: list[int]) -> None:
        self.stream, self.silent = stream, silent

    def write(self, text: str) -> int:
        """Writes a text and returns its length."""
        return len(text) if threading.get_ident() in self.silent else int(self.stream.write(text))

    def writelines(self, lines: Any) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class SilentPrints:
    """A context in which a thread prints nothing; one instance is shared by all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.silent: list[int] = []
        self.filter: Filter | None = None

    def __enter__(self) -> None:
        with self.lock:
            self.silent.append(threading.get_ident())
            if sys.stdout is not None and (self.filter is None or sys.stdout is not self.filter):
                self.filter = Filter(sys.stdout, self.silent)
                sys.stdout = self.filter

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.silent.remove(threading.get_ident())
            if not self.silent and self.filter is not None:
                if sys.stdout is self.filter:
                    sys.stdout = self.filter.stream
                self.filter = None


SILENT: Final = SilentPrints()
