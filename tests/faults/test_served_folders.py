"""Attacks on folders with kernels: saves during loads, files of others, crafted graphs, models that were changed."""

import copy
import json
import pickle
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsify
from sparsify.compiler.cpp.call import foreign_call, trampoline
from sparsify.compiler.cpp.toolchain import cache, levels
from sparsify.errors import CaptureError, DataError, SparsifyError
from sparsify.passes import saved_folder
from sparsify.passes.served import load as loading

RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.75}}],
}
INPUT = torch.linspace(-1, 1, 64).reshape(4, 16)


class Scaled(nn.Module):
    """Layers, and a number that lies in the graph alone."""

    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.factor = nn.Linear(16, 32), nn.Linear(32, 16), factor
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(factor)

    def forward(self, x, scale=2.0):
        return self.last(torch.relu(self.first(x))) * self.factor * scale


def applied(factor):
    return sparsify.apply(Scaled(factor).eval(), RECIPE, (INPUT,), trainable=False)


@pytest.fixture(scope="module")
def models():
    """Two sparse models of a class, whose results differ."""
    with sparsify.options.override(tune_seconds=0, compiler_flags=("-O0",)):
        found = applied(1.0), applied(4.0)
        for sparse in found:
            sparse(INPUT)
        return found


@pytest.fixture(scope="module")
def saved(models, tmp_path_factory):
    """The folder of the first one; not to be changed."""
    return sparsify.save(models[0], tmp_path_factory.mktemp("served"), kernels=True)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def rewritten(folder, change):
    """Changes the text of graphs, with the sums that it has then."""
    path, told = folder / "graph.json", json.loads((folder / "manifest.json").read_text())
    path.write_text(change(path.read_text()))
    told["files"]["graph.json"] = asdict(saved_folder._file(path))
    (folder / "manifest.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("place", "name", "model"),
    [(loading, "stored_kernels", None), (saved_folder, "_recipe", Scaled)],
    ids=["without the class", "with the class"],
)
def test_a_save_during_a_load(models, folder, monkeypatch, place, name, model):
    usual, saves = getattr(place, name), []

    def after_a_save(*given):
        found = usual(*given)
        if not saves:
            saves.append(sparsify.save(models[1], folder, kernels=True))
        return found

    monkeypatch.setattr(place, name, after_a_save)
    loaded = sparsify.load(folder, model and model(4.0).eval())
    torch.testing.assert_close(loaded(INPUT), models[1](INPUT))
    assert saves


def test_saves_during_each_load(models, folder, monkeypatch):
    """The last attempt makes saves wait; here the save of the same thread would wait for itself."""
    usual, attempts = loading.restored, []

    def before_a_save(*given):
        found = usual(*given)
        attempts.append(found)
        if len(attempts) < 3:
            sparsify.save(models[1], folder, kernels=True)
        return found

    monkeypatch.setattr(loading, "restored", before_a_save)
    monkeypatch.setattr(saved_folder, "READS", 3)
    monkeypatch.setattr(saved_folder, "LOCK_SECONDS", 0.0)
    loaded = sparsify.load(folder)
    torch.testing.assert_close(loaded(INPUT), models[1](INPUT))
    assert len(attempts) == 3


def test_arrays_that_a_file_lacks(folder, tmp_path):
    mapped = loading.Mapped(folder / "weights.safetensors")
    with pytest.raises(DataError, match="lacks an array"):
        mapped("none")
    with pytest.raises(DataError, match=r"cannot read .*none"):
        loading.Mapped(tmp_path / "none")


def test_files_of_others_stay(models, tmp_path):
    graph, kernels = tmp_path / "graph.json", tmp_path / "kernels-0123456789abcdef"
    sparsify.save(models[0], tmp_path)
    graph.write_text("mine")
    kernels.mkdir()
    (kernels / "mine.so").write_text("mine")
    sparsify.save(models[0], tmp_path)
    assert graph.read_text() == "mine"
    with pytest.raises(DataError, match=r"holds graph.json, which is not of the model that was saved there"):
        sparsify.save(models[0], tmp_path, kernels=True)
    assert graph.read_text() == "mine"
    graph.unlink()
    sparsify.save(models[0], tmp_path, kernels=True)
    own = next(path for path in tmp_path.glob("kernels-*") if path != kernels)
    (own / "notes.txt").write_text("mine")
    sparsify.save(models[0], tmp_path)
    assert [path.name for path in own.iterdir()] == ["notes.txt"]
    assert [path.name for path in kernels.iterdir()] == ["mine.so"]
    assert not graph.exists()


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("step", range(6))
def test_a_save_that_ends_while_files_are_moved_is_finished_by_the_next(models, folder, monkeypatch, step):
    usual, moved = saved_folder.os.replace, []

    def replace(*given):
        if len(moved) == step:
            raise Killed
        moved.append(given)
        usual(*given)

    monkeypatch.setattr(saved_folder.os, "replace", replace)
    try:
        sparsify.save(models[1], folder, kernels=True)
    except Killed:
        torch.testing.assert_close(sparsify.load(folder)(INPUT), models[1](INPUT))
    monkeypatch.undo()
    sparsify.save(models[0], folder)
    assert {path.name for path in folder.iterdir()} == {"weights.safetensors", "recipe.yaml", "manifest.json"}


