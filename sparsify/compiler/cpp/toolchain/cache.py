"""Kernels that were built before: in memory, on disk, or built now by one of all waiting processes.

In: a translation unit and what else decides its result. Out: a `Library`, such as
`Library(key=3f2a..., origin="disk")`, loaded and ready to be called.

On disk a kernel is `KEY.so` and `KEY.json` (source, notes, what the key was made of, and a checksum over both files).
A kernel whose files are damaged, or could have been written by others, is built again. Both appear by renaming
finished files, so a process that is killed leaves at most a directory that nobody reads. Locks belong to the system
and end with their process; who waits too long builds for itself. Where the directory cannot be used, kernels are
built into a temporary one, with a warning, and the next kernel is tried in the directory again.
"""

import ctypes
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import filelock

import sparsify
from sparsify.compiler.cpp.toolchain import cache_directory, limit, target, trust
from sparsify.compiler.cpp.toolchain.build import Compiler, build, command, find_compiler
from sparsify.errors import BuildError, CacheError
from sparsify.options import Options, current

SYMBOL: Final = "sparsify_kernel"
LOCKS: Final = 256
# What reading a damaged file raises.
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError)
# Mappings of memory of a library: code, constants that were relocated, data; and how many a process usually may have.
MAPS_OF_A_LIBRARY: Final = 3
USUAL_MAPS: Final = 65530
# How much longer than one compilation may take a process waits for another one.
PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded kernel.

    Attributes:
        key: of the cache, hexadecimal.
        path: of the shared object.
        address: of the kernel's function.
        origin: `compiled`, `disk` or `memory`: where this request found it.
        compile_seconds: time in the compiler, 0 when it was found.
        notes: what was kept beside it, as it was written.
        handle: keeps the shared object loaded.
    """

    key: str
    path: Path
    address: int
    origin: str
    compile_seconds: float
    handle: ctypes.CDLL = field(repr=False, compare=False)
    notes: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        what = (
            f"compiled in {self.compile_seconds * 1e3:.0f} ms" if self.origin == "compiled" else self.origin
        )
        return f"kernel {what} key={self.key[:12]}"


@dataclass(frozen=True, slots=True)
class Generated:
    """A translation unit, and notes that are kept beside its kernel: plain data."""

    source: str
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel to be had: what generates its source, and what its key is made of."""

    generate: Callable[[], Generated]
    key: str
    parts: Mapping[str, str]
    compiler: Compiler
    options: Options
    symbol: str = SYMBOL


class _Memory:
    """The libraries of this process by key, and one lock per key that is being had."""

    def __init__(self) -> None:
        self.libraries: dict[str, Library] = {}
        self.texts: dict[tuple[str, str], Library] = {}
        self.supplied: dict[str, Library] = {}
        self.locks: dict[str, threading.Lock] = {}
        self.guard = threading.Lock()

    def lock(self, key: str) -> threading.Lock:
        with self.guard:
            return self.locks.setdefault(key, threading.Lock())

    def unlock(self) -> None:
        self.locks, self.guard = {}, threading.Lock()


_memory = _Memory()
# A thread of the parent may hold a lock while another one forks.
os.register_at_fork(after_in_child=_memory.unlock)


def library(
    source: str | Callable[[], Generated],
    key_parts: Mapping[str, str] | None = None,
    options: Options | None = None,
    *,
    symbol: str = SYMBOL,
) -> Library:
    """The loaded kernel of a translation unit: from memory, from disk, else compiled.

    Args:
        source: C++ with the function `extern "C" ... sparsify_kernel`; or what generates it, asked only when the
            kernel is not found: then `key_parts` must say everything that decides the source.
        key_parts: names and texts that tell kernels of equal source apart.
        options: compiler, flags and cache directory; by default those in force.
        symbol: the function to find.

    Raises:
        CompilerNotFoundError, BuildError: it cannot be compiled.
        CacheError: no directory can hold it.
    """
    if isinstance(source, str) and not key_parts:
        found = _memory.supplied.get(text_digest(source, symbol))
        if found is None:
            found = _known_or_made(source, key_parts, options, symbol)
        _memory.texts[source, symbol] = found
        return found
    return _known_or_made(source, key_parts, options, symbol)


def supply(digest: str, made: Library) -> None:
    """Has requests for a text, by its digest, find a library that was compiled from it elsewhere.

    Args:
        digest: as `text_digest` gives it.
        made: loaded from a file that the caller trusts, which may be deleted later.
    """
    _memory.supplied[digest] = made


