"""A model prepared for training: in sparse kernels if faster, else dense under the same masks.

In: settings and a task. Out: a `Trained` with model, optimizer and pruner; a step of both ways has been timed.

If the share of zeros rises, as in gradual pruning, steps are timed with the final share, too. The time of a step in
kernels is at most proportional to the density: kernels with a speedup of `r` at density `s` are not slower than dense
ones at density `r * s`. From the first update to a lower density on, weights are sparse parameters.

Decisions with an effect on bits are the same in each process: kernels are chosen by expected (not measured) time, and
a resumed run receives its way and the density threshold for sparse weights from the checkpoint.
"""

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from sparsify import options
from sparsify.compiler.schedule.size_class import renew
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.module.prune_and_capture import applied
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.pruning.score import seed_of
from sparsify.pruning.targets import staged_schedule
from sparsify.recipe import Prune, Recipe, Rule
from sparsify.recipe.schema import OF_SIZE
from sparsify.runner.train.objective import Objective, results_of
from sparsify.runner.train.settings import Settings
from sparsify.runner.train.task import Batch, Task
from sparsify.training.pruner import Pruner, unpacked

Way = Literal["kernels", "turns", "masks", "dense"]
"""Sparse weights in kernels; dense ones under masks until kernels are faster; so to the end; dense ones without."""
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
    """Median milliseconds of interleaved steps before the training: dense model, and model with kernels.

    If the share of zeros rises during the training, steps are timed with the final share.
    """

    dense_ms: float
    sparse_ms: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """The times as plain data."""
        return asdict(self)

    @property
    def ratio(self) -> float | None:
        """Speedup of the step with kernels."""
        return None if self.sparse_ms is None else self.dense_ms / self.sparse_ms


