"""Pruning in training: masks of a model, changed by the schedules of its recipe.

In: `pruner = Pruner(model, optimizer)`, and `pruner.step()` after each step of the optimizer. Out: weights with the
scheduled zeros at each step; `pruner.finish()` is the frozen model under the current masks.
"""

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn, optim

from sparsify import recipe as recipes
from sparsify.errors import InvalidTensorError, ShapeError, SparsifyError, public
from sparsify.passes.apply import apply
from sparsify.passes.capture.draft import Pruning
from sparsify.passes.capture.shell import replace
from sparsify.passes.module.reconsider import reconsider
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.weights.optimizer_steps import ENTRYWISE, WHOLE
from sparsify.passes.rules.mark import MATRIX, format_text, rounded_in_training, rule_error
from sparsify.passes.rules.prunable import selected
from sparsify.passes.rules.prune import choose, is_pruning, unique
from sparsify.pruning.masks import Plan, new_masks
from sparsify.pruning.plan import first_masks, plans_of
from sparsify.pruning.schedule import Staged
from sparsify.pruning.structure import Structure
from sparsify.recipe import Prune, Recipe, Rule
from sparsify.sparsification.rules.materializing import SameFormat
from sparsify.storage.expand import count_true
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.tensor import SparseTensor
from sparsify.training.dense_gradients import DenseGradients, dense
from sparsify.training.set_mask import follow_parameter, mask_of, set_mask

SUMMED: Final = "movement"
"""The score that sums over steps."""
MOST_KEPT: Final = 0.5
"""The share of entries at which weights that train dense are first timed in kernels."""
FEWER: Final = 0.9
FEWEST: Final = 0.5
"""Where kernels are slower, they are timed again at this share of the entries at most, and at least."""

HALF: Final = 0.5
"""The share of zeros of masks that formats are tried with: of 4 random entries often more than 2 stay."""

STATE: Final[Mapping[str, type]] = {"step": int, "seed": int, "statistics": Mapping, "report": Sequence}
"""The parts of a state besides masks that each has, and what they are."""


@dataclass(frozen=True, slots=True)
class Update:
    """One change of the masks of a rule.

    Attributes:
        step, rule: number of the step, and the rule.
        target, actual: target and actual shares of zeros.
        churn: dropped and grown entries, relative to the entries kept before.
        seconds: duration of the update.
        dropped, grown: both parts of `churn`.
    """

    step: int
    rule: str
    target: float
    actual: float
    churn: float
    seconds: float
    dropped: float = 0.0
    grown: float = 0.0


@dataclass(frozen=True)
class Pruned:
    """A rule, its plans for choosing masks at all stages, and the names of its weights."""

    label: str
    plans: tuple[Plan, ...]
    names: tuple[str, ...]

    def updates(self, step: int) -> tuple[Plan, ...]:
        """The plans with an update of masks at a step; step 0 has the first masks only."""
        return tuple(plan for plan in self.plans if step > 0 and plan.schedule.is_update(step))

    def current_target(self, step: int) -> float:
        """The target share of zeros at a step."""
        return Staged(tuple(plan.schedule for plan in self.plans)).current_target(step)

    def regrows_by_gradients(self, step: int | None = None) -> bool:
        """Whether any update, or the update of a step, needs dense gradients."""
        plans = self.plans if step is None else self.updates(step)
        return any(plan.regrow == "gradient" for plan in plans)


