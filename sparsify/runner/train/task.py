"""The batches that a model learns from: each is a pure function of the seed and the step.

In: `task_of(settings, model)`. Out: a `Task`; `task.batch(7)` gives the inputs and labels of step 7, in every process
and however often it is asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify.errors import DataError
from sparsify.models.data import Images, Text, images, text
from sparsify.models.registry import PHOTOGRAPHS
from sparsify.pruning.score import seed_of
from sparsify.runner.train.settings import Settings

# Texts of a validation, and images in one of its batches.
VALIDATED: Final = 64
IMAGES: Final = 500
# Pixels by which a photograph moves at most.
SHIFT: Final = 4
Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """Something to learn: batches of inputs and labels, which are classes."""

    @property
    def name(self) -> str:
        """The data set, and how it was split."""

    @property
    def epoch(self) -> int:
        """The steps of an epoch."""

    def batch(self, step: int) -> Batch:
        """Inputs and labels of a step, from 1 on."""

    def validation(self) -> Iterator[Batch]:
        """Batches that no step learns from."""


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, the mean over all labels."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def hits(logits: Tensor, labels: Tensor) -> int:
    """The number of labels that have the largest logit."""
    return int((logits.argmax(-1) == labels).sum())


def generator_of(seed: int, name: str, step: int) -> torch.Generator:
    """Random numbers of a step for one purpose."""
    return torch.Generator().manual_seed(seed_of(seed, name, step))


@dataclass(frozen=True)
class Texts:
    """Pieces of a text; the label of each token is the one that follows."""

    data: Text
    size: int
    seq: int
    seed: int

    @property
    def name(self) -> str:
        """The text, and what validates."""
        return f"{self.data.name}, {len(self.data.train)} characters; validated on {self.data.split}"

    @property
    def epoch(self) -> int:
        """The steps that read as many tokens as the text has."""
        return max(1, len(self.data.train) // (self.size * self.seq))

    def batch(self, step: int) -> Batch:
        """Pieces that start at random places."""
        draw = generator_of(self.seed, "batch", step)
        starts = torch.randint(len(self.data.train) - self.seq, (self.size,), generator=draw)
        return self.pieces(self.data.train, starts)

    def validation(self) -> Iterator[Batch]:
        """Pieces side by side, or as far apart as lets some of them cover the text."""
        length = len(self.data.val) - self.seq
        count = min(VALIDATED, 1 + (length - 1) // self.seq)
        starts = torch.linspace(0, length - 1, count).long()
        for part in starts.split(self.size):
            yield self.pieces(self.data.val, part)

    def pieces(self, tokens: Tensor, starts: Tensor) -> Batch:
        """The pieces that start there, and the same one token further on."""
        found = tokens[starts[:, None] + torch.arange(self.seq + 1)]
        return found[:, :-1], found[:, 1:]


@dataclass(frozen=True)
class Pictures:
    """Images with classes, each of them once in an epoch; photographs move and are mirrored."""

    data: Images
    size: int
    seed: int
    is_flat: bool = False
    moves: bool = False

    @property
    def name(self) -> str:
        """The images, and what validates."""
        count = len(self.data.train[1])
        return f"{self.data.name}, {count} images; validated on {self.data.split}"

    @property
    def epoch(self) -> int:
        """The steps that read each image once; what is left of a batch waits for the next epoch."""
        return len(self.data.train[1]) // self.size

    def batch(self, step: int) -> Batch:
        """The images of a step, in the order of its epoch."""
        pixels, classes = self.data.train
        epoch, at = divmod(step - 1, self.epoch)
        order = torch.randperm(len(classes), generator=generator_of(self.seed, "epoch", epoch))
        chosen = order[at * self.size : (at + 1) * self.size]
        found = pixels[chosen]
        if self.moves:
            found = moved(found, generator_of(self.seed, "batch", step))
        return self.shaped(found), classes[chosen]

    def validation(self) -> Iterator[Batch]:
        """All images, in their order."""
        pixels, classes = self.data.val
        for part in torch.arange(len(classes)).split(IMAGES):
            yield self.shaped(pixels[part]), classes[part]

    def shaped(self, pixels: Tensor) -> Tensor:
        """Images as the model takes them."""
        return pixels.flatten(1) if self.is_flat else pixels


@dataclass(frozen=True)
class OnDevice:
    """A task whose batches are on another device than the data."""

    task: Task
    device: str

    @property
    def name(self) -> str:
        """The data set, and how it was split."""
        return self.task.name

    @property
    def epoch(self) -> int:
        """The steps of an epoch."""
        return self.task.epoch

    def batch(self, step: int) -> Batch:
        """Inputs and labels of a step."""
        inputs, labels = self.task.batch(step)
        return inputs.to(self.device), labels.to(self.device)

    def validation(self) -> Iterator[Batch]:
        """Batches that no step learns from."""
        for inputs, labels in self.task.validation():
            yield inputs.to(self.device), labels.to(self.device)


def moved(pixels: Tensor, draw: torch.Generator) -> Tensor:
    """Images [n, channels, height, width], moved by a few pixels, half of them mirrored."""
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
    """The task of a training, its batches on the device of the training.

    Raises:
        DataError: files are missing, too short, or of another size than the model takes.
    """
    found = data_of(settings, model)
    return found if settings.device == "cpu" else OnDevice(found, settings.device)


def data_of(settings: Settings, model: nn.Module) -> Task:
    """The task of a training, its batches in main memory."""
    root = Path(settings.data_root) if settings.data_root else None
    if root is not None and not root.is_dir():
        raise DataError(f"there is no folder {root}", "--data-root names an existing one")
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


def texts(settings: Settings, model: nn.Module, found: Text) -> Texts:
    """A text to learn.

    Raises:
        DataError: it is too short, or has characters that the model does not know.
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
    """Raises where images have another size than the model takes."""
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
