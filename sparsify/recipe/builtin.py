"""Built-in recipes, located without importing torch.

In: `"gcn"`. Out: the path of `gcn.yaml` inside `sparsify.recipes`.
"""

import importlib.util
from difflib import get_close_matches
from pathlib import Path

from sparsify.errors import RecipeError, SparsifyError

PACKAGE = "sparsify.recipes"


def folder() -> Path:
    """Folder of the built-in recipes."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    return Path(__file__).resolve().parents[2] / "recipes"


def names() -> list[str]:
    """Sorted names of the built-in recipes."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def path(name: str) -> Path:
    """File of the built-in recipe `name`."""
    return folder() / f"{name}.yaml"


def description(name: str) -> str:
    """Text of the line `description:` of a built-in recipe; reads no further lines."""
    with path(name).open(encoding="utf-8") as lines:
        found = (
            line.removeprefix("description:").strip() for line in lines if line.startswith("description:")
        )
        return next(found, "")


def require(name: str) -> None:
    """Raises for an unknown built-in recipe; the error suggests the nearest names."""
    known = names()
    if name not in known:
        near = sorted(get_close_matches(name, known, n=2))
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise SparsifyError(f"no built-in recipe {name!r}", f"{guess}there are {', '.join(known)}")


def copy(name: str, target: str | Path) -> Path:
    """Copies the built-in recipe `name` to a file or into a folder.

    Raises:
        RecipeError: the file exists already.
        SparsifyError: there is no such recipe, or the file cannot be written.
    """
    require(name)
    place = Path(target)
    place = place / f"{name}.yaml" if place.is_dir() else place
    try:
        with place.open("xb") as file:
            file.write(path(name).read_bytes())
    except FileExistsError:
        raise RecipeError(
            "the file exists already; choose another name or remove it", str(place), 0, 0
        ) from None
    except OSError as error:
        raise SparsifyError(f"cannot write {place}: {error.strerror}", "choose another place") from error
    return place
