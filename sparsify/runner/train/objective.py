"""Losses and scores of a training: against labels, or against the results of a teacher.

In: `Classes()` of logits and classes, `Logits(classes)` and `States()` of the results of a teacher. Out: the loss of a
batch, and the agreement with labels.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEMPERATURE: Final = 2.0
SMALL: Final = 1e-12
STATES_SHARE: Final = 0.05
"""What the error of the states of tokens counts beside that of vectors of texts."""


class Objective(Protocol):
    """A loss and a measure of results.

    Attributes:
        measure: summands of `agreement`: correct answers, or cosines.
    """

    @property
    def measure(self) -> Literal["accuracy", "cosine"]:
        """The name of the measure."""

    def loss(self, results: Any, labels: Any) -> Tensor:
        """The mean over all labels."""

    def agreement(self, results: Any, labels: Any) -> tuple[float, int]:
        """The sum of the measure over labels, and the number of labels."""


@dataclass(frozen=True)
class Classes:
    """Cross entropy of logits [..., classes] and labels [...]."""

    measure: Literal["accuracy"] = "accuracy"

    def loss(self, results: Any, labels: Any) -> Tensor:
        """Cross entropy, the mean over all labels."""
        return F.cross_entropy(results.flatten(0, -2), labels.flatten())

    def agreement(self, results: Any, labels: Any) -> tuple[float, int]:
        """The number of labels with the largest logit, and the number of labels."""
        return float((results.argmax(-1) == labels).sum()), labels.numel()


@dataclass(frozen=True)
class Logits:
    """Divergence from a teacher's class distribution; labels are the teacher's logits and the classes.

    Source: Hinton, Vinyals and Dean, Distilling the knowledge in a neural network, 2015.
    """

    measure: Literal["accuracy"] = "accuracy"

    def loss(self, results: Any, labels: Any) -> Tensor:
        """`T^2 KL(softmax(teacher / T) || softmax(logits / T))`, the mean over all labels."""
        taught, _ = labels
        given, wanted = (
            F.log_softmax(logits.flatten(0, -2) / TEMPERATURE, -1) for logits in (results, taught)
        )
        return TEMPERATURE**2 * F.kl_div(given, wanted, reduction="batchmean", log_target=True)

    def agreement(self, results: Any, labels: Any) -> tuple[float, int]:
        """The number of classes with the largest logit, and the number of classes."""
        return Classes().agreement(results, labels[1])


@dataclass(frozen=True)
class States:
    """Distance of hidden states [texts, tokens, hidden] from a teacher's; labels: teacher's states, mask of tokens.

    Source: Reimers and Gurevych, Making monolingual sentence embeddings multilingual using knowledge distillation,
    2020, for vectors of sentences; Jiao and others, TinyBERT, 2020, for hidden states.
    """

    measure: Literal["cosine"] = "cosine"

    def loss(self, results: Any, labels: Any) -> Tensor:
        """`1 - cos` of the vectors of texts, the mean, and a share of `sum |s - t|^2 / sum |t|^2` over tokens."""
        taught, counts = labels
        given, weights = states_of(results), counts.unsqueeze(-1).to(taught.dtype)
        error = ((given - taught).square() * weights).sum() / ((taught.square() * weights).sum() + SMALL)
        distance: Tensor = (1 - cosines(given, taught, counts)).mean() + STATES_SHARE * error
        return distance

    def agreement(self, results: Any, labels: Any) -> tuple[float, int]:
        """The sum of cosines between text vectors of model and teacher, and the number of texts."""
        found = cosines(states_of(results), *labels)
        return float(found.sum()), len(found)


def results_of(model: nn.Module, inputs: Any) -> Any:
    """The results of a model for the inputs of a batch."""
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def states_of(results: Any) -> Tensor:
    """The hidden states: the first result of an encoder."""
    found: Tensor = results if isinstance(results, Tensor) else results[0]
    return found


def cosines(given: Tensor, taught: Tensor, counts: Tensor) -> Tensor:
    """Cosines [texts] between the mean states of model and teacher; means over the unmasked tokens of each text."""
    weights = counts.unsqueeze(-1).to(taught.dtype)
    return torch.cosine_similarity((given * weights).sum(1), (taught * weights).sum(1), dim=-1)


CLASSES: Final = Classes()
STATES: Final = States()
