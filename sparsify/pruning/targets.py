"""Schedules of a recipe's rules, known before any training. The module does not import torch.

In: a rule with `prune: {method: gmp, sparsity: 0.9}, schedule: {end: 1000, every: 100}`. Out: a cubic `Schedule`.
"""

from sparsify.errors import SparsifyError
from sparsify.pruning.methods import METHODS
from sparsify.pruning.schedule import Schedule, Staged
from sparsify.recipe import Rule, ScheduleSpec


def schedule_of(rule: Rule, steps_per_epoch: int | None = None) -> Schedule:
    """The schedule of a pruning rule.

    By default methods with regrowth start with the final share of zeros, other methods with 0.

    Args:
        rule: a rule with `prune`.
        steps_per_epoch: steps of an epoch, for `unit: epoch`.

    Raises:
        SparsifyError: a schedule in epochs without `steps_per_epoch`.
    """
    assert rule.prune is not None, "the rule prunes"
    prune, spec = rule.prune, rule.schedule or ScheduleSpec()
    group = prune.pattern.nm if prune.pattern else None
    to = 1 - group.keep / group.of if group is not None else prune.sparsity or 0.0
    method = METHODS.get(prune.method, METHODS["constant"])
    start_at = spec.start_at if spec.start_at is not None else to if prune.regrows else 0.0
    unit = 1
    if spec.unit == "epoch":
        if steps_per_epoch is None:
            raise SparsifyError("a schedule counts epochs", "say how many steps one has, steps_per_epoch=...")
        unit = steps_per_epoch
    end = spec.start if spec.end is None else spec.end
    kind = spec.kind or method.schedule
    return Schedule(kind, to, start_at, spec.start * unit, end * unit, spec.every * unit)


def staged_schedule(rule: Rule) -> Schedule | Staged:
    """The schedule of a rule and of later stages on the same tensors; an epoch counts as one step."""
    parts = tuple(schedule_of(part, 1) for part in (rule, *rule.later))
    return parts[0] if len(parts) == 1 else Staged(parts)
