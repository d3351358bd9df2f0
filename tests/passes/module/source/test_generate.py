"""Text that transformers generates with sparse models: that of the dense models with the same weights and masks."""

import copy

import pytest
import torch
from torch import nn

from experiments.coverage.reference import masked_attention
from experiments.coverage.subjects import SIZES, TEXT, hugging_face
from sparsify import options
from sparsify.errors import CaptureError
from sparsify.passes.apply import apply

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.model

PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {
            "targets": ["param:*weight"],
            "types": ["Conv1D", "Linear"],
            "ignore": ["param:lm_head.weight"],
            "prune": {"method": "magnitude", "sparsity": 0.6},
            "format": "csr",
        }
    ],
}
NARROW = {"kind": "sliding_window", "before": 3}
WINDOW = {
    "schema": 1,
    "name": "window",
    "sparsify": [{"targets": ["op:scaled_dot_product_attention"], "mask": NARROW}],
}
SMALL = {**TEXT, **SIZES, "num_hidden_layers": 1, "num_key_value_heads": 1, "initializer_range": 0.3}
CAPPED = {"head_dim": 16, "attn_logit_softcapping": 0.5, "attn_implementation": "eager"}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "initializer_factor": 3.0}
CONFIGS = {
    "Llama": lambda: transformers.LlamaConfig(**SMALL),
    # Two layers, one of which attends to 5 keys, fewer than a text has.
    "Gemma 2": lambda: transformers.Gemma2Config(
        **{**SMALL, "num_hidden_layers": 2}, **CAPPED, sliding_window=5
    ),
    "GPT-2": lambda: transformers.GPT2Config(
        **TEXT, n_embd=32, n_layer=1, n_head=2, n_inner=48, initializer_range=0.3
    ),
    "T5": lambda: transformers.T5Config(vocab_size=50, pad_token_id=0, decoder_start_token_id=1, **T5),
}
IDS = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(3))
PADDED = torch.ones_like(IDS)
PADDED[1, :3] = 0
STEPS = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}


@pytest.fixture(autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


def made(name: str) -> nn.Module:
    """A model with a head, whose weights are large enough that tokens differ."""
    hugging_face("Llama", **SMALL)  # what transformers needs is imported
    torch.manual_seed(0)
    kind = transformers.AutoModelForSeq2SeqLM if name == "T5" else transformers.AutoModelForCausalLM
    return kind.from_config(CONFIGS[name]()).eval()


def inputs(name: str) -> dict[str, torch.Tensor]:
    text = {"input_ids": IDS, "attention_mask": PADDED}
    return {**text, "decoder_input_ids": IDS[:, :4]} if name == "T5" else text


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "GPT-2", pytest.param("T5", marks=pytest.mark.slow)])
def test_pruned_models_generate(name):
    model = made(name)
    sparse = apply(model, PRUNED, inputs(name), strict=True)
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    given = {"input_ids": IDS, "attention_mask": PADDED, **STEPS}
    wanted = dense.generate(**given)
    assert torch.equal(sparse.generate(**given), wanted)
    assert len(wanted[0].unique()) > 2
    assert not torch.equal(wanted, model.generate(**given)), "zeros matter"
    captured = len(sparse.variants)
    assert torch.equal(
        sparse.generate(**given), wanted
    )  # keys that one text leaves are not those of the next
    beams = {**given, "num_beams": 3}
    assert torch.equal(sparse.generate(**beams), dense.generate(**beams))
    assert len(sparse.variants) <= captured


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["Gemma 2", "GPT-2"])
def test_models_under_a_pattern_generate(name):
    model = made(name)
    sparse = apply(model, WINDOW, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, strict=True)
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), **STEPS}
    with pytest.warns(RuntimeWarning, match="each step computes the whole text"):
        found = sparse.generate(**given)
    with masked_attention(NARROW):
        wanted = model.generate(**given, use_cache=False)
    assert torch.equal(found, wanted)
    assert len(sparse.variants) <= 2
    if name != "Gemma 2":  # whose bounds of scores make all weights near one another
        assert not torch.equal(wanted, model.generate(**given)), "the pattern matters"


def test_keys_are_not_kept_under_a_pattern():
    sparse = apply(made("Llama"), WINDOW)
    for how in ({"use_cache": True}, {"past_key_values": transformers.DynamicCache()}):
        with pytest.raises(CaptureError, match=r"no keys are kept.*leave out use_cache and past_key_values"):
            sparse.generate(IDS, **how)
    model = apply(made("T5"), WINDOW)
    with pytest.raises(CaptureError, match=r"runs its encoder by itself.*text so far as decoder_input_ids"):
        model.generate(IDS)


def test_other_caches_are_the_source_models():
    model = made("Llama")
    sparse = apply(model, PRUNED)
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    given = {"input_ids": IDS, **STEPS, "cache_implementation": "static"}
    with pytest.warns(RuntimeWarning, match="a cache holds keys of earlier calls"):
        found = sparse.generate(**given)
    assert torch.equal(found, dense.generate(**given))


def test_models_that_generate_nothing():
    sparse = apply(nn.Linear(4, 4), {"schema": 1, "name": "none", "sparsify": []}, (torch.randn(3, 4),))
    assert not hasattr(sparse, "generate")
    with pytest.raises(AttributeError, match="generate"):
        sparse.generate(IDS)
