"""Recipe files: which tensors of a model are sparse, how they are stored and how the result is checked.

In: a path, a built-in name, a mapping. Out: a frozen `Recipe`. Nothing here imports torch.
"""

from sparsify.recipe.builtin import copy, names, path
from sparsify.recipe.load import json_schema, load, loads
from sparsify.recipe.schema import Compile, FormatSpec, Fuse, Recipe, Rule, Stage, Verify, When

__all__ = [
    "Compile",
    "FormatSpec",
    "Fuse",
    "Recipe",
    "Rule",
    "Stage",
    "Verify",
    "When",
    "copy",
    "json_schema",
    "load",
    "loads",
    "names",
    "path",
]
