"""Requests: defaults, where keys go, mistakes."""

import pytest

from sparsify.errors import RecipeError, SparsifyError
from sparsify.runner.request import resolve, split_pairs

RECIPE = {
    "schema": 1,
    "name": "mine",
    "args": {"limit": 0.1},
    "model": {"factory": "gcn", "args": {"hidden": 24}},
    "data": {"name": "cora"},
    "seed": 5,
    "sparsify": [{"targets": ["input:x"], "format": "csr", "when": {"max_density": "${limit}"}}],
}


def test_defaults_come_from_recipe_and_model():
    request = resolve("gcn")
    assert request.dataset == "synthetic"
    assert request.recipe.name == "gcn"
    assert request.arguments == {"hidden": 128, "dropout": 0.5}
    assert (request.seed, request.data_root) == (0, None)


def test_recipe_that_was_given_names_data_and_seed():
    request = resolve("gcn", recipe=RECIPE)
    assert (request.dataset, request.seed, request.arguments["hidden"]) == ("cora", 5, 24)


def test_what_is_given_wins_over_the_recipe():
    request = resolve("gcn", recipe=RECIPE, dataset="pubmed", seed=1, overrides={"hidden": "32"})
    assert (request.dataset, request.seed, request.arguments["hidden"]) == ("pubmed", 1, 32)


def test_keys_go_to_recipe_model_or_training():
    request = resolve("gcn", recipe=RECIPE, overrides={"limit": "0.5", "dropout": "0.25", "epochs": "3"})
    assert request.recipe.rules[0].when.max_density == 0.5
    assert request.arguments["dropout"] == 0.25
    assert request.training == {"epochs": 3}


def test_arguments_for_another_model_are_used_where_they_fit():
    assert resolve("gcn-matmul").arguments["hidden"] == 128


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"overrides": {"hiden": "3"}},
            r"hiden=3: nothing here has an argument 'hiden'; did you mean 'hidden'",
        ),
        ({"overrides": {"hidden": "many"}}, r"hidden='many': a whole number is wanted, as in hidden=16"),
        ({"overrides": {"epochs": "many"}}, r"epochs='many': a whole number is wanted, as in epochs=200"),
        ({"overrides": {"epochs": "0"}}, r"epochs=0: at least 1 is wanted"),
        ({"dataset": "corra"}, r"gcn does not run on 'corra'; did you mean 'cora'"),
    ],
    ids=str,
)
def test_mistakes_are_named(asked, message):
    with pytest.raises(SparsifyError, match=message):
        resolve("gcn", **asked)


def test_recipe_whose_model_arguments_do_not_exist():
    wrong = RECIPE | {"model": {"factory": "gcn", "args": {"depth": 3}}}
    with pytest.raises(SparsifyError, match="depth=3: nothing here has an argument 'depth'"):
        resolve("gcn", recipe=wrong)


def test_unknown_recipe():
    with pytest.raises(RecipeError, match="no built-in recipe 'gnc'"):
        resolve("gcn", recipe="gnc")


def test_pairs_are_split_at_the_first_sign():
    assert split_pairs(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [(["a"], "'a' is no argument; write key=value"), (["a=1", "a=2"], "a is given twice")],
)
def test_pairs_that_are_none(pairs, message):
    with pytest.raises(SparsifyError, match=message):
        split_pairs(pairs)


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        (
            "bert",
            {"batch_size": 8, "fanout": "2"},
            "bert has no edges to sample; they are for gcn, sage, gin, gat",
        ),
        ("gcn-matmul", {"batch_size": 8, "fanout": "2"}, "no edges to sample"),
        ("sage", {"batch_size": 8}, "need --batch-size and --fanout"),
        ("sage", {"fanout": "10,10"}, "need --batch-size and --fanout"),
        ("sage", {"batch_size": 0, "fanout": "10"}, "--batch-size 0: at least 1"),
        ("sage", {"batch_size": 8, "fanout": "10,x"}, "whole numbers above 0"),
        ("sage", {"batch_size": 8, "fanout": "10,0"}, "whole numbers above 0"),
    ],
)
def test_sampling_that_cannot_be(model, asked, words):
    with pytest.raises(SparsifyError, match=words):
        resolve(model, **asked)


def test_sampling_is_read():
    found = resolve("sage", batch_size=8, fanout="10,5")
    assert (found.batch_size, found.fanout) == (8, (10, 5))
