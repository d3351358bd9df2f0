"""Weights in the cache: found again, told apart, never trusted when broken."""

import pytest
import torch

from sparsify import options
from sparsify.models import checkpoint, inputs, registry
from sparsify.models.data.synthetic import synthetic
from sparsify.models.train import Settings
from sparsify.models.trained import trained


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with options.override(cache_dir=tmp_path):
        yield


@pytest.fixture(scope="module")
def graph():
    return synthetic(nodes=120, edges=400, features=20)


def obtain(graph, *, seed=0, retrain=False, **arguments):
    entry = registry.find("gcn")
    example = inputs.example_inputs(entry, graph)
    settings = Settings(epochs=3, seed=seed)
    return trained(entry, arguments, graph, example, settings, note="short", retrain=retrain)


@pytest.mark.sampled(2)
def test_second_run_reuses_the_weights(graph):
    first, again = obtain(graph), obtain(graph)
    assert (first.reused, again.reused) == (False, True)
    assert again.training == first.training
    for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not again.model.training


def test_retrain_trains(graph):
    obtain(graph)
    assert not obtain(graph, retrain=True).reused


@pytest.mark.parametrize("change", [{"seed": 1}, {"hidden": 8}, {"dropout": 0.1}], ids=str)
def test_other_settings_have_other_weights(graph, change):
    obtain(graph)
    assert not obtain(graph, **change).reused


def test_other_data_have_other_weights(graph):
    obtain(graph)
    assert not obtain(synthetic(nodes=120, edges=400, features=20, seed=1)).reused


@pytest.mark.parametrize("content", [b"", b"not weights", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_broken_file_is_trained_over(graph, content):
    file = obtain(graph).file
    file.write_bytes(content)
    assert not obtain(graph).reused
    assert obtain(graph).reused


def test_file_holds_plain_tensors(graph):
    file = obtain(graph).file
    assert file.suffix == ".safetensors"
    model = registry.find("gcn").build(20, 3, {}, seed=5)
    assert checkpoint.read(file, model) is not None


def test_weights_of_another_shape_are_refused(graph):
    file = obtain(graph).file
    assert checkpoint.read(file, registry.find("gcn").build(20, 3, {"hidden": 4})) is None
