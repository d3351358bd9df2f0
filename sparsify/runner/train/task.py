"""Batches of a training: each a pure function of the seed and the step.

In: `task_of(settings, model)`. Out: a `Task`; `task.batch(7)` gives the inputs and labels of step 7, the same in every
process and call.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify.errors import DataError
from sparsify.models.data import Images, Sentences, Text, images, sentences, text
from sparsify.models.minilm import tokenizer_of
from sparsify.models.registry import PHOTOGRAPHS
from sparsify.pruning.score import seed_of
from sparsify.runner.train.distill import distilled
from sparsify.runner.train.objective import CLASSES, STATES, Objective
from sparsify.runner.train.settings import Settings

# Texts of a validation, and images in one of its batches.
VALIDATED: Final = 64
IMAGES: Final = 500
# Maximum shift of a photograph, in pixels.
SHIFT: Final = 4
Batch = tuple[Any, Any]
"""Inputs, a tensor or a tuple of arguments, and labels, as the objective of the task reads them."""


class Task(Protocol):
    """A training task: batches of inputs and labels, and the objective."""

    @property
    def name(self) -> str:
        """The data set and the split."""

    @property
    def epoch(self) -> int:
        """The steps of an epoch."""

    @property
    def objective(self) -> Objective:
        """The loss, and the measure of quality."""

    def batch(self, step: int) -> Batch:
        """Inputs and labels of a step, from 1 on."""

    def validation(self) -> Iterator[Batch]:
        """Validation batches."""


def generator_of(seed: int, name: str, step: int) -> torch.Generator:
    """Random numbers of a step for one purpose."""
    return torch.Generator().manual_seed(seed_of(seed, name, step))


@dataclass(frozen=True)
class Texts:
    """Pieces of a text; the label of each token is the next token."""

    data: Text
    size: int
    seq: int
    seed: int
    objective: Objective = CLASSES

    @property
    def name(self) -> str:
        """The text, and the validation split."""
        return f"{self.data.name}, {len(self.data.train)} characters; validated on {self.data.split}"

    @property
    def epoch(self) -> int:
        """Steps of an epoch: total tokens over tokens of a batch."""
        return max(1, len(self.data.train) // (self.size * self.seq))

    def batch(self, step: int) -> Batch:
        """Pieces with random starts."""
        draw = generator_of(self.seed, "batch", step)
        starts = torch.randint(len(self.data.train) - self.seq, (self.size,), generator=draw)
        return self.pieces(self.data.train, starts)

    def validation(self) -> Iterator[Batch]:
        """Evenly spaced pieces of the validation text, at most `VALIDATED`."""
        length = len(self.data.val) - self.seq
        count = min(VALIDATED, 1 + (length - 1) // self.seq)
        starts = torch.linspace(0, length - 1, count).long()
        for part in starts.split(self.size):
            yield self.pieces(self.data.val, part)

    def pieces(self, tokens: Tensor, starts: Tensor) -> Batch:
        """Pieces at `starts`, and as labels the same pieces shifted by one token."""
        found = tokens[starts[:, None] + torch.arange(self.seq + 1)]
        return found[:, :-1], found[:, 1:]


@dataclass(frozen=True)
class Pictures:
    """Images with classes, each once in an epoch; photographs are shifted and mirrored at random."""

    data: Images
    size: int
    seed: int
    is_flat: bool = False
    moves: bool = False
    objective: Objective = CLASSES

    @property
    def name(self) -> str:
        """The images, and the validation split."""
        count = len(self.data.train[1])
        return f"{self.data.name}, {count} images; validated on {self.data.split}"

    @property
    def epoch(self) -> int:
        """Steps of an epoch; an incomplete last batch is dropped."""
        return len(self.data.train[1]) // self.size

    def batch(self, step: int) -> Batch:
        """The images of a step, in the random order of the epoch."""
        pixels, classes = self.data.train
        epoch, at = divmod(step - 1, self.epoch)
        order = torch.randperm(len(classes), generator=generator_of(self.seed, "epoch", epoch))
        chosen = order[at * self.size : (at + 1) * self.size]
        found = pixels[chosen]
        if self.moves:
            found = moved(found, generator_of(self.seed, "batch", step))
        return self.shaped(found), classes[chosen]

    def validation(self) -> Iterator[Batch]:
        """All validation images, in stored order."""
        pixels, classes = self.data.val
        for part in torch.arange(len(classes)).split(IMAGES):
            yield self.shaped(pixels[part]), classes[part]

    def shaped(self, pixels: Tensor) -> Tensor:
        """Images in the model's input shape."""
        return pixels.flatten(1) if self.is_flat else pixels


@dataclass(frozen=True)
class OnDevice:
    """A task with batches on another device than the data."""

    task: Task
    device: str

    @property
    def name(self) -> str:
        """The data set and the split."""
        return self.task.name

    @property
    def epoch(self) -> int:
        """The steps of an epoch."""
        return self.task.epoch

    @property
    def objective(self) -> Objective:
        """The objective of the task."""
        return self.task.objective

    def batch(self, step: int) -> Batch:
        """Inputs and labels of a step."""
        inputs, labels = self.task.batch(step)
        return self.there(inputs), self.there(labels)

    def validation(self) -> Iterator[Batch]:
        """Validation batches."""
        for inputs, labels in self.task.validation():
            yield self.there(inputs), self.there(labels)

    def there(self, values: Any) -> Any:
        """A tensor, or nested tuples of tensors, on the device."""
        return tuple(map(self.there, values)) if isinstance(values, tuple) else values.to(self.device)


