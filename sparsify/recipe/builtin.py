"""The recipes that ship with the package, found without importing torch.

In: `"gcn"`. Out: the path of `gcn.yaml` inside `sparsify.recipes`.
"""

import importlib.util
import shutil
from pathlib import Path

from sparsify.errors import RecipeError

PACKAGE = "sparsify.recipes"


def folder() -> Path:
    """The folder of the built-in recipes."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    return Path(__file__).resolve().parents[2] / "recipes"


def names() -> list[str]:
    """The names of the built-in recipes, sorted."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def path(name: str) -> Path:
    """The file of the built-in recipe `name`."""
    return folder() / f"{name}.yaml"


def description(name: str) -> str:
    """The line `description:` of a built-in recipe, without reading the rest."""
    with path(name).open(encoding="utf-8") as lines:
        found = (
            line.removeprefix("description:").strip() for line in lines if line.startswith("description:")
        )
        return next(found, "")


def copy(name: str, target: str | Path) -> Path:
    """Copies the built-in recipe `name` to a file or into a folder; an existing file is an error."""
    if name not in names():
        raise RecipeError(f"no built-in recipe {name!r}; there are: {', '.join(names())}", name, 0, 0)
    place = Path(target)
    place = place / f"{name}.yaml" if place.is_dir() else place
    if place.exists():
        raise RecipeError("the file exists already; choose another name or remove it", str(place), 0, 0)
    shutil.copyfile(path(name), place)
    return place
