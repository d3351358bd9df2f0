"""`sparsify run`: the table, JSON and exit status."""

import json
from importlib import import_module

import pytest

from sparsify import options
from sparsify.errors import ENVIRONMENT, FINE, USAGE, DataError
from sparsify.models import data
from sparsify.models.data import planetoid
from sparsify.models.data.synthetic import synthetic


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with options.override(cache_dir=tmp_path / "cache"):
        yield


@pytest.fixture
def small(monkeypatch):
    graph = synthetic(nodes=200, edges=800, features=50)
    monkeypatch.setattr(data, "load", lambda name, root, seed: graph)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gcnn",), "there is no model 'gcnn'; did you mean gcn?"),
        (("gcn", "hiden=3"), "nothing here has an argument 'hiden'"),
        (("gcn", "hidden"), "'hidden' is no argument; write key=value"),
        (("gcn", "epochs=many"), "epochs='many': a whole number is wanted"),
        (("gcn", "--seed", "-1"), "the seed -1; a whole number from 0"),
        (("gcn", "--dataset", "corra"), "did you mean 'cora'?"),
        (("mlp", "--dataset", "cora"), "mlp does not run on 'cora'"),
        (("mlp", "epochs=3"), "nothing here has an argument 'epochs'"),
        (("mlp", "layers=1"), "mlp cannot be built with"),
        (
            ("mlp", "--sparse-weights", "3:2"),
            "3 of 2 neighbours cannot stay and leave zeros; a share of zeros",
        ),
        (("mlp", "--sparse-weights", "1.5"), "a share of zeros is at least 0 and below 1"),
        (("mlp", "--sparse-weights", "half"), "--sparse-weights half: no such pattern is known"),
        (
            ("gcn", "--batch", "3"),
            "--batch 3: gcn has no such size; it is for mlp, bert, vit, autoencoder, dlrm, resnet50, "
            "gpt, gpt-40m, resnet20, lenet5, lenet300, minilm",
        ),
        (("mlp", "--seq", "3"), "--seq 3: mlp has no such size; it is for bert, gpt, gpt-40m, minilm"),
        (("mlp", "--batch", "0"), "--batch 0: at least 1 is wanted"),
    ],
    ids=str,
)
def test_usage(cli, arguments, message):
    outcome = cli("run", *arguments)
    assert outcome.status == USAGE
    assert message in outcome.err
    assert outcome.out == ""


def test_arguments_that_the_model_refuses(cli, small):
    outcome = cli("run", "gcn", "hidden=-1")
    assert outcome.status == USAGE
    assert "gcn cannot be built with hidden=-1" in outcome.err


def test_missing_data(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(planetoid, "URL", "http://127.0.0.1:9")
    outcome = cli("run", "gcn", "--dataset", "cora", "--data-root", tmp_path)
    assert outcome.status == ENVIRONMENT
    assert "Cora is not here" in outcome.err
    assert "--dataset synthetic" in outcome.err


@pytest.mark.sampled(2)
def test_quiet_runs_show_no_progress(cli, small, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setattr(import_module("sparsify.compiler.cpp.toolchain.side_by_side"), "QUIET_SECONDS", 0.0)
    outcome = cli("run", "gcn", "epochs=1", "hidden=8", "--quiet")
    assert outcome.status == FINE
    assert outcome.err == ""
    assert "verified" in outcome.out


@pytest.mark.sampled(2)
def test_prints_one_table(cli, small):
    outcome = cli("run", "gcn", "epochs=2", "hidden=8")
    assert outcome.status == FINE
    for part in ("test accuracy", "largest error", "median of a pass", "kernels", "verified"):
        assert part in outcome.out


@pytest.mark.sampled(3)
def test_json(cli, small, tmp_path):
    outcome = cli("run", "gcn", "epochs=2", "hidden=8", "--json", "--out", tmp_path / "out")
    assert outcome.status == FINE
    read = json.loads(outcome.out)
    assert (read["schema"], read["verified"], read["arguments"]["hidden"]) == (1, True, 8)
    assert read["ratio"] > 0
    assert json.loads((tmp_path / "out/result.json").read_text())["report"]["schema"] == 1


def test_a_model_is_saved_and_served(cli, tmp_path):
    folder = tmp_path / "served"
    outcome = cli("run", "mlp", "hidden=64", "features=32", "--batch", "4", "--save", folder)
    assert outcome.status == FINE, outcome.err
    table = cli("run", folder)
    assert table.status == FINE, table.err
    for part in ("MLP with", "weights", "load", "call 4x32", "the first"):
        assert part in table.out
    read = json.loads(cli("run", folder, "--json").out)
    assert (read["schema"], read["model"], read["levels"]) == (1, "MLP", ["native"])
    assert read["kinds"][0]["median_ms"] > 0


def test_what_a_folder_does_not_take(cli, tmp_path):
    outcome = cli("run", tmp_path, "--batch", "3")
    assert outcome.status == USAGE
    assert f"--batch is for models that are made sparse now, and {tmp_path} is a saved one" in outcome.err
    assert "holds no saved sparse model" in cli("run", tmp_path).err


def test_folders_with_names_of_models(cli, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gcn", "mine"):
        (tmp_path / name).mkdir()
    assert cli("run", "gcn", "--dry-run").status == FINE
    assert "gcn is a saved one" in cli("run", "./gcn", "--dry-run").err
    assert "there is no model 'mine'" in cli("run", "mine").err
    (tmp_path / "mine/manifest.json").write_text("{}")
    assert "mine holds no saved sparse model: manifest.json is damaged" in cli("run", "mine").err


def test_models_that_cannot_be_saved_end_runs_at_once(cli, tmp_path, monkeypatch):
    def timed(*_, **__):
        raise AssertionError("it is timed")

    def refused(*_):
        raise DataError("it has no name", "none")

    arguments = ("run", "mlp", "hidden=64", "features=32", "--batch", "4", "--save", tmp_path)
    monkeypatch.setattr(import_module("sparsify.runner.measure"), "interleave", timed)
    (tmp_path / "graph.json").write_text("mine")
    assert "holds graph.json and no saved sparse model" in cli(*arguments).err
    (tmp_path / "graph.json").unlink()
    monkeypatch.setattr(import_module("sparsify.passes.save"), "described", refused)
    outcome = cli(*arguments)
    assert outcome.status != FINE
    assert "it has no name" in outcome.err


def test_dry_run(cli, small):
    outcome = cli("run", "gcn", "--dry-run", "--json")
    assert outcome.status == FINE
    assert [row["rule"] for row in json.loads(outcome.out)["rows"]]
