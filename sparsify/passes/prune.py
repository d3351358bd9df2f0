"""The model with the weights pruned that the recipe's rules ask for; everything else is shared with the source model.

In: an MLP and `{targets: ["param:*.weight"], prune: {method: magnitude, sparsity: 0.9}}`. Out: a copy of the modules
whose weights have nine zeros in ten entries.
"""

from typing import Final

import torch
from torch import nn

from sparsify.errors import SparsifyError
from sparsify.passes.mark import aliases, rule_error, selects
from sparsify.passes.shell import shared_copy
from sparsify.recipe import Recipe, Rule
from sparsify.sparsification.magnitude import magnitude_masks

METHODS: Final = ("magnitude", "block_magnitude")


def prune(model: nn.Module, recipe: Recipe) -> nn.Module:
    """The model itself when no rule prunes.

    Raises:
        RecipeError: a rule asks for what this version cannot do, or does not fit a weight.
    """
    rules = [rule for rule in recipe.rules if rule.origin == "prune" and rule.prune is not None]
    if not rules:
        return model
    pruned = shared_copy(model)
    for rule in rules:
        _apply(pruned, recipe, rule)
    return pruned


def _apply(model: nn.Module, recipe: Recipe, rule: Rule) -> None:
    """Puts pruned weights in the place of those that a rule selects."""
    assert rule.prune is not None, "rules that prune say how"
    if rule.prune.method not in METHODS:
        known = ", ".join(METHODS)
        raise rule_error(recipe, rule, f"`method: {rule.prune.method}` is not supported yet; {known} are")
    if rule.prune.sparsity is None and (rule.prune.pattern is None or rule.prune.pattern.nm is None):
        raise rule_error(recipe, rule, f"`method: {rule.prune.method}` needs `sparsity`, the share of zeros")
    names = _selected(model, rule)
    others = aliases(model)
    for name in names:
        if len(others[name]) > 1 and rule.ties == "error":
            tied = ", ".join(others[name])
            raise rule_error(recipe, rule, f"{tied} are one parameter; `ties: share` or `ties: untie`")
    weights = [model.get_parameter(name) for name in names]
    try:
        masks = magnitude_masks(weights, rule.prune)
    except SparsifyError as error:
        raise rule_error(recipe, rule, str(error)) from error
    for name, weight, mask in zip(names, weights, masks, strict=True):
        with torch.no_grad():
            made = nn.Parameter(torch.where(mask, weight, 0), requires_grad=weight.requires_grad)
        for place in others[name] if rule.ties == "share" else (name,):
            owner, _, own = place.rpartition(".")
            setattr(model.get_submodule(owner), own, made)


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
