"""Sparse models in folders: what is written, read back, and refused."""

import json

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, graph
from safetensors.torch import load_file
from torch import nn

import sparsify
from sparsify.errors import DataError, RecipeError
from sparsify.passes.save import distinct


@pytest.fixture
def saved(tmp_path):
    """A saved model, its results and its folder."""
    torch.manual_seed(0)
    sparse = sparsify.apply(TwoLayers(HandWritten).eval(), MESSAGES, trainable=False)
    folder = sparsify.save(sparse, tmp_path / "new" / "model")
    return sparse, folder


def test_what_is_loaded_computes_the_same(saved):
    sparse, folder = saved
    assert {path.name for path in folder.iterdir()} == {
        "weights.safetensors",
        "recipe.yaml",
        "manifest.json",
    }
    other = TwoLayers(HandWritten)
    loaded = sparsify.load(folder, other)
    assert not loaded.training
    assert loaded._request.trainable is False
    assert torch.equal(loaded(*graph()), sparse(*graph()))
    assert len(loaded.report.regions) == 2
    assert dict(other.state_dict()).keys() == load_file(folder / "weights.safetensors").keys()


def test_arguments_of_apply_can_change(saved):
    _, folder = saved
    assert sparsify.load(folder, TwoLayers(HandWritten), strict=True)._request.strict is True


def test_kinds_of_calls_are_captured_when_a_model_is_loaded(saved):
    _, folder = saved
    loaded = sparsify.load(folder, TwoLayers(HandWritten), warmup=[{"inputs": graph()}])
    assert len(loaded.variants) == 1


@pytest.mark.parametrize("name", ["recipe", "pruning", "strickt"])
def test_arguments_that_load_has_not(saved, name):
    _, folder = saved
    with pytest.raises(TypeError, match=rf"load\(\) got an unexpected keyword argument '{name}'"):
        sparsify.load(folder, TwoLayers(HandWritten), **{name: None})


def test_tied_weights_are_stored_once():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    tensors, tied = distinct(model.state_dict())
    assert sorted(tensors) == ["0.bias", "0.weight"]
    assert tied == {"2.weight": "0.weight", "2.bias": "0.bias"}


def test_a_model_of_another_size(saved):
    _, folder = saved
    with pytest.raises(DataError, match=r"of a TwoLayers, do not fit this TwoLayers: (?s:.*)size mismatch"):
        sparsify.load(folder, TwoLayers(HandWritten, hidden=5))


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("manifest.json", None, DataError, "holds no saved sparse model"),
        ("manifest.json", "{", DataError, "holds no saved sparse model"),
        ("manifest.json", json.dumps({"layout": 99}), DataError, "layout that this version does not know"),
        ("weights.safetensors", "short", DataError, "cannot read .*weights.safetensors"),
        ("weights.safetensors", None, DataError, "cannot read .*weights.safetensors"),
        ("recipe.yaml", "schema: 1\nname: x\nspars: []\n", RecipeError, "recipe.yaml:3"),
    ],
)
def test_damaged_folders(saved, name, text, error, words):
    _, folder = saved
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    with pytest.raises(error, match=words):
        sparsify.load(folder, TwoLayers(HandWritten))


def test_recipes_read_back_equal(tmp_path):
    for name in ("gcn", MESSAGES):
        module = sparsify.apply(nn.Linear(2, 2), name)
        folder = sparsify.save(module, tmp_path / "again")
        loaded = sparsify.load(folder, nn.Linear(2, 2))
        assert loaded._request.recipe.model_dump() == module._request.recipe.model_dump()
