"""Directories of compiled kernels: the user's cache directory, or a temporary one when that cannot be used.

In: the options. Out: `~/.cache/sparsify/kernels`, to which only its owner can write: whoever could put a file there
could run code as that owner.
"""

import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import platformdirs

from sparsify.compiler.cpp.toolchain import trust
from sparsify.options import Options, current
from sparsify.warn import warn

ABANDONED_SECONDS: Final = 3600.0
# Longest pause before a directory that failed is tried again.
MOST_PAUSE_SECONDS: Final = 60.0
LOCKS: Final = "locks"
FAILED: Final = "failed"
USED: Final = "used"
PRUNED: Final = (".so", ".json", ".plan", ".cpp")
# Names of finished files.
ENTRY: Final = re.compile(r"[0-9a-f]{16,64}\.(?:so|json|plan|cpp|machine)")


def cache_dir(options: Options | None = None) -> Path:
    """The directory of compiled kernels, as an absolute path; it need not exist yet."""
    chosen = (options or current()).cache_dir
    if chosen is not None:
        return Path(chosen).absolute() / "kernels"
    usual = Path(platformdirs.user_cache_dir("sparsify", appauthor=False))
    if not usual.is_absolute():  # a user without a home directory
        usual = Path(tempfile.gettempdir()) / f"sparsify-{os.getuid()}"
    return usual / "kernels"


def cache_size(options: Options | None = None) -> tuple[int, int]:
    """The number of kernels on disk and the bytes of all their files."""
    files = {file: status.st_size for file in _files(cache_dir(options)) if (status := _status(file))}
    return sum(file.suffix == ".so" for file in files), sum(files.values())


def clean(options: Options | None = None) -> int:
    """Deletes all kernels on disk; the number that there were. Those already loaded stay usable.

    A directory that others can write to goes, too, and the next kernel makes a new one. Files that are no part of the
    cache stay.
    """
    directory = cache_dir(options)
    entries, _ = cache_size(options)
    unfinished = [place.name for place in directory.glob(f"{trust.UNFINISHED}*")]
    for place in _files(directory):
        if ENTRY.fullmatch(place.name) or place.name in unfinished:
            place.unlink(missing_ok=True)
    for name in (FAILED, *unfinished):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / LOCKS / USED).unlink(missing_ok=True)
    with suppress(OSError):
        if trust.refusal(directory):
            shutil.rmtree(directory / LOCKS, ignore_errors=True)
            directory.rmdir()
    return entries


def prune(max_bytes: int, options: Options | None = None) -> int:
    """Deletes kernels and plans used longest ago until the rest takes `max_bytes`; how many kernels were deleted."""
    return prune_directory(cache_dir(options), max_bytes)[0]


def prune_directory(directory: Path, max_bytes: int) -> tuple[int, int]:
    """As `prune`; the number of deleted kernels, and the bytes of the files that stay."""
    remove_abandoned(directory)
    latest = time.time() + ABANDONED_SECONDS
    entries: dict[Path, list[tuple[float, int, Path]]] = {}
    for path in (*directory.glob("*.*"), *(directory / FAILED).glob("*")):
        if path.suffix in PRUNED and (status := _status(path)):
            # A date in the future, of a clock that was wrong, is no recent use.
            date = status.st_mtime if status.st_mtime < latest else 0.0
            entries.setdefault(path.with_suffix(""), []).append((date, status.st_size, path))
    kept = deleted = 0
    for files in sorted(entries.values(), key=lambda files: max(files)[0], reverse=True):
        size = sum(size for _, size, _ in files)
        if kept + size <= max_bytes:
            kept += size
            continue
        max_bytes = 0  # whatever was used before this goes, too
        for _, _, path in files:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                deleted += path.suffix == ".so"
    return deleted, kept


def candidates(options: Options) -> tuple[Callable[[], Path], ...]:
    """The directories to try, each as a function that names it or raises `OSError`."""
    return (partial(cache_dir, options), partial(_temporary, None), partial(_temporary, "/dev/shm"))


def is_trusted(directory: Path) -> bool:
    """Whether it exists and nobody but this user or the system's owner could have put code there."""
    try:
        return trust.refusal(directory) is None
    except OSError:
        return False


