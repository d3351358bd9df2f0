"""BigBird's own pattern: the draws of transformers, its results in evaluation and training, what is refused."""

import numpy as np
import pytest
import torch

import sparsify
from experiments.coverage.subjects import SIZES, TEXT, hugging_face, texts
from sparsify.errors import CaptureError, RecipeError, ShapeError
from sparsify.sparsification.masks.block_sparse import block_sparse, draws

GIVEN = {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "given"}}
RECIPE = {"schema": 1, "name": "given", "sparsify": [GIVEN]}
SMALL = {
    "attention_type": "block_sparse",
    "block_size": 4,
    "num_random_blocks": 1,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bigbird(**numbers):
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    return hugging_face("BigBird", **TEXT, **SIZES, **{**SMALL, **numbers})()


@pytest.mark.parametrize(
    ("longest", "block", "random", "lengths"),
    [(256, 8, 1, (64, 72, 256)), (4096, 64, 3, (768, 832, 1024, 2048, 4096)), (256, 4, 3, (48, 52))],
)
def test_draws(longest, block, random, lengths):
    model = bigbird(max_position_embeddings=longest, block_size=block, num_random_blocks=random).train()
    for number, layer in enumerate(model.encoder.layer):
        theirs = layer.attention.self
        for length in lengths:
            np.random.seed(number)
            if length in (1024, 4096):
                sizes = (longest, longest, block, block, random)
                drawn = [theirs._bigbird_block_rand_mask(*sizes, last_idx=1024) for _ in range(2)]
                wanted = np.stack(drawn)[:, : length // block - 2]
            else:
                plan = theirs._get_rand_attn_plan(length, block, random)
                wanted = np.stack(
                    theirs._bigbird_block_rand_mask_with_head(length, length, block, block, 2, *plan)
                )
            assert np.array_equal(draws(length, block, random, 2, number, longest), wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True])
def test_results_are_the_models(training):
    model = bigbird().train(training)
    sparse = sparsify.apply(model, RECIPE, texts(2, 40), strict=True)
    state = np.random.get_state()[1].copy()
    for shape in ((2, 40), (3, 37), (2, 62)):
        given = texts(*shape)
        found = sparse(**given).last_hidden_state
        assert np.array_equal(np.random.get_state()[1], state)  # draws are nobody else's
        torch.testing.assert_close(found, model(**given).last_hidden_state, rtol=1e-4, atol=1e-5)
        state = np.random.get_state()[1].copy()
    assert len(sparse.variants) == 1
    assert model.attention_type == "block_sparse"


def test_short_texts_have_full_attention():
    sparse = sparsify.apply(bigbird().eval(), RECIPE, texts(2, 40), strict=True)
    given = texts(2, 20)
    found = sparse(**given).last_hidden_state
    wanted = bigbird(attention_type="original_full").eval()(**given).last_hidden_state
    kept = given["attention_mask"].bool()
    torch.testing.assert_close(found[kept], wanted[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
def test_other_patterns_replace_it():
    rule = {**GIVEN, "mask": {"kind": "sliding_window", "before": 40}}
    sparse = sparsify.apply(bigbird().eval(), {**RECIPE, "sparsify": [rule]}, texts(2, 40), strict=True)
    given = texts(2, 40)
    wanted = bigbird(attention_type="original_full").eval()(**given).last_hidden_state
    kept = given["attention_mask"].bool()
    torch.testing.assert_close(sparse(**given).last_hidden_state[kept], wanted[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
def test_layers_without_a_rule_keep_it():
    rule = {**GIVEN, "targets": ["scope:encoder.layer.1.*"]}
    model = bigbird().double().eval()
    sparse = sparsify.apply(model, {**RECIPE, "sparsify": [rule]}, texts(2, 40), strict=True)
    assert len(sparse.report.regions) == 2
    given = texts(3, 37)
    torch.testing.assert_close(sparse(**given).last_hidden_state, model(**given).last_hidden_state)


@pytest.mark.sampled(2)
def test_what_is_refused():
    with pytest.raises(
        RecipeError, match=r"is for attention that has a pattern itself, and op:scaled.* has none"
    ):
        sparsify.apply(bigbird(attention_type="original_full").eval(), RECIPE, texts(2, 40))
    with pytest.raises(CaptureError, match="leave out output_attentions"):
        sparsify.apply(bigbird().eval(), RECIPE, {**texts(2, 40), "output_attentions": True}, strict=True)
    with pytest.raises(ShapeError, match="as many of both"):
        block_sparse(40, 20)
    with pytest.raises(ShapeError, match="fewer random blocks"):
        draws(1024, 128, 8, 1, 0, 1024)
