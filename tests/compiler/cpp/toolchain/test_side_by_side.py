"""Several kernels at once: order, errors, options, and concurrent compilers."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify import errors, options
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.cpp.toolchain.side_by_side import is_stopped, side_by_side

PROGRAM = """
    T[i,k] = A[i,j] * X[j,k]
    Y[i,k] = A[i,j] * relu(T[j,k])"""

several_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core builds in turn")


def test_outcomes_are_in_order():
    def failing():
        raise errors.EinsumError("no")

    first, second, third = side_by_side([lambda: 1, failing, lambda: 3])
    assert (first, third) == (1, 3)
    assert isinstance(second, errors.EinsumError)
    assert side_by_side([]) == []


def test_options_in_force_are_those_of_the_caller():
    with options.override(vector_bytes=16):
        assert side_by_side([lambda: options.current().vector_bytes] * 3) == [16] * 3


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_shows_what_takes_long(quiet, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setattr(import_module("sparsify.compiler.cpp.toolchain.side_by_side"), "QUIET_SECONDS", 0.0)
    with options.override(quiet=quiet):
        side_by_side([lambda: time.sleep(0.2)] * 2)
    shown = capsys.readouterr()
    assert ("building kernels" in shown.err) is not quiet
    assert (shown.err == "") is quiet
    assert shown.out == ""


@pytest.mark.skipif(
    len(__import__("os").sched_getaffinity(0)) < 2, reason="one core builds one after the other"
)
def test_tasks_meet():
    barrier = threading.Barrier(2)
    assert sorted(side_by_side([lambda: barrier.wait(60)] * 2)) == [0, 1]


def meeting(folder: Path) -> Path:
    """Compiler script that waits for another concurrent compiler."""
    script, real = folder / "c++", shutil.which("g++") or shutil.which("clang++")
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\n'
        f"touch {folder}/met.$$\nfor n in $(seq 200); do\n"
        f'  [ $(ls {folder} | grep -c "^met") -ge 2 ] && exec {real} "$@"\n  sleep 0.05\ndone\nexit 9\n'
    )
    script.chmod(0o755)
    return script


@pytest.mark.skipif(
    len(__import__("os").sched_getaffinity(0)) < 2, reason="one core builds one after the other"
)
def test_kernels_of_a_program_are_built_at_the_same_time(tmp_path, monkeypatch):
    A, X = sparsify.tensor(torch.eye(4), "csr"), torch.rand(4, 3)
    sparsify.einsum("ij,jk->ik", A, X)  # what binds kernels is there
    monkeypatch.setattr(cache, "_memory", cache._Memory())
    with options.override(cache_dir=tmp_path / "cache", compiler=str(meeting(tmp_path))):
        Y = sparsify.evaluate(PROGRAM, A=A, X=X)
    torch.testing.assert_close(Y, X)


def test_the_error_of_a_program_is_that_of_its_first_statement(tmp_path):
    A, X = sparsify.tensor(torch.eye(4), "csr"), torch.rand(4, 3)
    none = options.override(compiler=str(tmp_path / "none"), strict=True)
    with none, pytest.raises(errors.CompilerNotFoundError):
        sparsify.evaluate(PROGRAM, A=A, X=X)


INTERRUPTED = """
import signal
import sys
from sparsify import options
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.cpp.toolchain.side_by_side import side_by_side

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs tests in the background
sources = [f'extern "C" int sparsify_kernel() {{ return {n}; }}' for n in range(4)]
with options.override(compiler=sys.argv[1], cache_dir=sys.argv[2]):
    side_by_side([lambda source=source: cache.library(source) for source in sources])
"""


@pytest.mark.sampled(2)
@several_cores
def test_an_interrupt_stops_compilers_that_run(tmp_path):
    slow, folder = tmp_path / "c++", tmp_path / "cache"
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo slow\necho $$ >> {tmp_path}/met\nexec sleep 100\n'
    )
    slow.chmod(0o755)
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(slow), str(folder)], stderr=subprocess.PIPE, text=True
    )
    met = tmp_path / "met"
    while program.poll() is None and not (met.exists() and len(met.read_text().split()) >= 2):
        time.sleep(0.05)
    started = time.monotonic()
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)
    assert time.monotonic() - started < 30
    assert said.rstrip().endswith("KeyboardInterrupt")
    compilers = [int(word) for word in met.read_text().split()]
    assert len(compilers) <= len(os.sched_getaffinity(0))  # no other one was started
    for compiler in compilers:
        with pytest.raises(ProcessLookupError):
            os.kill(compiler, 0)
    assert list(folder.glob("build-*")) == []


def test_tasks_go_on_otherwise():
    assert side_by_side([is_stopped] * 2) == [False, False]
    assert not is_stopped()
