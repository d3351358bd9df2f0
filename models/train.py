"""Training of a dense model on a graph.

In: a new model and a `Graph`. Out: the model with the weights of its best validation, and a summary of the training.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify.models.data import Graph
from sparsify.options import current


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a training.

    Attributes:
        epochs: maximum number of full passes.
        lr: learning rate of Adam.
        weight_decay: weight decay of all parameters.
        patience: epochs without a better validation before training stops.
        validate_every: epochs from one validation to the next.
        seed: seed of weights and dropout.
    """

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    validate_every: int = 1
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Settings as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Training:
    """Summary of a training: epochs, seconds, accuracy on validation nodes; a note if it was shortened."""

    epochs: int
    seconds: float
    val_accuracy: float
    note: str = ""


MEDIUM_EDGES = 50_000
BIG_EDGES = 1_000_000


def settings_for(graph: Graph, seed: int = 0) -> tuple[Settings, str]:
    """Kipf's settings, with fewer epochs on larger graphs, and a note on the reduction.

    Source: Kipf and Welling, 2017, section 5.2 (here with weight decay on all layers, not the first alone).
    """
    usual = Settings(seed=seed)
    if graph.edges >= BIG_EDGES:
        fewer = replace(usual, epochs=30, weight_decay=0.0, patience=10, validate_every=5)
    elif graph.edges >= MEDIUM_EDGES:
        fewer = replace(usual, epochs=100, patience=20, validate_every=5)
    else:
        return usual, ""
    return fewer, f"{fewer.epochs} epochs at most instead of {usual.epochs}: {graph.edges} edges"


def train(
    model: nn.Module,
    inputs: Sequence[Tensor],
    graph: Graph,
    settings: Settings,
    note: str = "",
) -> Training:
    """Trains `model` in place by full passes over the graph; the model ends in evaluation mode.

    Args:
        model: model from `inputs` to logits [n, classes].
        inputs: inputs of one pass.
        graph: graph with classes and split.
        settings: epochs, rates, seed.
        note: note of the result.
    """
    started = time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    best, best_epoch, kept = -1.0, 0, {}
    epoch = 0
    with torch.random.fork_rng(devices=[]), progress(settings.epochs, graph.name) as bar:
        torch.manual_seed(settings.seed)
        for epoch in bar:
            step(model, inputs, graph, optimizer)
            if epoch % settings.validate_every and epoch != settings.epochs:
                continue
            reached = accuracy(logits(model, inputs), graph.y, graph.val)
            if reached > best:
                best, best_epoch = reached, epoch
                kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if epoch - best_epoch >= settings.patience:
                break
    model.load_state_dict(kept)
    model.eval()
    return Training(epoch, time.perf_counter() - started, best, note)


def step(model: nn.Module, inputs: Sequence[Tensor], graph: Graph, optimizer: torch.optim.Optimizer) -> None:
    """Takes one step of the optimizer on the training nodes."""
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs)[graph.train], graph.y[graph.train])
    loss.backward()
    optimizer.step()


def logits(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """Output of the model in evaluation mode, without gradients."""
    model.eval()
    with torch.no_grad():
        found: Tensor = model(*inputs)
    return found


def accuracy(scores: Tensor, y: Tensor, chosen: Tensor) -> float:
    """Fraction of correctly classified nodes among `chosen`.

    >>> accuracy(torch.eye(2), torch.tensor([0, 0]), torch.tensor([0, 1]))
    0.5
    """
    return float((scores[chosen].argmax(dim=1) == y[chosen]).float().mean())


@contextmanager
def progress(epochs: int, name: str) -> Iterator[Iterator[int]]:
    """Iterator of the epochs from 1, with a bar on standard error (one line in a file) unless options say quiet."""
    quiet = current().quiet
    console = Console(stderr=True)
    if not quiet and not console.is_terminal:
        console.print(f"training on {name}, {epochs} epochs at most")
    bar = Progress(
        TextColumn("training on {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        task = bar.add_task(name, total=epochs)
        yield counted(bar, task, epochs)


def counted(bar: Progress, task: Any, epochs: int) -> Iterator[int]:
    """Numbers 1 to `epochs`; each request after the first advances the bar."""
    for epoch in range(1, epochs + 1):
        yield epoch
        bar.advance(task)
