"""The compiler toolchain: discovery, runs, refusals, timeouts; kernels run on the threads of torch."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain import build
from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.errors import BuildError, CompilerNotFoundError
from sparsify.options import Options, override
from sparsify.runtime import openmp
from tests.compiler.cpp.tiny_kernels import compiler, constant, kernel, result, runs

COMPILERS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed here")
    )
    for name in ("g++", "clang++")
]
OPENMP = """\
extern "C" int omp_get_thread_num() noexcept;
extern "C" int omp_get_num_threads() noexcept;
extern "C" int omp_get_max_threads() noexcept;
static void note(int64_t *seen, int64_t start, int thread, int threads) {
  seen[thread] = start + threads;
}
"""
# Writes, for each thread of a region, a number and how many there are; then what torch asked for.
NOTE_THREADS = """\
int64_t *seen = (int64_t *)buffers[0], start = sizes[0];
#pragma omp parallel num_threads((int)context->threads)
  note(seen, start, omp_get_thread_num(), omp_get_num_threads());
  seen[7] = omp_get_max_threads();"""


@pytest.fixture
def three_threads() -> Iterator[None]:
    """`torch.set_num_threads(3)` inside the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_no_compiler_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        CompilerNotFoundError, match=r"none of g\+\+, clang\+\+, c\+\+ is on the PATH; .*apt-get"
    ):
        build.find_compiler(Options())


def test_named_compiler_is_missing() -> None:
    with pytest.raises(CompilerNotFoundError, match=r"icx-99 is not a program on the PATH; .*SPARSIFY_CXX"):
        build.find_compiler(Options(compiler="icx-99"))


def test_first_of_the_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = []
    for name in reversed(build.NAMES):
        compiler(tmp_path, name=name)
        monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path}/{name}")
        found.append(str(build.find_compiler(Options())))
    assert found == [f"{tmp_path / name} (script 1)" for name in reversed(build.NAMES)]


@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("width", [16, 32, 64])
def test_vectors_of_any_width_run(name: str, width: int) -> None:
    before = (
        f'#pragma GCC diagnostic ignored "-Wpsabi"\n'
        f"typedef float vector __attribute__((vector_size({width}), aligned(4), may_alias));\n"
    )
    source = kernel("*(vector *)buffers[0] += 2.0f * *(vector *)buffers[1];", before)
    lanes = width // 4
    x, y = torch.arange(20.0), torch.ones(20)
    with override(compiler=name):
        foreign_call.call(library(source), (), (x, y), 1)
    assert torch.equal(x, torch.arange(20.0) + 2 * (torch.arange(20) < lanes))


@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.usefixtures("three_threads")
def test_one_pool_of_threads(name: str) -> None:
    seen = torch.zeros(8, dtype=torch.int64)
    with override(compiler=name):
        foreign_call.call(library(kernel(NOTE_THREADS, OPENMP)), (100,), (seen,), 4)
    assert seen.tolist() == [104, 104, 104, 104, 0, 0, 0, 3]
    assert openmp.loaded() == [str(openmp.path())]


@pytest.mark.sampled(2)
def test_kernel_loaded_before_torch() -> None:
    made = library(kernel(NOTE_THREADS, OPENMP))
    program = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); import torch\n"
        "from sparsify.runtime import openmp; print(*openmp.loaded())"
    )
    line = [sys.executable, "-c", program, str(made.path)]
    out = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(openmp.path())]


def test_refused_code_names_command_output_and_source() -> None:
    source = kernel("this is no C++;")
    with pytest.raises(BuildError) as caught:
        library(source)
    text = str(caught.value)
    assert "ended with status 1" in text
    assert "-O3" in text
    assert "error" in text
    kept = Path(text.split("the source is in ")[1].split(";")[0])
    assert kept.read_text() == source


def test_long_output_is_cut(tmp_path: Path) -> None:
    cxx = compiler(tmp_path, "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; exit 3")
    with override(compiler=str(cxx)), pytest.raises(BuildError, match="ended with status 3") as caught:
        library(constant(1))
    assert f"line {build.SHOWN_LINES - 1}\n" in str(caught.value)
    assert f"line {build.SHOWN_LINES}\n" not in str(caught.value)


def test_hanging_compiler_is_stopped_with_its_children(tmp_path: Path) -> None:
    cxx = compiler(tmp_path, f"sleep 60 & echo $! >> {tmp_path}/log; wait")
    started = time.perf_counter()
    with (
        override(compiler=str(cxx), compiler_timeout=0.3),
        pytest.raises(BuildError, match=r"took longer than 0\.3 s and was stopped"),
    ):
        library(constant(2))
    assert time.perf_counter() - started < 10
    # The compiler and its child, for the kernel and for an empty program.
    assert len(runs(tmp_path)) == 4
    assert not [process for process in runs(tmp_path) if is_running(process)]


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    status = Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_program_that_is_no_compiler(tmp_path: Path) -> None:
    cxx = tmp_path / "cxx"
    cxx.write_bytes(b"\x7fELF nonsense")
    cxx.chmod(0o755)
    with pytest.raises(CompilerNotFoundError, match="does not run"):
        build.find_compiler(Options(compiler=str(cxx)))


def test_function_that_does_not_exist() -> None:
    source = kernel("sparsify_no_such_function();", 'extern "C" void sparsify_no_such_function();')
    with pytest.raises(BuildError, match="undefined symbol: sparsify_no_such_function"):
        library(source)


def test_unit_without_kernel() -> None:
    with pytest.raises(BuildError, match="undefined symbol: sparsify_kernel"):
        library("int other() { return 1; }\n")


@pytest.mark.bench
def test_time_to_a_loaded_kernel() -> None:
    result(library(constant(0)))
    seconds = []
    for number in range(9):
        started = time.perf_counter()
        result(library(f"// {os.getpid()}\n{constant(1000 + number)}"))
        seconds.append(time.perf_counter() - started)
    assert sorted(seconds)[4] < 0.25
