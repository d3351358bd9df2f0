"""Experts of transformers' models: captured, computed where they are chosen, and left as they were."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import sparsify
from sparsify.compiler.kernel.least_time import Least
from sparsify.options import override
from sparsify.passes.choose import autotune
from sparsify.passes.module import capture_call
from sparsify.passes.module.check.whole_call import SlowerCallError

RULE = {"targets": ["op:experts"], "role": "gate", "source": "computed"}
SIZES = {
    "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts_per_tok": 2, "use_cache": False,
}  # fmt: skip
RECIPE = {"schema": 1, "name": "experts", "sparsify": [RULE]}


def compare_gradients(found: torch.Tensor, expected: torch.Tensor, model: nn.Module, wide: nn.Module) -> None:
    """The gradients of all parameters, those of routers too, are those of the same model in float64."""
    gradient = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, list(wide.parameters()), gradient, allow_unused=True)
    mine = torch.autograd.grad(found, list(model.parameters()), gradient.float(), allow_unused=True)
    for own, other in zip(mine, theirs, strict=True):
        if own is not None or other is not None:
            # Sums over all tokens of products of weights as large as the largest one.
            largest = float(other.abs().max())
            torch.testing.assert_close(own.double(), other, rtol=1e-3, atol=1e-4 * largest + 1e-6)


@pytest.mark.sampled(3)
@pytest.mark.model
def test_in_training():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=5)
    model = transformers.MixtralModel(config)
    wide = copy.deepcopy(model).double()
    wide.config._experts_implementation = "eager"
    before = config._experts_implementation
    sparse = sparsify.apply(model, RECIPE, torch.randint(50, (2, 9)))
    assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
    ids = torch.randint(50, (3, 14))
    expected, found = wide(ids).last_hidden_state, sparse(ids).last_hidden_state
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    compare_gradients(found, expected, model, wide)
    assert config._experts_implementation == before


@pytest.mark.sampled(3)
@pytest.mark.model
def test_biases_and_alternating_columns():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**SIZES, num_local_experts=5, head_dim=8, swiglu_limit=0.1)
    model = transformers.GptOssModel(config).eval()
    for name, parameter in model.named_parameters():
        if "mlp" in name:
            nn.init.normal_(parameter, std=0.1)
    wide = copy.deepcopy(model).double()
    wide.config._experts_implementation = "eager"
    ids = torch.randint(50, (3, 14))
    with torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, torch.randint(50, (2, 9)))
        assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
        expected, found = wide(ids).last_hidden_state, sparse(ids).last_hidden_state
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def slower_once(publish):
    """The function `publish`, of which the first call finds the dense model faster."""
    errors = [SlowerCallError({}, None)]

    def published(*args):
        if errors:
            raise errors.pop()
        return publish(*args)

    return published


@pytest.mark.sampled(2)
@pytest.mark.model
@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize("is_slower", [False, True])
def test_experts_without_a_kernel_are_those_of_the_model(is_slower, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.MixtralConfig(**SIZES, num_local_experts=5, hidden_act="mish")
    model, ids = transformers.MixtralModel(config).eval(), torch.randint(50, (2, 9))
    if is_slower:
        monkeypatch.setattr(capture_call, "publish", slower_once(capture_call.publish))
    with torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, ids)
        torch.testing.assert_close(sparse(ids).last_hidden_state, model(ids).last_hidden_state)
    assert not sparse.report.regions
    assert any(entry.reason.endswith("the model's own experts run") for entry in sparse.report.dense)
    assert sparse.variants
    assert not [node for node in sparse.graph.nodes if "einsum" in str(node.target)]


@pytest.mark.sampled(3)
@pytest.mark.model
@pytest.mark.parametrize(
    ("shape", "others"), [((1, 1), ()), ((1, 9), ((1, 14),)), ((3, 1), ((7, 1), (1, 1)))], ids=str
)
def test_one_text_or_one_token_each_is_a_mixture_too(shape, others):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = transformers.MixtralModel(transformers.MixtralConfig(**SIZES, num_local_experts=5)).eval()
    with override(tune_seconds=0), torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, torch.randint(50, shape), trainable=False)
        assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]]
        for size in (shape, *others):
            ids = torch.randint(50, size)
            expected, found = model(ids).last_hidden_state, sparse(ids).last_hidden_state
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.model
@pytest.mark.parametrize(("us", "wins"), [(99.0, True), (200.0, False)])
def test_kernels_in_training_meet_experts_of_transformers(us, wins, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=5)
    model, ids = transformers.MixtralModel(config).to(torch.bfloat16), torch.randint(50, (2, 9))
    times = []

    def race(calls, seconds):
        results = [call() for call in calls]
        assert all(isinstance(result, tuple) for result in results)  # gradients of all that is read
        times.append(seconds)
        return least(us, 100.0)

    untimed(monkeypatch, race)
    with override(tune_seconds=1):
        sparse = sparsify.apply(model, RECIPE, ids)
        found = sparse(ids).last_hidden_state
    assert times == [1]
    assert bool(sparse.report.regions) == wins
    reasons = [entry.reason for entry in sparse.report.dense]
    assert (
        any("transformers' experts are faster: timed 200 us, torch's 100" in why for why in reasons) != wins
    )
    # Of numbers about 3, rounded to 8 bits many times.
    assert (found - model(ids).last_hidden_state).abs().max() < 0.1


@pytest.mark.sampled(2)
@pytest.mark.model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_torch_computes_experts_of_few_tokens(dtype, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=5)
    model = transformers.MixtralModel(config).to(dtype).eval()
    timed = []

    def race(calls, seconds):
        kernel, products = [call() for call in calls]
        assert kernel.shape == products.shape
        timed.append(kernel.shape[0])
        return least(*((300.0, 100.0) if kernel.shape[0] < 30 else (100.0, 300.0)))

    untimed(monkeypatch, race)
    with override(tune_seconds=1), torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, torch.randint(50, (2, 9)))
        assert timed == [18, 4, 72]
        (region,) = sparse.report.regions
        note = "4 rows 300 us, 100; 18 rows 300 us, 100; 72 rows 100 us, 300: torch's products, expert by expert run "
        assert note + "below 36 rows where no gradients are wanted" in region.notes[-1]
        assert "below 36 rows" in str(sparsify.explain(sparse))
        (call,) = next(iter(sparse.variants)).regions
        ran = []
        products = call.preferred.alternative.run
        alternative = replace(
            call.preferred.alternative, run=lambda *given: ran.append(1) or products(*given)
        )
        call.preferred = replace(call.preferred, alternative=alternative)
        for shape, is_few in (((3, 9), True), ((5, 9), False), ((1, 9), True), ((2, 30), False)):
            ids, before = torch.randint(50, shape), len(ran)
            expected, found = model(ids).last_hidden_state, sparse(ids).last_hidden_state
            tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
            if shape[0] > 1:  # one text is a capture of its own
                assert (len(ran) > before) == is_few
    if dtype == torch.float32:
        ids = torch.randint(50, (3, 9))
        wide = copy.deepcopy(model).double()
        wide.config._experts_implementation = "eager"
        compare_gradients(sparse(ids).last_hidden_state, wide(ids).last_hidden_state, model, wide)


def least(*times: float) -> list[Least]:
    """The measured times of candidates."""
    found = [Least(1, 0.1) for _ in times]
    for one, time in zip(found, times, strict=True):
        one.add(time)
    return found


def untimed(monkeypatch, race) -> None:
    """Candidates have the times that `race` says, which are kept nowhere."""
    monkeypatch.setattr(autotune, "race", race)
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, measured, options, kept, **_: measured())
