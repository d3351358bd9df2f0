"""The masks of a model that trains, changed as the schedules of its recipe say.

In: `pruner = Pruner(model, optimizer)`, and `pruner.step()` after each step of the optimizer. Out: weights with the
zeros that the schedule wants at that step; `pruner.finish()` is the frozen model with these masks.
"""

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Final

import torch
from torch import Tensor, nn, optim

from sparsify import recipe as recipes
from sparsify.errors import InvalidTensorError, ShapeError, SparsifyError, public
from sparsify.passes.apply import apply
from sparsify.passes.capture.draft import Pruning
from sparsify.passes.capture.shell import replace
from sparsify.passes.module.optimizer_steps import ENTRYWISE, WHOLE
from sparsify.passes.module.reconsider import reconsider
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.rules.mark import MATRIX, format_text, rounded_in_training, rule_error
from sparsify.passes.rules.prunable import selected
from sparsify.passes.rules.prune import choose, is_pruning, unique
from sparsify.pruning.masks import Plan, new_masks
from sparsify.pruning.plan import first_masks, plans_of
from sparsify.pruning.schedule import Staged
from sparsify.pruning.structure import Structure
from sparsify.recipe import Prune, Recipe, Rule
from sparsify.sparsification.materializing import SameFormat
from sparsify.storage.format import Format
from sparsify.storage.interop import tensor
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
        step, rule: when, and which one.
        target, actual: shares of zeros, wanted and found.
        churn: entries that were dropped or grew, over those kept before.
        seconds: of the update.
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
    """A rule, how it and later stages choose masks, and the names of its weights."""

    label: str
    plans: tuple[Plan, ...]
    names: tuple[str, ...]

    def updates(self, step: int) -> tuple[Plan, ...]:
        """The plans that choose masks at a step; those of step 0 are the first ones."""
        return tuple(plan for plan in self.plans if step > 0 and plan.schedule.is_update(step))

    def held(self, step: int) -> float:
        """The share of zeros that is wanted at a step."""
        return Staged(tuple(plan.schedule for plan in self.plans)).held(step)

    def regrows_by_gradients(self, step: int | None = None) -> bool:
        """Whether an update, or that of a step, needs dense gradients."""
        plans = self.plans if step is None else self.updates(step)
        return any(plan.regrow == "gradient" for plan in plans)


