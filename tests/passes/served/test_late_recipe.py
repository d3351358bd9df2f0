"""Requests of served models: the recipe is parsed at its first use."""

import pytest

from sparsify.errors import RecipeError
from sparsify.passes.served.late_recipe import served_request

TEXT = "schema: 1\nname: late\nsparsify: []\ncompile: {threads: 3}\n"


def test_the_recipe_of_a_request():
    request = served_request(TEXT, "recipe.yaml", {0: {"w": "no zeros"}})
    assert request.recipe.name == "late"
    assert request.recipe.compile.threads == 3
    assert not request.has_masks
    assert request.pruning.is_known
    assert request.pruning.passed == {0: {"w": "no zeros"}}


def test_an_error_of_the_recipe_comes_at_its_first_use():
    request = served_request("schema: 1\nnam: late\n", "recipe.yaml", None)
    assert not request.pruning.is_known
    assert request.report("Bert").model == "Bert"
    with pytest.raises(RecipeError, match="nam"):
        assert request.recipe.name
