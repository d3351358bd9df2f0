"""Recipe files: sparse tensors of a model, their formats, and the verification of the result.

In: a path, a built-in name, a mapping. Out: a frozen `Recipe`. The package imports no torch, and the parser and its
schema are imported lazily: listing the built-in recipes needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsify.recipe.builtin import copy, description, names, path, require

if TYPE_CHECKING:
    from sparsify.recipe.imported import import_recipe
    from sparsify.recipe.parse import json_schema, load, loads
    from sparsify.recipe.schema import (
        Calibration,
        Compile,
        FormatSpec,
        Fuse,
        Prune,
        Recipe,
        Rule,
        ScheduleSpec,
        Shard,
        Verify,
        When,
    )

__all__ = [
    "Calibration",
    "Compile",
    "FormatSpec",
    "Fuse",
    "Prune",
    "Recipe",
    "Rule",
    "ScheduleSpec",
    "Shard",
    "Verify",
    "When",
    "copy",
    "description",
    "import_recipe",
    "json_schema",
    "load",
    "loads",
    "names",
    "path",
    "require",
]

_MODULES = {"json_schema": "parse", "load": "parse", "loads": "parse", "import_recipe": "imported"}


def __getattr__(name: str) -> Any:
    """Imports a name of the parser or of the schema lazily."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, 'schema')}")
    found = getattr(module, name)
    globals()[name] = found
    return found
