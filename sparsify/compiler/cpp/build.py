"""From C++ to a shared object: one process of the system's compiler, with a time limit.

In: a translation unit, `extern "C" int64_t sparsify_kernel(...) {...}`. Out: the path of `kernel.so`.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from sparsify.compiler.cpp import bridge, target
from sparsify.compiler.side_by_side import is_stopped
from sparsify.errors import BuildError, CompilerNotFoundError
from sparsify.options import Options
from sparsify.runtime import openmp

NAMES: Final = ("g++", "clang++", "c++")
BRIDGE: Final = "bridge.cpp"
SHOWN_LINES: Final = 12
# What an empty program may take.
PROBE_SECONDS: Final = 10.0
# How often a running compiler is asked whether anybody still waits for it.
LOOK_SECONDS: Final = 0.2
_NO_SPACE: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large|File size limit")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its path and the first line of `--version`."""

    path: str
    version: str

    def __str__(self) -> str:
        return f"{self.path} ({self.version})"

    def needs_bridge(self) -> bool:
        """Whether its parallel regions are not what the OpenMP runtime of torch runs."""
        return "clang" in self.version and "gomp" in openmp.path().name


# Compilers, with the flags and the limit of time with which they fail for every program: message and remedy.
_broken: Final[dict[tuple[Compiler, tuple[str, ...], float], tuple[str, str]]] = {}


class NoSpaceError(OSError):
    """The compiler could not write its result: the disk is full, not the code wrong."""


def find_compiler(options: Options) -> Compiler:
    """The compiler that the options name, else the first of g++, clang++, c++ on the PATH.

    Raises:
        CompilerNotFoundError: there is none.
    """
    names = (options.compiler,) if options.compiler else NAMES
    if found := _find(names, os.environ.get("PATH")):
        return found
    what = f"{options.compiler} is not a program" if options.compiler else f"none of {', '.join(NAMES)} is"
    raise CompilerNotFoundError(
        f"no C++ compiler: {what} on the PATH",
        "install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install gxx) "
        "or set SPARSIFY_CXX to its path",
    )


def has_compiler(options: Options) -> bool:
    """Whether there is a compiler that can be asked for kernels."""
    try:
        find_compiler(options)
    except CompilerNotFoundError:
        return False
    return True


@cache
def _find(names: tuple[str, ...], search: str | None) -> Compiler | None:
    """The first of these programs on the search path; asked once, as its version costs a process."""
    found = next((path for name in names if (path := shutil.which(name, path=search))), None)
    return Compiler(found, _version(found)) if found else None


def _version(path: str) -> str:
    """The first line of `--version`, else the date of the file."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerNotFoundError(
            f"{path} does not run: {error}", "set SPARSIFY_CXX to a working C++ compiler"
        ) from None
    return result.stdout.partition("\n")[0].strip() or f"modified {os.stat(path).st_mtime_ns}"


def command(
    compiler: Compiler, source: Path, result: Path, options: Options, optimise: tuple[str, ...] = ("-O3",)
) -> list[str]:
    """The command line that makes the shared object `result` of `source`."""
    runtime = openmp.path()
    sources = [source, source.with_name(BRIDGE)] if compiler.needs_bridge() else [source]
    return [
        compiler.path,
        *target.flags(options, optimise),
        *map(str, sources),
        "-o",
        str(result),
        str(runtime),
        f"-Wl,-rpath,{runtime.parent}",
        "-lgcc",
    ]


def build(source: str, directory: Path, compiler: Compiler, options: Options) -> Path:
    """The shared object of `source`, made inside `directory`, which holds everything that was written.

    A compiler that fails for an empty program, too, is not asked again by this process.

    Raises:
        BuildError: the compiler refused the code or took longer than `options.compiler_timeout` seconds;
            the source stays in `directory`.
        NoSpaceError: the disk is full.
    """
    settings = (compiler, options.compiler_flags, options.compiler_timeout)
    unit, result = directory / "kernel.cpp", directory / "kernel.so"
    unit.write_text(source)
    if settings in _broken:
        raise BuildError(*_broken[settings])
    if compiler.needs_bridge():
        (directory / BRIDGE).write_text(bridge.SOURCE)
    line = command(compiler, unit, result, options, target.optimisation(source))
    status, output = _run(line, directory, options.compiler_timeout)
    if status == 0 and result.is_file():
        return result
    if _NO_SPACE.search(output):
        raise NoSpaceError(f"{compiler.path} could not write to {directory}: {_head(output, 1)}")
    if status is None:
        said = f"took longer than {options.compiler_timeout:g} s and was stopped"
        remedy = "set SPARSIFY_COMPILER_TIMEOUT higher, or SPARSIFY_CXX to another compiler"
    else:
        said, remedy = (
            f"ended with status {status}",
            "this is a mistake of sparsify unless compiler flags were set",
        )
    is_broken = not _compiles_anything(compiler, directory, options)
    if is_broken:
        said += ", for an empty program too"
        flags = " ".join(options.compiler_flags)
        remedy = (
            f"correct SPARSIFY_CXXFLAGS={flags}" if flags else "set SPARSIFY_CXX to a working C++ compiler"
        )
    message = f"the C++ compiler {said}\n  {' '.join(line)}\n{_head(output, SHOWN_LINES)}\n"
    if is_broken:
        _broken[settings] = message, remedy
    raise BuildError(message, remedy)


def _compiles_anything(compiler: Compiler, directory: Path, options: Options) -> bool:
    """Whether the compiler makes a shared object of an empty program with the flags of a kernel."""
    unit, result = directory / "empty.cpp", directory / "empty.so"
    unit.write_text("")
    if compiler.needs_bridge():
        (directory / BRIDGE).write_text(bridge.SOURCE)
    seconds = min(PROBE_SECONDS, options.compiler_timeout)
    status, _ = _run(command(compiler, unit, result, options), directory, seconds)
    return status == 0 and result.is_file()


def _run(line: list[str], directory: Path, timeout_s: float) -> tuple[int | None, str]:
    """Exit status (`None`: out of time) and output; nothing is left running, however this ends."""
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(directory)}
    try:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return error.errno or 1, str(error)
    deadline = time.monotonic() + timeout_s
    try:
        while (output := _said(process, min(LOOK_SECONDS, deadline - time.monotonic()))) is None:
            if is_stopped():
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return None, ""
    finally:
        if process.returncode is None:
            # The driver runs the real compiler as a child: the whole group must go.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output.decode(errors="replace")


def _said(process: "subprocess.Popen[bytes]", seconds: float) -> bytes | None:
    """The output of a process, `None` when it has not ended after this time."""
    try:
        return process.communicate(timeout=max(0.0, seconds))[0]
    except subprocess.TimeoutExpired:
        return None


def _head(text: str, lines: int) -> str:
    """The first lines of a text, indented."""
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[:lines])
