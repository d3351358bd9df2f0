"""Training steps of the dense model and of the sparse one, from the same weights and with the same data.

In: a model on a graph, and a `Request`, with or without sampled neighbourhoods. Out: `Steps`: the medians of
interleaved steps, and the losses (equal up to rounding).
"""

import copy
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify.models import train
from sparsify.models.data import Graph
from sparsify.models.neighbours import NeighbourSampler
from sparsify.models.trained import Twin
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.module.prune_and_capture import Source, pruned, sparse_module
from sparsify.runner import measure
from sparsify.runner.measure import Timing
from sparsify.runner.request import TRAINING, Request

# Arguments of a call, selected rows of the result, and the classes of the rows.
Batch = tuple[tuple[Tensor, ...], Tensor, Tensor]
# Warm-up steps without timing: the first steps capture, and build kernels.
WARM: Final = 3
# Default number of epochs of sampled training.
EPOCHS: Final = 3


@dataclass(slots=True)
class Steps:
    """Training steps of both models.

    Attributes:
        text: input of a step, in words.
        dense, sparse: times of a step: forward, backward, optimizer.
        losses: losses of both models on the first batch without dropout, before any step.
        sample_ms: median time to sample a batch, `None` for steps on the whole graph.
        accuracies: accuracies of both models on test nodes after sampled training, else `None`.
    """

    text: str
    dense: Timing = field(default_factory=Timing)
    sparse: Timing = field(default_factory=Timing)
    losses: tuple[float, float] = (0.0, 0.0)
    sample_ms: float | None = None
    accuracies: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Speedup of a step of the sparse model."""
        return self.dense.median_ms / self.sparse.median_ms

    def agrees(self, rtol: float, atol: float) -> bool:
        """Whether the losses are equal within a tolerance."""
        dense, sparse = self.losses
        return abs(dense - sparse) <= atol + rtol * abs(dense)

    def to_dict(self) -> dict[str, Any]:
        """The steps as plain data."""
        return {
            "text": self.text,
            "dense_ms": self.dense.median_ms,
            "sparse_ms": self.sparse.median_ms,
            "ratio": self.ratio,
            "turns": len(self.dense.runs_ms),
            "dense_loss": self.losses[0],
            "sparse_loss": self.losses[1],
            "sample_ms": self.sample_ms,
            "accuracies": self.accuracies,
        }


def full_steps(
    request: Request, model: nn.Module, example: tuple[Tensor, ...], graph: Graph, seconds: float
) -> Steps:
    """Steps on the whole graph, with copies of a model."""
    batch: Batch = (example, graph.train, graph.y[graph.train])
    runs = [stepper(made, request) for made in both(request, model, example)]
    steps = Steps("the whole graph", losses=losses(runs, batch))
    for run in runs:
        run(batch)
    dense, sparse = (partial(run, batch) for run in runs)
    steps.dense, steps.sparse = measure.interleave(dense, sparse, seconds=seconds)
    return steps


def sampled_steps(request: Request, model: nn.Module, example: tuple[Tensor, ...], graph: Graph) -> Steps:
    """The training of a model, and of a sparse twin with the same samples, over sampled neighbourhoods.

    Args:
        request: size of batches, fanout and number of epochs.
        model: untrained model, trained in place.
        example: the whole graph, for the accuracies.
        graph: classes and split.
    """
    assert request.batch_size is not None, "the request asks for batches"
    epochs = request.training.get("epochs", EPOCHS)
    sampler = NeighbourSampler(graph.edge_index, graph.nodes, request.fanout, request.seed)
    shape = "x".join(map(str, request.fanout))
    steps = Steps(f"{request.batch_size} nodes and {shape} neighbours, {epochs} epochs")
    sample_ms: list[float] = []
    runs: list[Stepper] = []
    count = epochs * -(-len(graph.train) // request.batch_size)
    with torch.random.fork_rng(devices=[]), train.progress(count, graph.name) as bar:
        batches = sampled(sampler, graph, request.batch_size, epochs, sample_ms)
        for step, batch in zip(bar, batches, strict=False):
            if not runs:
                runs = [stepper(made, request) for made in both(request, model, batch[0], is_copied=False)]
                steps.losses = losses(runs, batch)
            for timing, run in zip((steps.dense, steps.sparse), runs, strict=True):
                torch.manual_seed(request.seed + step)  # both models drop the same
                _, took_ms = measure.once(partial(run, batch))
                if step > min(WARM, count - 1):
                    timing.runs_ms.append(took_ms)
    steps.sample_ms = sorted(sample_ms)[len(sample_ms) // 2]
    found = [train.accuracy(train.logits(run.model, example), graph.y, graph.test) for run in runs]
    steps.accuracies = (found[0], found[1])
    return steps


@dataclass(frozen=True, slots=True)
class Stepper:
    """Takes steps of a model's training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __call__(self, batch: Batch) -> Tensor:
        """Takes a step; returns the loss before the step."""
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, with gradients."""
        inputs, rows, classes = batch
        return F.cross_entropy(self.model(*inputs)[rows], classes)


def stepper(model: nn.Module, request: Request) -> Stepper:
    """A stepper with Adam, at the rates of the request."""
    lr, decay = (request.training.get(name, TRAINING[name]) for name in ("lr", "weight_decay"))
    return Stepper(model, torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay))


def to_train(request: Request, model: nn.Module, example: Sequence[Tensor]) -> tuple[Source, ApplyRequest]:
    """A model pruned by the recipe's rules, and the options of the sparse twin.

    Optional rules are left out: features with dropout as the first reader stay dense.
    """
    rules = [rule for rule in request.recipe.rules if not rule.optional]
    how = ApplyRequest(request.recipe.with_rules(rules), verify=False, trainable=True)
    return pruned(model.train(), how, tuple(example)), how


def sparse_twin(request: Request, example: Sequence[Tensor]) -> Twin:
    """The sparse model, to be trained in the place of the dense one."""
    rules = [rule.model_dump(mode="json") for rule in request.recipe.rules]
    return Twin(
        json.dumps(rules, sort_keys=True), lambda model: sparse_module(*to_train(request, model, example))
    )


def both(
    request: Request, model: nn.Module, example: Sequence[Tensor], *, is_copied: bool = True
) -> tuple[nn.Module, nn.Module]:
    """The dense model, and a sparse one with the same weights, ready to be trained."""
    source, how = to_train(request, copy.deepcopy(model), example)
    dense = copy.deepcopy(model) if is_copied else model
    dense.load_state_dict(source.model.state_dict())  # with the zeros of rules that prune
    return dense, sparse_module(source, how)


def losses(runs: Sequence[Stepper], batch: Batch) -> tuple[float, float]:
    """The losses of both models on a batch without dropout."""
    found = []
    for run in runs:
        run.model.eval()
        with torch.no_grad():
            found.append(float(run.loss(batch)))
    return found[0], found[1]


def sampled(
    sampler: NeighbourSampler, graph: Graph, size: int, epochs: int, sample_ms: list[float]
) -> Iterator[Batch]:
    """The batches of all epochs; appends the sampling time of each batch to `sample_ms`."""
    for _ in range(epochs):
        started = time.perf_counter()
        for batch, found in sampler.batches(graph.train, size):
            inputs = (graph.x[found.nodes], found.edge_index)
            sample_ms.append((time.perf_counter() - started) * 1e3)
            yield inputs, torch.arange(len(batch)), graph.y[batch]
            started = time.perf_counter()
