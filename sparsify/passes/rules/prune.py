"""Rules that change weights: a copy of a model's modules with weights pruned, or rounded.

In: a model and a recipe with `prune: {method: magnitude, sparsity: 0.9}, dtype: bfloat16`. Out: a model that shares all
other parameters; the selected weights have nine zeros in ten entries, with nonzeros rounded to bfloat16.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.errors import DataError, SparsifyError
from sparsify.passes.capture.draft import Pruning
from sparsify.passes.capture.shell import replace, shared_copy
from sparsify.passes.region.sparse_operand import SCALES
from sparsify.passes.rules.calibrate import CalibrationData, calibrated, is_calibrated
from sparsify.passes.rules.mark import aliases, rule_error
from sparsify.passes.rules.not_finite import first_not_finite
from sparsify.passes.rules.product_weights import product_weights
from sparsify.passes.rules.prunable import passed_over, selected, unnamed
from sparsify.pruning.plan import first_masks, is_constant
from sparsify.recipe import Recipe, Rule
from sparsify.sparsification.rules.rounding import Moved, moved, rounded, scales
from sparsify.storage.subclass.trained_masks import entries, follow, remember
from sparsify.storage.tensor import SparseTensor

CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def prune(
    model: nn.Module,
    recipe: Recipe,
    roundings: dict[str, Moved] | None = None,
    *,
    run: Callable[[nn.Module], Any] | None = None,
    pruning: Pruning | None = None,
    data: CalibrationData | None = None,
    keeps_zeros: bool = False,
) -> nn.Module:
    """A copy with pruned and rounded weights; the model itself when no rule prunes or rounds.

    Args:
        model: the model, which keeps its weights.
        recipe: the rules.
        roundings: receives the distances by which rounding moved weights, by name.
        run: function that calls a model, to find the operands of its products; without it the types of modules decide.
        pruning: receives the pruned and the passed-over weights.
        data: data for rules that need calibration.
        keeps_zeros: whether calibrated rules take the present zeros of the weights.

    Raises:
        RecipeError: a rule asks for an unsupported feature, or does not fit a weight.
    """
    rules = {at: r for at, r in enumerate(recipe.rules) if is_pruning(r) or r.dtype != "same"}
    if not rules:
        return model
    pruning = Pruning() if pruning is None else pruning
    pruners = {at: rule for at, rule in rules.items() if is_pruning(rule)}
    if pruners and not pruning.is_known:
        choose(model, pruners, None if run is None else product_weights(model, run), pruning)
    with torch.inference_mode(False):
        pruned = shared_copy(model)
        named: dict[int, list[str]] = {}
        for at, rule in rules.items():
            passed = pruning.passed.get(at, {})
            named[at] = unique(model, (name for name in selected(model, rule) if name not in passed))
        later = {at: (rule, named[at]) for at, rule in rules.items() if is_calibrated(rule) and named[at]}
        roundings = {} if roundings is None else roundings
        for at, rule in rules.items():
            if at not in later:
                pruning.taken[at] = _apply(pruned, recipe, rule, named[at], roundings)
        for rule, names in later.values():
            require_prunable(pruned, recipe, rule, names)
        weights: dict[str, Tensor] = {}
        if keeps_zeros:
            weights = {n: pruned.get_parameter(n).detach() for _, names in later.values() for n in names}
        elif later:
            weights = {n: done.weight for n, done in calibrated(pruned, recipe, later, pruning, data).items()}
        for at, (rule, names) in later.items():
            changed = {name: weights[name] for name in names if name in weights}
            pruning.taken[at] = _apply(pruned, recipe, rule, list(changed), roundings, changed)
    return pruned


def with_dense_weights(model: nn.Module, recipe: Recipe) -> nn.Module:
    """A model with sparse parameters made dense, under their masks, where rules prune or round them."""
    rules = [rule for rule in recipe.rules if is_pruning(rule) or rule.dtype != "same"]
    names = {name for rule in rules for name in selected(model, rule)}
    sparse = [p for name in sorted(names) if isinstance(p := model.get_parameter(name), SparseTensor)]
    if not sparse:
        return model
    result = shared_copy(model)
    for parameter in sparse:
        with torch.no_grad():
            dense_parameter = nn.Parameter(parameter.to_dense(), requires_grad=parameter.requires_grad)
        remember(dense_parameter, entries(parameter))
        replace(result, parameter, dense_parameter)
    return result


def choose(
    model: nn.Module, rules: Mapping[int, Rule], read: Collection[str] | None, pruning: Pruning
) -> None:
    """Records the parameters passed over by each rule.

    Args:
        model: model with the parameters.
        rules: pruning rules by position.
        read: parameters read by products, None if unknown.
        pruning: record of names, updated in place.
    """
    ties = aliases(model)
    names = None if read is None else {other for name in read for other in ties[name]}
    pruning.is_guess, pruning.is_known = names is None, True
    for at, rule in rules.items():
        pruning.passed[at] = passed_over(model, rule, names, ties)
    pruning.unnamed = unnamed(model, list(rules.values()), names or ())


def require_values(model: nn.Module) -> None:
    """Raises where the weights of a model have no values."""
    names = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if names:
        raise DataError(
            f"{names[0]} is on the device meta, it has no values",
            "give the model its weights before, with model.to_empty(device='cpu') and load_state_dict",
        )


def unique(model: nn.Module, names: Iterable[str]) -> list[str]:
    """The names, each parameter once."""
    name_by_identity: dict[int, str] = {}
    for name in names:
        name_by_identity.setdefault(id(model.get_parameter(name)), name)
    return list(name_by_identity.values())


def is_pruning(rule: Rule) -> bool:
    """Whether a rule makes zeros."""
    return rule.origin == "prune" and rule.prune is not None


def is_packable(model: nn.Module, name: str) -> bool:
    """Whether a weight may be packed in another dtype: a matrix, or the weight of a convolution."""
    owner = model.get_submodule(name.rpartition(".")[0])
    is_filters = isinstance(owner, CONVOLUTIONS) and owner.groups == 1 and name.endswith("weight")
    return is_filters or model.get_parameter(name).dim() == 2


def require_prunable(model: nn.Module, recipe: Recipe, rule: Rule, names: Iterable[str]) -> None:
    """Raises for tied parameters without `ties` in the rule, and for entries without a magnitude (NaN)."""
    others = aliases(model)
    for name in names:
        if len(others[name]) > 1 and rule.ties == "error":
            tied = ", ".join(others[name])
            raise rule_error(recipe, rule, f"{tied} are one parameter; `ties: share` or `ties: untie`")
        if is_pruning(rule) and (entry := first_not_finite(model.get_parameter(name))):
            raise rule_error(recipe, rule, f"{name} is {entry}: of no size by which entries could be chosen")


def _apply(
    model: nn.Module,
    recipe: Recipe,
    rule: Rule,
    names: list[str],
    roundings: dict[str, Moved],
    new_weights: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """Replaces the weights of a rule by changed or known ones; returns their shares of zeros."""
    if not is_pruning(rule):
        names = [name for name in names if is_packable(model, name)]
    others = aliases(model)
    require_prunable(model, recipe, rule, names)
    weights = [model.get_parameter(name) for name in names]
    if new_weights is not None:
        changed = [new_weights[name] for name in names]
    else:
        changed = _pruned(weights, recipe, rule) if is_pruning(rule) else [w.detach() for w in weights]
    for name, weight, value in zip(names, weights, changed, strict=True):
        scale = None
        if rule.dtype != "same" and is_packable(model, name):
            try:
                rounded_value = rounded(value, rule.dtype)
            except SparsifyError as error:
                raise rule_error(recipe, rule, f"{name}: {error}") from error
            roundings[name] = moved(value, rounded_value, rule.dtype)
            scale = scales(rounded_value) if rule.dtype == "int8" else None
            value = rounded_value
        parameter = nn.Parameter(value, requires_grad=weight.requires_grad)
        if rule.prune is not None and is_constant(rule.prune):
            follow([(weight, parameter)])
        for full_name in others[name] if rule.ties == "share" else (name,):
            owner, _, attribute = full_name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, parameter)
            if scale is not None:
                model.get_submodule(owner).register_buffer(f"{attribute}{SCALES}", scale, persistent=False)
    if not is_pruning(rule):
        return {}
    return {name: share_of_zeros(weight) for name, weight in zip(names, changed, strict=True)}


def share_of_zeros(weight: Tensor) -> float:
    """The share of zeros of a weight; NaN for a weight without entries."""
    entries = weight.numel()
    return (entries - int(torch.count_nonzero(weight))) / entries if entries else math.nan


def _pruned(weights: Sequence[nn.Parameter], recipe: Recipe, rule: Rule) -> list[Tensor]:
    """Copies of the weights, pruned by a rule."""
    assert rule.prune is not None, "rules that prune say how"
    try:
        masks = first_masks(weights, rule, recipe.seed or 0)
    except SparsifyError as error:
        raise rule_error(recipe, rule, str(error)) from error
    with torch.no_grad():
        return [torch.where(mask, weight, 0) for mask, weight in zip(masks, weights, strict=True)]
