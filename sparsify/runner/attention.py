"""`--sparse-attn bigbird`: a recipe with a pattern for attention.

In: the recipe of BERT, `"bigbird"`, `{"block": 32}`, layers `"0,2-5"`. Out: the recipe with one more rule,
`{targets: op:scaled_dot_product_attention, mask: {kind: bigbird, block: 32}}`, for the modules of layers 0 and 2 to 5.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from sparsify.errors import SparsifyError
from sparsify.passes.lift.attention.mask import GIVEN
from sparsify.recipe import Recipe, Rule
from sparsify.recipe.schema import MaskKind
from sparsify.recipe.suggestion import nearest

SHORT: Final = {"window": "sliding_window", "segments": "block_diagonal"}
KINDS: Final[tuple[str, ...]] = tuple(kind for kind in get_args(MaskKind) if kind != GIVEN)
# Dense linear layers run by the faster product of torch's and oneDNN's.
DENSE: Final = {
    "id": "linear",
    "targets": ["param:*.weight"],
    "types": ["Linear"],
    "role": "weight",
    "source": "given",
    "optional": True,
}
OPERATOR: Final = "op:scaled_dot_product_attention"


def kind_of(text: str) -> str:
    """The kind of mask named by `--sparse-attn`.

    Raises:
        SparsifyError: the kind is unknown.

    >>> kind_of("window")
    'sliding_window'
    """
    kind = SHORT.get(text, text.replace("-", "_"))
    if kind not in KINDS:
        known = (*KINDS, *SHORT)
        raise SparsifyError(
            f"--sparse-attn {text}: no such pattern{nearest(text, known)}", f"one of {', '.join(known)}"
        )
    return kind


def with_sparse_attention(
    recipe: Recipe, kind: str, numbers: Mapping[str, Any], layers: str | None = None
) -> Recipe:
    """The recipe with a pattern in attention; replaces all mask rules of the recipe.

    If no rule targets parameters, an optional rule for the weights of linear layers is added: each layer runs the
    product measured to be fastest, a dense product for dense weights.

    Args:
        recipe: recipe of the model.
        kind: kind of mask as recipes spell it, `bigbird`.
        numbers: parameters of the kind, `{"block": 32}`.
        layers: `"0,2-5"` for modules with a layer number of 0 or 2 to 5 in the name; all by default.

    Raises:
        SparsifyError: `layers` is not a list of numbers and ranges.
    """
    rules = [rule for rule in recipe.rules if rule.mask is None]
    mask = {"kind": kind, **numbers}
    if not any(target.startswith("param:") for rule in rules for target in rule.targets):
        rules.append(Rule.model_validate(DENSE))
    rules.append(Rule.model_validate({"id": "attention", "targets": [target(layers)], "mask": mask}))
    return recipe.with_rules(rules)


def target(layers: str | None) -> str:
    """Target of a rule for attention: the modules of some layers, by the first number of the module name.

    >>> target("0,2-3")
    're:scope:[^0-9]*(0|2|3)(\\\\..*)?'
    """
    if layers is None:
        return OPERATOR
    chosen = "|".join(str(number) for number in sorted(numbers_of(layers)))
    return rf"re:scope:[^0-9]*({chosen})(\..*)?"


def numbers_of(layers: str) -> set[int]:
    """Numbers of a comma-separated text of numbers and ranges.

    Raises:
        SparsifyError: a part is neither a number nor a range.

    >>> sorted(numbers_of("0,2-4"))
    [0, 2, 3, 4]
    """
    numbers: set[int] = set()
    for part in layers.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if found is None or (found[2] and int(found[2]) < int(found[1])):
            raise SparsifyError(f"--layers {layers}: {part!r} is no layer", "numbers from 0, as in 0,2-5")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return numbers
