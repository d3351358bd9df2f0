"""Plans of rules: the composition of a recipe's method, and the initial masks.

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
from sparsify.recipe.schema import OF_SIZE
from sparsify.sparsification.rules.blocking import TopK
from sparsify.sparsification.rules.streaming import ScalarThreshold
from sparsify.storage.subclass.trained_masks import entries, restricted
from sparsify.storage.tensor import SparseTensor

OF_TRAINING: Final = ("gradient", "movement")
"""Scores that are not known before the first step, where magnitudes take their place."""


def plan_of(rule: Rule, steps_per_epoch: int | None = None) -> Plan:
    """The plan of a pruning rule.

    Args:
        rule: a rule with `prune`.
        steps_per_epoch: steps of an epoch, for schedules with `unit: epoch`.

    Raises:
        SparsifyError: a schedule in epochs without `steps_per_epoch`.
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
        rewind=None if rule.schedule is None else rule.schedule.rewind,
    )


def plans_of(rule: Rule, steps_per_epoch: int | None = None) -> tuple[Plan, ...]:
    """The plans of a rule and of the later stages, in the order of steps.

    Raises:
        SparsifyError: as `plan_of`.
    """
    return tuple(plan_of(part, steps_per_epoch) for part in (rule, *rule.later))


def is_constant(prune: Prune) -> bool:
    """Whether masks are the existing zeros."""
    return prune.method == "constant" and prune.sparsity is None and prune.pattern is None


def first_masks(weights: Sequence[Tensor], rule: Rule, seed: int = 0) -> list[Tensor]:
    """The masks before the first step, in main memory; without a schedule also the final masks.

    Args:
        weights: weights of one rule; entries absent from a sparse weight, or masked in a dense one, stay absent.
        rule: a rule with `prune`; `method: constant` keeps the existing zeros.
        seed: seed of the recipe.

    Raises:
        SparsifyError: as `new_masks`.
    """
    assert rule.prune is not None, "the rule prunes"
    if is_constant(rule.prune):
        return [entries(weight).cpu() for weight in weights]
    if rule.prune.method in OF_SIZE:
        return [_large(weight, rule.prune) for weight in weights]
    plan = plan_of(rule, steps_per_epoch=1)  # the first step and the first epoch have the same target
    first = plan.schedule.target(0)
    if first == 0 and not plan.structure.is_grouped:
        return [
            torch.ones(w.shape, dtype=torch.bool) if (m := present_mask(w)) is None else m for w in weights
        ]
    score = "magnitude" if plan.score in OF_TRAINING else plan.score
    at_once = replace(plan, score=score, regrow="none", schedule=Schedule("constant", to=first))
    if plan.scope == "layer":  # the scores of one weight at a time
        return [mask for weight in weights for mask in _chosen(at_once, [weight], seed)]
    return _chosen(at_once, weights, seed)


def _large(weight: Tensor, prune: Prune) -> Tensor:
    """Entries kept by a size: a magnitude threshold, or a count for each slice."""
    dense = _dense(weight)
    if prune.keep is None:
        mask = ScalarThreshold(prune.threshold or 0.0).mask(dense)
    else:
        rows = dense.flatten(1) if dense.dim() > 1 else dense.unsqueeze(0)
        mask = TopK(prune.keep, 0 if prune.dim == "out" else 1).mask(rows).view(dense.shape)
    old = present_mask(weight)
    return mask if old is None else mask & old


def _chosen(plan: Plan, weights: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The masks of a plan, restricted to the present entries of the weights."""
    present = {str(at): present_mask(weight) for at, weight in enumerate(weights)}
    dense = {name: _dense(weight) for name, weight in zip(present, weights, strict=True)}
    masks = {name: mask for name, mask in present.items() if mask is not None}
    return list(new_masks(plan, dense, masks, seed=seed).values())


def present_mask(weight: Tensor) -> Tensor | None:
    """The mask of a weight's present entries, in main memory; `None` for a dense weight without a mask."""
    mask = restricted(weight)
    return None if mask is None else mask.cpu()


def _dense(weight: Tensor) -> Tensor:
    """The dense values of a weight in main memory, with zeros of sparse weights: masks are the same on each device."""
    values = weight.detach()
    return (values.to_dense() if isinstance(values, SparseTensor) else values).cpu()
