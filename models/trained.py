"""The dense model that a run starts from: from the cache, or trained now.

In: a registered model, its arguments and a graph. Out: the model in evaluation mode, and how it was trained.
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
    """A dense model, how it was trained, where its weights are kept and whether they were there already."""

    model: nn.Module
    training: Training
    file: Path
    reused: bool


@dataclass(frozen=True, slots=True)
class Twin:
    """Makes what is trained in the place of a model; the name tells one twin from another."""

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
    """The model of `entry` with weights for `graph`.

    Args:
        entry: which model.
        arguments: of its factory.
        graph: what to learn.
        inputs: of one pass while training.
        settings: how to train.
        note: goes with the weights, when the training is a shortened one.
        retrain: train although there are weights.
        twin: what is trained in the place of the model, with the model's parameters or the same names.
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
