"""Plans of rules: a method of a recipe as its composition, and the masks with which it starts.

In: a rule with `prune: {method: rigl, sparsity: 0.9, scope: erk}, schedule: {end: 1000, every: 100}`. Out: a `Plan`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from sparsify.pruning.masks import Plan, new_masks
from sparsify.pruning.methods import METHODS
from sparsify.pruning.schedule import Schedule
from sparsify.pruning.structure import Structure
from sparsify.pruning.targets import schedule_of
from sparsify.recipe import Prune, Rule
from sparsify.storage.trained_masks import entries

OF_TRAINING: Final = ("gradient", "movement")
"""Scores that are not known before the first step, where magnitudes take their place."""


def plan_of(rule: Rule, steps_per_epoch: int | None = None) -> Plan:
    """How the masks of a rule that prunes are chosen.

    Args:
        rule: has `prune`.
        steps_per_epoch: for schedules with `unit: epoch`.

    Raises:
        SparsifyError: epochs, and no number of steps in one.
    """
    assert rule.prune is not None, "the rule prunes"
    prune, method = rule.prune, METHODS.get(rule.prune.method, METHODS["constant"])
    return Plan(
        score=prune.score or method.score,
        schedule=schedule_of(rule, steps_per_epoch),
        scope=prune.scope,
        structure=Structure.asked_by(prune),
        regrow=prune.regrow or method.regrow,
        fraction=prune.fraction,
    )


def is_constant(prune: Prune) -> bool:
    """Whether masks are the zeros that are there."""
    return prune.method == "constant" and prune.sparsity is None and prune.pattern is None


def first_masks(weights: Sequence[Tensor], rule: Rule, seed: int = 0) -> list[Tensor]:
    """The masks before the first step; those of a rule without a schedule are the last ones, too.

    Args:
        weights: dense, of one rule.
        rule: has `prune`; `method: constant` keeps the zeros that are there.
        seed: of the recipe.

    Raises:
        SparsifyError: what `new_masks` raises.
    """
    assert rule.prune is not None, "the rule prunes"
    if is_constant(rule.prune):
        return [entries(weight) for weight in weights]
    plan = plan_of(rule, steps_per_epoch=1)  # the target of the first step is that of the first epoch
    first = plan.schedule.target(0)
    if first == 0 and not plan.structure.is_grouped:
        return [torch.ones(weight.shape, dtype=torch.bool) for weight in weights]
    score = "magnitude" if plan.score in OF_TRAINING else plan.score
    at_once = replace(plan, score=score, regrow="none", schedule=Schedule("constant", to=first))
    named = {str(at): weight.detach() for at, weight in enumerate(weights)}
    if plan.scope == "layer":  # the scores of one weight at a time
        return [new_masks(at_once, {name: weight}, seed=seed)[name] for name, weight in named.items()]
    return list(new_masks(at_once, named, seed=seed).values())
