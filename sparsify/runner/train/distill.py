"""Distillation: a task with the results of a teacher as labels, to recover accuracy after pruning without labels.

In: `distilled(task, model, settings)`. Out: a task with the same batches; labels are the results of the teacher (the
dense model or the model of an earlier training) for the inputs.

Source: Hinton, Vinyals and Dean, Distilling the knowledge in a neural network, 2015.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from sparsify.errors import DataError
from sparsify.models.minilm import RANDOM
from sparsify.runner.train.objective import Logits, Objective, results_of, states_of
from sparsify.runner.train.settings import DENSE, Settings
from sparsify.training.file import load_file
from sparsify.warn import warn

if TYPE_CHECKING:
    from sparsify.runner.train.task import Batch, Task

# Arguments of models for files of weights.
WEIGHTS_OF_FILES: Final = ("weights", "checkpoint")


@dataclass(frozen=True)
class Distilled:
    """A task with the results of a teacher as labels."""

    task: "Task"
    teacher: nn.Module

    @property
    def name(self) -> str:
        """The data set, the split, and a note on the teacher."""
        return f"{self.task.name}; labels of a teacher"

    @property
    def epoch(self) -> int:
        """The steps of an epoch."""
        return self.task.epoch

    @property
    def is_of_states(self) -> bool:
        """Whether results are hidden states, not logits."""
        return self.task.objective.measure == "cosine"

    @property
    def objective(self) -> Objective:
        """Distance from the teacher's results."""
        return self.task.objective if self.is_of_states else Logits()

    def batch(self, step: int) -> "Batch":
        """Inputs and the teacher's labels of a step."""
        return self.taught(self.task.batch(step))

    def validation(self) -> Iterator["Batch"]:
        """Validation batches, disjoint from training batches, with the teacher's results."""
        return map(self.taught, self.task.validation())

    def taught(self, batch: "Batch") -> "Batch":
        """A batch with the teacher's results in front of its labels."""
        inputs, labels = batch
        with torch.no_grad():
            found: Any = results_of(self.teacher, inputs)
        return inputs, (states_of(found) if self.is_of_states else found, labels)


def distilled(task: "Task", model: nn.Module, settings: Settings) -> Distilled:
    """A task with the teacher of the settings.

    Args:
        task: a task with batches.
        model: the dense model as built; a copy becomes the teacher.
        settings: settings with the name of the teacher.

    Raises:
        DataError: the folder has no checkpoint, or a checkpoint of another model.
    """
    teacher = copy.deepcopy(model)
    if settings.teacher != DENSE:
        load_teacher(teacher, Path(settings.teacher))
    elif task.objective.measure != "cosine" and not has_given_weights(settings):
        warn(
            f"--teacher {DENSE}: the weights of {settings.model} are random, and so are the classes that it teaches; "
            "train it first, by --dense, and name the --out of that training; or leave --teacher out"
        )
    return Distilled(task, teacher.eval().requires_grad_(False))


def has_given_weights(settings: Settings) -> bool:
    """Whether a model starts with weights from a file, not with random ones."""
    return any(settings.arguments.get(name) not in (None, "", RANDOM) for name in WEIGHTS_OF_FILES)


def load_teacher(teacher: nn.Module, folder: Path) -> None:
    """Loads the weights (with zeros) of the newest checkpoint of a folder into a model.

    Raises:
        DataError: the folder has no checkpoint, or a checkpoint of another model.
    """
    from sparsify.runner.train.checkpoint import WEIGHTS, newest

    found = newest(folder)
    if found is None:
        raise DataError(
            f"--teacher {folder}: there is no checkpoint in it",
            f"the --out of an earlier `sparsify train`, or {DENSE}",
        )
    try:
        load_file(found.place / WEIGHTS, teacher)
    except (RuntimeError, ValueError, KeyError) as error:
        raise DataError(
            f"--teacher {folder}: its checkpoint is not of this model: {error}",
            "the same model and arguments as in the earlier training",
        ) from error