@dataclass(frozen=True)
class Unlabelled:
    """Texts [texts, tokens] with masks of tokens, each once in an epoch; labels come from a teacher only.

    Inputs are tokens and mask, int64; labels are the mask of unpadded tokens, bool.
    """

    data: Sentences
    size: int
    seed: int
    objective: Objective = STATES

    @property
    def name(self) -> str:
        """The texts, and the validation split."""
        count = len(self.data.train[1])
        return f"{self.data.name}, {count} texts; validated on {self.data.split}"

    @property
    def epoch(self) -> int:
        """Steps of an epoch; an incomplete last batch is dropped."""
        return len(self.data.train[1]) // self.size

    def batch(self, step: int) -> Batch:
        """The texts of a step, in the random order of the epoch."""
        epoch, at = divmod(step - 1, self.epoch)
        count = len(self.data.train[1])
        order = torch.randperm(count, generator=generator_of(self.seed, "epoch", epoch))
        return self.texts(self.data.train, order[at * self.size : (at + 1) * self.size])

    def validation(self) -> Iterator[Batch]:
        """All validation texts, in stored order."""
        for part in torch.arange(len(self.data.val[1])).split(self.size):
            yield self.texts(self.data.val, part)

    def texts(self, given: tuple[Tensor, Tensor], chosen: Tensor) -> Batch:
        """Texts in the model's input form, and the mask of unpadded tokens."""
        tokens, lengths = given[0][chosen], given[1][chosen]
        counts = torch.arange(tokens.shape[1]) < lengths[:, None]
        return (tokens, counts.long()), counts


def moved(pixels: Tensor, draw: torch.Generator) -> Tensor:
    """Images [n, channels, height, width], shifted by up to `SHIFT` pixels, half mirrored, at random."""
    count, _, height, width = pixels.shape
    padded = F.pad(pixels, (SHIFT,) * 4)
    down, right = torch.randint(2 * SHIFT + 1, (2, count), generator=draw)
    is_mirrored = torch.rand(count, generator=draw) < 0.5
    rows = down[:, None] + torch.arange(height)
    columns = right[:, None] + torch.arange(width)
    columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    one = torch.arange(count)[:, None, None]
    return padded[one, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()


def task_of(settings: Settings, model: nn.Module) -> Task:
    """The task of a training, with batches on the device of the training.

    Raises:
        DataError: files are missing, too short, or of another size than the model's input.
    """
    found = data_of(settings, model)
    task: Task = found if settings.device == "cpu" else OnDevice(found, settings.device)
    return distilled(task, model, settings) if settings.teacher else task


def data_of(settings: Settings, model: nn.Module) -> Task:
    """The task of a training, with batches in main memory."""
    root = Path(settings.data_root) if settings.data_root else None
    if root is not None and not root.is_dir():
        raise DataError(f"there is no folder {root}", "--data-root names an existing one")
    if settings.entry.results == "states":
        return unlabelled(settings, root)
    if settings.seq:
        return texts(settings, model, text(settings.dataset, root, settings.seed))
    kind = settings.entry.inputs
    side = getattr(getattr(model, "config", None), "image_size", 28)
    is_photograph = settings.entry.trains_on == PHOTOGRAPHS
    found = images(settings.dataset, root, settings.seed, (3 if is_photograph else 1, side, side))
    task = Pictures(found, settings.batch_size, settings.seed, kind != "images", is_photograph)
    if settings.batch_size > len(found.train[1]):
        raise DataError(
            f"--batch-size {settings.batch_size}: {found.name} has {len(found.train[1])} images",
            "a smaller one",
        )
    require_fit(settings, model, found.train[0])
    return task


def unlabelled(settings: Settings, root: Path | None) -> Unlabelled:
    """Texts for an encoder.

    Raises:
        DataError: the texts are missing, or fewer than a batch.
    """
    place = tokenizer_of(settings.arguments)
    known = settings.arguments["vocabulary"]
    found = sentences(settings.dataset, root, place, settings.seq, known, settings.seed)
    if settings.batch_size > len(found.train[1]):
        raise DataError(
            f"--batch-size {settings.batch_size}: {found.name} has {len(found.train[1])} texts",
            "a smaller one",
        )
    return Unlabelled(found, settings.batch_size, settings.seed)


def texts(settings: Settings, model: nn.Module, found: Text) -> Texts:
    """A text to learn.

    Raises:
        DataError: the text is too short, or has characters outside the model's vocabulary.
    """
    shortest = min(len(found.train), len(found.val))
    if shortest <= settings.seq + 1:
        raise DataError(
            f"the text {found.name} has {shortest} characters in its smaller part, --seq {settings.seq} needs more",
            "a longer text, or a smaller --seq",
        )
    known = settings.arguments["vocabulary"]
    if (largest := int(torch.cat([found.train, found.val]).max())) >= known:
        raise DataError(f"the text has the byte {largest}, the model knows {known}", "vocabulary=256")
    return Texts(found, settings.batch_size, settings.seq, settings.seed)


def require_fit(settings: Settings, model: nn.Module, pixels: Tensor) -> None:
    """Raises for images of another size than the model's input."""
    if settings.entry.inputs == "images":
        side = model.config.image_size  # type: ignore[union-attr]
        if pixels.shape[-1] != side:
            raise DataError(f"images of {pixels.shape[-1]} pixels, the model takes {side}", "image=...")
        return
    wanted = next(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
    if pixels[0].numel() != wanted:
        raise DataError(
            f"images of {pixels[0].numel()} pixels, the model takes {wanted}", f"features={pixels[0].numel()}"
        )
