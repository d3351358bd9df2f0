"""Several kernels at once: order, errors, options, and that compilers run at the same time."""

import os
import shutil
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

import sparsify
from sparsify import errors, options
from sparsify.compiler.cpp import cache
from sparsify.compiler.side_by_side import side_by_side

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
    monkeypatch.setattr(import_module("sparsify.compiler.side_by_side"), "QUIET_SECONDS", 0.0)
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
    """A compiler that waits for another one that runs at the same time."""
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
    with options.override(compiler=str(tmp_path / "none")), pytest.raises(errors.CompilerNotFoundError):
        sparsify.evaluate(PROGRAM, A=A, X=X)
