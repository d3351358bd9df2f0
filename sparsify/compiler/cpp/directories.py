"""Where compiled kernels lie: the user's cache directory, or a temporary one when that cannot be used.

In: the options. Out: `~/.cache/sparsify/kernels`, which only its owner can read and write: whoever could put
a file there could run code as that owner.
"""

import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

import platformdirs

from sparsify.options import Options, current
from sparsify.warn import warn

ABANDONED_SECONDS: Final = 3600.0


def cache_dir(options: Options | None = None) -> Path:
    """The directory of compiled kernels; it need not exist yet."""
    chosen = (options or current()).cache_dir
    return Path(chosen or platformdirs.user_cache_dir("sparsify", appauthor=False)) / "kernels"


def cache_size(options: Options | None = None) -> tuple[int, int]:
    """The number of kernels on disk and the bytes of all their files."""
    files = {file: status.st_size for file in _files(cache_dir(options)) if (status := _status(file))}
    return sum(file.suffix == ".so" for file in files), sum(files.values())


def clean(options: Options | None = None) -> int:
    """Deletes all kernels on disk; the number that there were. Those already loaded stay usable."""
    directory = cache_dir(options)
    entries, _ = cache_size(options)
    for place in _files(directory):
        place.unlink(missing_ok=True)
    for name in ("failed", *(place.name for place in directory.glob("build-*"))):
        shutil.rmtree(directory / name, ignore_errors=True)
    return entries


def prune(max_bytes: int, options: Options | None = None) -> int:
    """Deletes kernels and plans used longest ago until the rest takes `max_bytes`; how many kernels were deleted."""
    directory = cache_dir(options)
    remove_abandoned(directory)
    known = {path: _status(path) for path in (*directory.glob("*.so"), *directory.glob("*.plan"))}
    found = [(status.st_mtime, status.st_size, path) for path, status in known.items() if status]
    total = deleted = 0
    for _, size, path in sorted(found, reverse=True):
        description = path.with_suffix(".json")
        status = _status(description)
        total += size + (status.st_size if status else 0)
        if total > max_bytes:
            description.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            deleted += path.suffix == ".so"
    return deleted


def candidates(options: Options) -> tuple[Callable[[], Path], ...]:
    """The directories to try, each as a function that names it or raises `OSError`."""
    return (partial(cache_dir, options), partial(_temporary, None), partial(_temporary, "/dev/shm"))


def is_trusted(directory: Path) -> bool:
    """Whether it exists and nobody but this user or the system's owner could have put code there."""
    try:
        status = directory.stat()
    except OSError:
        return False
    return status.st_uid in (os.getuid(), 0) and not stat.S_IMODE(status.st_mode) & 0o022


def prepare(directory: Path) -> None:
    """Makes the directory and checks that it belongs to the user alone.

    Raises:
        OSError: it cannot be made, belongs to another user, or has failed before.
    """
    if reason := _given_up.get(directory):
        raise OSError(reason)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        directory.chmod(0o700)


@cache
def _temporary(parent: str | None) -> Path:
    """A directory of this process, gone when it ends."""
    holder = tempfile.TemporaryDirectory(prefix="sparsify-", dir=parent, ignore_cleanup_errors=True)
    _holders.append(holder)
    return Path(holder.name)


_holders: list[tempfile.TemporaryDirectory[str]] = []


def remove_abandoned(directory: Path) -> None:
    """Removes what processes that were killed while compiling left behind long ago."""
    oldest = time.time() - ABANDONED_SECONDS
    for work in directory.glob("build-*"):
        with suppress(OSError):
            if work.stat().st_mtime < oldest:
                shutil.rmtree(work, ignore_errors=True)


_given_up: dict[Path, str] = {}
_guard = threading.Lock()


def give_up(directory: Path, reason: str, options: Options) -> None:
    """Nothing more is written to the directory; says so once when it is the user's, and what happens instead."""
    with _guard:
        if directory in _given_up:
            return
        _given_up[directory] = reason
    if directory != cache_dir(options):
        return
    warn(
        f"the kernel cache {directory} cannot be used ({reason}); kernels are compiled anew in every process "
        f"until it can: free some disk space or set SPARSIFY_CACHE_DIR to another directory"
    )


def _files(directory: Path) -> list[Path]:
    """All files in the directory and in those for failures and unfinished work; locks stay.

    Other processes compile meanwhile: what they remove is not there, and no error.
    """
    return [
        Path(folder) / name
        for folder, _, names in os.walk(directory)
        if Path(folder).name != "locks"
        for name in names
    ]


def _status(path: Path) -> os.stat_result | None:
    """What the file system knows of a file, `None` where it is gone."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
