"""Where the files of a data set are, and a copy of them that may be written to.

In: `find(("Planetoid/Cora", "Cora"), root, "raw/ind.cora.x")`. Out: `/data/Planetoid/Cora`, or `None`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsify.models import cache


def find(names: Sequence[str], root: Path, witness: str) -> Path | None:
    """The first of the folders `names` under `root` that holds the file `witness`; letter case is ignored."""
    for name in names:
        place = spelled(root, Path(name).parts)
        if place is not None and (place / witness).is_file():
            return place
    return None


def spelled(root: Path, parts: Iterable[str]) -> Path | None:
    """The folder `root/parts...` as it is spelled on disk, letter case aside."""
    place = root
    for part in parts:
        if (place / part).is_dir():
            place = place / part
            continue
        try:
            entries = sorted(entry for entry in place.iterdir() if entry.name.lower() == part.lower())
        except OSError:
            return None
        if not entries:
            return None
        place = entries[0]
    return place


def copy_files(files: Iterable[Path], target: Path) -> Path:
    """`target`, a folder with copies of `files`; those there already stay, half a copy never shows."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        place = target / file.name
        if place.exists() and place.stat().st_size == file.stat().st_size:
            continue
        cache.keep(place, file.read_bytes())
    return target
