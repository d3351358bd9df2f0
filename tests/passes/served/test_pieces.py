"""Models in pieces in folders: kernels and decisions of pieces, for a load with the class."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.cpp.toolchain import cache, levels
from sparsify.errors import CaptureError, DataError
from sparsify.passes.dynamo import pieces
from sparsify.passes.module import capture_call, piecewise
from sparsify.passes.served import pieces as stored

RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.8}}],
}
INPUT = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)
CAPTURED = "ignore:.*torch.export cannot capture:RuntimeWarning"
pytestmark = pytest.mark.filterwarnings(CAPTURED)


class Branching(nn.Module):
    """Two layers; between them the data decides in Python."""

    def __init__(self, outputs=32):
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, outputs)

    def forward(self, x):
        h = torch.relu(self.first(x))
        if h.max().item() > 1:
            h = h / 2
        return self.second(h)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The result of a model in pieces, its source model, and its folder."""
    torch.manual_seed(0)
    with options.override(tune_seconds=0), pytest.warns(RuntimeWarning, match="2 of the 2 pieces"):
        sparse = sparsify.apply(Branching().eval(), RECIPE, (INPUT,), trainable=False)
    folder = sparsify.save(sparse, tmp_path_factory.mktemp("pieces"), kernels=True)
    return sparse, folder


@pytest.fixture
def nothing_is_decided(monkeypatch):
    """Captures, timings and builds fail."""

    def refuse(*_, **__):
        raise AssertionError("a decision is made anew")

    monkeypatch.setattr(pieces.Piece, "chosen", refuse)
    monkeypatch.setattr(capture_call, "draft_of", refuse)
    monkeypatch.setattr(piecewise, "runs_natively", refuse)
    monkeypatch.setattr(cache, "_known_or_made", refuse)


@pytest.mark.usefixtures("nothing_is_decided")
def test_the_class_with_a_folder_of_kernels(saved):
    sparse, folder = saved
    loaded = sparsify.load(folder, Branching(), (INPUT,), kernels=True)
    assert torch.equal(loaded(INPUT), sparse(INPUT))
    assert loaded.report.pieces == sparse.report.pieces
    assert [region.einsum for region in loaded.report.regions] == [r.einsum for r in sparse.report.regions]
    with torch.no_grad():
        other = loaded(INPUT[:5])
    torch.testing.assert_close(other, sparse(INPUT[:5]))


@pytest.mark.sampled(4)
def test_no_compiler_and_no_cache_are_needed(saved, tmp_path):
    sparse, folder = saved
    torch.save((INPUT, sparse(INPUT).detach()), tmp_path / "expected.pt")
    code = """
        import sys, torch
        import sparsify
        from test_pieces import Branching

        x, expected = torch.load(sys.argv[2])
        assert torch.equal(sparsify.load(sys.argv[1], Branching(), kernels=True)(x), expected)
    """
    known = {
        **os.environ,
        "PATH": "",
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))),
        "SPARSIFY_CACHE_DIR": str(tmp_path / "none"),
        "CXX": "",
        "SPARSIFY_CXX": "",
    }
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(folder), str(tmp_path / "expected.pt")]
    ran = subprocess.run(arguments, env=known, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not list((tmp_path / "none").rglob("*.so"))


def test_a_folder_in_pieces_needs_the_class(saved):
    text = r"Branching in pieces: .*Python code.*sparsify.load\(folder, model, kernels=True\)"
    with pytest.raises(DataError, match=text):
        sparsify.load(saved[1])


def test_without_kernels_only_data_is_read(saved, monkeypatch):
    def refuse(*_):
        raise AssertionError("a shared object of the folder is loaded")

    monkeypatch.setattr(stored, "stored_kernels", refuse)
    with options.override(tune_seconds=0):
        loaded = sparsify.load(saved[1], Branching(), (INPUT,))
        torch.testing.assert_close(loaded(INPUT), saved[0](INPUT))


def test_kernels_of_a_folder_without_pieces(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32)).eval()
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(model, RECIPE, (INPUT,), trainable=False)
        folder = sparsify.save(sparse, tmp_path, kernels=True)
    with pytest.raises(DataError, match="has no kernels of pieces of a Sequential"):
        sparsify.load(folder, nn.Sequential(nn.Linear(64, 32)), kernels=True)


