"""New masks from old ones: a pure function of weights, gradients, statistics, masks, the step and the seed.

In: `new_masks(Plan("magnitude", Schedule("oneshot", to=0.9)), {"fc": weight})`. Out: `{"fc": mask}`, a tenth true.
Counts are exact, ties go to the first entries; equal arguments give equal masks on every rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsify.errors import DataError, ShapeError, SparsifyError
from sparsify.pruning.regrow import Regrow, regrowth
from sparsify.pruning.schedule import Schedule
from sparsify.pruning.scope import OF_SIZES, SCOPES
from sparsify.pruning.score import ENTRYWISE, Facts, scores, seed_of
from sparsify.pruning.structure import Structure
from sparsify.sparsification.rules.largest import largest_listed, largest_of, magnitudes, ordered
from sparsify.storage.expand import count_true, row_major
from sparsify.storage.tensor import SparseTensor

UNSTRUCTURED = Structure()
EXCHANGED = 0.3
"""The share of kept entries that the first update of RigL and SET exchanges."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Composition for the masks of a rule: score x schedule x scope x structure x regrow.

    Attributes:
        fraction: the share of kept entries exchanged by regrowth at the first update.
        rewind: the step of the weights restored at each change of masks; `None`: no rewinding.
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
        plan: plan of the rule.
        weights: dense or sparse weights by name; the tensors of one rule share the target according to the scope.
        masks: current masks; by default all entries are active, without regrowth.
        step, seed: step and seed of the run.
        gradients: dense gradients by name, for scores and regrowth by gradient.
        statistics: sums over steps by name, for scores with statistics.

    Raises:
        DataError: a weight has entries that are not finite, or a gradient is missing.
        ShapeError: groups or blocks do not divide a weight, or a mask has another shape.
        SparsifyError: the plan combines groups with regrowth.

    >>> plan = Plan("magnitude", Schedule("oneshot", to=0.5))
    >>> new_masks(plan, {"w": torch.tensor([3.0, 1.0, 2.0, 2.0])})["w"].tolist()
    [True, False, True, False]
    """
    old, gradients, statistics = masks or {}, gradients or {}, statistics or {}
    for name, weight in weights.items():
        _require_fit(name, weight, old.get(name))
    active = {name: _active(plan, weight, old.get(name)) for name, weight in weights.items()}
    scored = {
        name: scores(plan.score, one.facts(gradients.get(name), statistics.get(name), seed_of(seed, name)))
        for name, one in active.items()
    }
    density = 1 - plan.schedule.target(step)
    if plan.structure.is_grouped:
        if plan.regrow != "none":
            raise SparsifyError("groups n:m do not regrow", "leave `regrow` or `pattern` out")
        return {
            name: plan.structure.select_in_groups(_among(scored[name], active[name].alive), density)
            for name in scored
        }
    joined = {name: plan.structure.join(new) for name, new in scored.items()}
    shapes = {name: weight.shape for name, weight in weights.items()}
    counts = SCOPES[plan.scope](_compared(plan, joined, active), shapes, density)
    new = {}
    for name, weight in weights.items():
        if plan.regrow == "none" or name not in old:
            chosen = active[name].largest(joined[name], counts[name])
        else:
            drawn = Facts(weight, gradients.get(name), None, seed_of(seed, f"regrow {name}", step))
            grown = plan.structure.join_magnitudes(regrowth(plan.regrow, drawn))
            share = plan.schedule.exchanged(plan.fraction, step)
            chosen = exchanged(joined[name], grown, active[name], counts[name], share)
        new[name] = plan.structure.spread(chosen, shapes[name])
    return new


@dataclass(frozen=True, slots=True)
class Active:
    """The active entries of a weight, or the active sets of its structure.

    Attributes:
        alive: bool, true for active entries or sets.
        weight: dense weight, or the values of the active entries in row-major order, [n].
        places: the places of these entries in the flattened weight, int64 [n]; `None` for a dense weight.
    """

    alive: Tensor
    weight: Tensor
    places: Tensor | None = None

    def facts(self, gradient: Tensor | None, statistic: Tensor | None, seed: int) -> Facts:
        """The facts for scores, of the active entries alone where these are listed."""
        listed = (self._listed(gradient), self._listed(statistic))
        return Facts(self.weight, *listed, seed)

    def largest(self, scores: Tensor, count: int) -> Tensor:
        """The places of the `count` largest scores among active ones, of the shape of `alive`."""
        if self.places is None:
            return largest_of(scores, count, self.alive)
        return largest_listed(scores, self.places, count, self.alive.shape)

    def _listed(self, tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or self.places is None else tensor.reshape(-1)[self.places]


def _active(plan: Plan, weight: Tensor, mask: Tensor | None) -> Active:
    """The active entries, listed if the plan reads single entries of a sparse weight."""
    active = torch.ones(weight.shape, dtype=torch.bool) if mask is None else mask
    alive = active if plan.structure.is_grouped else plan.structure.alive(active)
    if not isinstance(weight, SparseTensor):
        return Active(alive, weight)
    is_listed = plan.score in ENTRYWISE and plan.scope in OF_SIZES and not plan.structure.is_grouped
    if mask is not None and is_listed and alive is active and weight.fill == 0 and weight.is_cpu:
        places, positions = row_major(weight.pattern)
        if len(places) == count_true(mask) and bool(mask.reshape(-1).index_select(0, places).all()):
            values = weight.detach().values()
            return Active(alive, values if positions is None else values[positions], places)
    return Active(alive, weight.detach().to_dense().cpu())


def _compared(plan: Plan, joined: Mapping[str, Tensor], active: Mapping[str, Active]) -> Mapping[str, Tensor]:
    """Scores for sharing a target by scope, dead entries last; truth values if the scope uses only sizes."""
    if plan.scope in OF_SIZES:
        return {name: one.alive for name, one in active.items()}
    return {name: _among(entry_scores, active[name].alive) for name, entry_scores in joined.items()}


def exchanged(scores: Tensor, grown: Tensor, active: Active, count: int, share: float) -> Tensor:
    """Exactly `count` entries: active entries of best score except a share, then the best regrowth candidates.

    Args:
        scores: scores of active entries.
        grown: numbers whose magnitudes are the regrowth scores of candidates, including entries just dropped.
        active: the active entries.
        count: number of entries of the result.
        share: minimum share of the active entries to drop.
    """
    living = count_true(active.alive)
    staying = max(0, min(count, living) - int(share * min(count, living)))
    stays = active.largest(scores, staying)
    more = min(count - staying, stays.numel() - staying)
    return stays | largest_of(grown, more, ~stays, magnitudes)


def _among(scores: Tensor, alive: Tensor) -> Tensor:
    """Scores as floating-point numbers, with -inf for entries that are not alive."""
    scores = scores if scores.dtype.is_floating_point else scores.double()
    least = torch.finfo(scores.dtype).min
    return ordered(scores).clamp(min=least).masked_fill_(~alive, -torch.inf)


def is_finite(weight: Tensor) -> bool:
    """Whether all entries of a weight are finite; a finite sum is sufficient, else entries are checked."""
    if isinstance(weight, SparseTensor):
        weight = weight.values()
    return bool(weight.sum().isfinite()) or bool(weight.isfinite().all())


def _require_fit(name: str, weight: Tensor, mask: Tensor | None) -> None:
    """Raises for a weight with entries that are not finite, and for a mask of another shape."""
    if weight.dtype.is_floating_point and not is_finite(weight.detach()):
        raise DataError(f"{name} has entries that are not finite", "train with finite weights")
    if mask is not None and mask.shape != weight.shape:
        raise ShapeError(f"{name} is {list(weight.shape)}, and its mask {list(mask.shape)}")
