"""The loop of a training: steps, validations, checkpoints, an end.

In: `run(settings, out=Path("runs/gpt"))`. Out: an `Outcome`. Ctrl-C completes the running step, writes a checkpoint and
stops; `run(settings, out=..., resume=True)` resumes from the checkpoint, bit for bit like an uninterrupted run.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from sparsify import options
from sparsify.errors import SparsifyError
from sparsify.runner.train import checkpoint, log
from sparsify.runner.train.log import Row
from sparsify.runner.train.objective import results_of
from sparsify.runner.train.outcome import Outcome, Zeros
from sparsify.runner.train.prepare import Times, Trained, new_model, prepare
from sparsify.runner.train.progress import Progress
from sparsify.runner.train.settings import Settings, last_update, usual_steps
from sparsify.runner.train.task import Task, task_of


class Interrupt:
    """Whether Ctrl-C was pressed; a second one is not waited for."""

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Takes the signal."""
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Notes Ctrl-C in place of raising, in the main thread."""
    found = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = signal.signal(signal.SIGINT, found)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)


def run(settings: Settings, *, out: Path | None = None, resume: bool = False) -> Outcome:
    """Trains a model.

    Args:
        settings: settings of the run.
        out: the folder for log, curves and checkpoints; None writes nothing.
        resume: whether to resume from the checkpoint in `out`.

    Raises:
        DataError: the data is missing, or the checkpoint is damaged.
        SparsifyError: no checkpoint to resume, a checkpoint of other settings, or a checkpoint in `out` without
            `resume`; the loss is not finite.
    """
    found = checkpoint_of(settings, out, resume)
    net = new_model(settings)
    task = task_of(settings, net)
    trained = prepare(settings, net, task, *(() if found is None else (found.way, found.sparse_below)))
    rows: list[Row] = []
    if found is not None:
        checkpoint.restore(found, trained, task, settings)
        rows = list(found.rows)
        trained.reason = found.reason
        trained.times = None if found.times is None else Times(**found.times)  # type: ignore[arg-type]
    # Measured times of formats differ from one process to the next.
    with interrupts() as interrupt, options.override(tune_seconds=0.0):
        is_interrupted = steps(settings, trained, task, rows, interrupt, out)
    outcome = concluded(settings, trained, task, rows)
    outcome.is_interrupted = is_interrupted
    if out is not None:
        updates = [] if trained.pruner is None else trained.pruner.report
        outcome.files = [checkpoint.save(out, trained, settings, rows), *log.write(out, rows, updates)]
        outcome.files.append(outcome.write(out))
    return outcome


def checkpoint_of(settings: Settings, out: Path | None, resume: bool) -> checkpoint.Checkpoint | None:
    """The checkpoint to resume, None at the start of a training.

    Raises:
        SparsifyError: no checkpoint to resume, or a checkpoint that a new training would overwrite.
    """
    if out is None:
        if resume:
            raise SparsifyError("--resume without --out", "--out names the folder with the checkpoint")
        return None
    if out.exists() and not out.is_dir():
        raise SparsifyError(f"{out} is no folder", "choose another --out")
    found = checkpoint.newest(out)
    if resume and found is None:
        raise SparsifyError(f"{out} has no checkpoint to resume", "leave --resume out")
    if not resume and found is not None:
        raise SparsifyError(
            f"{out} has the checkpoint of step {found.step}",
            "--resume goes on from it, or choose another --out",
        )
    if found is not None:
        checkpoint.require_same(found.settings, settings)
    return found


def steps(
    settings: Settings, trained: Trained, task: Task, rows: list[Row], interrupt: Interrupt, out: Path | None
) -> bool:
    """Takes the remaining steps and appends rows; returns whether Ctrl-C interrupted."""
    first = len(rows)
    with Progress(settings.model, first, settings.steps) as progress:
        for at in range(first + 1, settings.steps + 1):
            if interrupt.is_set:
                return True
            rows.append(taken(settings, trained, task, at))
            progress.show(rows[-1], is_first_sparse=trained.sparse_since == at)
            if out is not None and at % settings.save_every == 0 and at < settings.steps:
                checkpoint.save(out, trained, settings, rows)
    return False


def taken(settings: Settings, trained: Trained, task: Task, at: int) -> Row:
    """Takes a step; returns the row of the log.

    Raises:
        SparsifyError: the loss is not finite.
    """
    started = time.perf_counter()
    found, rate = trained.step(task, settings, at)
    took_ms = 1e3 * (time.perf_counter() - started)
    loss = float(found)
    if not math.isfinite(loss):
        raise SparsifyError(f"the loss of step {at} is {loss}", f"a smaller --lr than {settings.lr:g}")
    target, actual = (None, None) if trained.pruner is None else log.shares(trained.pruner)
    row = Row(at, loss, rate, took_ms, target, actual)
    if at % settings.validate_every == 0 or at == settings.steps:
        loss, agreement = validate(trained.model, task)
        is_accuracy = task.objective.measure == "accuracy"
        measured = {"val_accuracy" if is_accuracy else "val_cosine": agreement}
        row = replace(row, val_loss=loss, **measured)  # type: ignore[arg-type]
    return row


def validate(model: nn.Module, task: Task) -> tuple[float, float]:
    """Validation: the loss and the mean of the task's measure (accuracy or cosine) on validation data."""
    model.eval()
    total, agreed, count = 0.0, 0.0, 0
    with torch.no_grad():
        for inputs, labels in task.validation():
            results = results_of(model, inputs)
            found, size = task.objective.agreement(results, labels)
            total += float(task.objective.loss(results, labels)) * size
            agreed += found
            count += size
    model.train()
    return total / count, agreed / count


def concluded(settings: Settings, trained: Trained, task: Task, rows: list[Row]) -> Outcome:
    """The outcome of steps."""
    outcome = Outcome(settings, task.name, rows, trained.way, trained.reason, trained.times)
    pruner = trained.pruner
    if pruner is None:
        return outcome
    outcome.sparse_below, outcome.sparse_since = pruner.sparse_below, pruner.sparse_since
    for name, mask in pruner.masks.items():
        share = 1 - int(mask.sum()) / max(1, mask.numel())
        outcome.zeros.append(Zeros(name, tuple(mask.shape), share))
    if pruner.report and rows:
        spent = sum(update.seconds for update in pruner.report)
        outcome.update_share = spent / (sum(row.ms for row in rows) / 1e3)
    if (end := last_update(settings.loaded)) > settings.steps:
        remedy = f"--steps {usual_steps(settings.loaded)} goes on beyond it"
        if "end" in settings.recipe.get("args", {}):
            remedy = f"end={round(0.75 * settings.steps)} ends it before"
        outcome.notes.append(
            f"the schedule of {settings.recipe['name']} ends at step {end}, after the last of {settings.steps} steps; "
            + remedy
        )
    return outcome
