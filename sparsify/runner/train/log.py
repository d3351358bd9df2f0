"""The log of a training: a row for each step, as CSV and as curves.

In: rows with loss and shares of zeros, and the updates of masks. Out: `log.csv`, `loss.svg`, `sparsity.svg`,
`churn.svg` in a folder.
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from sparsify.errors import SparsifyError
from sparsify.pruning.chart import Point, bounds, chart
from sparsify.training.pruner import Pruner, Update

POINTS: Final = 1000
"""A curve has so many at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """A step.

    Attributes:
        step: from 1 on.
        loss: loss of the batch, before the step.
        lr: the learning rate.
        ms: time of the step.
        target, actual: shares of zeros in the pruned weights, scheduled and present; None for a dense model.
        val_loss, val_accuracy, val_cosine: validation after the step, None for other steps; cosine: between text
            vectors of the model and of a teacher.
    """

    step: int
    loss: float
    lr: float
    ms: float
    target: float | None = None
    actual: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    val_cosine: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)


def shares(pruner: Pruner) -> tuple[float, float]:
    """The shares of zeros in all pruned weights: the target of the last updates, and the actual one."""
    sizes = {rule.label: sum(pruner.masks[name].numel() for name in rule.names) for rule in pruner.rules}
    total = sum(sizes.values())
    wanted = sum(rule.current_target(pruner.at) * sizes[rule.label] for rule in pruner.rules)
    kept = sum(int(mask.sum()) for mask in pruner.masks.values())
    return wanted / total, 1 - kept / total


def write(folder: Path, rows: Sequence[Row], updates: Sequence[Update]) -> list[Path]:
    """Writes the log and the curves; returns the paths.

    Raises:
        SparsifyError: the folder cannot be written.
    """
    drawings = {"loss.svg": losses(rows), "sparsity.svg": zeros(rows), "churn.svg": churn(updates)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
            writer.writeheader()
            writer.writerows(row.to_dict() for row in rows)
        for name, drawing in drawings.items():
            (folder / name).write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise SparsifyError(
            f"cannot write into {folder}: {error.strerror}", "choose another --out"
        ) from error
    return [folder / name for name in ("log.csv", *drawings)]


def losses(rows: Sequence[Row]) -> str:
    """The curves of the losses of batches and of validation."""
    trained = thinned([(row.step, row.loss) for row in rows])
    validated = thinned([(row.step, row.val_loss) for row in rows if row.val_loss is not None])
    bottom, top = bounds([loss for _, loss in (*trained, *validated)])
    curves = {"batches": trained, "validation": validated}
    return chart(curves, "steps", "loss", bottom=bottom, top=top)


def zeros(rows: Sequence[Row]) -> str:
    """The curves of the target and of the actual share of zeros."""
    target = thinned([(row.step, row.target) for row in rows if row.target is not None])
    actual = thinned([(row.step, row.actual) for row in rows if row.actual is not None])
    return chart({"target": target, "actual": actual}, "steps", "share of zeros")


def churn(updates: Sequence[Update]) -> str:
    """Curves of the shares of entries dropped and grown by updates."""
    dropped = thinned([(update.step, update.dropped) for update in updates])
    grown = thinned([(update.step, update.grown) for update in updates])
    _, top = bounds([0.0, *(value for _, value in (*dropped, *grown))])
    return chart({"dropped": dropped, "grown": grown}, "steps", "share of the entries kept", top=top)


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """The points, thinned evenly to `POINTS`; the last point is kept.

    >>> len(thinned([(step, 0.0) for step in range(5000)]))
    1000
    """
    if len(points) <= POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (POINTS - 1))] for at in range(POINTS)]