class Pruner:
    """Follows the schedules of a recipe while a model trains.

    Attributes:
        masks: masks by name, bool of the shape of each pruned weight.
        report: the updates of masks so far.
        sparse_since: the step that turned dense weights into sparse parameters; None before.
        turn_masks: the masks of the step, used to choose formats and kernels.

    Args:
        model: a trainable result of `apply`, or a dense model, to be given the first masks of `recipe`.
        optimizer: one or several, made of the model's current parameters.
        recipe: recipe of a dense model; an applied model has one already.
        steps_per_epoch: for schedules counted in epochs.
        seed: seed of random scores and regrowth, by default from the recipe.
        sparse_below: share of entries, 0 to 1, below which dense weights of an applied model become sparse parameters
            unconditionally; None: a step is timed both ways once half of the entries are gone.

    Raises:
        SparsifyError: no recipe, no pruning rule, an invalid share, an optimizer without a pruned weight, or a recipe
            that `finish` could not apply: an unknown format, a `dtype` rounding weights in training. Nothing has
            changed then.

    >>> model = nn.Linear(8, 8)
    >>> rule = {"targets": "param:weight", "prune": {"method": "gmp", "sparsity": 0.75}, "schedule": {"end": 1}}
    >>> optimizer = optim.SGD(model.parameters(), 0.1)
    >>> pruner = Pruner(model, optimizer, {"name": "x", "sparsify": [rule]})
    >>> pruner.step()
    >>> int(model.weight.count_nonzero())
    16
    """

    @public
    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer | Iterable[optim.Optimizer],
        recipe: Any = None,
        *,
        steps_per_epoch: int | None = None,
        seed: int | None = None,
        sparse_below: float | None = None,
    ) -> None:
        self.model = model
        self.sparse_below = require_share(sparse_below)
        self.optimizers = optimizers_of(optimizer)
        self.recipe = recipe_of(model, recipe)
        require_applicable(self._source(), self.recipe)
        self.rules = list(pruned_rules(model, self.recipe, steps_per_epoch))
        self.seed = seed if seed is not None else self.recipe.seed or 0
        self.at = 0
        self.report: list[Update] = []
        self.statistics: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}
        self._elsewhere: dict[str, tuple[Tensor, Tensor]] = {}
        self._rewind_states: dict[int, dict[str, Tensor]] = {}
        _require_trained(self._weights(), self.optimizers)
        regrowing = [n for rule in self.rules if rule.regrows_by_gradients() for n in rule.names]
        if regrowing and isinstance(model, SparseModule) and model._request.has_masks:
            raise SparsifyError(
                "regrow: gradient of a model whose attention has masks", "leave one of them out of the recipe"
            )
        self.masks = self._first_masks()
        self._remember()
        self._turn_at = MOST_KEPT if sparse_below is None else sparse_below
        self.sparse_since: int | None = None
        self.turn_masks: dict[str, Tensor] = {}
        if not isinstance(model, SparseModule):
            for name, weight in self._weights().items():
                set_mask(weight, self.masks[name], self.optimizers)
        self._gradients = (
            DenseGradients(model, self._source, self._dense_weights, regrowing) if regrowing else None
        )
        self._hooks = [one.register_step_pre_hook(self._before_step) for one in self.optimizers]
        self._prepare()

    def step(self) -> None:
        """Counts a step, after the step of the optimizer, and updates the masks by the schedule."""
        self.at += 1
        if self._gradients is not None:
            self._gradients.settle()
        self._remember()
        plans = [(rule, plan) for rule in self.rules for plan in rule.updates(self.at)]
        rewinds = [plan.rewind for rule, plan in plans if self._update(rule, plan)]
        if (rewind_step := next((step for step in rewinds if step is not None), None)) is not None:
            self._rewind(self._rewind_states[rewind_step])
        self._hold()
        if plans:
            self._turn()
        self._last.clear()
        self._prepare()

    def finish(self, example_inputs: Any = None) -> SparseModule:
        """The frozen model: weights under the current masks, in packed formats.

        Args:
            example_inputs: inputs as for `apply`; by default the first call captures the model.
        """
        if self._gradients is not None:
            self._gradients.remove()  # a copy would have the hooks, too
        source = copy.deepcopy(self._source()).eval()
        if self._gradients is not None:
            self._gradients.attach()
        weights = self._dense_weights()
        for name, parameter in list(source.named_parameters(remove_duplicate=False)):
            if isinstance(parameter, SparseTensor) and name in weights:
                replace(source, parameter, nn.Parameter(weights[name]))
        return apply(source, finished(self.recipe), example_inputs, trainable=False)

    def state_dict(self) -> dict[str, Any]:
        """Masks, step, seed, sums of scores and the report: the state for an exact continuation of a run."""
        return {
            "step": self.at,
            "seed": self.seed,
            "masks": {name: mask.clone() for name, mask in self.masks.items()},
            "statistics": {name: value.clone() for name, value in self.statistics.items()},
            "report": [asdict(update) for update in self.report],
            "kept": {step: dict(values) for step, values in self._rewind_states.items()},
            "turn_at": self._turn_at,
            "sparse_since": self.sparse_since,
            "turn_masks": {name: packed(mask) for name, mask in self.turn_masks.items()},
            "dense": self._trained_densely(),
        }

    @public
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state; load the states of the model and the optimizers before.

        Raises:
            SparsifyError: no complete state, masks of other weights, or of other shapes. Nothing has changed then.
        """
        weights = self._weights()
        report = require_state(state, weights)
        masks = state["masks"]
        for name, weight in weights.items():
            set_mask(weight, masks[name])
        self.at, self.seed, self.report = state["step"], state["seed"], report
        self.masks = {name: masks[name].cpu().clone() for name in weights}
        self.statistics = {name: value.clone() for name, value in state["statistics"].items()}
        self._rewind_states = {step: dict(values) for step, values in state.get("kept", {}).items()}
        self._turn_at, self.sparse_since = state.get("turn_at", MOST_KEPT), state.get("sparse_since")
        self.turn_masks = unpacked(state.get("turn_masks", {}), self.masks)
        if set(self._trained_densely()) - set(state.get("dense", weights)):
            self._turn(is_timed=False)  # their weights were in kernels when the state was saved
        self._prepare()

    def _source(self) -> nn.Module:
        return self.model._source if isinstance(self.model, SparseModule) else self.model

    def _dense_weights(self) -> dict[str, Tensor]:
        """All parameters by name, dense; weights packed as whole numbers are multiplied by their scales."""
        unpacked: dict[str, Tensor] = {}
        if isinstance(self.model, SparseModule):
            weights = self.model._weights
            unpacked = {name: weights.unpacked(name).detach() for name in weights.packed_forms}
        return {
            name: unpacked[name] if name in unpacked else dense(parameter)
            for name, parameter in self._source().named_parameters()
        }

    def _weights(self) -> dict[str, Tensor]:
        """The pruned parameters by name."""
        source = self._source()
        return {name: source.get_parameter(name) for rule in self.rules for name in rule.names}

    def _first_masks(self) -> dict[str, Tensor]:
        """The masks of an applied model, or the starting masks of the rules."""
        weights = self._weights()
        if isinstance(self.model, SparseModule):
            return {
                name: self._applied_mask(rule, weights[name]) for rule in self.rules for name in rule.names
            }
        masks_by_name: dict[str, Tensor] = {}
        for at, rule in enumerate(self.recipe.rules):
            for one in self.rules:
                if is_pruning(rule) and one.label == _label(self.recipe, at):
                    masks = first_masks([weights[name] for name in one.names], rule, self.seed)
                    masks_by_name.update(zip(one.names, masks, strict=True))
        return masks_by_name

    def _applied_mask(self, rule: Pruned, weight: Tensor) -> Tensor:
        """The mask of a weight after `apply`: a dense start has all entries, including zeros."""
        first = rule.plans[0]
        is_full = first.schedule.target(0) == 0 < first.schedule.end and not first.structure.is_grouped
        is_dense = not isinstance(weight, SparseTensor)
        return torch.ones(weight.shape, dtype=torch.bool) if is_full and is_dense else mask_of(weight).cpu()

    def _prepare(self) -> None:
        """Starts the collection of dense gradients in the next step, if required by its update."""
        if self._gradients is not None:
            self._gradients.collect(any(rule.regrows_by_gradients(self.at + 1) for rule in self.rules))

    def _before_step(self, optimizer: optim.Optimizer, *_: Any) -> None:
        """Reads gradients needed for scores; not called for steps skipped by a GradScaler."""
        if self._gradients is not None:
            self._gradients.settle()
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        weights = self._weights()
        for rule in self.rules:
            needs_sums = any(plan.score == SUMMED for plan in rule.plans)
            scores = [plan.score for plan in rule.updates(self.at + 1)]
            needs_last = any(score not in ("magnitude", "random", SUMMED) for score in scores)
            for name in rule.names if needs_sums or needs_last else ():
                weight = weights[name]
                if id(weight) not in trained or weight.grad is None:
                    continue
                gradient = dense(weight.grad)
                if needs_last:
                    self._last[name] = gradient
                if needs_sums:
                    moved = dense(weight) * gradient
                    sums = self.statistics.get(name, torch.zeros_like(moved))
                    self.statistics[name] = sums.to(moved.device) - moved

    def _update(self, rule: Pruned, plan: Plan) -> bool:
        """Updates the masks of the weights of a rule; whether the masks changed."""
        start = time.perf_counter()
        weights = {name: weight for name, weight in self._weights().items() if name in rule.names}
        gradients = self._last | ({} if self._gradients is None else self._gradients.gradients)
        if plan.regrow == "gradient" and rule.names[0] not in gradients:
            return False  # no backward since the last step: a step of nothing
        if plan.score == "gradient" and any(name not in gradients for name in rule.names):
            return False
        if plan.regrow == "gradient":
            sum_over_ranks([gradients[name] for name in rule.names])
        updated = new_masks(
            plan,
            {name: weight.detach().cpu() for name, weight in weights.items()},
            {name: self.masks[name] for name in rule.names},
            step=self.at,
            seed=self.seed,
            gradients={name: gradients[name].cpu() for name in rule.names if name in gradients},
            statistics={name: sums.cpu() for name, sums in self.statistics.items()},
        )
        before = sum(count_true(self.masks[name]) for name in rule.names)
        entries_after = sum(map(count_true, updated.values()))
        both = sum(count_true(self.masks[name] & updated[name]) for name in rule.names)
        dropped, grown = (before - both) / max(1, before), (entries_after - both) / max(1, before)
        for name, weight in weights.items():
            set_mask(weight, updated[name], self.optimizers)
            self.masks[name] = updated[name]
        actual = 1 - entries_after / max(1, sum(mask.numel() for mask in updated.values()))
        target, seconds = plan.schedule.target(self.at), time.perf_counter() - start
        churn = dropped + grown
        self.report.append(Update(self.at, rule.label, target, actual, churn, seconds, dropped, grown))
        return churn > 0

    def _remember(self) -> None:
        """Saves the weights of the step that later rewinds restore."""
        steps = {plan.rewind for rule in self.rules for plan in rule.plans}
        if self.at in steps and self.at not in self._rewind_states:
            buffers = {name: buffer.clone() for name, buffer in self._source().named_buffers()}
            self._rewind_states[self.at] = {**self._dense_weights(), **buffers}

    def _rewind(self, earlier: Mapping[str, Tensor]) -> None:
        """Restores earlier values of weights and buffers, at the current entries; resets optimizers."""
        source = self._source()
        with torch.no_grad():
            for name, parameter in source.named_parameters():
                current = parameter.detach()
                parameter.copy_(
                    SameFormat(current)(earlier[name]) if isinstance(current, SparseTensor) else earlier[name]
                )
            for name, buffer in source.named_buffers():
                buffer.copy_(earlier[name])
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def _turn(self, *, is_timed: bool = True) -> None:
        """Times kernels for densely trained weights once more, after enough of their entries are gone."""
        dense = self._trained_densely()
        if not isinstance(self.model, SparseModule) or not dense or not self._may_turn():
            return
        stored = sum(int(self.masks[name].count_nonzero()) for name in dense)
        share = stored / sum(self.masks[name].numel() for name in dense)
        if is_timed and share > self._turn_at:
            return

        def outcome(pairs: Sequence[tuple[Tensor, Tensor]], gain: float) -> None:
            for old, new in pairs:
                assert isinstance(new, SparseTensor), "it takes the place of a dense one"
                follow_parameter(old, new, self.optimizers)
            if pairs and self.sparse_since is None:
                self.sparse_since = self.at + 1  # the step of the next forward pass
            if pairs:
                self.turn_masks = {name: mask.clone() for name, mask in self.masks.items()}
            if self._gradients is not None:
                self._gradients.follow_weights()
            # The time of kernels is at most in proportion to the entries.
            self._turn_at = share * min(FEWER, max(FEWEST, gain))

        reconsider(self.model, outcome, is_timed=is_timed and self.sparse_below is None)

    def _may_turn(self) -> bool:
        """Whether parameters may become sparse: supported by the optimizers, and not shared with other processes."""
        is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
        are_entrywise = all(type(one) in ENTRYWISE - WHOLE for one in self.optimizers)
        return self.model.training and are_entrywise and not is_shared

    def _trained_densely(self) -> list[str]:
        """The names of pruned matrices in dense parameters."""
        weights = self._weights().items()
        return [name for name, weight in weights if weight.dim() > 1 and not isinstance(weight, SparseTensor)]

    def _hold(self) -> None:
        """Zeroes dense weights outside of their masks."""
        with torch.no_grad():
            for name, weight in self._weights().items():
                if not isinstance(weight, SparseTensor):
                    weight.masked_fill_(self._outside(name, weight.device), 0)

    def _outside(self, name: str, device: torch.device) -> Tensor:
        """The entries outside of a mask, bool [*shape] on a device; the copy on another device is cached."""
        mask = self.masks[name]
        if device.type == "cpu":
            return ~mask
        cached = self._elsewhere.get(name)
        if cached is None or cached[0] is not mask or cached[1].device != device:
            cached = self._elsewhere[name] = mask, ~mask.to(device)
        return cached[1]


def packed(mask: Tensor) -> Tensor:
    """The bits of a mask, uint8 [entries / 8].

    >>> packed(torch.tensor([True, False, True]))
    tensor([160], dtype=torch.uint8)
    """
    return torch.from_numpy(np.packbits(mask.cpu().numpy()))


def unpacked(bits: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks from their bits, in the shapes of given masks."""
    return {
        name: torch.from_numpy(np.unpackbits(packed.numpy(), count=masks[name].numel()))
        .bool()
        .view(masks[name].shape)
        for name, packed in bits.items()
        if name in masks
    }


