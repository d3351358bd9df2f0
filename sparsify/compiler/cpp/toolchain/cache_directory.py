"""Directories of compiled kernels: the user's cache directory, or a temporary one if the former is unusable.

In: the options. Out: `~/.cache/sparsify/kernels`, writable by its owner alone: anyone able to put a file into the
directory could run code as the owner.
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
# Longest pause before a retry of a failed directory.
MOST_PAUSE_SECONDS: Final = 60.0
LOCKS: Final = "locks"
FAILED: Final = "failed"
USED: Final = "used"
PRUNED: Final = (".so", ".json", ".plan", ".cpp")
# Names of finished files.
ENTRY: Final = re.compile(r"[0-9a-f]{16,64}\.(?:so|json|plan|cpp|machine)")


def cache_dir(options: Options | None = None) -> Path:
    """The directory of compiled kernels, as an absolute path; may not exist yet."""
    chosen = (options or current()).cache_dir
    if chosen is not None:
        return Path(chosen).absolute() / "kernels"
    usual = Path(platformdirs.user_cache_dir("sparsify", appauthor=False))
    if not usual.is_absolute():  # a user without a home directory
        usual = Path(tempfile.gettempdir()) / f"sparsify-{os.getuid()}"
    return usual / "kernels"


def cache_size(options: Options | None = None) -> tuple[int, int]:
    """The number of kernels on disk and the total bytes of the files."""
    files = {file: status.st_size for file in _files(cache_dir(options)) if (status := _status(file))}
    return sum(file.suffix == ".so" for file in files), sum(files.values())


def clean(options: Options | None = None) -> int:
    """Deletes all kernels on disk and returns their number; loaded kernels stay usable.

    A directory writable by others is removed, too, and the next kernel makes a new one. Files outside the cache format
    stay.
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
    """Deletes the least recently used kernels and plans until the rest takes `max_bytes`; the number of deleted
    kernels.
    """
    return prune_directory(cache_dir(options), max_bytes)[0]


def prune_directory(directory: Path, max_bytes: int) -> tuple[int, int]:
    """As `prune`; the number of deleted kernels, and the bytes of the remaining files."""
    remove_abandoned(directory)
    latest = time.time() + ABANDONED_SECONDS
    entries: dict[Path, list[tuple[float, int, Path]]] = {}
    for path in (*directory.glob("*.*"), *(directory / FAILED).glob("*")):
        if path.suffix in PRUNED and (status := _status(path)):
            # A date in the future, from a wrong clock, does not count as recent use.
            date = status.st_mtime if status.st_mtime < latest else 0.0
            entries.setdefault(path.with_suffix(""), []).append((date, status.st_size, path))
    kept = deleted = 0
    for files in sorted(entries.values(), key=lambda files: max(files)[0], reverse=True):
        size = sum(size for _, size, _ in files)
        if kept + size <= max_bytes:
            kept += size
            continue
        max_bytes = 0  # removes all earlier files, too
        for _, _, path in files:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                deleted += path.suffix == ".so"
    return deleted, kept


def candidates(options: Options) -> tuple[Callable[[], Path], ...]:
    """The directories to try, as functions returning the path or raising `OSError`."""
    return (partial(cache_dir, options), partial(_temporary, None), partial(_temporary, "/dev/shm"))


def is_trusted(directory: Path) -> bool:
    """Whether the directory exists and only this user or root could have put code there."""
    try:
        return trust.refusal(directory) is None
    except OSError:
        return False


def prepare(directory: Path) -> None:
    """Creates a missing directory, and checks that only the user can write to the directory.

    Raises:
        OSError: creation failed, others can write to the directory, or a use failed a moment ago.
    """
    if directory in _given_up and time.monotonic() < _pauses.get(directory, FOREVER).until:
        raise OSError(_given_up[directory])
    trust.make(directory)
    if reason := trust.refusal(directory):
        raise PermissionError(reason)
    if (owner := directory.stat().st_uid) != os.getuid():
        raise PermissionError(f"{directory} belongs to another user ({owner})")


def _temporary(parent: str | None) -> Path:
    """A directory of this process, removed at exit."""
    with _guard:
        holder = _holders.get(parent)
        if holder is not None and not Path(holder.name).is_dir():  # some programs clean up /tmp
            holder.cleanup()
            holder = None
        if holder is None:
            holder = tempfile.TemporaryDirectory(prefix="sparsify-", dir=parent, ignore_cleanup_errors=True)
            Path(holder.name).chmod(0o700)  # independent of the umask
            _holders[parent] = holder
        return Path(holder.name)


def process_directory() -> Path:
    """The temporary directory of this process.

    Raises:
        OSError: no place is available.
    """
    return _temporary(None)


_holders: dict[str | None, tempfile.TemporaryDirectory[str]] = {}


def remove_abandoned(directory: Path) -> None:
    """Removes old remains of processes killed while compiling."""
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
    with suppress(OSError):  # a file system without locks: only the date shows the use
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
# Unwritable directories, with the reason.
_given_up: dict[Path, str] = {}
_pauses: dict[Path, Pause] = {}
_warned: set[Path] = set()
_guard = threading.Lock()


def _after_fork() -> None:
    """Gives a forked child new locks, and leaves the parent's temporary directories alone."""
    global _guard
    _guard = threading.Lock()
    for holder in _holders.values():
        holder._finalizer.detach()  # type: ignore[attr-defined]
    _holders.clear()


os.register_at_fork(after_in_child=_after_fork)


def give_up(directory: Path, reason: str, options: Options) -> None:
    """Suspends writes to a directory for a while; warns once for the user's directory and names the fallback.

    The next kernel is tried in the directory again; each further failure in a row doubles the following pause.
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
    """Notes a successful write to the directory."""
    if directory in _given_up:
        with _guard:
            _given_up.pop(directory, None)
            _pauses.pop(directory, None)


def remedy(directory: Path) -> str:
    """The advice for an unusable directory."""
    try:
        reason = trust.refusal(directory)
    except OSError:
        reason = None
    if reason is None:
        return "free some disk space"
    return "delete what others may have put there with `sparsify cache clean`, close the directory to them"


def _files(directory: Path) -> list[Path]:
    """All files in the directory and in its folders for failures and unfinished work; locks stay.

    Other processes compile meanwhile: files removed by them are skipped without an error.
    """
    return [
        Path(folder) / name
        for folder, _, names in os.walk(directory)
        if Path(folder).name != LOCKS
        for name in names
    ]


def _status(path: Path) -> os.stat_result | None:
    """The `stat` of a file, `None` if missing."""
    try:
        return path.lstat()
    except OSError:
        return None