def test_weights_changed_after_the_load(saved):
    with options.override(tune_seconds=0):
        loaded = sparsify.load(saved[1], Branching(), kernels=True)
        with torch.no_grad():
            loaded.second.weight.mul_(2)
        expected = loaded._source(INPUT)
        torch.testing.assert_close(loaded(INPUT), expected)
        assert not torch.allclose(expected, saved[0](INPUT))
        with torch.no_grad():
            loaded.second.bias.add_(1)
        torch.testing.assert_close(loaded(INPUT), expected + 1)


def test_dense_weights_are_those_of_the_model(saved):
    loaded = sparsify.load(saved[1], Branching(), (INPUT,), kernels=True)
    expected = loaded(INPUT)
    with torch.no_grad():
        loaded.second.bias.add_(1)
    torch.testing.assert_close(loaded(INPUT), expected + 1)
    loaded(INPUT).sum().backward()
    assert loaded._source.second.bias.grad is not None


@pytest.mark.sampled(2)
def test_copies_and_pickles(saved):
    with options.override(tune_seconds=0):
        loaded = sparsify.load(saved[1], Branching(), (INPUT,), kernels=True)
        for other in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
            torch.testing.assert_close(other(INPUT), saved[0](INPUT))


@pytest.mark.sampled(2)
def test_kernels_for_another_cpu(saved, monkeypatch):
    monkeypatch.setattr(levels.target, "instructions", lambda: frozenset(("sse2",)))
    with pytest.warns(RuntimeWarning, match="they are for other CPUs"):
        loaded = sparsify.load(saved[1], Branching(), kernels=True)
    monkeypatch.undo()
    with options.override(tune_seconds=0):
        torch.testing.assert_close(loaded(INPUT), saved[0](INPUT))


def test_a_missing_kernel(saved, tmp_path):
    folder = shutil.copytree(saved[1], tmp_path / "copy")
    next(folder.glob("kernels-*/*.so")).unlink()
    with pytest.raises(DataError, match="No such file"):
        sparsify.load(folder, Branching(), kernels=True)


def test_calls_of_the_source_model_are_refused(tmp_path, monkeypatch):
    def slower(*_):
        raise CaptureError("they take longer")

    monkeypatch.setattr(piecewise, "tried", slower)
    with pytest.warns(RuntimeWarning, match="they take longer"):
        sparse = sparsify.apply(Branching().eval(), RECIPE, (INPUT,), trainable=False)
    with pytest.raises(DataError, match=r"run code of the model, which no file holds.*load\(folder, model\)"):
        sparsify.save(sparse, tmp_path, kernels=True)
    assert not any(tmp_path.iterdir())


class Repeated(nn.Module):
    """Blocks whose graphs look alike."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Branching(64) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.sampled(2)
def test_repeated_blocks_and_further_kinds_of_calls(tmp_path, request):
    """Pieces with equal graphs are told apart by their weights; biases of several kinds are in the file once."""
    torch.manual_seed(0)
    with options.override(tune_seconds=0), torch.no_grad():
        sparse = sparsify.apply(Repeated().eval(), RECIPE, (INPUT,), trainable=False)
        for rows in (8, 5, 1):
            sparse(INPUT[:rows])
        folder = sparsify.save(sparse, tmp_path, kernels=True)
        request.getfixturevalue("nothing_is_decided")
        loaded = sparsify.load(folder, Repeated(), (INPUT,), kernels=True)
        for rows in (8, 5):
            torch.testing.assert_close(loaded(INPUT[:rows]), sparse(INPUT[:rows]))
        with pytest.raises(DataError, match="has the kernels of a folder"):
            sparsify.save(loaded, tmp_path / "again", kernels=True)
