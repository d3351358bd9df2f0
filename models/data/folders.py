"""Locations of data sets on disk, and writable copies of their files.

In: `find(("Planetoid/Cora", "Cora"), root, "raw/ind.cora.x")`. Out: `/data/Planetoid/Cora`, or `None`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsify.models import cache


def find(names: Sequence[str], root: Path, witness: str) -> Path | None:
    """First of the folders `names` under `root` with a file `witness`; letter case is ignored."""
    for name in names:
        place = spelled(root, Path(name).parts)
        if place is not None and (place / witness).is_file():
            return place
    return None


def spelled(root: Path, parts: Iterable[str]) -> Path | None:
    """Folder `root/parts...` in its spelling on disk; letter case is ignored."""
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
    """Copies `files` into the folder `target` and returns `target`; complete copies are kept, writes are atomic."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        place = target / file.name
        if place.exists() and place.stat().st_size == file.stat().st_size:
            continue
        cache.keep(place, file.read_bytes())
    return target
