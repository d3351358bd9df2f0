"""Distributions that provide the name `sparsify`: ours must be the only one.

In: `sys.path`. Out: `{"sparsify-fx": Path(".../site-packages")}`. The package index has other distributions
with the package name, which write into the same folder if both are installed.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from sparsify.errors import PackageConflictError

DISTRIBUTION = "sparsify-fx"
PACKAGE = "sparsify"


def providers(path: Iterable[str] | None = None) -> dict[str, Path]:
    """Distributions on `path` with a package `sparsify`, each with the folder.

    Folders are read directly: `importlib.metadata` takes longer than the rest of `sparsify --help`.
    """
    found: dict[str, Path] = {}
    for entry in dict.fromkeys(sys.path if path is None else path):
        folder = Path(entry or ".")
        if not (folder / PACKAGE).is_dir():
            continue
        for info in sorted(folder.glob("*.dist-info")):
            if provides(info):
                found[info.name.partition("-")[0].replace("_", "-").lower()] = folder
    return found


def provides(info: Path) -> bool:
    """Whether the distribution described by a `.dist-info` folder installs a package `sparsify`."""
    names = info / "top_level.txt"
    if names.is_file():
        return PACKAGE in names.read_text(encoding="utf-8").split()
    record = info / "RECORD"
    return record.is_file() and f"\n{PACKAGE}/" in "\n" + record.read_text(encoding="utf-8")


def require_sole_provider(path: Iterable[str] | None = None) -> None:
    """Raises when another distribution provides `sparsify` as well.

    Raises:
        PackageConflictError: names the intruder.
    """
    intruders = {name: folder for name, folder in providers(path).items() if name != DISTRIBUTION}
    for name, folder in intruders.items():
        raise PackageConflictError(
            f"the distribution {name} in {folder} provides the package {PACKAGE} as well, and one overwrites the other",
            f"pip uninstall {name}, then pip install --force-reinstall --no-deps {DISTRIBUTION}",
        )