class Pruner:
    """Follows the schedules of a recipe while a model trains.

    Attributes:
        masks: by name, bool of the shape of each pruned weight.
        report: the updates of masks until now.
        sparse_since: the step in which weights that had trained dense became sparse parameters; None: they have not.

    Args:
        model: what `apply` made trainable, or a dense model, which gets the first masks of `recipe` here.
        optimizer: one or several, made of the model's parameters as they are now.
        recipe: of a dense model; an applied one has its own.
        steps_per_epoch: for schedules that count epochs.
        seed: of random scores and regrowth, by default that of the recipe.
        sparse_below: the share of entries, 0 to 1, from which on weights of an applied model that train dense become
            sparse parameters, whatever a step takes; None: a step is timed both ways once half of the entries are gone.

    Raises:
        SparsifyError: no recipe, no rule that prunes, a share that is none, an optimizer that does not train a pruned
            weight, or a recipe that `finish` could not apply: a format that does not exist, a `dtype` that rounds
            weights in training. Nothing has changed then.

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
        self._kept: dict[int, dict[str, Tensor]] = {}
        _require_trained(self._weights(), self.optimizers)
        regrowing = [n for rule in self.rules if rule.regrows_by_gradients() for n in rule.names]
        if regrowing and isinstance(model, SparseModule) and model._asked.has_masks:
            raise SparsifyError(
                "regrow: gradient of a model whose attention has masks", "leave one of them out of the recipe"
            )
        self.masks = self._first_masks()
        self._remember()
        self._turn_at = MOST_KEPT if sparse_below is None else sparse_below
        self.sparse_since: int | None = None
        if not isinstance(model, SparseModule):
            for name, weight in self._weights().items():
                set_mask(weight, self.masks[name], self.optimizers)
        self._gradients = (
            DenseGradients(model, self._source, self._dense_weights, regrowing) if regrowing else None
        )
        self._hooks = [one.register_step_pre_hook(self._before_step) for one in self.optimizers]
        self._prepare()

    def step(self) -> None:
        """Counts a step, after that of the optimizer, and changes the masks where the schedule says so."""
        self.at += 1
        if self._gradients is not None:
            self._gradients.settle()
        self._remember()
        plans = [(rule, plan) for rule in self.rules for plan in rule.updates(self.at)]
        rewinds = [plan.rewind for rule, plan in plans if self._update(rule, plan)]
        if (wanted := next((step for step in rewinds if step is not None), None)) is not None:
            self._rewind(self._kept[wanted])
        self._hold()
        if plans:
            self._turn()
        self._last.clear()
        self._prepare()

    def finish(self, example_inputs: Any = None) -> SparseModule:
        """The frozen model: its weights with these masks, in packed formats.

        Args:
            example_inputs: as `apply` takes them; without them the first call captures the model.
        """
        if self._gradients is not None:
            self._gradients.remove()  # a copy would have the hooks, too
        source = copy.deepcopy(self._source()).eval()
        if self._gradients is not None:
            self._gradients.attach()
        found = self._dense_weights()
        for name, parameter in list(source.named_parameters(remove_duplicate=False)):
            if isinstance(parameter, SparseTensor) and name in found:
                replace(source, parameter, nn.Parameter(found[name]))
        return apply(source, finished(self.recipe), example_inputs, trainable=False)

    def state_dict(self) -> dict[str, Any]:
        """Masks, step, seed, sums of scores and the report: what a run needs to go on as if it had not stopped."""
        return {
            "step": self.at,
            "seed": self.seed,
            "masks": {name: mask.clone() for name, mask in self.masks.items()},
            "statistics": {name: value.clone() for name, value in self.statistics.items()},
            "report": [asdict(update) for update in self.report],
            "kept": {step: dict(values) for step, values in self._kept.items()},
            "turn_at": self._turn_at,
            "sparse_since": self.sparse_since,
            "dense": self._trained_densely(),
        }

    @public
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a state was taken; the states of the model and the optimizers are loaded before.

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
        self._kept = {step: dict(values) for step, values in state.get("kept", {}).items()}
        self._turn_at, self.sparse_since = state.get("turn_at", MOST_KEPT), state.get("sparse_since")
        if set(self._trained_densely()) - set(state.get("dense", weights)):
            self._turn(is_timed=False)  # they were in kernels
        self._prepare()

    def _source(self) -> nn.Module:
        return self.model._source if isinstance(self.model, SparseModule) else self.model

    def _dense_weights(self) -> dict[str, Tensor]:
        """All parameters by name, dense; those that are packed as whole numbers, with their scales."""
        unpacked: dict[str, Tensor] = {}
        if isinstance(self.model, SparseModule):
            weights = self.model._weights
            unpacked = {name: weights.unpacked(name).detach() for name in weights.held}
        return {
            name: unpacked[name] if name in unpacked else dense(parameter)
            for name, parameter in self._source().named_parameters()
        }

    def _weights(self) -> dict[str, Tensor]:
        """The pruned parameters by name."""
        source = self._source()
        return {name: source.get_parameter(name) for rule in self.rules for name in rule.names}

    def _first_masks(self) -> dict[str, Tensor]:
        """The masks of an applied model, or those with which a rule starts."""
        weights = self._weights()
        if isinstance(self.model, SparseModule):
            return {
                name: self._applied_mask(rule, weights[name]) for rule in self.rules for name in rule.names
            }
        found: dict[str, Tensor] = {}
        for at, rule in enumerate(self.recipe.rules):
            for one in self.rules:
                if is_pruning(rule) and one.label == _label(self.recipe, at):
                    masks = first_masks([weights[name] for name in one.names], rule, self.seed)
                    found.update(zip(one.names, masks, strict=True))
        return found

    def _applied_mask(self, rule: Pruned, weight: Tensor) -> Tensor:
        """The mask that `apply` gave a weight: a dense start has all entries, also those that are 0."""
        first = rule.plans[0]
        is_full = first.schedule.target(0) == 0 < first.schedule.end and not first.structure.is_grouped
        is_dense = not isinstance(weight, SparseTensor)
        return torch.ones(weight.shape, dtype=torch.bool) if is_full and is_dense else mask_of(weight).cpu()

    def _prepare(self) -> None:
        """Has the next step collect dense gradients where its update needs them."""
        if self._gradients is not None:
            self._gradients.collect(any(rule.regrows_by_gradients(self.at + 1) for rule in self.rules))

    def _before_step(self, optimizer: optim.Optimizer, *_: Any) -> None:
        """Reads gradients for scores that need them; steps that a GradScaler skips do not come here."""
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
        """Gives the weights of a rule new masks; whether they differ from those before."""
        start = time.perf_counter()
        weights = {name: weight for name, weight in self._weights().items() if name in rule.names}
        known = self._last | ({} if self._gradients is None else self._gradients.found)
        if plan.regrow == "gradient" and rule.names[0] not in known:
            return False  # no backward since the last step: a step of nothing
        if plan.score == "gradient" and any(name not in known for name in rule.names):
            return False
        if plan.regrow == "gradient":
            sum_over_ranks([known[name] for name in rule.names])
        found = new_masks(
            plan,
            {name: dense(weight).cpu() for name, weight in weights.items()},
            {name: self.masks[name] for name in rule.names},
            step=self.at,
            seed=self.seed,
            gradients={name: known[name].cpu() for name in rule.names if name in known},
            statistics={name: sums.cpu() for name, sums in self.statistics.items()},
        )
        before = max(1, sum(int(self.masks[name].count_nonzero()) for name in rule.names))
        dropped = sum(int((self.masks[name] & ~found[name]).count_nonzero()) for name in rule.names) / before
        grown = sum(int((found[name] & ~self.masks[name]).count_nonzero()) for name in rule.names) / before
        for name, weight in weights.items():
            set_mask(weight, found[name], self.optimizers)
            self.masks[name] = found[name]
        kept = sum(int(mask.count_nonzero()) for mask in found.values())
        actual = 1 - kept / max(1, sum(mask.numel() for mask in found.values()))
        target, seconds = plan.schedule.target(self.at), time.perf_counter() - start
        churn = dropped + grown
        self.report.append(Update(self.at, rule.label, target, actual, churn, seconds, dropped, grown))
        return churn > 0

    def _remember(self) -> None:
        """Keeps the weights of the step to which they will go back."""
        steps = {plan.rewind for rule in self.rules for plan in rule.plans}
        if self.at in steps and self.at not in self._kept:
            buffers = {name: buffer.clone() for name, buffer in self._source().named_buffers()}
            self._kept[self.at] = {**self._dense_weights(), **buffers}

    def _rewind(self, kept: Mapping[str, Tensor]) -> None:
        """Gives weights and buffers earlier values, at the entries that they have now; optimizers start anew."""
        source = self._source()
        with torch.no_grad():
            for name, parameter in source.named_parameters():
                found = parameter.detach()
                parameter.copy_(
                    SameFormat(found)(kept[name]) if isinstance(found, SparseTensor) else kept[name]
                )
            for name, buffer in source.named_buffers():
                buffer.copy_(kept[name])
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def _turn(self, *, is_timed: bool = True) -> None:
        """Has weights that train dense timed in kernels once more where enough of their entries are gone."""
        dense = self._trained_densely()
        if not isinstance(self.model, SparseModule) or not dense or not self._may_turn():
            return
        kept = sum(int(self.masks[name].count_nonzero()) for name in dense)
        share = kept / sum(self.masks[name].numel() for name in dense)
        if is_timed and share > self._turn_at:
            return

        def outcome(pairs: Sequence[tuple[Tensor, Tensor]], gain: float) -> None:
            for old, new in pairs:
                assert isinstance(new, SparseTensor), "it takes the place of a dense one"
                follow_parameter(old, new, self.optimizers)
            if pairs and self.sparse_since is None:
                self.sparse_since = self.at + 1  # its forward pass runs
            if self._gradients is not None:
                self._gradients.follow_weights()
            # The time of kernels is at most in proportion to the entries.
            self._turn_at = share * min(FEWER, max(FEWEST, gain))

        reconsider(self.model, outcome, is_timed=is_timed and self.sparse_below is None)

    def _may_turn(self) -> bool:
        """Whether parameters may become sparse: optimizers can train them, and no other process has them dense."""
        is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
        are_entrywise = all(type(one) in ENTRYWISE - WHOLE for one in self.optimizers)
        return self.model.training and are_entrywise and not is_shared

    def _trained_densely(self) -> list[str]:
        """The names of pruned matrices that are dense parameters."""
        weights = self._weights().items()
        return [name for name, weight in weights if weight.dim() > 1 and not isinstance(weight, SparseTensor)]

    def _hold(self) -> None:
        """Keeps dense weights 0 outside of their masks."""
        with torch.no_grad():
            for name, weight in self._weights().items():
                if not isinstance(weight, SparseTensor):
                    weight.masked_fill_(self._outside(name, weight.device), 0)

    def _outside(self, name: str, device: torch.device) -> Tensor:
        """The entries outside of a mask, bool [*shape] on a device; a copy on another device than the CPU is kept."""
        mask = self.masks[name]
        if device.type == "cpu":
            return ~mask
        known = self._elsewhere.get(name)
        if known is None or known[0] is not mask or known[1].device != device:
            known = self._elsewhere[name] = mask, ~mask.to(device)
        return known[1]


def require_share(share: Any) -> float | None:
    """A share of entries, or None.

    Raises:
        SparsifyError: it is no number of 0 to 1.
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
        SparsifyError: it is no state, a part is missing or of another kind, or masks are those of other weights.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("masks"), Mapping):
        raise SparsifyError(
            f"a {type(state).__name__} without masks is no state of a Pruner", "what its `state_dict()` gave"
        )
    for part, kind in STATE.items():
        if not isinstance(state.get(part), kind):
            found = f"a {type(state[part]).__name__}" if part in state else "missing"
            raise SparsifyError(
                f"the state of a Pruner has {part!r}, which is {found} here",
                "all that its `state_dict()` gave",
            )
    masks = state["masks"]
    if weights.keys() != masks.keys():
        names = ", ".join(sorted(weights.keys() ^ masks.keys()))
        raise SparsifyError(f"a state with masks of other weights: {names}", "the state of the same recipe")
    for name, weight in weights.items():
        mask = masks[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            found = str(mask.dtype) if isinstance(mask, Tensor) else type(mask).__name__
            raise SparsifyError(f"the mask of {name} is {found}, not a tensor of torch.bool", "mask != 0")
        if mask.shape != weight.shape:
            raise SparsifyError(
                f"the mask of {name} is {list(mask.shape)}, the weight {list(weight.shape)}",
                "the state of the same model",
            )
    try:
        return [Update(**update) for update in state["report"]]
    except TypeError as error:
        raise SparsifyError(
            f"the report of the state has other entries: {error}", "what `state_dict()` gave"
        ) from None


def sum_over_ranks(gradients: Iterable[Tensor]) -> None:
    """Adds gradients over the processes of a distributed run, so that all choose the same masks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for gradient in gradients:
            torch.distributed.all_reduce(gradient)


def optimizers_of(given: Any) -> list[optim.Optimizer]:
    """One optimizer or several as a list.

    Raises:
        SparsifyError: something else.
    """
    found = (
        [given] if isinstance(given, optim.Optimizer) else list(given) if isinstance(given, Iterable) else []
    )
    if not found or not all(isinstance(one, optim.Optimizer) for one in found):
        raise SparsifyError(
            f"Pruner with a {type(given).__name__} as its optimizer",
            "a torch.optim.Optimizer, or several in a list",
        )
    return found


def recipe_of(model: nn.Module, recipe: Any) -> Recipe:
    """The recipe of an applied model, or the one that is given.

    Raises:
        SparsifyError: there is none, or two.
    """
    if isinstance(model, SparseModule):
        if recipe is not None:
            raise SparsifyError("the model has a recipe already", "leave `recipe` out")
        return model._asked.recipe
    if not isinstance(model, nn.Module) or recipe is None:
        raise SparsifyError(
            f"Pruner of a {type(model).__name__} without a recipe", "give what `apply` made, or recipe=..."
        )
    return recipes.load(recipe)


def pruned_rules(model: nn.Module, recipe: Recipe, steps_per_epoch: int | None) -> Iterator[Pruned]:
    """The rules that prune, with their weights.

    Raises:
        SparsifyError: there is none, one that matches nothing, or one that needs inputs of a model that is not applied.
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
        taken = {at: list(found) for at, found in model._asked.pruning.taken.items() if at in rules}
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
    """The recipe whose rules keep the zeros that are there."""
    held = Prune(method="constant")
    return recipe.with_rules(
        rule.model_copy(update={"prune": held, "schedule": None}) if is_pruning(rule) else rule
        for rule in recipe.rules
    )


def require_applicable(source: nn.Module, recipe: Recipe) -> None:
    """Raises where a rule has a format that does not exist or cannot hold its masks, or rounds weights that train.

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
    """Raises where a format cannot hold masks of the structure of a rule, as `nm(2, 4)` those of single entries.

    Args:
        are_stored: whether weights are sparse parameters, which train whatever a format stores; blocks with zeros
            in them have entries that no mask has.

    Raises:
        RecipeError: with the place of the rule, and the entries that find no place.
    """
    holds_all = all(stored.level.holds_all for stored in Format(form, rank=MATRIX).levels)
    if rule.prune is None or (holds_all and not are_stored):
        return
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    try:
        mask = Structure.asked_by(rule.prune).select(scores, HALF, by_row=False)
        stored = tensor(mask.float(), form).nnz
    except ShapeError:
        return  # the plan of the rule names the weight that groups or blocks do not divide
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
    """Raises where a pruned weight that trains is in no optimizer."""
    trained = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
    for name, weight in weights.items():
        if weight.requires_grad and id(weight) not in trained:
            raise SparsifyError(
                f"no optimizer trains {name}", "make the optimizer of model.parameters(), after `apply`"
            )
