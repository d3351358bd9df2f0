"""The end of a training as one table, and as plain data.

In: settings, the model, the log. Out: `print(outcome)`: losses, accuracy, the time of a step, zeros by tensor.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

from sparsify.errors import FINE, SparsifyError
from sparsify.report_text import UNLIMITED, terminal_width, wrapped
from sparsify.runner.train.log import Row
from sparsify.runner.train.prepare import Times, Way
from sparsify.runner.train.settings import Settings

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""


@dataclass(frozen=True, slots=True)
class Zeros:
    """The zeros of a pruned weight."""

    name: str
    shape: tuple[int, ...]
    share: float


@dataclass(slots=True)
class Outcome:
    """A finished or interrupted training.

    Attributes:
        settings: settings of the run.
        data: name of the training data.
        rows: one row for each step.
        way, reason: storage of the weights, and the reason for no kernels.
        times: times of steps before the training.
        zeros: zeros of each pruned weight.
        update_share: the share of training time spent on mask updates.
        sparse_below: the density below which initially dense weights become sparse in kernels.
        sparse_since: the first step with sparse weights in kernels, None before.
        is_interrupted: whether Ctrl-C ended the training.
        files: written files.
        notes: remarks beside the table.
    """

    settings: Settings
    data: str
    rows: list[Row]
    way: Way
    reason: str
    times: Times | None
    zeros: list[Zeros] = field(default_factory=list)
    update_share: float | None = None
    sparse_below: float | None = None
    sparse_since: int | None = None
    is_interrupted: bool = False
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 for a completed training, `INTERRUPTED` otherwise."""
        return INTERRUPTED if self.is_interrupted else FINE

    @property
    def validated(self) -> Row | None:
        """The last validated step."""
        return next((row for row in reversed(self.rows) if row.val_loss is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data."""
        last = self.validated
        return {
            "settings": self.settings.to_dict(),
            "data": self.data,
            "steps": len(self.rows),
            "is_interrupted": self.is_interrupted,
            "loss": self.rows[-1].loss if self.rows else None,
            "val_loss": None if last is None else last.val_loss,
            "val_accuracy": None if last is None else last.val_accuracy,
            "val_cosine": None if last is None else last.val_cosine,
            "way": self.way,
            "reason": self.reason,
            "times": None if self.times is None else {**self.times.to_dict(), "ratio": self.times.ratio},
            "step_ms": median(row.ms for row in self.rows) if self.rows else None,
            "sparse_below": self.sparse_below,
            "sparse_since": self.sparse_since,
            "step_ms_by_part": self.step_ms_by_part(),
            "update_share": self.update_share,
            "zeros": [{"name": one.name, "shape": one.shape, "share": one.share} for one in self.zeros],
            "files": [str(file) for file in self.files],
            "notes": self.notes,
        }

    def write(self, folder: Path) -> Path:
        """Writes `result.json` into a folder.

        Raises:
            SparsifyError: the file cannot be written.
        """
        file = folder / "result.json"
        try:
            file.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise SparsifyError(f"cannot write {file}: {error.strerror}", "choose another --out") from error
        return file

    def __str__(self) -> str:
        recipe = "dense" if self.settings.is_dense else f"recipe {self.settings.recipe['name']}"
        title = f"{self.settings.model}, {recipe}, {self.data}"
        width = terminal_width(UNLIMITED)
        parts = [wrapped(title, width), tabulate(self.summary(), tablefmt="plain", disable_numparse=True)]
        if self.zeros:
            rows = [
                (one.name, " x ".join(map(str, one.shape)), f"{100 * one.share:.2f} %") for one in self.zeros
            ]
            parts.append(tabulate(rows, ("weight", "shape", "zeros"), "simple", disable_numparse=True))
        parts += [wrapped(note, width) for note in self.notes]
        if self.files:
            parts.append(wrapped("written: " + ", ".join(map(str, self.files)), width))
        return "\n\n".join(parts)

    def summary(self) -> list[tuple[str, str]]:
        """The rows of the table above the weights."""
        found = [("steps", f"{len(self.rows)} of {self.settings.steps}" + self.interrupted())]
        if self.rows:
            found.append(("loss of the last batch", f"{self.rows[-1].loss:.4f}"))
        if (last := self.validated) is not None:
            found.append(("validation loss", f"{last.val_loss:.4f}"))
            if last.val_accuracy is not None:
                found.append(("validation accuracy", f"{100 * last.val_accuracy:.2f} %"))
            if last.val_cosine is not None:
                found.append(("validation cosine", f"{last.val_cosine:.4f}"))
        if self.rows:
            found.append(("median step", f"{median(row.ms for row in self.rows):.4g} ms"))
        if self.times is not None and self.times.ratio is not None:
            compared = f"{self.times.dense_ms:.4g} ms dense, {self.times.sparse_ms:.4g} ms in kernels"
            found.append(("step, interleaved", f"{compared}, {self.times.ratio:.2f}x"))
        if self.sparse_below is not None:
            found.append(("sparse in kernels", self.turn()))
        if self.reason:
            found.append(("trains dense under masks", self.reason))
        if self.update_share is not None:
            found.append(("updates of masks", f"{100 * self.update_share:.2f} % of the time"))
        return found

    def turn(self) -> str:
        """The switch from dense to sparse weights, in words, with the times of steps before and afterwards."""
        zeros = f"{100 * (1 - (self.sparse_below or 0)):.1f} % zeros"
        if self.sparse_since is None:
            return f"from the first update on with {zeros}, which was not reached"
        parts = self.step_ms_by_part()
        times = "" if parts is None else "; median step {:.4g} ms dense, {:.4g} ms afterwards".format(*parts)
        return f"from step {self.sparse_since} on, the first one with {zeros}{times}"

    def step_ms_by_part(self) -> tuple[float, float] | None:
        """The median times of steps with dense and with sparse weights; None if either part has no steps.

        The first sparse step builds kernels and is excluded.
        """
        if self.sparse_since is None:
            return None
        dense = [row.ms for row in self.rows if row.step < self.sparse_since]
        sparse = [row.ms for row in self.rows if row.step > self.sparse_since]
        return (median(dense), median(sparse)) if dense and sparse else None

    def interrupted(self) -> str:
        """Suffix of the title of an interrupted run, else ""."""
        return ", interrupted" if self.is_interrupted else ""
