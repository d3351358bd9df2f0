"""Scopes: how a target is shared among weights.

In: the scores of each weight's sets and a density. Out: how many sets of each weight stay.

Sources: Mocanu et al., 2018, and Evci et al., Rigging the Lottery, 2020, appendix (ERK: the density of a layer is
proportional to `sum(extents) / prod(extents)`); Yin et al., Outlier Weighed Layerwise Sparsity, 2023 (OWL).
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Final

import torch
from torch import Tensor

from sparsify.sparsification.rules.largest import largest

Scores = Mapping[str, Tensor]
OUTLIER: Final = 5.0
"""OWL counts scores that are larger than so many means."""
SPREAD: Final = 0.08
"""OWL keeps densities within so much of the target, to both sides."""


def layer(scores_by_name: Scores, shapes: Mapping[str, torch.Size], density: float) -> dict[str, int]:
    """The same density for each weight."""
    return {name: round(scores.numel() * density) for name, scores in scores_by_name.items()}


def one_threshold(scores_by_name: Scores, shapes: Mapping[str, torch.Size], density: float) -> dict[str, int]:
    """One threshold for all weights; the first ones among equals."""
    if not scores_by_name:
        return {}
    flat = [scores.flatten().double() for scores in scores_by_name.values()]
    parts = largest(torch.cat(flat), density).split([len(part) for part in flat])
    return {name: int(part.sum()) for name, part in zip(scores_by_name, parts, strict=True)}


def erk(scores_by_name: Scores, shapes: Mapping[str, torch.Size], density: float) -> dict[str, int]:
    """Counts by ERK densities (Erdos-Renyi kernel)."""
    sizes = {name: scores.numel() for name, scores in scores_by_name.items()}
    shares = erk_densities(shapes, density)
    return {name: round(size * shares[name]) for name, size in sizes.items()}


def erk_densities(shapes: Mapping[str, torch.Size], density: float) -> dict[str, float]:
    """`density[l] = min(1, e * sum(shape[l]) / prod(shape[l]))`, with `e` chosen for a total density of `density`.

    >>> erk_densities({"a": torch.Size((10, 10)), "b": torch.Size((2, 2))}, 0.3)["b"]
    1.0
    """
    full: set[str] = set()
    raw = {name: sum(shape) / max(1, prod(shape)) for name, shape in shapes.items()}
    total_entries = density * sum(prod(shape) for shape in shapes.values())
    while True:
        rest = [name for name in shapes if name not in full]
        left = total_entries - sum(prod(shapes[name]) for name in full)
        scale = left / max(1, sum(sum(shapes[name]) for name in rest))
        over = {name for name in rest if scale * raw[name] > 1}
        if not over:
            return {name: 1.0 if name in full else max(0.0, scale * raw[name]) for name in shapes}
        largest_share = max(raw[name] for name in over)
        full |= {name for name in over if raw[name] == largest_share}


def owl(scores_by_name: Scores, shapes: Mapping[str, torch.Size], density: float) -> dict[str, int]:
    """More entries for weights with more outliers among the scores (OWL)."""
    outliers = {
        n: float((s > OUTLIER * s.double().mean()).double().mean()) for n, s in scores_by_name.items()
    }
    sizes = {name: scores.numel() for name, scores in scores_by_name.items()}
    low, high = min(outliers.values(), default=0.0), max(outliers.values(), default=0.0)
    width = 2 * min(SPREAD, density, 1 - density)
    raised = {n: width * (share - low) / (high - low) if high > low else 0.0 for n, share in outliers.items()}
    mean = sum(raised[name] * size for name, size in sizes.items()) / max(1, sum(sizes.values()))
    shares = {name: min(1.0, max(0.0, density + raised[name] - mean)) for name in sizes}
    return {name: round(size * shares[name]) for name, size in sizes.items()}


SCOPES: Final[dict[str, Callable[[Scores, Mapping[str, torch.Size], float], dict[str, int]]]] = {
    "layer": layer,
    "global": one_threshold,
    "erk": erk,
    "owl": owl,
}
OF_SIZES: Final = frozenset({"layer", "erk"})
"""The scopes that read no scores."""
