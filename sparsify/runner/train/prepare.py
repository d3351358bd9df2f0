"""A model that is ready to be trained: sparse where that is faster, dense under the same masks where it is not.

In: settings and a task. Out: a `Trained` with model, optimizer and pruner; a step of both ways has been timed.

Whatever decides about bits is the same in each process: kernels are those that are expected to be fastest, and a run
that resumes is told which way it went.
"""

import copy
import math
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final, Literal

import torch
from torch import Tensor, nn

from sparsify import options
from sparsify.passes.apply import apply
from sparsify.pruning.score import seed_of
from sparsify.runner.train.settings import Settings
from sparsify.runner.train.task import Batch, Task, loss_of
from sparsify.training.pruner import Pruner

Way = Literal["kernels", "masks", "dense"]
"""Sparse weights in kernels; dense weights under masks; dense weights without."""
WARM: Final = 2
TURNS: Final = 5
LIMIT: Final = 1.0
"""The largest norm of all gradients together; longer ones are clipped."""
WARM_UP: Final = 0.05
"""The share of the steps in which the learning rate rises."""
FLOOR: Final = 0.1
"""The learning rate of the last step, of the highest."""


@dataclass(frozen=True)
class Times:
    """Median milliseconds of a step before the training, interleaved: of the dense model, and of that with kernels."""

    dense_ms: float
    sparse_ms: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """The times as plain data."""
        return asdict(self)

    @property
    def ratio(self) -> float | None:
        """How many times faster the step with kernels is."""
        return None if self.sparse_ms is None else self.dense_ms / self.sparse_ms


@dataclass
class Trained:
    """A model in training.

    Attributes:
        model, optimizer: as they are now.
        pruner: None of a dense model.
        way: how its weights are stored.
        reason: why a model under a recipe has no kernels, "" where it has.
        times: of steps, None of a run that resumes.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    pruner: Pruner | None
    way: Way
    reason: str = ""
    times: Times | None = None

    def step(self, task: Task, settings: Settings, at: int) -> tuple[Tensor, float]:
        """Takes a step of the training; its loss, and the learning rate."""
        rate = rate_of(settings, at)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.random.fork_rng(devices=drawing(settings.device)):
            torch.manual_seed(seed_of(settings.seed, "step", at))
            loss = gradients(self.model, task.batch(at))
        nn.utils.clip_grad_norm_(self.model.parameters(), LIMIT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.pruner is not None:
            self.pruner.step()
        return loss, rate


def drawing(device: str) -> list[int]:
    """The devices besides the CPU whose random numbers a step draws."""
    return [torch.device(device).index or 0] if torch.device(device).type == "cuda" else []


def rate_of(settings: Settings, step: int) -> float:
    """The learning rate of a step: it rises along a line, then falls along a cosine to a tenth."""
    rising = max(1, round(WARM_UP * settings.steps))
    if step <= rising:
        return settings.lr * step / rising
    progress = (step - rising) / max(1, settings.steps - rising)
    return settings.lr * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2)


def gradients(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a batch, whose gradients are left in the parameters."""
    inputs, labels = batch
    loss = loss_of(model(inputs), labels)
    loss.backward()
    return loss.detach()


def new_model(settings: Settings) -> nn.Module:
    """The model with the weights of its seed, in training, on the device of the training."""
    return settings.entry.make(settings.arguments, settings.seed).train().to(settings.device)


def prepare(settings: Settings, net: nn.Module, task: Task, way: Way | None = None) -> Trained:
    """The model of a training before its first step.

    Args:
        settings: of the training.
        net: the model as it is built; it may change.
        task: gives an example.
        way: that of the run which resumes; None times both.

    Raises:
        SparsifyError: no rule of the recipe prunes, or one matches no weight.
    """
    if settings.is_dense:
        return Trained(net, optimizer_of(net, settings), None, "dense")
    batch = task.batch(1)
    if way == "masks":
        return under_masks(net, settings, task)
    if settings.device != "cpu":
        made = under_masks(net, settings, task)
        made.reason = f"kernels run on the CPU, the training on {settings.device}"
        return made
    twin = copy.deepcopy(net)
    with options.override(tune_seconds=0.0):  # measured times differ from one process to the next
        sparse = apply(net, settings.loaded, batch[0])
    reason = "" if sparse.report.regions else "no product with a pruned weight becomes a kernel in training"
    times = None
    if way is None:
        times, slow = compared(twin, sparse, batch, settings)
        reason = reason or slow
        if reason:
            made = under_masks(twin, settings, task)
            made.reason, made.times = reason, times
            return made
    optimizer = optimizer_of(sparse, settings)
    pruner = Pruner(sparse, optimizer, steps_per_epoch=task.epoch)
    return Trained(sparse, optimizer, pruner, "kernels", times=times)


def under_masks(net: nn.Module, settings: Settings, task: Task) -> Trained:
    """The dense model, whose pruner keeps the zeros."""
    optimizer = optimizer_of(net, settings)
    pruner = Pruner(net, optimizer, settings.loaded, steps_per_epoch=task.epoch)
    return Trained(net, optimizer, pruner, "masks")


def optimizer_of(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of a training."""
    return torch.optim.AdamW(model.parameters(), lr=settings.lr)


def compared(dense: nn.Module, sparse: nn.Module, batch: Batch, settings: Settings) -> tuple[Times, str]:
    """The times of steps of both, and why the sparse one is not worth it, "" where it is; both stay as they were."""
    runs = [Timed(model, batch, settings) for model in (dense, sparse)]
    for _ in range(WARM + TURNS):
        for run in runs:
            run()
    for run in runs:
        run.restore()
    dense_ms, sparse_ms = (median(run.took_ms[WARM:]) for run in runs)
    slow = f"a step takes {dense_ms:.3g} ms dense and {sparse_ms:.3g} ms in kernels"
    return Times(dense_ms, sparse_ms), slow if sparse_ms > dense_ms else ""


class Timed:
    """Steps of a model whose state comes back afterwards."""

    def __init__(self, model: nn.Module, batch: Batch, settings: Settings) -> None:
        self.model, self.batch = model, batch
        self.optimizer = optimizer_of(model, settings)
        self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.took_ms: list[float] = []

    def __call__(self) -> None:
        """One step."""
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            gradients(self.model, self.batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.took_ms.append(1e3 * (time.perf_counter() - started))

    def restore(self) -> None:
        """Gives the model the state that it had."""
        self.model.load_state_dict(self.state)
