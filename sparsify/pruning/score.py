"""Scores: a number for each entry, and entries with small numbers are dropped.

In: `scores("magnitude", Facts(weight))`. Out: the absolute values of the weight.

Sources: Han et al., 2015 (magnitude); Sanh, Wolf and Rush, Movement Pruning, 2020 (movement: the sum over steps of
`-weight * gradient`); Molchanov et al., 2019 (gradient: `abs(weight * gradient)`, the first-order change of the loss).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import torch
from torch import Tensor

from sparsify.errors import DataError, SparsifyError
from sparsify.sparsification.rules.largest import magnitudes


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one weight, as inputs of scores.

    Attributes:
        weight: dense weight, zero outside of the mask; for a score of single entries also a list of entries [n].
        gradient: gradient of the loss, of the shape of `weight`; None if unavailable.
        statistic: sum over steps of a score, as for `movement`; None before the first step.
        seed: seed by weight and step.
    """

    weight: Tensor
    gradient: Tensor | None = None
    statistic: Tensor | None = None
    seed: int = 0


Score = Callable[[Facts], Tensor]


def magnitude(facts: Facts) -> Tensor:
    """`abs(w)`."""
    return magnitudes(facts.weight)


def random(facts: Facts) -> Tensor:
    """Uniform numbers, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(facts.seed)
    return torch.rand(facts.weight.shape, generator=generator, dtype=torch.float64)


def gradient(facts: Facts) -> Tensor:
    """`abs(w * g)`."""
    if facts.gradient is None:
        raise DataError("the score gradient needs a gradient", "call `backward` before the update")
    return (facts.weight.detach() * facts.gradient).abs()


def movement(facts: Facts) -> Tensor:
    """`-sum(w * g)` over the steps so far, 0 before the first one."""
    if facts.statistic is None:
        return torch.zeros(facts.weight.shape)
    return facts.statistic


SCORES: Final[dict[str, Score]] = {
    "magnitude": magnitude,
    "random": random,
    "gradient": gradient,
    "movement": movement,
}
ENTRYWISE: Final = frozenset({"magnitude", "gradient", "movement"})
"""Scores of an entry that depend on nothing but the entry."""


def register_score(name: str, score: Score) -> None:
    """Makes a score known under a name, for `prune: {score: name}` of recipes.

    Args:
        name: not taken yet.
        score: from `Facts` to a dense tensor of the weight's shape.

    Raises:
        SparsifyError: the name is taken.
    """
    if name in SCORES and SCORES[name] is not score:
        raise SparsifyError(f"there is a score {name!r} already", "choose another name")
    SCORES[name] = score


def scores(name: str, facts: Facts) -> Tensor:
    """Scores of the entries of a weight.

    Raises:
        SparsifyError: an unknown score, or a result of another shape.
    """
    if name not in SCORES:
        near = get_close_matches(name, SCORES, n=1)
        raise SparsifyError(f"no score {name!r}", f"{', '.join(near or SCORES)}, or register_score")
    result = SCORES[name](facts)
    if result.shape != facts.weight.shape:
        raise SparsifyError(
            f"the score {name} has the shape {list(result.shape)} for a weight {list(facts.weight.shape)}",
            "return a number for each entry",
        )
    return result.detach()


def seed_of(seed: int, name: str, step: int = 0) -> int:
    """The seed of a weight at a step, the same on every machine."""
    digest = hashlib.sha256(f"{seed} {step} {name}".encode()).digest()
    return int.from_bytes(digest[:7], "little")
