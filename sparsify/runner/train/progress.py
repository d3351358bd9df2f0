"""Progress of a training: a bar on a terminal, lines elsewhere, with the loss and the expected end.

In: `with Progress("gpt", 0, 1000) as progress: progress.show(row)`. Out: text on standard error, none under the
option `quiet`.
"""

import time
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from sparsify.options import current
from sparsify.runner.train.log import Row

LINES: Final = 20
"""Lines of progress of a training whose output is no terminal."""


class Progress:
    """Progress display of the steps of a training."""

    def __init__(self, name: str, done: int, steps: int) -> None:
        self.name, self.steps, self.first = name, steps, done
        self.console = Console(stderr=True)
        self.quiet = current().quiet
        self.is_bar = self.console.is_terminal and not self.quiet
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not self.is_bar)
        self.task = self.bar.add_task(name, total=steps, completed=done, text="")
        self.started = time.perf_counter()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, row: Row, *, is_first_sparse: bool = False) -> None:
        """Shows a completed step, and announces the first step with sparse weights in kernels."""
        text = self.text(row)
        self.bar.update(self.task, completed=row.step, text=text)
        is_due = row.step % max(1, self.steps // LINES) == 0 or row.step == self.steps
        if is_first_sparse and not self.quiet:
            self.console.print(
                f"{self.name}: sparse weights in kernels from step {row.step} on",
                soft_wrap=True,
                highlight=False,
            )
        if not self.is_bar and not self.quiet and is_due:
            self.console.print(
                f"{self.name}: step {row.step} of {self.steps}, {text}", soft_wrap=True, highlight=False
            )

    def text(self, row: Row) -> str:
        """The loss, the zeros and the expected end time of the training."""
        took = time.perf_counter() - self.started
        left = took / max(1, row.step - self.first) * (self.steps - row.step)
        ends = datetime.now() + timedelta(seconds=left)
        zeros = "" if row.actual is None else f", {100 * row.actual:.1f} % zeros"
        return f"loss {row.loss:.4f}{zeros}, ends {ends:%H:%M:%S}"
