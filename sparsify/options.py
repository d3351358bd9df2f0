"""Settings: one frozen `Options`, the only reader of the `SPARSIFY_*` environment variables.

In: `SPARSIFY_VECTOR_BYTES=32`. Out: `current().vector_bytes == 32`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final

from sparsify.errors import SparsifyError

# What a model passes through and what a program passes through, in order: `pipeline.PASSES` after the captured
# graph, then `compiler.pipeline.STAGES`. Here, so that a wrong name is an error before anything is imported.
STAGES: Final = (
    *("graph", "attention", "marked", "masked", "drawn", "sparsified", "propagated", "reordered"),
    *("general", "packed", "priced", "contested", "skipped", "padded", "kept", "operators"),
    *("emitted", "folded", "written", "left_dense", "checked"),
    *("einsum", "notation", "schedule", "lowered", "loops", "cpp"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a user.

    Attributes:
        vector_bytes: width of vector registers in bytes, 0 for scalar code; `None`: the CPU's width.
        threads: threads of a kernel; `None`: as `torch.get_num_threads()`.
        serial_threshold: scalar operations below which a kernel stays on one thread.
        compiler: path of the C++ compiler; `None`: the first of g++, clang++, c++.
        compiler_flags: additional flags for the command line of the compiler.
        compiler_timeout: time limit of one compilation in seconds.
        tune_seconds: time budget in `apply` for measuring candidates of a region; all regions of a model share 15 times
            the budget; 0: the cost model decides, and nothing is measured.
        cache_dir: directory of compiled kernels; `None`: the user's cache directory.
        cache_bytes: size limit of the cache; least recently used kernels are deleted first.
        dump: stages to dump, from `STAGES`, or `all`.
        dump_dir: folder of dumps; `None`: standard error.
        strict: whether dense fallbacks are errors.
        debug_asserts: whether every stage is verified.
        quiet: whether progress on standard error is suppressed; without effect on kernels.
    """

    vector_bytes: int | None = None
    threads: int | None = None
    serial_threshold: int = 65536
    compiler: str | None = None
    compiler_flags: tuple[str, ...] = ()
    compiler_timeout: float = 120.0
    tune_seconds: float = 2.0
    cache_dir: Path | None = None
    cache_bytes: int = field(default=2 << 30, compare=False)
    dump: tuple[str, ...] = ()
    dump_dir: Path | None = None
    strict: bool = False
    debug_asserts: bool = True
    quiet: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.vector_bytes not in (None, 0, 16, 32, 64):
            raise SparsifyError(f"SPARSIFY_VECTOR_BYTES={self.vector_bytes}", "0 (scalar), 16, 32 or 64")
        if self.threads is not None and self.threads < 1:
            raise SparsifyError(f"SPARSIFY_THREADS={self.threads}", "1 or more")
        if self.compiler_timeout <= 0:
            raise SparsifyError(
                f"SPARSIFY_COMPILER_TIMEOUT={self.compiler_timeout:g}", "seconds, more than 0"
            )
        if self.cache_bytes < 0:
            raise SparsifyError(f"SPARSIFY_CACHE_BYTES={self.cache_bytes}", "bytes, 0 or more")
        if not 0 <= self.tune_seconds < float("inf"):
            raise SparsifyError(f"SPARSIFY_TUNE_SECONDS={self.tune_seconds:g}", "seconds, 0 for none")
        for stage in self.dump:
            check_stage(stage, "SPARSIFY_DUMP=", (*STAGES, "all"))


def check_stage(name: str, where: str, known: Sequence[str]) -> None:
    """Raises for an unknown stage; the message lists all stages."""
    if name not in known:
        near = get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise SparsifyError(f"{where}{name} is no stage", f"{guess}the stages are {', '.join(known)}")


_TRUTHS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}

_overridden: ContextVar[Options | None] = ContextVar("options", default=None)


def current() -> Options:
    """The options in force: from the innermost `override`, else from the environment."""
    return _overridden.get() or from_environment()


@cache
def from_environment() -> Options:
    """The options from environment variables; read once a process."""
    given: dict[str, Any] = {
        "vector_bytes": _number("SPARSIFY_VECTOR_BYTES", int),
        "threads": _number("SPARSIFY_THREADS", int),
        "serial_threshold": _number("SPARSIFY_SERIAL_THRESHOLD", int),
        "compiler": _text("SPARSIFY_CXX") or _text("CXX"),
        "compiler_flags": tuple(_text("SPARSIFY_CXXFLAGS", "").split()),
        "compiler_timeout": _number("SPARSIFY_COMPILER_TIMEOUT", float),
        "tune_seconds": _number("SPARSIFY_TUNE_SECONDS", float),
        "cache_dir": _path("SPARSIFY_CACHE_DIR"),
        "cache_bytes": _number("SPARSIFY_CACHE_BYTES", int),
        "dump": tuple(part.strip() for part in _text("SPARSIFY_DUMP", "").split(",") if part.strip()),
        "dump_dir": _path("SPARSIFY_DUMP_DIR"),
        "strict": _truth("SPARSIFY_STRICT"),
        "debug_asserts": _truth("SPARSIFY_DEBUG_ASSERTS"),
        "quiet": _truth("SPARSIFY_QUIET"),
    }
    return Options(**{name: value for name, value in given.items() if value is not None})


@contextmanager
def override(**fields: Any) -> Iterator[Options]:
    """The current options with `fields` replaced, inside the `with` block.

    >>> with override(vector_bytes=16) as options:
    ...     options.vector_bytes
    16
    """
    token = _overridden.set(replace(current(), **fields))
    try:
        yield current()
    finally:
        _overridden.reset(token)


@contextmanager
def strict() -> Iterator[None]:
    """Context in which dense fallbacks are errors, as with SPARSIFY_STRICT=1.

    >>> with strict():
    ...     current().strict
    True
    """
    with override(strict=True):
        yield


def _text(name: str, default: str | None = None) -> Any:
    """The text of an environment variable, the default when empty or not set."""
    return os.environ.get(name, "") or default


def _number(name: str, kind: type[int] | type[float]) -> int | float | None:
    """The number in an environment variable, `None` when not set."""
    text = _text(name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise SparsifyError(f"{name}={text} is not {wanted}", f"set {name} to {wanted} or unset it") from None


def _truth(name: str) -> bool | None:
    """The truth value of an environment variable, `None` when not set."""
    text = _text(name)
    if text is None:
        return None
    if text.lower() not in _TRUTHS:
        raise SparsifyError(f"{name}={text} is neither yes nor no", f"set {name} to 1 or 0")
    return _TRUTHS[text.lower()]


def _path(name: str) -> Path | None:
    """The path in an environment variable, `None` when not set."""
    text = _text(name)
    try:
        return None if text is None else Path(text).expanduser()
    except RuntimeError as error:
        raise SparsifyError(f"{name}={text}: {error}", "write the path without ~") from None
