"""From C++ to a shared object: one process of the system's compiler, with a time limit.

In: a translation unit, `extern "C" int64_t sparsify_kernel(...) {...}`. Out: the path of `kernel.so`.
"""

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from sparsify.compiler.cpp.toolchain import clang_openmp, program, target, trust
from sparsify.errors import BuildError, CompilerNotFoundError
from sparsify.options import Options
from sparsify.runtime import openmp

NAMES: Final = ("g++", "clang++", "c++")
BRIDGE: Final = "bridge.cpp"
SHOWN_LINES: Final = 12
VERSION_SECONDS: Final = 20.0
# Multiple of the failing time after which a failed version query is repeated.
PAUSES: Final = 100
# Time limit of the empty program.
PROBE_SECONDS: Final = 10.0
_NO_SPACE: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large|File size limit")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: path and first line of `--version`."""

    path: str
    version: str

    def __str__(self) -> str:
        return f"{self.path} ({self.version})"

    def needs_bridge(self) -> bool:
        """Whether the OpenMP runtime of torch cannot run this compiler's parallel regions."""
        return "clang" in self.version and "gomp" in openmp.path().name


# Message and remedy by compiler, flags and time limit that fail for every program.
_broken: Final[dict[tuple[Compiler, tuple[str, ...], float], tuple[str, str]]] = {}


class NoSpaceError(OSError):
    """The disk is full: the compiler could not write the result, and the code is not at fault."""


def find_compiler(options: Options) -> Compiler:
    """The compiler named by the options, else the first of g++, clang++, c++ on the PATH.

    Raises:
        CompilerNotFoundError: no compiler was found.
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
    """Whether a C++ compiler is available for kernels."""
    try:
        find_compiler(options)
    except CompilerNotFoundError:
        return False
    return True


@cache
def _find(names: tuple[str, ...], search: str | None) -> Compiler | None:
    """The first working program of a list on the search path; memoized, because reading the version costs a process."""
    paths = [os.path.abspath(path) for name in names if (path := shutil.which(name, path=search))]  # noqa: PTH100
    for path in paths:
        try:
            return Compiler(path, _version(path))
        except CompilerNotFoundError:
            if path == paths[-1]:
                raise
    return None


# Programs with a failed version query: time of the next query, and the error.
_failed: dict[str, tuple[float, str]] = {}


def _version(path: str) -> str:
    """The first line of `--version`, else the date of the file."""
    started = time.monotonic()
    until, wrong = _failed.get(path, (0.0, ""))
    if started >= until:
        try:
            environment = {**os.environ, "LC_ALL": "C"}
            line = [path, "--version"]
            outcome = program.run(line, VERSION_SECONDS, environment, errors=subprocess.DEVNULL)
            if not outcome.stopped:
                return outcome.output.partition("\n")[0].strip() or f"modified {os.stat(path).st_mtime_ns}"
            wrong = f"`{path} --version` {outcome.stopped} and was stopped"
        except OSError as error:
            wrong = str(error)
        ended = time.monotonic()
        _failed[path] = ended + PAUSES * (ended - started), wrong
    raise CompilerNotFoundError(f"{path} does not run: {wrong}", "set SPARSIFY_CXX to a working C++ compiler")


def command(
    compiler: Compiler, source: Path, result: Path, options: Options, optimise: tuple[str, ...] = ("-O3",)
) -> list[str]:
    """The command line for building the shared object `result` from `source`."""
    runtime = openmp.path()
    sources = [source, source.with_name(BRIDGE)] if compiler.needs_bridge() else [source]
    return [
        compiler.path,
        *target.flags(options, optimise),
        *map(str, sources),
        "-o",
        str(result),
        str(runtime),
        *_search_path(runtime.parent),
        "-lgcc",
    ]


def _search_path(folder: Path) -> list[str]:
    """The flags naming the folder of the OpenMP runtime, for programs that load a kernel before torch.

    In a process with torch loaded the runtime is found by name, so folders with names misread by the loader or the
    compiler are left out.
    """
    return [] if set("$:,") & set(str(folder)) else [f"-Wl,-rpath,{folder}"]


def build(source: str, directory: Path, compiler: Compiler, options: Options) -> Path:
    """The shared object of `source`, made inside `directory` together with all other files.

    A compiler that fails for an empty program, too, is not run again by this process.

    Raises:
        BuildError: the compiler refused the code or took longer than `options.compiler_timeout` seconds;
            the source stays in `directory`.
        NoSpaceError: the disk is full.
    """
    settings = (compiler, options.compiler_flags, options.compiler_timeout)
    unit, result = directory / "kernel.cpp", directory / "kernel.so"
    _write(unit, source)
    if settings in _broken:
        raise BuildError(*_broken[settings])
    if compiler.needs_bridge():
        _write(directory / BRIDGE, clang_openmp.SOURCE)
    line = command(compiler, unit, result, options, target.optimisation(source))
    outcome = _run(line, directory, options.compiler_timeout)
    if outcome.status == 0 and result.is_file() and result.stat().st_size <= trust.MOST_BYTES:
        return result
    if _NO_SPACE.search(outcome.output):
        raise NoSpaceError(f"{compiler.path} could not write to {directory}: {_head(outcome.output, 1)}")
    if outcome.stopped:
        said = f"{outcome.stopped} and was stopped"
        remedy = "set SPARSIFY_COMPILER_TIMEOUT higher, or SPARSIFY_CXX to another compiler"
    else:
        said, remedy = (
            f"ended with status {outcome.status}",
            "this is a mistake of sparsify unless compiler flags were set",
        )
    is_broken = not _compiles_anything(compiler, directory, options)
    if is_broken:
        said += ", for an empty program too"
        flags = " ".join(options.compiler_flags)
        remedy = (
            f"correct SPARSIFY_CXXFLAGS={flags}" if flags else "set SPARSIFY_CXX to a working C++ compiler"
        )
    message = f"the C++ compiler {said}\n  {' '.join(line)}\n{_head(outcome.output, SHOWN_LINES)}\n"
    if is_broken:
        _broken[settings] = message, remedy
    raise BuildError(message, remedy)


def _write(place: Path, text: str) -> None:
    """Writes a file readable by the owner only, for any umask of the process."""
    place.touch()
    place.chmod(0o600)
    place.write_text(text)


def _compiles_anything(compiler: Compiler, directory: Path, options: Options) -> bool:
    """Whether the compiler makes a shared object of an empty program with the flags of a kernel."""
    unit, result = directory / "empty.cpp", directory / "empty.so"
    _write(unit, "")
    if compiler.needs_bridge():
        _write(directory / BRIDGE, clang_openmp.SOURCE)
    seconds = min(PROBE_SECONDS, options.compiler_timeout)
    outcome = _run(command(compiler, unit, result, options), directory, seconds)
    return outcome.status == 0 and result.is_file()


def _run(line: list[str], directory: Path, seconds: float) -> program.Outcome:
    """The outcome of a compiler run with temporary files in a directory."""
    try:
        return program.run(line, seconds, {**os.environ, "LC_ALL": "C", "TMPDIR": str(directory)})
    except OSError as error:
        return program.Outcome(error.errno or 1, str(error))


def _head(text: str, lines: int) -> str:
    """The first lines of a text, indented."""
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[:lines])
