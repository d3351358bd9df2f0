"""What goes wrong around the compiler, seen from an applied model: right answers, and one clear warning."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, graph

from sparsify import errors, options
from sparsify.compiler.cpp.toolchain import cache, cache_directory
from sparsify.compiler.kernel import substitute
from sparsify.passes.apply import apply

OTHER = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, graph
from sparsify.passes.apply import apply
torch.manual_seed(0)
model = TwoLayers(HandWritten).eval()
sparse = apply(model, MESSAGES, graph(), strict=True)
print(torch.allclose(sparse(*graph()), model(*graph()), atol=1e-5), sparse.report.regions[0].cache)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A process without kernels, an empty cache in `folder/cache`."""
    monkeypatch.setattr(cache, "_memory", cache._Memory())
    monkeypatch.setattr(cache_directory, "_given_up", {})
    monkeypatch.setattr(substitute, "_announced", set())
    with options.override(cache_dir=tmp_path / "cache"):
        yield tmp_path


def compiler(folder: Path, *, before: str) -> Path:
    """A compiler that runs `before` in the shell, then the real one."""
    script = folder / "c++"
    real = shutil.which("g++") or shutil.which("clang++")
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\n'
        f'echo "$$" >> {folder}/runs\n{before}\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    return script


def applied(*, training: bool = False, **arguments):
    """Model and result of `apply`, and the warnings on the way, two calls and a backward pass included."""
    torch.manual_seed(0)
    model = TwoLayers(HandWritten).train(training)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sparse = apply(model, MESSAGES, graph(), **arguments)
        for inputs in (graph(), graph(31, 90, seed=2)):
            if training:
                sparse.verify_gradients(*inputs)
            else:
                torch.testing.assert_close(sparse(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    return sparse, [str(warning.message) for warning in caught]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True])
def test_no_compiler_on_the_path(folder, monkeypatch, training):
    monkeypatch.setenv("PATH", str(folder))
    sparse, said = applied(training=training)
    assert len(said) == 1
    assert "torch's operators compute in place of kernels" in said[0]
    assert "apt-get install g++" in said[0]
    assert [(region.kernel, region.cache) for region in sparse.report.regions] == [("torch", "none")] * 2
    assert "no C++ compiler" in sparse.report.regions[0].notes[-1]
    assert not sparse.report.dense
    with pytest.raises(errors.CompilerNotFoundError):
        applied(strict=True)


@pytest.mark.sampled(3)
def test_no_compiler_for_the_gradients_alone(folder, monkeypatch):
    applied()  # the kernels of forward are on disk now
    monkeypatch.setattr(cache, "_memory", cache._Memory())
    monkeypatch.setenv("PATH", str(folder))
    with options.override(compiler_flags=()) as current:
        assert current.cache_dir == folder / "cache"
        sparse, said = applied(training=True)
    assert len(said) == 1
    assert "torch's operators compute in place of kernels" in said[0]
    assert len(sparse.report.regions) == 2


@pytest.mark.sampled(3)
def test_gradients_in_evaluation_without_a_compiler(folder, monkeypatch):
    model = TwoLayers(HandWritten).eval()
    sparse, strict = (apply(model, MESSAGES, graph(), strict=strict) for strict in (False, True))
    monkeypatch.setenv("PATH", str(folder))
    with pytest.warns(RuntimeWarning, match="torch's operators compute in place of kernels") as said:
        sparse.verify_gradients(*graph())
    assert len(said) == 1
    sparse.verify_gradients(*graph(31, 90, seed=2))
    calls = sparse.variants[0].regions
    assert all(call.failure is None and call.gradient_failure is None for call in calls)
    assert all(call.kernel.failure is None for call in calls), "kernels go on computing the results"
    with torch.no_grad():
        torch.testing.assert_close(sparse(*graph()), model(*graph()), rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.CompilerNotFoundError):
        strict.verify_gradients(*graph())


@pytest.mark.sampled(2)
def test_images_of_another_size_without_a_compiler(folder, monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3)).eval()
    few = {"targets": ["param:0.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.9}}
    recipe = {"schema": 1, "name": "pruned", "sparsify": [few]}
    image, other = torch.randn(1, 8, 9, 9), torch.randn(1, 8, 12, 12)
    with torch.no_grad(), options.override(tune_seconds=0):
        sparse, strict = (apply(model, recipe, image, strict=strict) for strict in (False, True))
        shutil.rmtree(folder / "cache")
        monkeypatch.setattr(cache, "_memory", cache._Memory())
        monkeypatch.setenv("PATH", str(folder))
        with pytest.warns(RuntimeWarning, match="torch's operators compute in place of kernels"):
            found = sparse(other)
        torch.testing.assert_close(found, sparse.original(other))
        torch.testing.assert_close(sparse(other), found)  # without another warning
        (call,) = sparse.variants[0].regions
        assert call.failure is None, "images of the example's size have their kernel"
        torch.testing.assert_close(sparse(image), sparse.original(image))
        with pytest.raises(errors.CompilerNotFoundError):
            strict(other)


@pytest.mark.sampled(3)
def test_second_gradients_are_those_of_the_dense_model(folder):
    model = TwoLayers(HandWritten).eval()
    x, edges = graph()
    x.requires_grad_()
    sparse = apply(model, MESSAGES, (x, edges))
    for _ in range(2):  # the first time, and when kernels of gradients are known
        found = []
        for run in (sparse, model):
            (first,) = torch.autograd.grad(run(x, edges).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), x)[0])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strict", [False, True])
