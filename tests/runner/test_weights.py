"""`--sparse-weights`: what becomes of a recipe."""

import pytest

from sparsify import recipe
from sparsify.errors import SparsifyError
from sparsify.runner.weights import prune_of, with_sparse_weights


@pytest.mark.parametrize("text", ["0.9", "2:4", " 1:8 ", "2:4:16", "0"])
def test_rules_that_prune_get_the_new_share(text):
    found = with_sparse_weights(recipe.load("bert"), text)
    (rule,) = found.rules
    assert rule.targets == recipe.load("bert").rules[0].targets
    expected = recipe.load(
        {"schema": 1, "name": "x", "sparsify": [{"targets": "x", "prune": prune_of(text)}]}
    )
    assert rule.prune == expected.rules[0].prune


def test_a_recipe_that_prunes_nothing_gets_a_rule():
    before = recipe.load("gcn")
    found = with_sparse_weights(before, "0.8")
    assert found.rules[:-1] == before.rules
    assert (found.rules[-1].prune.sparsity, found.rules[-1].types) == (0.8, ("Linear",))


def test_scope_stays():
    rule = {"targets": "param:*", "prune": {"method": "magnitude", "sparsity": 0.5, "scope": "global"}}
    found = with_sparse_weights(recipe.load({"schema": 1, "name": "x", "sparsify": [rule]}), "0.7")
    assert (found.rules[0].prune.scope, found.rules[0].prune.sparsity) == ("global", 0.7)


def test_dtype_stays():
    found = with_sparse_weights(recipe.load("mlp", dtype="int8"), "2:4")
    assert (found.rules[0].dtype, found.rules[0].prune.pattern.nm.of) == ("int8", 4)
    assert with_sparse_weights(recipe.load("mlp"), "2:4").rules[0].dtype == "same"


@pytest.mark.parametrize("text", ["3:2", "4:4", "0:4", "1.0", "1.5", "-0.1", "nan", "half", "", "2:", "16x1"])
def test_mistakes(text):
    with pytest.raises(
        SparsifyError, match=r"--sparse-weights .*a share of zeros, as in 0.9, or .* as in 2:4"
    ):
        prune_of(text)
