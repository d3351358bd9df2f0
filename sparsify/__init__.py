"""A compiler for sparse tensors in PyTorch models, steered by recipes.

In: `sparsify.einsum("ij,jk->ik", A, B)`, `sparsify.apply(model, "gcn")`. Out: a tensor, a `SparseModule`.
Names are imported lazily on first use, so that `import sparsify` needs no torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsify import nn
    from sparsify.api import apply, einsum, evaluate, explain, load, save, tensor
    from sparsify.compiler.einsum.register import register_function, register_monoid
    from sparsify.compiler.schedule.directives import Schedule
    from sparsify.errors import SparsifyError
    from sparsify.options import strict
    from sparsify.passes.module.sparse_module import SparseModule
    from sparsify.recipe import Recipe
    from sparsify.report import Report
    from sparsify.scale.shard import shard
    from sparsify.sparsification import sparsifiers
    from sparsify.sparsification.apply import sparsify
    from sparsify.sparsification.masks import patterns
    from sparsify.sparsification.masks.masked_weights import merge_masks
    from sparsify.sparsification.registered.registry import (
        register_backward,
        register_operator,
        register_sparsifier,
    )
    from sparsify.sparsification.registered.user_tensor import register_format
    from sparsify.sparsification.sparsified import Parts, sparsified
    from sparsify.storage.format import Format
    from sparsify.storage.level.known_levels import register_level
    from sparsify.storage.level.levels import Level
    from sparsify.storage.pattern import Pattern
    from sparsify.storage.tensor import SparseTensor
    from sparsify.training.pruner import Pruner

__version__ = "0.2.0"

__all__ = [
    "apply",
    "einsum",
    "evaluate",
    "tensor",
    "explain",
    "save",
    "load",
    "strict",
    "register_level",
    "Format",
    "Level",
    "Pattern",
    "SparseTensor",
    "Schedule",
    "Recipe",
    "Report",
    "SparseModule",
    "Pruner",
    "SparsifyError",
    "register_function",
    "register_monoid",
    "nn",
    "patterns",
    "sparsifiers",
    "sparsify",
    "merge_masks",
    "shard",
    "Parts",
    "sparsified",
    "register_format",
    "register_operator",
    "register_backward",
    "register_sparsifier",
]

_MODULES = {
    "apply": "sparsify.api",
    "einsum": "sparsify.api",
    "evaluate": "sparsify.api",
    "tensor": "sparsify.api",
    "explain": "sparsify.api",
    "save": "sparsify.passes.save",
    "load": "sparsify.passes.save",
    "strict": "sparsify.options",
    "register_level": "sparsify.storage.level.known_levels",
    "Format": "sparsify.storage.format",
    "Level": "sparsify.storage.level.levels",
    "Pattern": "sparsify.storage.pattern",
    "SparseTensor": "sparsify.storage.tensor",
    "Schedule": "sparsify.compiler.schedule.directives",
    "Recipe": "sparsify.recipe",
    "Report": "sparsify.report",
    "SparseModule": "sparsify.passes.module.sparse_module",
    "Pruner": "sparsify.training.pruner",
    "SparsifyError": "sparsify.errors",
    "register_function": "sparsify.compiler.einsum.register",
    "register_monoid": "sparsify.compiler.einsum.register",
    "nn": "sparsify.nn",
    "patterns": "sparsify.sparsification.masks.patterns",
    "sparsifiers": "sparsify.sparsification.sparsifiers",
    "sparsify": "sparsify.sparsification.apply",
    "merge_masks": "sparsify.sparsification.masks.masked_weights",
    "shard": "sparsify.scale.shard",
    "Parts": "sparsify.sparsification.sparsified",
    "sparsified": "sparsify.sparsification.sparsified",
    "register_format": "sparsify.sparsification.registered.user_tensor",
    "register_operator": "sparsify.sparsification.registered.registry",
    "register_backward": "sparsify.sparsification.registered.registry",
    "register_sparsifier": "sparsify.sparsification.registered.registry",
}

if "torch" in sys.modules:
    # torch.load(weights_only=True) knows the classes of saved tensors only after registration.
    import_module("sparsify.storage.tensor")


def __getattr__(name: str) -> Any:
    """A public name, imported lazily from the defining module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'sparsify' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    is_module = module.__name__.endswith(f".{name}") and not hasattr(module, name)
    found = module if is_module else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, including names not yet imported."""
    return sorted({*globals(), *__all__})