def test_home_that_cannot_be_written(folder, strict):
    (folder / "home").write_text("a file, where no directory can be made")
    with options.override(cache_dir=folder / "home" / "cache"):
        sparse, said = applied(strict=strict)
    assert len(said) == 1
    assert "cannot be used" in said[0]
    assert len(sparse.report.regions) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strict", [False, True])
def test_full_disk(folder, strict):
    full = f'case "$*" in *{folder}/cache*) echo "ld: No space left on device" >&2; exit 1;; esac'
    with options.override(compiler=str(compiler(folder, before=full))):
        sparse, said = applied(strict=strict)
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert len(sparse.report.regions) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "before, error",
    [
        ("echo 'ld: No space left on device' >&2; exit 1", errors.CacheError),
        ("kill -9 $$", errors.BuildError),
    ],
    ids=["no space anywhere", "killed"],
)
def test_builds_that_always_fail(folder, before, error):
    with options.override(compiler=str(compiler(folder, before=before))):
        sparse, said = applied()
        with pytest.raises(error):
            applied(strict=True)
    assert [region.kernel for region in sparse.report.regions] == ["torch"] * 2
    assert sum("torch's operators compute in place of kernels" in text for text in said) == 1


def other_process(folder: Path, cxx: Path) -> "subprocess.Popen[str]":
    """A process that applies the same model with this compiler and this cache."""
    environment = {**os.environ, "SPARSIFY_CACHE_DIR": str(folder / "cache"), "SPARSIFY_CXX": str(cxx)}
    command = [sys.executable, "-c", OTHER, str(Path(__file__).parents[1])]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def wait_for_a_run(folder: Path) -> int:
    """The process of the first compiler that ran."""
    end = time.monotonic() + 120
    while not (folder / "runs").exists():
        assert time.monotonic() < end, "no compiler ran"
        time.sleep(0.02)
    return int((folder / "runs").read_text().split()[0])


@pytest.mark.sampled(4)
def test_two_processes_compile_the_same_kernel(folder):
    cxx = compiler(folder, before="sleep 0.5")
    other = other_process(folder, cxx)
    wait_for_a_run(folder)
    with options.override(compiler=str(cxx)):
        sparse, said = applied(strict=True)
    out, _ = other.communicate(timeout=120)
    assert out.split()[0] == "True"
    assert not said
    kernels = list((folder / "cache" / "kernels").glob("*.so"))
    assert len((folder / "runs").read_text().split()) == len(kernels), "nothing was compiled twice"
    assert len(sparse.report.regions) == 2


@pytest.mark.sampled(6)
def test_a_process_killed_while_compiling(folder):
    cxx = compiler(folder, before=f"[ -e {folder}/slow ] && sleep 60")
    (folder / "slow").touch()
    other = other_process(folder, cxx)
    hanging = wait_for_a_run(folder)
    other.kill()
    other.communicate()
    (folder / "slow").unlink()
    try:
        with options.override(compiler=str(cxx)):
            sparse, said = applied(strict=True)
    finally:
        os.killpg(hanging, signal.SIGKILL)
    assert not said
    assert len(sparse.report.regions) == 2


class Counting(torch.nn.Module):
    """Writes into what it is given; a graph cannot hold it where `decides`."""

    def __init__(self, decides):
        super().__init__()
        self.decides = decides

    def forward(self, x, edge_index, count):
        if not self.decides or x.sum() > -1:
            count.add_(1)
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) + count


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Counting")
@pytest.mark.parametrize("decides", [False, True])
def test_a_call_writes_once_into_what_it_brings(decides):
    sparse, count = apply(Counting(decides), MESSAGES), torch.zeros(1)
    x, edge_index = graph()
    for calls in (1, 2):  # the first one is captured, or refused, and compared
        found = sparse(x, edge_index, count)
        assert count.item() == calls
    torch.testing.assert_close(found, Counting(decides)(x, edge_index, torch.ones(1)), rtol=1e-4, atol=1e-5)
    apply(Counting(decides), MESSAGES, (x, edge_index, count))
    assert count.item() == 2
