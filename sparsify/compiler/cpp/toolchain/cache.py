"""Cache of kernels: in memory, on disk, or built now by one of all waiting processes.

In: a translation unit and all other inputs of its compilation. Out: a `Library`, such as
`Library(key=3f2a..., origin="disk")`, loaded and ready to be called.

On disk a kernel is `KEY.so` and `KEY.json` (source, notes, the parts of the key, and a checksum over both files).
A kernel with damaged files, or with files writable by others, is built again. Both files appear by renaming
finished files, so a killed process leaves at most an unread directory. Locks belong to the system
and end with their process; a process that waits too long builds for itself. If the directory is unusable, kernels are
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
# Exceptions raised by reading a damaged file.
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError)
# Memory mappings of a library (code, relocated constants, data), and the usual maximum of a process.
MAPS_OF_A_LIBRARY: Final = 3
USUAL_MAPS: Final = 65530
# Time beyond the limit of one compilation that a process waits for another one.
PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded kernel.

    Attributes:
        key: cache key, hexadecimal.
        path: path of the shared object.
        address: address of the kernel's function.
        origin: `compiled`, `disk` or `memory`: source of the kernel for this request.
        compile_seconds: time in the compiler, 0 for a cached kernel.
        notes: notes stored beside the kernel, as written.
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
    """A translation unit, and notes stored beside the kernel: plain data."""

    source: str
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A requested kernel: the generator of the source, and the parts of the cache key."""

    generate: Callable[[], Generated]
    key: str
    parts: Mapping[str, str]
    compiler: Compiler
    options: Options
    symbol: str = SYMBOL


class _Memory:
    """The libraries of this process by key, and one lock for each key in progress."""

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
        source: C++ with the function `extern "C" ... sparsify_kernel`; or a generator of the text, called only for a
            cache miss: then `key_parts` must contain everything that determines the source.
        key_parts: names and texts distinguishing kernels of equal source.
        options: compiler, flags and cache directory; by default the current ones.
        symbol: name of the function.

    Raises:
        CompilerNotFoundError, BuildError: compilation failed.
        CacheError: no directory can hold the kernel.
    """
    if isinstance(source, str) and not key_parts:
        found = _memory.supplied.get(text_digest(source, symbol))
        if found is None:
            found = _known_or_made(source, key_parts, options, symbol)
        _memory.texts[source, symbol] = found
        return found
    return _known_or_made(source, key_parts, options, symbol)


def supply(digest: str, made: Library) -> None:
    """Registers a library compiled elsewhere for requests of a text, by digest.

    Args:
        digest: the result of `text_digest`.
        made: loaded from a file trusted by the caller; the file may be deleted later.
    """
    _memory.supplied[digest] = made


def text_digest(source: str, symbol: str) -> str:
    """Digest of a translation unit and its function name."""
    return hashlib.sha256(f"{symbol} {source}".encode()).hexdigest()[:40]


def texts() -> dict[tuple[str, str], Library]:
    """The libraries of this process by source text and function name."""
    return dict(_memory.texts)


def opened(path: Path, symbol: str = SYMBOL, notes: Mapping[str, Any] | None = None) -> Library:
    """The loaded kernel in a file trusted by the caller.

    Raises:
        BuildError: the system cannot load the file, or the function is missing.
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
    """Raises before the process runs out of memory mappings for further libraries, memory and threads.

    Raises:
        CacheError: the loaded libraries take half of the mappings available to a process.
    """
    if len(_memory.libraries) >= most_libraries():
        raise CacheError(
            f"this process has loaded {len(_memory.libraries)} kernels, as many as it has room for",
            "start another process, give what changes from call to call as tensors or scalars rather than as text, "
            "or raise vm.max_map_count",
        )


@cache
def most_libraries() -> int:
    """The maximum number of kernels of a process: code is never unloaded, because calls may be under way."""
    try:
        maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        maps = USUAL_MAPS
    return maps // 2 // MAPS_OF_A_LIBRARY


def compile_seconds() -> float:
    """Total compile time of the kernels of this process; concurrent compilations each count in full."""
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
    """The kernel from the first usable directory."""
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
    """The kernel from a directory, compiled into the directory if missing or damaged."""
    # Before any write: kernels in a read-only directory are used, too.
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
    """Lock for the compilation of a key in one process; a process waiting too long goes ahead."""

    def __init__(self, directory: Path, request: Request) -> None:
        self.lock = filelock.FileLock(str(lock_file(directory, request.key)))
        self.timeout_s = request.options.compiler_timeout + PATIENCE_SECONDS

    def __enter__(self) -> None:
        # Without locks, as on some file systems, two processes may both compile, and the last rename wins.
        with suppress(filelock.Timeout, NotImplementedError, OSError):
            trust.make(Path(self.lock.lock_file).parent)
            self.lock.acquire(timeout=self.timeout_s, poll_interval=0.005)

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def lock_file(directory: Path, key: str) -> Path:
    """The lock file of a key in compilation; never deleted, as a lock on a deleted file excludes nobody."""
    return directory / cache_directory.LOCKS / f"{int(key[:8], 16) % LOCKS:02x}"


def _compile(request: Request, generated: Generated, directory: Path) -> float:
    """Puts the kernel and its description into the directory; the seconds of compilation."""
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
    """Counts written files against the limit on the size of the cache."""
    with suppress(OSError):
        limit.written(directory, sum(file.stat().st_size for file in files), options.cache_bytes)


def _load(request: Request, directory: Path) -> Library | None:
    """The undamaged kernel of a key in the directory, else `None`; use renews the date for `prune`."""
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
    """The kernel of a request, loaded.

    Raises:
        OSError: the system does not load code from this directory.
        BuildError: the code needs or lacks a function.
    """
    return _open_file(directory / f"{request.key}.so", request.symbol, request.key, origin, seconds, notes)


def _open_file(
    path: Path, symbol: str, key: str, origin: str, seconds: float, notes: Mapping[str, Any]
) -> Library:
    """Opens the shared object of any path."""
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
    """The name of a file for the system's loader, which replaces `$ORIGIN` in names."""
    if "$" not in str(path):
        return str(path)
    link = trust.make_unfinished(cache_directory.process_directory()) / path.name
    link.symlink_to(path)
    return str(link)


def _checksum(key: str, code: bytes, description: Mapping[str, Any]) -> str:
    """A digest of a kernel and its description, valid for one key."""
    digest = hashlib.sha256(f"{key} {json.dumps(description, sort_keys=True)}".encode())
    digest.update(code)
    return digest.hexdigest()