def require_share(share: Any) -> float | None:
    """A valid share of entries, or None.

    Raises:
        SparsifyError: not a number from 0 to 1.
    """
    is_number = isinstance(share, Real) and not isinstance(share, bool)
    if share is not None and not (is_number and 0 <= float(share) <= 1):
        raise SparsifyError(
            f"Pruner(sparse_below={share!r})",
            "the share of entries, 0.3 for 70 % zeros, or None to time steps",
        )
    return None if share is None else float(share)


def require_state(state: Any, weights: Mapping[str, Tensor]) -> list[Update]:
    """The report of a state, after a check that the state is complete and fits the pruned weights.

    Raises:
        SparsifyError: not a state, a missing or wrong part, or masks of other weights.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("masks"), Mapping):
        raise SparsifyError(
            f"a {type(state).__name__} without masks is no state of a Pruner", "what its `state_dict()` gave"
        )
    for part, kind in STATE.items():
        if not isinstance(state.get(part), kind):
            actual = f"a {type(state[part]).__name__}" if part in state else "missing"
            raise SparsifyError(
                f"the state of a Pruner has {part!r}, which is {actual} here",
                "all that its `state_dict()` gave",
            )
    masks = state["masks"]
    if weights.keys() != masks.keys():
        names = ", ".join(sorted(weights.keys() ^ masks.keys()))
        raise SparsifyError(f"a state with masks of other weights: {names}", "the state of the same recipe")
    for name, weight in weights.items():
        mask = masks[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            actual = str(mask.dtype) if isinstance(mask, Tensor) else type(mask).__name__
            raise SparsifyError(f"the mask of {name} is {actual}, not a tensor of torch.bool", "mask != 0")
        if mask.shape != weight.shape:
            raise SparsifyError(
                f"the mask of {name} is {list(mask.shape)}, the weight {list(weight.shape)}",
                "the state of the same model",
            )
    require_turn_masks(state.get("turn_masks", {}), masks)
    try:
        return [Update(**update) for update in state["report"]]
    except TypeError as error:
        raise SparsifyError(
            f"the report of the state has other entries: {error}", "what `state_dict()` gave"
        ) from None


def require_turn_masks(bits: Any, masks: Mapping[str, Tensor]) -> None:
    """Raises if the masks saved at the turn to sparse parameters belong to other weights."""
    is_mapping = isinstance(bits, Mapping)
    names = sorted(bits) if is_mapping and bits.keys() <= masks.keys() else None
    for name in names or ():
        size = -(-masks[name].numel() // 8)
        mask_bits = bits[name]
        if not isinstance(mask_bits, Tensor) or mask_bits.dtype != torch.uint8 or mask_bits.shape != (size,):
            names = None
            break
    if names is None:
        raise SparsifyError(
            "a state with `turn_masks` that are not the bits of its masks", "the state of the same model"
        )


def sum_over_ranks(gradients: Iterable[Tensor]) -> None:
    """Adds gradients over the processes of a distributed run, for equal masks in all processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for gradient in gradients:
            torch.distributed.all_reduce(gradient)


