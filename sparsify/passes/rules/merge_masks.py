"""Masked weights named by rules, merged into parameters: `mask * original -> weight`.

In: a layer pruned by `torch.nn.utils.prune`, and a rule for `param:layer.weight`. Out: a model that shares all other
parameters; its `layer.weight` is a parameter with the mask's zeros, stored where the mask is 1 and trained under the
mask.
"""

from collections.abc import Sequence

import torch
from torch import nn

from sparsify.errors import SparsifyError
from sparsify.passes.capture.shell import shared_copy
from sparsify.passes.rules.mark import aliases, rule_error
from sparsify.passes.rules.prunable import is_selected
from sparsify.recipe import Recipe, Rule
from sparsify.sparsification.masks.masked_weights import MaskedWeight, masked_weights
from sparsify.storage.subclass.trained_masks import remember


def merge_masks(model: nn.Module, recipe: Recipe, merged: dict[str, str] | None = None) -> nn.Module:
    """A copy with merged weights; the model itself where no rule names a masked weight.

    Args:
        model: the model, which keeps its masks.
        recipe: the rules.
        merged: receives the names of masks, by weight name.

    Raises:
        RecipeError: a rule names a weight whose mask does not fit, or whose original is shared with another weight.
    """
    chosen: dict[int, list[tuple[Rule, MaskedWeight]]] = {}
    for weight in masked_weights(model):
        rule = next((r for r in recipe.rules if is_selected(r, weight.full_name, weight.kind)), None)
        if rule is not None:
            chosen.setdefault(id(weight.original), []).append((rule, weight))
    if not chosen:
        return model
    with torch.inference_mode(False), torch.no_grad():
        copy = shared_copy(model)
        for several in chosen.values():
            merge(model, copy, recipe, several)
    if merged is not None:
        merged.update(
            (weight.full_name, weight.mask_name) for group in chosen.values() for _, weight in group
        )
    return copy


def merge(
    model: nn.Module, copy: nn.Module, recipe: Recipe, several: Sequence[tuple[Rule, MaskedWeight]]
) -> None:
    """`mask * original -> weight` in a copy of a model, one parameter for all weights of one original."""
    rule, first = several[0]
    try:
        mask = first.entries()
        is_same = all(torch.equal(mask, other.entries()) for _, other in several[1:])
    except SparsifyError as error:
        raise rule_error(recipe, rule, str(error)) from error
    assert first.original is not None, "entries are those of an original"
    others = set(aliases(model)[first.original_name]) - {weight.original_name for _, weight in several}
    if (others or not is_same) and rule.ties != "untie":
        names = ", ".join(sorted({*others, *(weight.full_name for _, weight in several)}))
        way = "" if rule.prune is not None else "`prune: {method: constant}` with "
        raise rule_error(recipe, rule, f"{names} are one parameter, not under one mask; {way}`ties: untie`")
    parameter = None
    for _, weight in several:
        if parameter is None or not is_same:
            mask = weight.entries()
            parameter = nn.Parameter(torch.where(mask, first.original, 0), first.original.requires_grad)
            remember(parameter, mask)
        owner = copy.get_submodule(weight.path)
        if owner._parameters.get(weight.name) is not parameter:
            weight.put_into(copy, parameter)


def take_masks_away(model: nn.Module, merged: nn.Module) -> None:
    """Turns masked weights of a model into the parameters of its merged copy, where merged."""
    for weight in list(masked_weights(model)):
        parameter = merged.get_submodule(weight.path)._parameters.get(weight.name)
        if parameter is not None:
            weight.put_into(model, parameter)