def text_digest(source: str, symbol: str) -> str:
    """A name for a translation unit and its function."""
    return hashlib.sha256(f"{symbol} {source}".encode()).hexdigest()[:40]


def texts() -> dict[tuple[str, str], Library]:
    """The libraries of this process by the whole text that they were made of, and its function."""
    return dict(_memory.texts)


def opened(path: Path, symbol: str = SYMBOL, notes: Mapping[str, Any] | None = None) -> Library:
    """The loaded kernel in a file that the caller trusts.

    Raises:
        BuildError: the system does not load it, or it lacks the function.
    """
    try:
        return _open_file(path, symbol, path.stem, "disk", 0.0, notes or {})
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}", "build it again on this machine") from None


def _known_or_made(
    source: str | Callable[[], Generated],
    key_parts: Mapping[str, str] | None,
    options: Options | None,
    symbol: str,
) -> Library:
    """The kernel from memory, from disk, else compiled."""
    request = _request(source, key_parts or {}, options or current(), symbol)
    if found := _memory.libraries.get(request.key):
        return replace(found, origin="memory", compile_seconds=0.0)
    with _memory.lock(request.key):
        if found := _memory.libraries.get(request.key):
            return replace(found, origin="memory", compile_seconds=0.0)
        _check_room()
        made = _from_directories(request)
        _memory.libraries[request.key] = made
        return made


def _check_room() -> None:
    """Raises before the process has no room left for further libraries, and so none for memory and threads.

    Raises:
        CacheError: it has loaded as many as half of what the system maps for a process.
    """
    if len(_memory.libraries) >= most_libraries():
        raise CacheError(
            f"this process has loaded {len(_memory.libraries)} kernels, as many as it has room for",
            "start another process, give what changes from call to call as tensors or scalars rather than as text, "
            "or raise vm.max_map_count",
        )


@cache
def most_libraries() -> int:
    """The number of kernels that a process may load: loaded code is never unloaded, as calls may be under way."""
    try:
        maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        maps = USUAL_MAPS
    return maps // 2 // MAPS_OF_A_LIBRARY


def compile_seconds() -> float:
    """Time that compilers took for the kernels of this process; of several at once, the time of each counts."""
    return sum(library.compile_seconds for library in list(_memory.libraries.values()))


def _request(
    source: str | Callable[[], Generated], key_parts: Mapping[str, str], options: Options, symbol: str
) -> Request:
    compiler = find_compiler(options)
    line = command(compiler, Path("kernel.cpp"), Path("kernel.so"), options)
    parts = {
        "version": sparsify.__version__,
        "compiler": compiler.version,
        "command": " ".join(line),
        "cpu": target.cpu_digest(),
        **{f"kernel {name}": text for name, text in sorted(key_parts.items())},
    }
    text = source if isinstance(source, str) else ""
    digest = hashlib.sha256(json.dumps([text, symbol, parts]).encode())
    generate = partial(Generated, source) if isinstance(source, str) else source
    return Request(generate, digest.hexdigest()[:40], parts, compiler, options, symbol)


def _from_directories(request: Request) -> Library:
    """The kernel from the first directory that can hold it."""
    reasons = []
    for name in cache_directory.candidates(request.options):
        directory = None
        try:
            directory = name()
            found = _from_directory(request, directory)
        except OSError as error:
            reasons.append(str(error))
            if directory is not None:
                cache_directory.give_up(directory, str(error), request.options)
            continue
        if found.origin == "compiled":
            cache_directory.recovered(directory)
            files = found.path, found.path.with_suffix(".json")
            _account(directory, files, request.options)
        return found
    raise CacheError(
        f"no directory can hold a compiled kernel: {'; '.join(reasons)}",
        "free some disk space or set SPARSIFY_CACHE_DIR to a directory that can be written and executed from",
    )


def _from_directory(request: Request, directory: Path) -> Library:
    """The kernel from this directory, compiled into it when it is not there or damaged."""
    # Before anything is written: kernels in a directory that can only be read are used all the same.
    if cache_directory.is_trusted(directory) and (found := _load(request, directory)):
        return found
    cache_directory.prepare(directory)
    with _Lock(directory, request):
        if found := _load(request, directory):
            return found
        generated = request.generate()
        seconds = _compile(request, generated, directory)
        return _open(request, directory, "compiled", seconds, generated.notes)