def optimizers_of(optimizers: Any) -> list[optim.Optimizer]:
    """One optimizer or several as a list.

    Raises:
        SparsifyError: something else.
    """
    result = (
        [optimizers]
        if isinstance(optimizers, optim.Optimizer)
        else list(optimizers)
        if isinstance(optimizers, Iterable)
        else []
    )
    if not result or not all(isinstance(one, optim.Optimizer) for one in result):
        raise SparsifyError(
            f"Pruner with a {type(optimizers).__name__} as its optimizer",
            "a torch.optim.Optimizer, or several in a list",
        )
    return result


def recipe_of(model: nn.Module, recipe: Any) -> Recipe:
    """The recipe of an applied model, or the given one.

    Raises:
        SparsifyError: no recipe, or two.
    """
    if isinstance(model, SparseModule):
        if recipe is not None:
            raise SparsifyError("the model has a recipe already", "leave `recipe` out")
        return model._request.recipe
    if not isinstance(model, nn.Module) or recipe is None:
        raise SparsifyError(
            f"Pruner of a {type(model).__name__} without a recipe", "give what `apply` made, or recipe=..."
        )
    return recipes.load(recipe)


def pruned_rules(model: nn.Module, recipe: Recipe, steps_per_epoch: int | None) -> Iterator[Pruned]:
    """The pruning rules, with their weights.

    Raises:
        SparsifyError: no such rule, a rule without a match, or a calibrated rule for a model not applied.
    """
    rules = {at: rule for at, rule in enumerate(recipe.rules) if is_pruning(rule)}
    if not rules:
        raise SparsifyError(f"no rule of {recipe.name} prunes", "a rule with `prune`")
    for at, rule in rules.items():
        if rule.prune is not None and rule.prune.is_calibrated and not isinstance(model, SparseModule):
            raise SparsifyError(
                f"the rule {_label(recipe, at)} with `method: {rule.prune.method}` needs inputs of the model",
                "Pruner(sparsify.apply(model, recipe, inputs, calibration=batches), optimizer)",
            )
    if isinstance(model, SparseModule):
        taken = {at: list(names) for at, names in model._request.pruning.taken.items() if at in rules}
    else:
        pruning = Pruning()
        choose(model, rules, None, pruning)
        taken = {
            at: unique(model, (n for n in selected(model, rule) if n not in pruning.passed.get(at, {})))
            for at, rule in rules.items()
        }
    for at, rule in rules.items():
        label = _label(recipe, at)
        if not taken.get(at) and not rule.optional:
            raise SparsifyError(
                f"the rule {label} matches no weight", "`sparsify recipes validate`, or `optional`"
            )
        source = model._source if isinstance(model, SparseModule) else model
        trained = tuple(name for name in taken.get(at, ()) if source.get_parameter(name).requires_grad)
        if taken.get(at) and not trained:
            raise SparsifyError(
                f"the weights of the rule {label} do not train",
                "apply a model in training, or trainable=True",
            )
        if trained:
            yield Pruned(label, plans_of(rule, steps_per_epoch), trained)


