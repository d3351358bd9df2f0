"""The dense model that a run starts from: from the cache, or trained now.

In: a registered model, its arguments and a graph. Out: the model in evaluation mode, and how it was trained.
"""

from collections.abc import Mapping, Sequence
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


def trained(
    entry: Entry,
    arguments: Mapping[str, Any],
    graph: Graph,
    inputs: Sequence[Tensor],
    settings: Settings,
    *,
    note: str = "",
    retrain: bool = False,
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
    """
    model = entry.build(graph.x.shape[1], graph.classes, arguments, settings.seed)
    determinants = {"arguments": dict(arguments), "data": graph.fingerprint, "settings": settings.to_dict()}
    file = checkpoint.path(entry.name, graph.name, determinants)
    found = None if retrain else checkpoint.read(file, model)
    if found is not None:
        return Trained(model, found, file, reused=True)
    training = train(model, inputs, graph, settings, note)
    checkpoint.write(file, model, training)
    return Trained(model, training, file, reused=False)
