"""A recipe as YAML with an equal result when parsed, in any working directory.

In: a `Recipe`. Out: text; paths of mask files are absolute.
"""

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from sparsify.sparsification.masks.mask_spec import FILE

if TYPE_CHECKING:
    from sparsify.recipe import Recipe


def recipe_text(recipe: "Recipe") -> str:
    """The recipe as YAML with an equal result when parsed, with absolute paths of mask files."""
    from ruamel.yaml import YAML  # loading a served model imports this module, and writes no recipe

    data = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for rule in data.get("sparsify", ()):
        mask = rule.get("mask") or {}
        if mask.get("kind") == FILE and isinstance(mask.get("path"), str):
            mask["path"] = str(Path(mask["path"]).absolute())
    stream = StringIO()
    YAML(typ="safe", pure=True).dump(data, stream)
    return stream.getvalue()
