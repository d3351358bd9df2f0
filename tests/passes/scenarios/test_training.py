"""Models of transformers in training: dropout everywhere, and gradients of parameters under a pattern."""

import copy

import pytest
import torch

from experiments.coverage.subjects import SIZES, hugging_face
from sparsify import options
from sparsify.passes.apply import apply

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.model

WINDOW = {
    "schema": 1,
    "name": "window",
    "sparsify": [
        {
            "targets": ["op:scaled_dot_product_attention"],
            "mask": {"kind": "sliding_window", "before": 5, "after": 5, "block": 4},
        }
    ],
}
IDS = torch.randint(2, 50, (2, 21), generator=torch.Generator().manual_seed(0))
PADDED = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS).index_fill(1, torch.tensor([20]), 0)}


def bert(rate):
    rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    return hugging_face("Bert", vocab_size=50, **SIZES, **rates)(), PADDED


def gpt2(rate):
    sizes = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": 48, "bos_token_id": 1}
    rates = {"attn_pdrop": rate, "resid_pdrop": rate, "embd_pdrop": rate}
    return hugging_face("GPT2", **sizes, **rates, eos_token_id=2, use_cache=False)(), PADDED


def t5(rate):
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2}
    model = hugging_face("T5", **sizes, dropout_rate=rate, decoder_start_token_id=0, use_cache=False)()
    return model, {**PADDED, "decoder_input_ids": IDS[:, :10]}


@pytest.fixture(autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


def made(make, rate):
    torch.manual_seed(0)
    model, inputs = make(rate)
    return model.train(), inputs


def trained(run, model, inputs, steps=2):
    """What each step of training returns, and the gradients of the last; 0 for none, as AOTAutograd gives some."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        out = run(**inputs).last_hidden_state
        weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
        (out * weights).mean().backward()
        optimizer.step()
        found.append(out.detach())
    return found, [p.new_zeros(p.shape) if p.grad is None else p.grad for p in model.parameters()]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


MODELS = [gpt2, pytest.param(bert, marks=pytest.mark.slow), pytest.param(t5, marks=pytest.mark.slow)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("rate", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.3])
@pytest.mark.parametrize("make", MODELS)
def test_steps_of_training_are_those_of_the_masked_model(make, rate):
    model, inputs = made(make, rate)
    twin = copy.deepcopy(model)
    sparse = apply(model, WINDOW, inputs, verify=False, inplace=True)
    dense = apply(twin, WINDOW, inputs, verify=False, inplace=True)
    assert sparse.report.regions and not sparse.report.dense
    assert_close(trained(sparse, model, inputs), trained(dense.original, twin, inputs))
    assert_close(list(model.parameters()), list(twin.parameters()))
    with torch.no_grad():
        draws = [sparse(**inputs).last_hidden_state for _ in range(2)]
        assert torch.equal(*draws) == (rate == 0)
        found, expected = sparse.eval()(**inputs), dense.eval().original(**inputs)
    assert_close(found.last_hidden_state, expected.last_hidden_state)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("inner", [pytest.param("eager", marks=pytest.mark.exhaustive), "aot_eager"])
def test_steps_of_training_under_the_backend(make, inner):
    model, inputs = made(make, 0.3)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="sparsify", options={"recipe": WINDOW, "inner": inner})
    dense = apply(twin, WINDOW, inputs, verify=False, inplace=True)
    assert_close(trained(compiled, model, inputs), trained(dense.original, twin, inputs))
    assert_close(list(model.parameters()), list(twin.parameters()))
    model.eval()
    with torch.no_grad():
        found, expected = compiled(**inputs), dense.eval().original(**inputs)
    assert_close(found.last_hidden_state, expected.last_hidden_state)


@pytest.mark.sampled(2)
def test_means_over_draws_are_results_without_dropout():
    model, _ = made(gpt2, 0.4)
    attention = model.h[0].attn  # what it computes is linear in the weights that are kept
    attention.resid_dropout.p = 0.0
    x = torch.randn(1, 12, 32, generator=torch.Generator().manual_seed(1)).repeat(600, 1, 1)
    sparse = apply(attention, WINDOW, (x,), verify=False)
    assert sparse.report.regions
    with torch.no_grad():
        draws, expected = sparse(x)[0], sparse.eval()(x)[0][0]
    error = (draws.mean(0) - expected).abs()
    deviation = draws.std(0)
    assert bool((deviation > 0).all())
    assert bool((error < 5 * deviation / 600**0.5).all())


@pytest.mark.sampled(3)
def test_breaks_of_graphs_in_training_are_reported():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made(gpt2, 0.0)[0]

        def forward(self, **inputs):
            inputs = {name: value + 0 for name, value in inputs.items()}
            torch._dynamo.graph_break()
            return self.inner(**inputs)

    model = Broken().train()
    twin = copy.deepcopy(model.inner)
    dense = apply(twin, WINDOW, PADDED, verify=False, inplace=True)
    compiled = torch.compile(model, backend="sparsify", options={"recipe": WINDOW, "inner": "eager"})
    with pytest.warns(RuntimeWarning, match="torch.compile cut the graph"):
        found = trained(compiled, model, PADDED)
    assert_close(found, trained(dense.original, twin, PADDED))