@dataclass
class Trained:
    """A model in training.

    Attributes:
        model, optimizer: current model and optimizer.
        pruner: pruner of the weights, None for a dense model.
        way: storage of the weights.
        reason: why a model under a recipe has no kernels, else "".
        times: times of steps; a resumed run has the times of its checkpoint.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    pruner: Pruner | None
    way: Way
    reason: str = ""
    times: Times | None = None

    @property
    def sparse_since(self) -> int | None:
        """The step at which initially dense weights became sparse, else None."""
        return None if self.pruner is None else self.pruner.sparse_since

    def step(self, task: Task, settings: Settings, at: int) -> tuple[Tensor, float]:
        """Takes a step of the training; returns the loss and the learning rate."""
        rate = rate_of(settings, at)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.random.fork_rng(devices=drawing(settings.device)):
            torch.manual_seed(seed_of(settings.seed, "step", at))
            loss = gradients(self.model, task.batch(at), task.objective)
        nn.utils.clip_grad_norm_(self.model.parameters(), LIMIT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.pruner is not None:
            updates = len(self.pruner.report)
            self.pruner.step()
            if len(self.pruner.report) > updates:
                renew()
        return loss, rate

    def turn_again(self, task: Task, settings: Settings, state: Mapping[str, Any]) -> None:
        """Rebuilds the kernels chosen by an earlier run at the switch from dense to sparse weights.

        Formats and kernels follow from the masks of the switching step and the shapes of the step's batch; values,
        buffers and gradients are not restored: load them afterwards.

        Args:
            task: batches of the training.
            settings: settings of the training.
            state: state of the earlier run's pruner.
        """
        assert self.pruner is not None, "a dense model has no masks"
        since = state.get("sparse_since")
        if self.way != "turns" or since is None or not state.get("turn_masks"):
            return
        self.pruner.load_state_dict({**state, "masks": unpacked(state["turn_masks"], state["masks"])})
        with torch.random.fork_rng(devices=drawing(settings.device)), options.override(tune_seconds=0.0):
            gradients(self.model, task.batch(since), task.objective)
        self.optimizer.zero_grad()


def drawing(device: str) -> list[int]:
    """Devices besides the CPU with random numbers drawn by a step."""
    return [torch.device(device).index or 0] if torch.device(device).type == "cuda" else []


def rate_of(settings: Settings, step: int) -> float:
    """The learning rate of a step: linear warm-up, then cosine decay to a tenth."""
    rising = max(1, round(WARM_UP * settings.steps))
    if step <= rising:
        return settings.lr * step / rising
    progress = (step - rising) / max(1, settings.steps - rising)
    return settings.lr * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2)


def gradients(model: nn.Module, batch: Batch, objective: Objective) -> Tensor:
    """The loss of a batch; gradients are accumulated in the parameters."""
    inputs, labels = batch
    loss = objective.loss(results_of(model, inputs), labels)
    loss.backward()
    return loss.detach()


def new_model(settings: Settings) -> nn.Module:
    """The model with initial weights by seed, in training mode, on the device of the training."""
    return settings.entry.make(settings.arguments, settings.seed).train().to(settings.device)


def prepare(
    settings: Settings, net: nn.Module, task: Task, way: Way | None = None, sparse_below: float | None = None
) -> Trained:
    """The model of a training before its first step.

    Args:
        settings: settings of the training.
        net: the model as built; may be changed in place.
        task: source of an example batch.
        way: way of a resumed run; None decides by timing steps.
        sparse_below: density threshold of a resumed run.

    Raises:
        SparsifyError: no rule of the recipe prunes, or a rule matches no weight.
    """
    if settings.is_dense:
        return Trained(net, optimizer_of(net, settings), None, "dense")
    if way == "masks":
        return under_masks(net, settings, task)
    if settings.device != "cpu":
        made = under_masks(net, settings, task)
        made.reason = f"kernels run on the CPU, the training on {settings.device}"
        return made
    if way == "kernels":
        return in_kernels(applied_to(net, settings.loaded, task), settings, task)
    if way == "turns":
        return from_dense(net, settings, task, sparse_below)
    dense = copy.deepcopy(net)
    sparse = applied_to(net, settings.loaded, task)
    times, reason = compared(dense, sparse, task, settings)
    if not reason:
        return in_kernels(sparse, settings, task, times)
    if has_rising_share(settings.loaded):
        last = applied_to(copy.deepcopy(dense), with_last_shares(settings.loaded), task)
        times, slow = compared(dense, last, task, settings)
        if not slow:
            assert times is not None and times.ratio is not None, "kernels are faster"
            below = min(1.0, times.ratio * kept_share(last))
            del sparse, last
            return from_dense(dense, settings, task, below, times, reason)
        reason = f"{slow}, with the zeros of the end"
    made = under_masks(dense, settings, task)
    made.reason, made.times = reason, times
    return made


def applied_to(net: nn.Module, recipe: Recipe, task: Task, *, trains_dense: str = "") -> SparseModule:
    """The sparse model for a training step, with formats and schedules chosen by expected time."""
    with options.override(tune_seconds=0.0):  # measured times differ from one process to the next
        return applied(net, ApplyRequest(recipe, trains_dense=trains_dense), task.batch(1)[0])


def in_kernels(sparse: SparseModule, settings: Settings, task: Task, times: Times | None = None) -> Trained:
    """The model with sparse parameters from the start."""
    optimizer = optimizer_of(sparse, settings)
    pruner = Pruner(sparse, optimizer, steps_per_epoch=task.epoch)
    return Trained(sparse, optimizer, pruner, "kernels", times=times)


def from_dense(
    net: nn.Module,
    settings: Settings,
    task: Task,
    sparse_below: float | None,
    times: Times | None = None,
    reason: str = "",
) -> Trained:
    """The model with dense weights under masks until the density is low enough for kernels."""
    sparse = applied_to(net, settings.loaded, task, trains_dense=reason or "kernels come with more zeros")
    optimizer = optimizer_of(sparse, settings)
    pruner = Pruner(sparse, optimizer, steps_per_epoch=task.epoch, sparse_below=sparse_below)
    return Trained(sparse, optimizer, pruner, "turns", times=times)


def has_rising_share(recipe: Recipe) -> bool:
    """Whether any rule ends with more zeros than at the start."""
    schedules = [staged_schedule(rule) for rule in recipe.rules if rule.prune]
    return any(one.target(one.end) > one.target(0) for one in schedules)


def with_last_shares(recipe: Recipe) -> Recipe:
    """The recipe with the final share of zeros of each rule at once, pruned by magnitude."""

    def at_once(rule: Rule) -> Rule:
        if rule.prune is None or rule.prune.method in OF_SIZE:
            return rule
        schedule = staged_schedule(rule)
        prune = Prune(
            method="magnitude",
            sparsity=None if rule.prune.pattern and rule.prune.pattern.nm else schedule.target(schedule.end),
            pattern=rule.prune.pattern,
            scope=rule.prune.scope,
            dim=rule.prune.dim,
        )
        made = rule.model_copy(update={"prune": prune, "schedule": None})
        made._later = ()
        return made

    return recipe.with_rules(map(at_once, recipe.rules))


def kept_share(sparse: SparseModule) -> float:
    """The density of the pruned weights of a model."""
    pairs = [
        (zeros, sparse._source.get_parameter(name).numel())
        for found in sparse._request.pruning.taken.values()
        for name, zeros in found.items()
    ]
    return 1 - sum(zeros * size for zeros, size in pairs) / sum(size for _, size in pairs)


def under_masks(net: nn.Module, settings: Settings, task: Task) -> Trained:
    """The dense model with a pruner that maintains the zeros."""
    optimizer = optimizer_of(net, settings)
    pruner = Pruner(net, optimizer, settings.loaded, steps_per_epoch=task.epoch)
    return Trained(net, optimizer, pruner, "masks")


def optimizer_of(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of a training."""
    return torch.optim.AdamW(model.parameters(), lr=settings.lr)


def compared(
    dense: nn.Module, sparse: SparseModule, task: Task, settings: Settings
) -> tuple[Times | None, str]:
    """Times of steps of both models, and the reason against the sparse one ("" if faster); states are restored."""
    if not sparse.report.regions:
        return None, "no product with a pruned weight becomes a kernel in training"
    runs = [Timed(model, task, settings) for model in (dense, sparse)]
    for _ in range(WARM + TURNS):
        for run in runs:
            run()
    for run in runs:
        run.restore()
    dense_ms, sparse_ms = (median(run.took_ms[WARM:]) for run in runs)
    slow = f"a step takes {dense_ms:.3g} ms dense and {sparse_ms:.3g} ms in kernels"
    return Times(dense_ms, sparse_ms), slow if sparse_ms > dense_ms else ""


class Timed:
    """Timed steps of a model; `restore` brings back the initial state."""

    def __init__(self, model: nn.Module, task: Task, settings: Settings) -> None:
        self.model, self.batch, self.objective = model, task.batch(1), task.objective
        self.optimizer = optimizer_of(model, settings)
        self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.took_ms: list[float] = []

    def __call__(self) -> None:
        """Times one training step: gradients and optimizer."""
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            gradients(self.model, self.batch, self.objective)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.took_ms.append(1e3 * (time.perf_counter() - started))

    def restore(self) -> None:
        """Restores the model's initial state."""
        self.model.load_state_dict(self.state)
