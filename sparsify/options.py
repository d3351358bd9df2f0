"""Settings: one frozen `Options`, the only reader of the `SPARSIFY_*` environment variables.

In: `SPARSIFY_VECTOR_BYTES=32`. Out: `current().vector_bytes == 32`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sparsify.errors import SparsifyError


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set from outside.

    Attributes:
        vector_bytes: width of vector registers in bytes, 0 for scalar code; `None`: as the CPU has.
        threads: of a kernel; `None`: as `torch.get_num_threads()`.
        serial_threshold: scalar operations below which a kernel stays on one thread.
        compiler: path of the C++ compiler; `None`: the first of g++, clang++, c++.
        compiler_flags: added to the command line of the compiler.
        compiler_timeout: seconds that one compilation may take.
        cache_dir: of compiled kernels; `None`: the user's cache directory.
        dump: stages whose result is written, `einsum notation schedule loops cpp` or `all`.
        dump_dir: where to; `None`: standard error.
        strict: dense fallbacks are errors.
        debug_asserts: every stage is verified.
    """

    vector_bytes: int | None = None
    threads: int | None = None
    serial_threshold: int = 65536
    compiler: str | None = None
    compiler_flags: tuple[str, ...] = ()
    compiler_timeout: float = 120.0
    cache_dir: Path | None = None
    dump: tuple[str, ...] = ()
    dump_dir: Path | None = None
    strict: bool = False
    debug_asserts: bool = True

    def __post_init__(self) -> None:
        if self.vector_bytes not in (None, 0, 16, 32, 64):
            raise SparsifyError(f"SPARSIFY_VECTOR_BYTES={self.vector_bytes}", "0 (scalar), 16, 32 or 64")


_overridden: ContextVar[Options | None] = ContextVar("options", default=None)


def current() -> Options:
    """The options in force here: those of the innermost `override`, else those of the environment."""
    return _overridden.get() or from_environment()


@cache
def from_environment() -> Options:
    """The options that the environment variables give; read once a process."""
    read = os.environ.get
    return Options(
        vector_bytes=_integer("SPARSIFY_VECTOR_BYTES"),
        threads=_integer("SPARSIFY_THREADS"),
        serial_threshold=_integer("SPARSIFY_SERIAL_THRESHOLD") or Options.serial_threshold,
        compiler=read("SPARSIFY_CXX") or read("CXX") or None,
        compiler_flags=tuple(read("SPARSIFY_CXXFLAGS", "").split()),
        cache_dir=_path("SPARSIFY_CACHE_DIR"),
        dump=tuple(part.strip() for part in read("SPARSIFY_DUMP", "").split(",") if part.strip()),
        dump_dir=_path("SPARSIFY_DUMP_DIR"),
        strict=read("SPARSIFY_STRICT", "0") not in ("", "0"),
        debug_asserts=read("SPARSIFY_DEBUG_ASSERTS", "1") not in ("", "0"),
    )


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


def _integer(name: str) -> int | None:
    """The integer in an environment variable, `None` when it is not set."""
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise SparsifyError(f"{name}={text}", "a whole number") from None


def _path(name: str) -> Path | None:
    """The path in an environment variable, `None` when it is not set."""
    text = os.environ.get(name, "")
    return Path(text).expanduser() if text else None
