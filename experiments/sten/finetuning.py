"""Fine-tuning under zeros: a trained ResNet-20 is pruned during training, then runs in sparse kernels.

In: a `Setting`. Out: the table: unstructured, n:m:g and blocked zeros (filters), accuracies, times of inference.
A filter is the set of all weights of an output channel. Steps are those of `sparsify train`, recipes those of
`gradual.py`.
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify import options
from sparsify.bench.harness import Case, Contender
from sparsify.errors import DataError
from sparsify.runner.train.loop import interrupts, steps, validate
from sparsify.runner.train.prepare import new_model, prepare
from sparsify.runner.train.settings import Settings, resolve
from sparsify.runner.train.task import task_of

from ..reproduce.figure import OURS, Fact, Figure, Outcome, Row, Setting, timed
from .gradual import Structure, given, recipe, rows_of

MODEL, DATASET = "resnet20", "cifar10"
CHECKPOINT: Final = "pretrained/resnet_cifar10/resnet20-12fca82f.th"
FILES: Final = (CHECKPOINT, "cifar-10-batches-py/*_batch*")
STEPS, QUICK_STEPS, BATCH = 140, 9, 64
PERCENT: Final = (50, 75, 90)
QUICK_PERCENT: Final = 75
STRUCTURES: Final[tuple[Structure, ...]] = ("unstructured", "n:m:g", "filters")
STAGES: Final = ("layer1", "layer2", "layer3")
TYPES: Final = "Conv2d"
TUNE_SECONDS: Final = 0.3  # for candidates of a region when quick
DENSE: Final = "torch dense"


def settings_of(structure: Structure, percent: int, setting: Setting) -> Settings:
    """Settings of a training.

    Raises:
        DataError: the weights or the images are missing.
    """
    place = None if setting.root is None else setting.root / CHECKPOINT
    if place is None or not place.is_file():
        raise DataError(
            f"there are no trained weights: looked for {CHECKPOINT} under {setting.root or 'no data root'}",
            "--data-root names the folder that holds it; github.com/akamaster/pytorch_resnet_cifar10 has the file",
        )
    count = QUICK_STEPS if setting.quick else STEPS
    return resolve(
        MODEL,
        recipe=recipe(structure, percent, count, STAGES, TYPES),
        overrides={"checkpoint": str(Path(place))},
        dataset=DATASET,
        data_root=setting.root,
        steps=count,
        batch_size=BATCH,
        seed=setting.seed,
        validate_every=count,
    )


def measure(structure: Structure, percent: int, setting: Setting) -> Outcome:
    """Accuracy after fine-tuning, and times of inference."""
    settings = settings_of(structure, percent, setting)
    net = new_model(settings)
    task = task_of(settings, net)
    before = validate(net, task)[1]
    trained = prepare(settings, net, task, "masks")
    with options.override(quiet=True), interrupts() as interrupt:
        if steps(settings, trained, task, [], interrupt, None):
            raise KeyboardInterrupt
    model = trained.model.eval().requires_grad_(False)
    images = next(iter(task.validation()))[0][:BATCH]
    seconds = options.current().tune_seconds
    with options.override(tune_seconds=min(seconds, TUNE_SECONDS) if setting.quick else seconds):
        sparse = sparsify.apply(model, given(STAGES, TYPES), (images,))
        sparse(images)
    times = timed(_case(model, sparse, images, percent), setting)
    assert trained.pruner is not None, "the recipe prunes"
    masks = list(trained.pruner.masks.values())
    held = 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
    facts: dict[str, Fact] = {
        "accuracy": accuracy(sparse, task),
        "accuracy of torch": validate(model, task)[1],
        "accuracy, no zeros": before,
        "zeros, %": 100 * held,
        "regions": len(sparse.report.regions),
    }
    quick = "quick: " if setting.quick else ""
    return Outcome(times, {}, facts, f"{quick}{settings.steps} steps of {BATCH}; {task.name}")


def _case(model: nn.Module, sparse: Any, images: Tensor, percent: int) -> Case:
    """Inference of a batch."""
    wide: Any = copy.deepcopy(model).double()
    with torch.no_grad():
        expected = wide(images.double())
    case = Case(f"{percent} %", f"{len(images)} images", DATASET, [], [], lambda: expected, tolerance=1e-4)
    case.contenders += [
        Contender(OURS, partial(_logits, sparse, images), baseline=False),
        Contender(DENSE, partial(_logits, model, images)),
    ]
    return case


def _logits(model: Any, images: Tensor) -> Tensor:
    """Result of a model, without gradients."""
    with torch.no_grad():
        found: Tensor = model(images)
    return found


def accuracy(model: Any, task: Any) -> float:
    """Share of correct answers, in batches of the size given to `apply`."""
    right = count = 0
    for images, labels in task.validation():
        for part, classes in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            right += int((_logits(model, part).argmax(1) == classes).sum())
            count += len(classes)
    return right / max(1, count)


def rows(setting: Setting) -> Sequence[Row]:
    """Each structure at each sparsity; one sparsity when quick."""
    percents, seconds = ((QUICK_PERCENT,), 25.0) if setting.quick else (PERCENT, 150.0)
    return rows_of(STRUCTURES, percents, measure, DATASET, FILES, seconds)


FIGURE = Figure(
    "finetuning",
    "fine-tuning under zeros: ResNet-20",
    rows,
    DENSE,
    "names fine-tuning for sparsity as a use (section 5) and gives no numbers.",
    facts=("accuracy", "accuracy of torch", "accuracy, no zeros", "zeros, %", "regions"),
    why={
        DENSE: "convolutions of 16 to 64 channels are small: reading and writing images, which zeros do not save, "
        "takes much of the time, and layers that lose stay torch's"
    },
)
