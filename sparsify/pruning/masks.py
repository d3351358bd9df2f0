"""New masks from old ones: a pure function of weights, gradients, statistics, masks, the step and the seed.

In: `new_masks(Plan("magnitude", Schedule("oneshot", to=0.9)), {"fc": weight})`. Out: `{"fc": mask}`, a tenth true.
Counts are exact, ties go to the first ones; equal arguments give equal masks on every rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsify.errors import DataError, ShapeError, SparsifyError
from sparsify.pruning.regrow import Regrow, regrowth
from sparsify.pruning.schedule import Schedule
from sparsify.pruning.scope import OF_SIZES, SCOPES
from sparsify.pruning.score import Facts, scores, seed_of
from sparsify.pruning.structure import Structure
from sparsify.sparsification.largest import largest_of, ordered

UNSTRUCTURED = Structure()
EXCHANGED = 0.3
"""The share of kept entries that the first update of RigL and SET exchanges."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the masks of a rule are chosen: score x schedule x scope x structure x regrow.

    Attributes:
        fraction: the share of kept entries that regrowth exchanges at the first update.
        rewind: the step to whose weights all weights go back when masks change; `None`: they stay.
    """

    score: str
    schedule: Schedule
    scope: str = "layer"
    structure: Structure = UNSTRUCTURED
    regrow: Regrow = "none"
    fraction: float = EXCHANGED
    rewind: int | None = None


def new_masks(
    plan: Plan,
    weights: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    step: int = 0,
    seed: int = 0,
    gradients: Mapping[str, Tensor] | None = None,
    statistics: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The masks after an update at a step, `True` where an entry is kept.

    Args:
        plan: of the rule.
        weights: dense, by name; the tensors of one rule share the target as its scope says.
        masks: those until now; without them all entries, and nothing regrows.
        step, seed: of the run.
        gradients: dense, by name, for scores and regrowth that need them.
        statistics: sums over steps by name, for scores that need them.

    Raises:
        DataError: a weight has entries that are not finite, or a gradient is missing.
        ShapeError: groups or blocks do not divide a weight, or a mask has another shape.
        SparsifyError: groups are to regrow.

    >>> plan = Plan("magnitude", Schedule("oneshot", to=0.5))
    >>> new_masks(plan, {"w": torch.tensor([3.0, 1.0, 2.0, 2.0])})["w"].tolist()
    [True, False, True, False]
    """
    old = masks or {}
    facts: dict[str, Facts] = {}
    for name, weight in weights.items():
        _require_fit(name, weight, old.get(name))
        gradient, statistic = (gradients or {}).get(name), (statistics or {}).get(name)
        facts[name] = Facts(weight, gradient, statistic, seed_of(seed, name))
    density = 1 - plan.schedule.target(step)
    kept = {name: scores(plan.score, fact) for name, fact in facts.items()}
    active = {name: old.get(name, torch.ones(w.shape, dtype=torch.bool)) for name, w in weights.items()}
    if plan.structure.is_grouped:
        if plan.regrow != "none":
            raise SparsifyError("groups n:m do not regrow", "leave `regrow` or `pattern` out")
        return {
            name: plan.structure.select_in_groups(_among(kept[name], active[name]), density) for name in kept
        }
    alive = {name: plan.structure.alive(mask) for name, mask in active.items()}
    joined = {name: plan.structure.join(found) for name, found in kept.items()}
    shapes = {name: weight.shape for name, weight in weights.items()}
    counts = SCOPES[plan.scope](_compared(plan, joined, alive), shapes, density)
    found = {}
    for name, fact in facts.items():
        if plan.regrow == "none" or name not in old:
            count = min(counts[name], int(alive[name].count_nonzero()))
            chosen = largest_of(joined[name], count, alive[name])
        else:
            drawn = replace(fact, seed=seed_of(seed, f"regrow {name}", step))
            grown = plan.structure.join(regrowth(plan.regrow, drawn))
            share = plan.schedule.exchanged(plan.fraction, step)
            chosen = exchanged(joined[name], grown, alive[name], counts[name], share)
        found[name] = plan.structure.spread(chosen, fact.weight.shape)
    return found


def _compared(plan: Plan, joined: Mapping[str, Tensor], alive: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The scores that the scope of a plan shares a target by, what is not alive last; any where it reads none."""
    if plan.scope in OF_SIZES:
        return joined
    return {name: _among(found, alive[name]) for name, found in joined.items()}


def exchanged(kept: Tensor, grown: Tensor, alive: Tensor, count: int, share: float) -> Tensor:
    """Exactly `count` entries: those alive with the best scores but a share, then the candidates that grow first.

    Args:
        kept: scores of entries.
        grown: scores by which candidates come back; what was just dropped is one.
        alive: the entries until now.
        count: of the result.
        share: of the entries alive that is dropped at least.
    """
    living = int(alive.count_nonzero())
    stays = largest_of(kept, max(0, min(count, living) - int(share * min(count, living))), alive)
    staying = int(stays.count_nonzero())
    return stays | largest_of(grown, min(count - staying, stays.numel() - staying), ~stays)


def _among(found: Tensor, alive: Tensor) -> Tensor:
    """Scores as floating-point numbers in which what is not alive comes last."""
    found = found if found.dtype.is_floating_point else found.double()
    least = torch.finfo(found.dtype).min
    return ordered(found).clamp(min=least).masked_fill_(~alive, -torch.inf)


def is_finite(weight: Tensor) -> bool:
    """Whether all entries of a weight are finite; those are whose sum is."""
    return bool(weight.sum().isfinite()) or bool(weight.isfinite().all())


def _require_fit(name: str, weight: Tensor, mask: Tensor | None) -> None:
    """Raises for a weight of no size by which entries could be chosen, and for the mask of another one."""
    if weight.dtype.is_floating_point and not is_finite(weight.detach()):
        raise DataError(f"{name} has entries that are not finite", "train with finite weights")
    if mask is not None and mask.shape != weight.shape:
        raise ShapeError(f"{name} is {list(weight.shape)}, and its mask {list(mask.shape)}")
