"""Trained dense model for a run: from the cache, or trained now.

In: a registered model, its arguments and a graph. Out: the model in evaluation mode, and the summary of its training.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsify.models import checkpoint
from sparsify.models.data import Graph
from sparsify.models.registry import Entry
from sparsify.models.train import Settings, Training, train


@dataclass(frozen=True, slots=True)
class Trained:
    """A dense model, the summary of its training, the file of its weights, and whether the file existed already."""

    model: nn.Module
    training: Training
    file: Path
    reused: bool


@dataclass(frozen=True, slots=True)
class Twin:
    """Maker of a substitute to train instead of a model; the name is part of the cache key."""

    name: str
    make: Callable[[nn.Module], nn.Module]


def trained(
    entry: Entry,
    arguments: Mapping[str, Any],
    graph: Graph,
    inputs: Sequence[Tensor],
    settings: Settings,
    *,
    note: str = "",
    retrain: bool = False,
    twin: Twin | None = None,
) -> Trained:
    """Model of `entry` with weights for `graph`.

    Args:
        entry: registered model.
        arguments: arguments of its factory.
        graph: graph with features, classes and split.
        inputs: inputs of one training pass.
        settings: settings of the training.
        note: note saved with the weights, for a shortened training.
        retrain: train even if weights are cached.
        twin: substitute to train, with the model's parameters or with parameters of equal names.
    """
    model = entry.build(graph.x.shape[1], graph.classes, arguments, settings.seed)
    determinants: dict[str, Any] = {
        "arguments": dict(arguments),
        "data": graph.fingerprint,
        "settings": settings.to_dict(),
    }
    if twin is not None:
        determinants["twin"] = twin.name
    file = checkpoint.path(entry.name, graph.name, determinants)
    found = None if retrain else checkpoint.read(file, model)
    if found is not None:
        return Trained(model, found, file, reused=True)
    steps = model if twin is None else twin.make(model)
    training = train(steps, inputs, graph, settings, note)
    if steps is not model:
        model.load_state_dict(steps.state_dict())
        model.eval()
    checkpoint.write(file, model, training)
    return Trained(model, training, file, reused=False)
