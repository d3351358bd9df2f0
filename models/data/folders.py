"""Where the files of a data set are, and a copy of them that may be written to.

In: `find(("Planetoid/Cora", "Cora"), root, "raw/ind.cora.x")`. Out: `/data/Planetoid/Cora`, or `None`.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path


def find(names: Sequence[str], root: Path, witness: str) -> Path | None:
    """The first of the folders `names` under `root` that holds the file `witness`, in any spelling of upper and lower case."""
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
    """`target`, a folder with copies of `files`; files that are there already stay, half-copied ones never show."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        place = target / file.name
        if place.exists() and place.stat().st_size == file.stat().st_size:
            continue
        handle, part = tempfile.mkstemp(dir=target, prefix=f".{file.name}.")
        os.close(handle)
        try:
            shutil.copyfile(file, part)  # not copy2: a read-only mode would be copied too
            os.replace(part, place)
        finally:
            Path(part).unlink(missing_ok=True)
    return target