def prepare(directory: Path) -> None:
    """Makes the directory where there is none, and checks that only the user can write to it.

    Raises:
        OSError: it cannot be made, others can write to it, or it failed a moment ago.
    """
    if directory in _given_up and time.monotonic() < _pauses.get(directory, FOREVER).until:
        raise OSError(_given_up[directory])
    trust.make(directory)
    if reason := trust.refusal(directory):
        raise PermissionError(reason)
    if (owner := directory.stat().st_uid) != os.getuid():
        raise PermissionError(f"{directory} belongs to another user ({owner})")


def _temporary(parent: str | None) -> Path:
    """A directory of this process, gone when it ends."""
    with _guard:
        holder = _holders.get(parent)
        if holder is not None and not Path(holder.name).is_dir():  # some programs clean up /tmp
            holder.cleanup()
            holder = None
        if holder is None:
            holder = tempfile.TemporaryDirectory(prefix="sparsify-", dir=parent, ignore_cleanup_errors=True)
            Path(holder.name).chmod(0o700)  # whatever the mask of the process is
            _holders[parent] = holder
        return Path(holder.name)


def process_directory() -> Path:
    """The temporary directory of this process.

    Raises:
        OSError: there is no place for one.
    """
    return _temporary(None)


_holders: dict[str | None, tempfile.TemporaryDirectory[str]] = {}


def remove_abandoned(directory: Path) -> None:
    """Removes what processes that were killed while compiling left behind long ago."""
    now = time.time()
    for work in directory.glob(f"{trust.UNFINISHED}*"):
        status = _status(work)
        if status is None or abs(now - status.st_mtime) < ABANDONED_SECONDS:
            continue
        with suppress(OSError):
            if not work.is_dir():
                work.unlink()
            elif not is_locked(work):
                shutil.rmtree(work, ignore_errors=True)


def lock(work: Path) -> int:
    """Marks a directory as in use by this process, for as long as the descriptor is open."""
    descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks: the date alone says that it is in use
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_locked(work: Path) -> bool:
    """Whether some process has marked a directory as in use."""
    descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True, slots=True)
class Pause:
    """The number of failed writes to a directory in a row, and the time until the next try."""

    count: int
    until: float


FOREVER: Final = Pause(1, float("inf"))
# Directories that could not be written to, and why.
_given_up: dict[Path, str] = {}
_pauses: dict[Path, Pause] = {}
_warned: set[Path] = set()
_guard = threading.Lock()


def _after_fork() -> None:
    """A child has locks of its own, and leaves the parent's temporary directories alone."""
    global _guard
    _guard = threading.Lock()
    for holder in _holders.values():
        holder._finalizer.detach()  # type: ignore[attr-defined]
    _holders.clear()


os.register_at_fork(after_in_child=_after_fork)


def give_up(directory: Path, reason: str, options: Options) -> None:
    """Nothing is written to the directory for a while; says so once when it is the user's, and what happens instead.

    The next kernel is tried there again; each further failure in a row doubles the pause before the one after.
    """
    with _guard:
        before = _pauses.get(directory, Pause(0, 0.0) if directory not in _given_up else FOREVER)
        now = time.monotonic()
        if now < before.until:
            return
        length = min(MOST_PAUSE_SECONDS, 2.0 ** min(before.count - 1, 10)) if before.count else 0.0
        _given_up[directory], _pauses[directory] = reason, Pause(before.count + 1, now + length)
        is_said = directory in _warned or directory != cache_dir(options)
        _warned.add(directory)
    if is_said:
        return
    warn(
        f"the kernel cache {directory} cannot be used ({reason}); kernels are compiled anew in every process until "
        f"it can: {remedy(directory)} or set SPARSIFY_CACHE_DIR to another directory"
    )


def recovered(directory: Path) -> None:
    """Notes that the directory could be written to."""
    if directory in _given_up:
        with _guard:
            _given_up.pop(directory, None)
            _pauses.pop(directory, None)


def remedy(directory: Path) -> str:
    """The advice for a directory that cannot be used."""
    try:
        reason = trust.refusal(directory)
    except OSError:
        reason = None
    if reason is None:
        return "free some disk space"
    return "delete what others may have put there with `sparsify cache clean`, close the directory to them"


def _files(directory: Path) -> list[Path]:
    """All files in the directory and in those for failures and unfinished work; locks stay.

    Other processes compile meanwhile: what they remove is not there, and no error.
    """
    return [
        Path(folder) / name
        for folder, _, names in os.walk(directory)
        if Path(folder).name != LOCKS
        for name in names
    ]


def _status(path: Path) -> os.stat_result | None:
    """The `stat` of a file, `None` where it is gone."""
    try:
        return path.lstat()
    except OSError:
        return None
