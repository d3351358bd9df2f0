"""Sparse parameters decomposed by torch: the values are the parameter, the arrays of the pattern are buffers.

In: a module with `w = nn.Parameter(A)`, in `torch.export.export(...).run_decompositions()`.
Out: the parameter `parametrizations.w.original0` and the buffers `parametrizations.w.0._pos1`, `..._crd1`.

torch itself makes a parameter of every tensor inside a subclass, all requiring gradients if the subclass does;
coordinates cannot.
"""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparsify.storage.pattern import shared
from sparsify.storage.tensor import SparseTensor

VALUES: Final = "_vals"
MODULE: Final = "torch._functorch._aot_autograd.subclass_parametrization"
FUNCTION: Final = "unwrap_tensor_subclass_parameters"


class OnPattern(nn.Module):
    """From values to the sparse tensor on a pattern, `A = OnPattern(A)(A.values())`."""

    def __init__(self, like: SparseTensor) -> None:
        super().__init__()
        names, _ = like.__tensor_flatten__()
        for name in names:
            if name != VALUES:
                self.register_buffer(name, getattr(like, name))
        self._format, self._shape, self._fill = like.format, tuple(like.shape), like._fill

    def forward(self, values: Tensor) -> SparseTensor:
        """The tensor; differentiable."""
        levels = range(len(self._format.levels))
        pos, crd = ([self._buffers.get(f"_{role}{level}") for level in levels] for role in ("pos", "crd"))
        return SparseTensor(shared(self._format, self._shape, pos, crd), values, self._fill)

    def right_inverse(self, weight: SparseTensor) -> list[Tensor]:
        """The values."""
        return [weight._vals]


def take_apart(module: nn.Module) -> None:
    """Replaces the sparse parameters of a module by parametrizations of their parts."""
    for owner in list(module.modules()):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if isinstance(parameter, SparseTensor):
                parametrize.register_parametrization(owner, name, OnPattern(parameter))


def install() -> None:
    """Patches `run_decompositions` to decompose sparse parameters into values and buffers, for known torch versions.

    The module of torch takes a second to import: the patch is applied when torch imports the module.
    """
    if MODULE in sys.modules:
        replace(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    """Import hook: finds the module of torch by the other finders, and patches the module after execution."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """The module, `None` for all others."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            run = loader.exec_module

            def run_and_replace(module: ModuleType) -> None:
                run(module)
                replace(module)

            loader.exec_module = run_and_replace  # type: ignore[method-assign]
        return spec


def replace(subclasses: ModuleType) -> None:
    """Decomposes sparse parameters before torch's function runs."""
    otherwise: Callable[[nn.Module], nn.Module] | None = getattr(subclasses, FUNCTION, None)
    if otherwise is None:
        return

    def unwrap(module: nn.Module) -> nn.Module:
        take_apart(module)
        return otherwise(module)

    setattr(subclasses, FUNCTION, unwrap)
