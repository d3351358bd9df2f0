"""Compilers that hang, write without end or leave children behind: a clear error, in time."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsify.compiler.cpp.toolchain import build, cache, program, trust
from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.errors import BuildError, CompilerNotFoundError
from sparsify.options import Options, override
from tests.compiler.cpp.tiny_kernels import constant

SOON = 8.0


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SOON


def script(folder: Path, text: str, name: str = "cxx") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def wait_for_end(process: int) -> None:
    """A killed process needs a moment."""
    while True:
        try:
            if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return
        except OSError:
            return
        time.sleep(0.01)


HANGING = {
    "hangs": "sleep 100",
    "ignores signals": "trap '' TERM INT HUP; while :; do sleep 100; done",
    "writes without end": "yes",
    "says it and hangs": "echo g++ 12; sleep 100",
    "leaves a session with its output": "setsid sleep 5 & sleep 100",
}


@pytest.mark.parametrize("text", HANGING.values(), ids=HANGING)
def test_version_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(build, "VERSION_SECONDS", 0.3)
    path = script(tmp_path, text)
    with pytest.raises(CompilerNotFoundError, match=r"does not run: .*--version. (took longer|wrote more)"):
        build.find_compiler(Options(compiler=path))
    started = time.monotonic()
    for _ in range(100):  # once for each region of a model, say
        with pytest.raises(CompilerNotFoundError, match="does not run"):
            build.find_compiler(Options(compiler=path))
    assert time.monotonic() - started < 0.3


def test_next_compiler_is_taken_when_the_first_one_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "VERSION_SECONDS", 0.3)
    script(tmp_path, "exec /bin/sleep 100", "g++")
    found = script(tmp_path, "echo clang version 99", "clang++")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(build.find_compiler(Options())) == f"{found} (clang version 99)"


def test_version_is_what_the_compiler_says_and_no_warning_before_it(tmp_path: Path) -> None:
    path = script(tmp_path, "echo ld.so: cannot be preloaded >&2; echo compiler 7")
    assert build.find_compiler(Options(compiler=path)).version == "compiler 7"


def test_version_of_a_program_whose_child_holds_its_output(tmp_path: Path) -> None:
    path = script(tmp_path, f"echo compiler 7; (sleep 100 & echo $! > {tmp_path}/child)")
    assert build.find_compiler(Options(compiler=path)).version == "compiler 7"
    wait_for_end(int((tmp_path / "child").read_text()))


def test_compiler_whose_child_holds_its_output(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        f'[ "$1" = --version ] && exec echo 1\ng++ "$@"\nsetsid sleep 20 & echo $! > {tmp_path}/child',
    )
    with override(compiler=path, cache_dir=tmp_path, compiler_flags=("-O0",)):
        assert library(constant(1)).origin == "compiled"
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_compiler_that_writes_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_OUTPUT_BYTES", 1 << 22)
    path = script(tmp_path, '[ "$1" = --version ] && exec echo 1\nexec yes error')
    with (
        override(compiler=path, cache_dir=tmp_path),
        pytest.raises(BuildError, match="wrote more than 4 MiB") as caught,
    ):
        library(constant(1))
    assert len(str(caught.value)) < 4000


def test_only_the_beginning_of_long_output_is_kept() -> None:
    outcome = program.run(["sh", "-c", "echo first; head -c 20000000 /dev/zero; exit 3"], SOON, os.environ)
    assert (outcome.status, outcome.stopped, outcome.output[:6]) == (3, "", "first\n")
    assert len(outcome.output) == program.KEPT_BYTES


def test_programs_run_beside_a_thousand_open_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        outcome = program.run(["sh", "-c", "echo first"], SOON, os.environ)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (outcome.status, outcome.output) == (0, "first\n")


def test_compiler_that_writes_a_library_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "MOST_BYTES", 1 << 20)
    text = (
        '[ "$1" = --version ] && exec echo 1\n'
        'for last; do [ "$before" = -o ] && truncate -s 1G "$last"; before=$last; done'
    )
    with override(compiler=script(tmp_path, text), cache_dir=tmp_path), pytest.raises(BuildError):
        library(constant(1))
    assert not list(tmp_path.rglob("*.so"))


def test_all_threads_that_ask_a_hanging_compiler_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "VERSION_SECONDS", 0.3)
    path, errors = script(tmp_path, "sleep 100"), []

    def ask() -> None:
        try:
            with override(compiler=path, cache_dir=tmp_path):
                library(constant(1))
        except CompilerNotFoundError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4


def test_children_that_the_system_collects(tmp_path: Path) -> None:
    """Servers that ignore SIGCHLD have no exit status of their children."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with override(cache_dir=tmp_path, compiler_flags=("-O0",)):
            made = library(constant(1))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert isinstance(made, cache.Library)


def test_relative_compiler_stays_the_same_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, 'exec g++ "$@"', "-x")
    monkeypatch.chdir(tmp_path)
    found = build.find_compiler(Options(compiler="./-x"))
    assert found.path == str(tmp_path / "-x")
