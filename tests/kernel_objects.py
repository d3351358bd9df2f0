"""Shared objects of kernels that this run or an earlier one has built: a fifth of a cold run is time in the compiler.

In: `with reused(folder): ...`. Out: `build` copies the object of an equal translation unit, command line, compiler and
CPU; code generation, the cache of kernels, loading and all checks run as ever. Objects unused for a week are deleted.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sparsify.compiler.cpp.toolchain import cache, target
from sparsify.compiler.cpp.toolchain.build import Compiler, command
from sparsify.options import Options

KEPT_SECONDS = 7 * 86400
# Text of all generated kernels; programs that tests write by hand are built anew.
GENERATED = "struct Context {"


@contextmanager
def reused(folder: Path) -> Iterator[None]:
    """A context in which this process builds no kernel again whose object is in the folder."""
    build = cache.build

    def known(source: str, directory: Path, compiler: Compiler, options: Options) -> Path:
        if GENERATED not in source:
            return build(source, directory, compiler, options)
        kept = folder / key(source, compiler, options)
        result = directory / "kernel.so"
        with suppress(OSError):
            shutil.copyfile(kept, result)
            os.utime(kept)
            return result
        made = build(source, directory, compiler, options)
        with suppress(OSError):
            put(made, kept)
        return made

    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        prune(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "build", known)
        yield


def key(source: str, compiler: Compiler, options: Options) -> str:
    """The name of an object: a digest of everything that determines it, and of the time limit."""
    line = command(compiler, Path("kernel.cpp"), Path("kernel.so"), options, target.optimisation(source))
    parts = source, *line, compiler.version, target.cpu_digest(), str(options.compiler_timeout)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def put(made: Path, kept: Path) -> None:
    """Copies a file; other workers see all of it or nothing."""
    unfinished = kept.with_suffix(f".{os.getpid()}")
    shutil.copyfile(made, unfinished)
    unfinished.replace(kept)


def prune(folder: Path) -> None:
    """Deletes the objects that no run of the last week has used."""
    before = time.time() - KEPT_SECONDS
    for path in folder.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
