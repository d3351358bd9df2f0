"""`--sparse-attn` and `--picture`: what becomes of a recipe, and of a model."""

import re

import pytest

from sparsify import options, recipe
from sparsify.errors import SparsifyError
from sparsify.models import registry
from sparsify.recipe import Rule
from sparsify.runner.attention import OPERATOR, kind_of, target, with_sparse_attention
from sparsify.runner.picture import pictures
from sparsify.runner.request import positions_for, require_attention, resolve
from sparsify.runner.run import run


def test_a_rule_is_added():
    found = with_sparse_attention(recipe.load("bert"), "bigbird", {"block": 32})
    weights, attention = found.sparsify
    assert weights.prune is not None
    assert attention.targets == (OPERATOR,)
    assert attention.mask is not None
    assert (attention.mask.kind, attention.mask.model_extra) == ("bigbird", {"block": 32})
    alone = with_sparse_attention(found.model_copy(update={"sparsify": ()}), "causal", {})
    assert [rule.targets for rule in alone.sparsify] == [("param:*.weight",), (OPERATOR,)]
    assert alone.sparsify[0].prune is None
    again = with_sparse_attention(found, "causal", {})
    assert [rule.mask and rule.mask.kind for rule in again.sparsify] == [None, "causal"]


def test_layers():
    pattern = target("0,2-3,11").removeprefix("re:")
    scopes = {
        "scope:encoder.layer.0.attention.self": True,
        "scope:encoder.layer.1.attention.self": False,
        "scope:encoder.layer.3": True,
        "scope:h.11.attn": True,
        "scope:h.12.attn": False,
        "scope:encoder.layer.10.attention.0": False,
        "op:scaled_dot_product_attention": False,
    }
    assert {scope: bool(re.fullmatch(pattern, scope)) for scope in scopes} == scopes
    for wrong in ("x", "3-1", "", "1,,2", "-1"):
        with pytest.raises(SparsifyError, match="is no layer"):
            target(wrong)


def test_kinds():
    assert [kind_of(text) for text in ("bigbird", "window", "block-diagonal")] == [
        "bigbird", "sliding_window", "block_diagonal",
    ]  # fmt: skip
    with pytest.raises(SparsifyError, match="--sparse-attn spiral: no such pattern"):
        kind_of("spiral")


def test_positions_grow_with_random_weights_only():
    assert positions_for(1024, {"positions": 512}, {}) == {"positions": 1024}
    assert positions_for(64, {"positions": 512}, {}) == {"positions": 512}
    assert positions_for(1024, {"positions": 512, "checkpoint": "here"}, {}) == {}
    assert positions_for(1024, {"positions": 512}, {"positions": 600}) == {}
    assert positions_for(1024, {"layers": 2}, {}) == {}


def test_pictures():
    request = resolve("mlp")
    with pytest.raises(SparsifyError, match="mlp has no pattern to draw"):
        pictures(request)
    rule = Rule.model_validate({"targets": OPERATOR, "mask": {"kind": "causal", "block": 16}})
    masked = request.recipe.model_copy(update={"sparsify": (rule, rule)})
    object.__setattr__(request, "recipe", masked)
    object.__setattr__(request, "seq", 64)
    assert pictures(request).count("causal(block=16): 64 x 64, 51 % kept") == 2


def test_layers_are_for_attention():
    with pytest.raises(SparsifyError, match="--layers 2 is for --sparse-attn"):
        resolve("mlp", layers="2")


def test_patterns_are_for_models_that_have_such_attention():
    with pytest.raises(SparsifyError, match="--sparse-attn bigbird: gcn has no attention over tokens"):
        resolve("gcn", sparse_attn="bigbird")
    with pytest.raises(SparsifyError, match="--layers 1,3-12: there is no layer 12; numbers from 0 to 11"):
        require_attention(registry.find("bert"), "bigbird", "1,3-12", count=12)


@pytest.mark.sampled(4)
def test_bert():
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'sparsify-fx[text]'"
    )
    tiny = {"layers": 3, "hidden": 32, "heads": 2, "intermediate": 64, "vocabulary": 50, "positions": 32}
    with options.override(tune_seconds=0):
        found = run(
            "bert", overrides={**tiny, "block": 8}, sparse_attn="bigbird", layers="0,2", batch=2, seq=32,
            seconds=0.0, quiet=True,
        )  # fmt: skip
    assert found.verified
    assert found.masks == ["2 x bigbird(block=8, seed=0)"]
    assert found.weights["pruned"] == 0
    assert "under a pattern" in str(found)
