"""Rules that change weights: a copy of the model's modules whose weights have zeros, or are rounded to narrow values.

In: a model and a recipe with `prune: {method: magnitude, sparsity: 0.9}, dtype: bfloat16`. Out: a model that shares all
other parameters, in which the selected weights have nine zeros in ten entries and the others as bfloat16 holds them.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from sparsify.errors import SparsifyError
from sparsify.passes.lift.matrix import SCALES
from sparsify.passes.mark import aliases, rule_error
from sparsify.passes.shell import shared_copy
from sparsify.recipe import Recipe, Rule
from sparsify.recipe.target import selects
from sparsify.sparsification.magnitude import magnitude_masks
from sparsify.sparsification.rounding import Moved, moved, rounded, scales

METHODS: Final = ("magnitude", "block_magnitude")
CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def prune(model: nn.Module, recipe: Recipe, roundings: dict[str, Moved] | None = None) -> nn.Module:
    """The model itself when no rule prunes or rounds.

    Args:
        model: keeps its weights.
        recipe: the rules.
        roundings: where to write by name how far rounding moved weights.

    Raises:
        RecipeError: a rule asks for what this version cannot do, or does not fit a weight.
    """
    rules = [rule for rule in recipe.rules if is_pruning(rule) or rule.dtype != "same"]
    if not rules:
        return model
    pruned = shared_copy(model)
    for rule in rules:
        _apply(pruned, recipe, rule, {} if roundings is None else roundings)
    return pruned


def is_pruning(rule: Rule) -> bool:
    """Whether a rule makes zeros."""
    return rule.origin == "prune" and rule.prune is not None


def is_packable(model: nn.Module, name: str) -> bool:
    """Whether a weight may be packed in another dtype: a matrix, or the weight of a convolution."""
    owner = model.get_submodule(name.rpartition(".")[0])
    is_filters = isinstance(owner, CONVOLUTIONS) and owner.groups == 1 and name.endswith("weight")
    return is_filters or model.get_parameter(name).dim() == 2


def _apply(model: nn.Module, recipe: Recipe, rule: Rule, roundings: dict[str, Moved]) -> None:
    """Puts changed weights in the place of those that a rule selects."""
    names = _selected(model, rule)
    if not is_pruning(rule):
        names = [name for name in names if is_packable(model, name)]
    others = aliases(model)
    for name in names:
        if len(others[name]) > 1 and rule.ties == "error":
            tied = ", ".join(others[name])
            raise rule_error(recipe, rule, f"{tied} are one parameter; `ties: share` or `ties: untie`")
    weights = [model.get_parameter(name) for name in names]
    changed = _pruned(weights, recipe, rule) if is_pruning(rule) else [w.detach() for w in weights]
    for name, weight, found in zip(names, weights, changed, strict=True):
        scale = None
        if rule.dtype != "same" and is_packable(model, name):
            try:
                kept = rounded(found, rule.dtype)
            except SparsifyError as error:
                raise rule_error(recipe, rule, f"{name}: {error}") from error
            roundings[name] = moved(found, kept, rule.dtype)
            scale = scales(kept) if rule.dtype == "int8" else None
            found = kept
        made = nn.Parameter(found, requires_grad=weight.requires_grad)
        for place in others[name] if rule.ties == "share" else (name,):
            owner, _, own = place.rpartition(".")
            setattr(model.get_submodule(owner), own, made)
            if scale is not None:
                model.get_submodule(owner).register_buffer(f"{own}{SCALES}", scale, persistent=False)


def _pruned(weights: Sequence[nn.Parameter], recipe: Recipe, rule: Rule) -> list[Tensor]:
    """The weights with zeros as a rule says."""
    assert rule.prune is not None, "rules that prune say how"
    if rule.prune.method not in METHODS:
        known = ", ".join(METHODS)
        raise rule_error(recipe, rule, f"`method: {rule.prune.method}` is not supported yet; {known} are")
    if rule.prune.sparsity is None and (rule.prune.pattern is None or rule.prune.pattern.nm is None):
        raise rule_error(recipe, rule, f"`method: {rule.prune.method}` needs `sparsity`, the share of zeros")
    try:
        masks = magnitude_masks(weights, rule.prune)
    except SparsifyError as error:
        raise rule_error(recipe, rule, str(error)) from error
    with torch.no_grad():
        return [torch.where(mask, weight, 0) for mask, weight in zip(masks, weights, strict=True)]


def _selected(model: nn.Module, rule: Rule) -> list[str]:
    """The parameters that a rule names, each once."""
    found: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        kind = type(model.get_submodule(name.rpartition(".")[0])).__name__
        selected = any(selects(target, "param", name) for target in rule.targets)
        ignored = any(selects(target, "param", name) for target in rule.ignore)
        if selected and not ignored and (not rule.types or kind in rule.types):
            found.setdefault(id(parameter), name)
    return list(found.values())
