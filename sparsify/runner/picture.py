"""`sparsify explain MODEL --picture`: the patterns of a recipe's attention, drawn.

In: the request of `bert --sparse-attn bigbird --seq-len 1024`. Out: a text for each rule with a pattern.
"""

from typing import Final

from sparsify.errors import SparsifyError
from sparsify.passes.lift.attention.mask import GIVEN
from sparsify.passes.rules.mark import mask_spec
from sparsify.runner.request import Request
from sparsify.sparsification.masks.picture import picture

TOKENS: Final = 1024


def pictures(request: Request) -> str:
    """Drawings of the attention patterns, for the request's number of tokens (else `TOKENS`).

    Raises:
        SparsifyError: no rule has a pattern other than the model's given mask.
        RecipeError: a pattern is not valid.
    """
    rules = [rule for rule in request.recipe.rules if rule.mask is not None and rule.mask.kind != GIVEN]
    if not rules:
        raise SparsifyError(
            f"{request.recipe.name} has no pattern to draw", "give one, as in --sparse-attn bigbird --picture"
        )
    tokens = request.seq or TOKENS
    specs = [mask_spec(request.recipe, rule) for rule in rules]
    return "\n\n".join(f"{spec}: {picture(spec.mask(tokens, tokens))}" for spec in specs)
