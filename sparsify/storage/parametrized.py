"""Sparse parameters where torch takes them apart: their values are the parameter, the arrays of their pattern buffers.

In: a module with `w = nn.Parameter(A)`, in `torch.export.export(...).run_decompositions()`.
Out: the parameter `parametrizations.w.original0` and the buffers `parametrizations.w.0._pos1`, `..._crd1`.

torch itself makes a parameter of every tensor inside a subclass, each of which requires gradients when the whole does;
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
    """From values to the sparse tensor over them, `A = OnPattern(A)(A.values())`."""

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

    def right_inverse(self, whole: SparseTensor) -> list[Tensor]:
        """The values."""
        return [whole._vals]


def take_apart(module: nn.Module) -> None:
    """Makes the sparse parameters of a module of their parts."""
    for owner in list(module.modules()):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if isinstance(parameter, SparseTensor):
                parametrize.register_parametrization(owner, name, OnPattern(parameter))


def install() -> None:
    """Makes `run_decompositions` take sparse parameters apart this way, where this torch does it as known.

    The module of torch that does it takes a second to import: it is changed when torch imports it.
    """
    if MODULE in sys.modules:
        replace(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    """Finds the module of torch as others find it, and changes it when it has run."""

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
    """Takes sparse parameters apart before torch's function sees them."""
    otherwise: Callable[[nn.Module], nn.Module] | None = getattr(subclasses, FUNCTION, None)
    if otherwise is None:
        return

    def unwrap(module: nn.Module) -> nn.Module:
        take_apart(module)
        return otherwise(module)

    setattr(subclasses, FUNCTION, unwrap)
