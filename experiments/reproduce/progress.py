"""Progress of a run on standard error: a bar with the expected end on a terminal, a line a row in a file.

In: the expected seconds of the rows. Out: `5 of 36 rows, ends about 14:32`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sparsify.options import current


class Steps:
    """Counter of finished rows of a run.

    Args:
        seconds: expected duration of each row; scaled by the actual durations of finished rows.
        bar: progress bar of a terminal, or `None`.
        console: console for lines, or `None` to be quiet.
    """

    def __init__(self, seconds: Sequence[float], bar: Progress | None, console: Console | None) -> None:
        self.seconds, self.bar, self.console = list(seconds), bar, console
        self.done, self.expected, self.spent = 0, 0.0, 0.0
        self.task = None if bar is None else bar.add_task("", total=len(seconds), end="")
        self.started = time.monotonic()

    def end(self) -> str:
        """Expected end of the last row, as a time of day."""
        left = sum(self.seconds[self.done :])
        scale = self.spent / self.expected if self.expected else 1.0
        return (datetime.now() + timedelta(seconds=left * scale)).strftime("%H:%M")

    def begin(self, name: str) -> None:
        """Announces the next row."""
        self.started = time.monotonic()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=name, end=f"ends about {self.end()}")
        elif self.console is not None:
            place = f"{self.done + 1} of {len(self.seconds)}"
            self.console.print(
                f"{name}, {place}, ends about {self.end()}", highlight=False, markup=False, emoji=False
            )

    def finish(self, reused: bool) -> None:
        """Counts a row; rows reused from earlier runs do not affect the time estimate."""
        if not reused:
            self.spent += time.monotonic() - self.started
            self.expected += self.seconds[self.done]
        self.done += 1
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, advance=1)


@contextmanager
def steps(seconds: Sequence[float]) -> Iterator[Steps]:
    """Progress of a run; nothing is shown if options say quiet."""
    console = Console(stderr=True)
    if current().quiet or not console.is_terminal:
        yield Steps(seconds, None, None if current().quiet else console)
        return
    shown = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[end]}"),
    )
    with Progress(*shown, console=console, transient=True) as bar:
        yield Steps(seconds, bar, console)