class _Lock:
    """Only one process compiles a key; who has waited longer than a compilation may take goes ahead."""

    def __init__(self, directory: Path, request: Request) -> None:
        self.lock = filelock.FileLock(str(lock_file(directory, request.key)))
        self.timeout_s = request.options.compiler_timeout + PATIENCE_SECONDS

    def __enter__(self) -> None:
        # Without a lock, as on file systems that have none, two processes may both compile, and the last rename wins.
        with suppress(filelock.Timeout, NotImplementedError, OSError):
            trust.make(Path(self.lock.lock_file).parent)
            self.lock.acquire(timeout=self.timeout_s, poll_interval=0.005)

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def lock_file(directory: Path, key: str) -> Path:
    """The file that is locked while a key is compiled; never deleted, as a lock on a deleted file excludes nobody."""
    return directory / cache_directory.LOCKS / f"{int(key[:8], 16) % LOCKS:02x}"


def _compile(request: Request, generated: Generated, directory: Path) -> float:
    """Seconds that it took to put the kernel and its description into the directory."""
    started = time.perf_counter()
    cache_directory.remove_abandoned(directory)
    work = trust.make_unfinished(directory)
    in_use = cache_directory.lock(work)
    try:
        result = build(generated.source, work, request.compiler, request.options)
        seconds = time.perf_counter() - started
        description = {
            "compile_seconds": seconds,
            "parts": dict(request.parts),
            "notes": dict(generated.notes),
            "source": generated.source,
        }
        text = json.dumps(
            {"checksum": _checksum(request.key, result.read_bytes(), description)} | description
        )
        trust.put(result, directory / f"{request.key}.so")
        trust.write(directory / f"{request.key}.json", text.encode())
        return seconds
    except BuildError as error:
        kept = directory / cache_directory.FAILED / f"{request.key}.cpp"
        with suppress(OSError):
            trust.make(kept.parent)
            trust.put(work / "kernel.cpp", kept)
            _account(directory, (kept,), request.options)
        raise BuildError(error.message, f"the source is in {kept}; {error.remedy}") from None
    finally:
        os.close(in_use)
        shutil.rmtree(work, ignore_errors=True)


def _account(directory: Path, files: Sequence[Path], options: Options) -> None:
    """Counts files that were written against the limit on the size of the cache."""
    with suppress(OSError):
        limit.written(directory, sum(file.stat().st_size for file in files), options.cache_bytes)


def _load(request: Request, directory: Path) -> Library | None:
    """The kernel of this key when it lies in the directory undamaged; use renews its date for `prune`."""
    path = directory / f"{request.key}.so"
    try:
        stored = json.loads(trust.read(path.with_suffix(".json")))
        checksum = stored.pop("checksum")
        if checksum != _checksum(request.key, trust.read(path), stored):
            return None
        found = _open(request, directory, "disk", 0.0, stored["notes"])
    except (OSError, BuildError, *UNREADABLE):
        return None
    with suppress(OSError):
        os.utime(path)
    return found


def _open(
    request: Request, directory: Path, origin: str, seconds: float, notes: Mapping[str, Any]
) -> Library:
    """The kernel of this key, loaded.

    Raises:
        OSError: the system does not load code from this directory.
        BuildError: the code needs or lacks a function.
    """
    return _open_file(directory / f"{request.key}.so", request.symbol, request.key, origin, seconds, notes)


def _open_file(
    path: Path, symbol: str, key: str, origin: str, seconds: float, notes: Mapping[str, Any]
) -> Library:
    """The same of any file."""
    try:
        handle = ctypes.CDLL(_name_of(path))
        function = getattr(handle, symbol)
    except (OSError, AttributeError) as error:
        if "undefined symbol" not in str(error):
            raise
        raise BuildError(
            f"the generated code cannot be loaded: {error}", f"the source is in {path.with_suffix('.json')}"
        ) from None
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, "a function has an address"
    return Library(key, path, address, origin, seconds, handle, notes)


def _name_of(path: Path) -> str:
    """The name by which the system's loader takes a file, which replaces `$ORIGIN` in names."""
    if "$" not in str(path):
        return str(path)
    link = trust.make_unfinished(cache_directory.process_directory()) / path.name
    link.symlink_to(path)
    return str(link)


def _checksum(key: str, code: bytes, description: Mapping[str, Any]) -> str:
    """A digest of a kernel and its description, which holds under this key alone."""
    digest = hashlib.sha256(f"{key} {json.dumps(description, sort_keys=True)}".encode())
    digest.update(code)
    return digest.hexdigest()
