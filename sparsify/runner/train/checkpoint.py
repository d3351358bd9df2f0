"""Checkpoints of a training: one folder each; the newest complete one is resumed.

In: `save(folder, trained, settings, rows)` after a step. Out: `step-00000300/` with the arrays of the weights, the
states of the optimizer and of the pruner, and, written last, `state.json`; then older checkpoints are removed.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch

from sparsify.compiler.schedule.size_class import renew
from sparsify.errors import DataError, SparsifyError
from sparsify.runner.train.log import Row
from sparsify.runner.train.prepare import Trained, Way
from sparsify.runner.train.settings import Settings
from sparsify.runner.train.task import Task
from sparsify.training.file import load_file, save_file

STATE: Final = "state.json"
WEIGHTS: Final = "weights.safetensors"
OPTIMIZER: Final = "optimizer.pt"
PRUNER: Final = "pruner.pt"
LAYOUT: Final = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: settings of the run, step, storage of the weights (`way`), times of steps, log.

    `sparse_below` is the density below which initially dense weights become sparse; None for other ways.
    """

    place: Path
    settings: dict[str, Any]
    step: int
    way: Way
    sparse_below: float | None
    reason: str
    times: dict[str, float | None] | None
    rows: list[Row]


def save(folder: Path, trained: Trained, settings: Settings, rows: Sequence[Row]) -> Path:
    """Writes a checkpoint after a step; older checkpoints stay until the new one is complete.

    Raises:
        SparsifyError: the checkpoint cannot be written.
    """
    step = rows[-1].step if rows else 0
    place = folder / f"step-{step:08d}"
    state = {
        "layout": LAYOUT,
        "settings": settings.to_dict(),
        "step": step,
        "way": trained.way,
        "sparse_below": None if trained.pruner is None else trained.pruner.sparse_below,
        "reason": trained.reason,
        "times": None if trained.times is None else trained.times.to_dict(),
        "rows": [row.to_dict() for row in rows],
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        save_file(trained.model, place / WEIGHTS)
        torch.save(trained.optimizer.state_dict(), place / OPTIMIZER)
        if trained.pruner is not None:
            torch.save(trained.pruner.state_dict(), place / PRUNER)
        draft = place / f".{STATE}"
        draft.write_text(json.dumps(state) + "\n", encoding="utf-8")
        os.replace(draft, place / STATE)
    except (OSError, RuntimeError) as error:
        raise SparsifyError(
            f"cannot write the checkpoint {place}: {error}", "choose another --out"
        ) from error
    for other in folder.glob("step-*"):
        if other != place:
            with suppress(OSError):
                shutil.rmtree(other)
    return place


def newest(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint in a folder.

    Raises:
        DataError: the checkpoint is damaged.
    """
    complete = sorted(place for place in folder.glob("step-*") if (place / STATE).is_file())
    if not complete:
        return None
    place = complete[-1]
    try:
        state = json.loads((place / STATE).read_text(encoding="utf-8"))
        if state["layout"] != LAYOUT:
            raise ValueError(f"layout {state['layout']}")
        rows = [Row(**row) for row in state["rows"]]
        way, below = state["way"], state.get("sparse_below")
        reason, times = state["reason"], state["times"]
        return Checkpoint(place, state["settings"], state["step"], way, below, reason, times, rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the checkpoint {place} cannot be read: {error}",
            "remove its folder, or train anew without --resume",
        ) from error


def restore(checkpoint: Checkpoint, trained: Trained, task: Task, settings: Settings) -> None:
    """Restores the state and the kernels of a checkpoint in a model prepared the same way.

    Raises:
        DataError: a file is missing or damaged, or of another model.
    """
    place = checkpoint.place
    try:
        state = None if trained.pruner is None else torch.load(place / PRUNER, weights_only=True)
        if state is not None:
            trained.turn_again(task, settings, state)
        load_file(place / WEIGHTS, trained.model, trained.optimizer)
        trained.optimizer.load_state_dict(torch.load(place / OPTIMIZER, weights_only=True))
        if trained.pruner is not None and state is not None:
            trained.pruner.load_state_dict(state)
        renew()
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError) as error:
        raise DataError(
            f"the checkpoint {place} cannot be read: {error}",
            "remove its folder, or train anew without --resume",
        ) from error


def require_same(stored: Mapping[str, Any], asked: Settings) -> None:
    """Raises if a run resumes with other settings; settings missing in an older checkpoint had the default.

    Raises:
        SparsifyError: a setting differs; the message names the first one.
    """
    now = json.loads(json.dumps(asked.to_dict()))
    defaults = {known.name: known.default for known in fields(Settings)}
    for name, value in now.items():
        found, wanted = stored.get(name, defaults[name]), value
        if found != wanted and name not in ("data_root", "save_every"):
            text = name if isinstance(value, dict) else f"{name} {found!r}, not {wanted!r}"
            raise SparsifyError(
                f"the run to resume has another setting: {text}",
                "the settings of its first command, or another --out",
            )