def finished(recipe: Recipe) -> Recipe:
    """The recipe with pruning rules replaced by rules that keep the existing zeros."""
    constant = Prune(method="constant")
    return recipe.with_rules(
        rule.model_copy(update={"prune": constant, "schedule": None}) if is_pruning(rule) else rule
        for rule in recipe.rules
    )


def require_applicable(source: nn.Module, recipe: Recipe) -> None:
    """Raises for a rule with a format unknown or too small for its masks, or with rounding of trained weights.

    Raises:
        RecipeError: with the place of the rule.
    """
    for rule in recipe.rules:
        form = format_text(recipe, rule, rank=MATRIX)
        weights: list[Tensor] = [source.get_parameter(name) for name in selected(source, rule)]
        matrices = [weight for weight in weights if weight.dim() == MATRIX]
        if form != "auto" and rule.prune is not None and matrices:
            are_stored = any(type(weight) is SparseTensor for weight in matrices)
            require_masks_fit(recipe, rule, form, matrices[0].shape, are_stored)
        if rule.dtype == "same":
            continue
        for name in selected(source, rule):
            if source.get_parameter(name).requires_grad:
                raise rounded_in_training(recipe, rule, f"param:{name}")


def require_masks_fit(recipe: Recipe, rule: Rule, form: str, shape: torch.Size, are_stored: bool) -> None:
    """Raises if a format cannot hold masks of the structure of a rule, as `nm(2, 4)` for masks of single entries.

    Args:
        are_stored: whether weights are sparse parameters, with all stored entries trained; blocks with zeros
            have entries outside of the mask.

    Raises:
        RecipeError: with the place of the rule, and the entries without a place.
    """
    holds_all = all(stored.level.holds_all for stored in Format(form, rank=MATRIX).levels)
    if rule.prune is None or (holds_all and not are_stored):
        return
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    try:
        mask = Structure.asked_by(rule.prune).select(scores, HALF, by_row=False)
        stored = tensor(mask.float(), form).nnz
    except ShapeError:
        return  # the plan of the rule reports the weight with indivisible groups or blocks
    except InvalidTensorError as error:
        why = f"cannot hold the masks of this rule, as for one {list(shape)}: {error}"
        raise rule_error(recipe, rule, f"format: {form} {why}") from None
    if are_stored and stored > int(mask.count_nonzero()):
        raise rule_error(
            recipe,
            rule,
            f"format: {form} stores {stored} entries for a mask [{', '.join(map(str, shape))}] of "
            f"{int(mask.count_nonzero())}: prune whole blocks, as `pattern: {{block: [4, 4]}}` for `bcsr(4, 4)`, or "
            "take another format",
        )


def _label(recipe: Recipe, at: int) -> str:
    """The name of a rule."""
    return recipe.rules[at].id or f"rule {at + 1}"


def _require_trained(weights: Mapping[str, Tensor], optimizers: Iterable[optim.Optimizer]) -> None:
    """Raises if a trained pruned weight is in no optimizer."""
    trained = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
    for name, weight in weights.items():
        if weight.requires_grad and id(weight) not in trained:
            raise SparsifyError(
                f"no optimizer trains {name}", "make the optimizer of model.parameters(), after `apply`"
            )