def test_kernels_that_the_manifest_does_not_name(folder, tmp_path):
    kernel = next(folder.glob("kernels-*/*.so"))
    outside = shutil.copy(kernel, tmp_path / "outside.so")
    rewritten(folder, lambda text: text.replace(kernel.name, str(outside)))
    with pytest.raises(DataError, match=r"outside.so, which is no file of its manifest"):
        sparsify.load(folder)
    assert str(outside) not in Path("/proc/self/maps").read_text()


CODE = "x=__import__('pathlib').Path('{}').touch()"


def with_argument(line, code):
    line[2] = code


def with_keyword(line, code):
    line[4][code.replace("=", "_")] = 1
    line[4][f"y, {code}, z"] = 1


def with_path(line, code):
    line[0], line[2] = "get_attr", f'"), {code.partition("=")[2]}, ("'


def with_function(line, code):
    line[0], line[2] = "call_function", {"function": [0, "from_file"]}
    line[3:5] = [code, False, 0], {}


@pytest.mark.parametrize("change", [with_argument, with_keyword, with_path, with_function])
def test_texts_of_graphs_are_no_code(folder, tmp_path, change):
    seen = tmp_path / "seen"

    def crafted(text):
        document = json.loads(text)
        for variant in document["variants"]:
            line = next(line for line in variant["graph"] if line[0] == "placeholder")
            change(line, CODE.format(seen))
        return json.dumps(document)

    rewritten(folder, crafted)
    with pytest.raises(DataError, match=r"another version: (ValueError|KeyError)"):
        sparsify.load(folder)
    assert not seen.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "{",
        lambda text: "[" * 100_000,
        lambda text: json.dumps({**json.loads(text), "held": None}),
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "tensors"}),
        lambda text: json.dumps({**json.loads(text), "tensors": {"first.weight": {"format": "CSR"}}}),
        lambda text: text.replace('"shape": [32, 16]', '"shape": [320000000, 160000000000]'),
    ],
    ids=["torn", "deep", "held", "tensors", "a tensor", "a shape"],
)
def test_crafted_graphs_beside_the_class(folder, change):
    rewritten(folder, change)
    with pytest.raises(SparsifyError):
        sparsify.load(folder, Scaled())


def test_copies_of_changed_models(models, folder):
    loaded = sparsify.load(folder)
    loaded(INPUT)
    loaded.to("cpu").float()
    assert torch.equal(copy.deepcopy(loaded)(INPUT), loaded(INPUT))
    with torch.no_grad():
        loaded.first.bias.add_(1.0)
    for made in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(DataError, match=r"first.bias was changed after the model was loaded"):
            made(loaded)
    loaded = sparsify.load(folder)
    loaded.last.bias = nn.Parameter(torch.zeros(16))
    with pytest.raises(DataError, match=r"last.bias was changed"):
        copy.deepcopy(loaded)


def test_copies_of_models_whose_folder_holds_another(models, folder):
    loaded = sparsify.load(folder)
    sparsify.save(models[0], folder, kernels=True)
    sent = pickle.dumps(loaded)
    assert torch.equal(pickle.loads(sent)(INPUT), models[0](INPUT))
    sparsify.save(models[1], folder, kernels=True)
    for made in (copy.deepcopy, lambda _: pickle.loads(sent)):
        with pytest.raises(DataError, match="holds another model than when this one was loaded"):
            made(loaded)


def support(folder):
    """The functions that the folder of a model has beside kernels."""
    found = json.loads((folder / "graph.json").read_text())["support"]["native"]
    return {symbol for _, symbol in found.values()}


def test_processes_that_load_save_what_lies_beside_kernels(models, saved, folder, tmp_path, monkeypatch):
    assert trampoline.SYMBOL in support(saved)
    monkeypatch.setattr(cache, "_memory", cache._Memory())  # as in a process that has compiled nothing
    foreign_call._trampolines.cache_clear()
    sparsify.load(folder)(INPUT)
    cache._memory.texts["int partition;", "sparsify_propagate"] = next(iter(cache._memory.supplied.values()))
    assert support(sparsify.save(models[1], tmp_path / "second", kernels=True)) == {trampoline.SYMBOL}
    shutil.rmtree(folder)
    third = sparsify.save(models[1], tmp_path / "third", kernels=True)
    assert support(third) == {trampoline.SYMBOL}
    torch.testing.assert_close(sparsify.load(third)(INPUT), models[1](INPUT))


def test_errors_name_kinds_of_calls(folder):
    loaded = sparsify.load(folder)
    for call, text in {
        lambda: loaded(INPUT[:1]): r"where \w+ are 2 or more, and 1 is of a kind of its own",
        lambda: loaded(INPUT, scale=2.0): r"an argument that is given .*, also where it is the default",
    }.items():
        with pytest.raises(CaptureError, match=text):
            call()


def test_sets_of_old_cpus_count(monkeypatch):
    known = frozenset(("sse2", "fma4", "xop", "tbm"))
    monkeypatch.setattr(levels.target, "instructions", lambda: known)
    saved = levels.own_sets()
    monkeypatch.setattr(levels.target, "instructions", lambda: frozenset(("sse2",)))
    assert levels.lacking(levels.NATIVE, saved) == ["fma4", "tbm", "xop"]
