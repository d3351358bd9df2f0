"""`sparsify train`: the table, JSON, what it refuses."""

import json

import pytest

from sparsify import options
from sparsify.errors import ENVIRONMENT, FINE, USAGE


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with options.override(cache_dir=tmp_path / "cache"):
        yield


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gtp",), "there is no model 'gtp'; did you mean gpt?"),
        (
            ("gcn",),
            "gcn is not trained by this command; it is for mlp, gpt, gpt-40m, resnet20, lenet5, lenet300",
        ),
        (("gpt", "--steps", "0"), "--steps 0: at least 1 is wanted"),
        (("gpt", "--lr", "-1"), "--lr -1: a number above 0 is wanted"),
        (("gpt", "--lr", "nan"), "--lr nan: a number above 0 is wanted"),
        (("gpt", "--seq", "300"), "--seq 300: gpt has 256 positions; context=300 makes more"),
        (("lenet5", "--seq", "3"), "--seq 3: lenet5 reads no texts"),
        (("lenet5", "--text", "x"), "--text x: lenet5 reads no texts"),
        (("gpt", "--dataset", "mnist"), "gpt is not trained on 'mnist'; there are: synthetic, ag_news, imdb"),
        (("gpt", "--dataset", "imdb", "--text", "x"), "are two data sets; give one"),
        (("gpt", "--recipe", "rigl90", "evry=3"), "nothing here has an argument 'evry'"),
        (("gpt", "--recipe", "rigl91"), "no built-in recipe 'rigl91'"),
        (("gpt", "--resume"), "--resume without --out"),
        (("gpt", "--seed", "-1"), "the seed -1; a whole number from 0"),
        (("mlp", "--recipe", "gcn"), "no rule of gcn prunes"),
    ],
    ids=str,
)
def test_usage(cli, arguments, message):
    outcome = cli("train", *arguments, "--quiet")
    assert outcome.status == USAGE
    assert message in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data-root", "/nowhere"), "there is no folder /nowhere"),
        (("--dataset", "imdb"), "imdb is not here"),
        (("--text", "/nowhere.txt"), "the text /nowhere.txt cannot be read"),
    ],
    ids=str,
)
def test_missing_data(cli, arguments, message):
    outcome = cli("train", "gpt", "layers=1", "hidden=16", "heads=2", *arguments)
    assert outcome.status == ENVIRONMENT
    assert message in outcome.err


def test_a_folder_without_data(cli, tmp_path):
    outcome = cli("train", "lenet300", "--data-root", tmp_path)
    assert outcome.status == ENVIRONMENT
    assert "mnist is not here" in outcome.err


def test_short_texts(cli, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("too short")
    outcome = cli("train", "gpt", "layers=1", "hidden=16", "heads=2", "--text", file)
    assert outcome.status == ENVIRONMENT
    assert "--seq 128 needs more" in outcome.err


@pytest.mark.sampled(2)
def test_table_and_lines(cli, tmp_path):
    arguments = ("lenet300", "--recipe", "rigl90", "end=3", "every=2", "--steps", "4", "--batch-size", "8")
    outcome = cli("train", *arguments, "--out", tmp_path / "out")
    assert outcome.status == FINE
    assert "lenet300: step 4 of 4, loss " in outcome.err and ", ends " in outcome.err
    for word in ("4 of 4", "validation loss", "validation accuracy", "dense, ", "0.weight", "written: "):
        assert word in outcome.out


def test_json(cli):
    outcome = cli("train", "lenet300", "--dense", "--steps", "2", "--batch-size", "8", "--json", "--quiet")
    assert outcome.err == ""
    found = json.loads(outcome.out)
    assert (found["schema"], found["steps"], found["way"]) == (1, 2, "dense")
