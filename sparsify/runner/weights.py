"""`--sparse-weights 0.9|2:4|2:4:16`: a recipe with pruned weights.

In: the recipe of a GCN, `"2:4"`. Out: the recipe with one more rule, `{targets: param:*.weight, types: Linear, prune:
...}`; in a recipe with pruning rules, only `prune` of these rules changes.
"""

import re
from typing import Any, Final

from sparsify.errors import SparsifyError
from sparsify.recipe import Prune, Recipe, Rule

WAYS: Final = "a share of zeros, as in 0.9, or of so many neighbours how many stay, as in 2:4 or 2:4:16"
TARGETS: Final = {"targets": ["param:*.weight"], "types": ["Linear"], "role": "weight"}


def with_sparse_weights(recipe: Recipe, text: str) -> Recipe:
    """The recipe with `text` as the pruning of all pruning rules; without such rules, a new rule for linear layers.

    Raises:
        SparsifyError: the text is neither a share of zeros nor n:m.
    """
    prune = Prune.model_validate(prune_of(text))
    rules = [pruned_as(rule, prune) for rule in recipe.rules]
    if all(rule.prune is None for rule in rules):
        rules.append(Rule.model_validate({**TARGETS, "prune": prune}))
    return recipe.with_rules(rules)


def pruned_as(rule: Rule, prune: Prune) -> Rule:
    """The rule with another pruning method, if it prunes; the scope of a shared threshold is kept."""
    if rule.prune is None:
        return rule
    return rule.model_copy(update={"prune": prune.model_copy(update={"scope": rule.prune.scope})})


def prune_of(text: str) -> dict[str, Any]:
    """The `prune` entry of a rule for `--sparse-weights`.

    >>> prune_of("2:4")
    {'method': 'magnitude', 'pattern': '2:4'}
    """
    asked = f"--sparse-weights {text}"
    group = re.fullmatch(r"(\d+):(\d+)(:0*[1-9]\d*)?", text.strip())
    if group is not None:
        keep, of = int(group[1]), int(group[2])
        if not 0 < keep < of:
            raise SparsifyError(f"{asked}: {keep} of {of} neighbours cannot stay and leave zeros", WAYS)
        return {"method": "magnitude", "pattern": f"{keep}:{of}{group[3] or ''}"}
    try:
        share = float(text)
    except ValueError:
        raise SparsifyError(f"{asked}: no such pattern is known", WAYS) from None
    if not 0 <= share < 1:
        raise SparsifyError(f"{asked}: a share of zeros is at least 0 and below 1", WAYS)
    return {"method": "magnitude", "sparsity": share}
