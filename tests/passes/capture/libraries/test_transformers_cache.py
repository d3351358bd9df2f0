"""Decoders that return caches: those of the model, and calls that bring one."""

import copy

import pytest
import torch

from experiments.coverage.subjects import hugging_face
from experiments.coverage.verify import parts_of
from sparsify import options
from sparsify.errors import CaptureError
from sparsify.passes.apply import apply

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.model

SIZES = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24, "bos_token_id": 1}
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {
            "targets": ["param:*weight"],
            "types": ["Conv1D", "Linear"],
            "prune": {"method": "magnitude", "sparsity": 0.5},
        }
    ],
}
WINDOW = {
    "schema": 1,
    "name": "window",
    "sparsify": [
        {
            "targets": ["op:scaled_dot_product_attention"],
            "mask": {"kind": "sliding_window", "before": 40, "after": 40},
        }
    ],
}
TEXT = torch.arange(2, 26).view(2, 12)


@pytest.fixture(autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


def gpt2():
    torch.manual_seed(0)
    return hugging_face("GPT2", **SIZES, eos_token_id=2)().eval()


def same(found, expected):
    """Asserts that two caches are of one class and hold the same."""
    assert type(found) is type(expected)
    have, want = parts_of(found), parts_of(expected)
    assert len(have) == len(want) > 0
    for one, other in zip(have, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("recipe", [PRUNED, WINDOW], ids=lambda recipe: recipe["name"])
def test_the_first_call_returns_a_cache(recipe):
    model = gpt2()
    sparse = apply(model, recipe, TEXT, trainable=True)
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    for text in (TEXT, TEXT[:, :7]):  # the window reaches all of these
        with torch.no_grad():
            found, expected = sparse(text), dense(text)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
        same(found.past_key_values, expected.past_key_values)
    assert len(sparse.variants) == 1


@pytest.mark.sampled(2)
def test_the_second_call_runs_as_the_model_has_it():
    model = gpt2()
    sparse = apply(model, WINDOW, TEXT)
    with torch.no_grad():
        cache = sparse(TEXT[:, :8]).past_key_values
        with pytest.warns(RuntimeWarning, match="a cache holds keys of earlier calls"):
            found = sparse(TEXT[:, 8:], past_key_values=cache)
        expected = model(TEXT)
    torch.testing.assert_close(
        found.last_hidden_state, expected.last_hidden_state[:, 8:], rtol=1e-4, atol=1e-5
    )
    assert found.past_key_values is cache
    same(cache, expected.past_key_values)


EAGER = {"attn_implementation": "eager"}
NARROW = {
    "schema": 1,
    "name": "narrow",
    "sparsify": [
        {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "sliding_window", "before": 2}}
    ],
}


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return hugging_face("Llama", vocab_size=50, num_key_value_heads=1, **sizes)().eval()


def turns(run):
    """What a conversation returns: a text, one with a past, with an empty cache, with that filled, and the first."""
    results = []
    with torch.no_grad():
        results.append(run(TEXT[:, :8]))
        results.append(run(TEXT[:, 8:], past_key_values=copy.deepcopy(results[0].past_key_values)))
        cache = transformers.DynamicCache(config=None)
        results.append(copy.deepcopy(run(TEXT, past_key_values=cache)))
        results.append(run(TEXT[:, :4], past_key_values=cache))
        results.append(run(TEXT[:, :8]))
    assert cache.get_seq_length() == 16
    return results


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:.*a cache holds keys of earlier calls")
@pytest.mark.filterwarnings("ignore:.*attention stays dense. a pattern does not say where queries stand")
@pytest.mark.parametrize("make", [gpt2, pytest.param(llama, marks=pytest.mark.exhaustive)])
def test_compiled_calls_with_a_past_are_those_of_the_model(make):
    model = make()
    expected = turns(apply(model, NARROW, TEXT, verify=False))
    runs = {
        "applied": torch.compile(apply(model, NARROW, TEXT, verify=False), backend="aot_eager"),
        "backend": torch.compile(model, backend="sparsify", options={"recipe": NARROW, "inner": "eager"}),
    }
    for run in runs.values():
        for found, want in zip(turns(run), expected, strict=True):
            torch.testing.assert_close(found.last_hidden_state, want.last_hidden_state, rtol=1e-4, atol=1e-5)
            same(found.past_key_values, want.past_key_values)


@pytest.mark.sampled(3)
def test_a_past_under_the_backend_says_so_and_is_an_error_under_strict():
    model = gpt2()
    with torch.no_grad():
        cache = model(TEXT[:, :8]).past_key_values
        for strict, expects in ((False, pytest.warns(RuntimeWarning)), (True, pytest.raises(CaptureError))):
            how = {"recipe": NARROW, "inner": "eager", "strict": strict}
            torch._dynamo.reset()
            with expects as found:
                torch.compile(model, backend="sparsify", options=how)(
                    TEXT[:, 8:], past_key_values=copy.deepcopy(cache)
                )
            said = str(found.value) if strict else " ".join(str(w.message) for w in found)
            assert "where queries stand among keys of earlier calls" in said


@pytest.mark.sampled(2)
def test_an_empty_cache_is_filled():
    model = gpt2()
    sparse = apply(model, PRUNED, TEXT, trainable=True)
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    cache, other = transformers.DynamicCache(), transformers.DynamicCache()
    with torch.no_grad():
        found = sparse(TEXT, past_key_values=cache, return_dict=False)
        dense(TEXT, past_key_values=other)
    assert found[1] is cache
    same(cache, other)
    assert len(sparse.variants) == 2  # one for calls without a cache, one for those with


@pytest.mark.sampled(4)
def test_both_caches_of_a_translation():
    torch.manual_seed(0)
    model = hugging_face("T5", **T5, decoder_start_token_id=0)().eval()
    inputs = {"input_ids": TEXT, "decoder_input_ids": TEXT[:, :5]}
    sparse = apply(model, WINDOW, inputs)
    with torch.no_grad():
        found, expected = sparse(**inputs), model(**inputs)
    same(found.past_key_values, expected.past_key_values)
    assert found.past_key_values.is_updated == expected.past_key_values.is_updated


@pytest.mark.sampled(3)
def test_a_cache_that_was_filled_is_no_example():
    sparse = apply(gpt2(), WINDOW, (TEXT,), verify=False)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        sparse(TEXT, past_key_values=cache)
        before = [part.clone() for part in parts_of(cache)]
        sparse.train()
        sparse.eval()
    for one, other in zip(parts_of(cache), before, strict=True):
        assert torch.equal(one, other)


@pytest.mark.sampled(3)
def test_what_is_measured_and_verified_begins_without_a_past():
    sparse = apply(gpt2(), PRUNED, (TEXT,), verify=False)
    cache = transformers.DynamicCache()
    sparse.measure(TEXT, past_key_values=cache, repeats=1)
    assert sparse.verify_gradients(TEXT, past_key_values=cache) < 1e-4
    assert cache.get_seq_length() == 0


def gemma():
    """Every other layer attends to a window of 6 keys."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return hugging_face(
        "Gemma2", vocab_size=50, num_key_value_heads=1, head_dim=8, sliding_window=6, **{**sizes, **EAGER}
    )().eval()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", [gpt2, gemma])
def test_a_past_is_an_input_of_a_graph(make):
    """Texts in parts; the second one fills the window of six keys, or the first one does."""
    model = make()
    sparse = apply(model, PRUNED, (TEXT,), strict=True, trainable=True, verify=False)
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    shown = sparse.report
    for parts in ((3, 3), (8, 1, 1)):
        cache, other, start = transformers.DynamicCache(config=model.config), None, 0
        for length in parts:
            text = TEXT[:, start : start + length]
            with torch.no_grad():
                found = sparse(text, past_key_values=cache)
                expected = dense(text, past_key_values=other)
            start, other = start + length, expected.past_key_values
            torch.testing.assert_close(
                found.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-5
            )
            same(cache, other)
            assert found.past_key_values is cache
            assert cache.get_seq_length() == other.get_seq_length() == start
    assert not sparse._captures.refused
    assert sparse.report is shown, "what needs no earlier calls is shown"


@pytest.mark.sampled(3)
def test_gradients_pass_a_past():
    sparse = apply(gpt2(), PRUNED, (TEXT,), strict=True, trainable=True, verify=False)
    with torch.no_grad():
        cache = sparse(TEXT[:, :8]).past_key_values
    before = [part.clone() for part in parts_of(cache)]
    assert sparse.verify_gradients(TEXT[:, 8:], past_key_values=cache) < 1e-4
    for one, other in zip(parts_of(cache), before, strict=True):
        assert torch.equal(one, other)


def test_fixed_extents_have_no_graph_of_a_past():
    sparse = apply(gpt2(), PRUNED, (TEXT,), verify=False, dynamic=())
    with torch.no_grad():
        cache = sparse(TEXT).past_key_values
        with pytest.warns(RuntimeWarning, match="a cache holds keys of earlier calls"):
            sparse(TEXT, past_key_values=cache)
    assert len(sparse.variants) == 1


def test_a_past_is_an_error_where_nothing_may_run_densely():
    sparse = apply(gpt2(), WINDOW, (TEXT,), verify=False, strict=True)
    with torch.no_grad():
        cache = sparse(TEXT).past_key_values
        with pytest.raises(
            CaptureError, match=r"holds keys of earlier calls.*without a cache, or without strict"
        ):
            sparse(TEXT, past_key_values=cache)
