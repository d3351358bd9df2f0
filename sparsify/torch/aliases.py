"""Imports of torch's submodules by their names in another package.

In: `install("sparsify.torch", "torch")`, then `from sparsify.torch.optim import Adam`. Out: the class of `torch.optim`.

Submodules of the package itself take precedence; every other name is bound to torch's module, loaded once under
torch's name.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType


class AliasFinder(MetaPathFinder):
    """Finds `package.x` as `target.x` unless the package has a file for `x`."""

    def __init__(self, package: str, target: str) -> None:
        self.package, self.target = package, target

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of an alias; `None` for the package's own modules and for other packages."""
        if not fullname.startswith(f"{self.package}."):
            return None
        parent = sys.modules[fullname.rpartition(".")[0]]
        # Below an alias `path` is torch's folder: a module found in the folder would be loaded a second time.
        is_own = parent.__name__.startswith(self.package)
        if is_own and PathFinder.find_spec(fullname, path) is not None:
            return None
        real = self.target + fullname.removeprefix(self.package)
        if find_spec(real) is None:
            return None
        return ModuleSpec(fullname, AliasLoader(real))


class AliasLoader(Loader):
    """Binds the name of a module to another module."""

    def __init__(self, real: str) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        """Puts the real module in the place of the new one, as the import system allows a module to do."""
        sys.modules[module.__name__] = import_module(self.real)


def install(package: str, target: str) -> None:
    """Makes submodules of `target` importable below `package`, once."""
    known = (finder for finder in sys.meta_path if isinstance(finder, AliasFinder))
    if not any(finder.package == package for finder in known):
        sys.meta_path.insert(0, AliasFinder(package, target))
