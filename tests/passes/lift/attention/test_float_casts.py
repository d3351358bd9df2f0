"""Attention whose softmax is in float32 while the model is in halves, against dense attention in float64."""

import copy

import pytest
import torch
from test_find import recipe
from torch import Tensor, nn
from torch.nn import functional

import sparsify
from experiments.coverage import mixtures, subjects
from experiments.coverage.reference import masked_attention
from experiments.coverage.subjects import SIZES, TEXT, hugging_face, pairs, texts
from experiments.coverage.verify import distance, gradients
from sparsify import options
from sparsify.errors import RecipeError

WINDOW = {"kind": "sliding_window", "before": 5, "block": 4}
EAGER = {"attn_implementation": "eager", "use_cache": False}
LLAMA = {**TEXT, **SIZES, "num_hidden_layers": 1, "num_key_value_heads": 1}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_inner": 48}
SMOOTH = {"num_layers": 1, "feed_forward_proj": "gated-gelu"}
MODELS = {
    "Llama": hugging_face("Llama", **LLAMA, **EAGER),
    "Gemma 2": hugging_face("Gemma2", **{**LLAMA, **subjects._GEMMA, **EAGER}),
    "GPT-2": hugging_face("GPT2", **TEXT, **GPT2, **EAGER),
    "GPT-J": hugging_face("GPTJ", **TEXT, **GPT2, rotary_dim=8, **EAGER),  # queries and keys in float32
    "BERT": hugging_face("Bert", **{**TEXT, **SIZES, "num_hidden_layers": 1}, **EAGER),
    "T5": hugging_face("T5", vocab_size=50, **{**subjects._T5, **SMOOTH}, **EAGER),
    "GPT-OSS": mixtures.gpt_oss,
}
# What the layers around attention round, in steps of the dtype: the dense models come as near.
STEPS = 2
GRADIENT_STEPS = 8


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


@pytest.mark.sampled(8)
@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.bfloat16) for name in MODELS] + [(name, torch.float16) for name in ("Llama", "GPT-2")],
    ids=str,
)
def test_models_in_halves(name, dtype):
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = MODELS[name]().eval().to(dtype)
    given = pairs if name == "T5" else texts
    sparse = sparsify.apply(
        model, recipe("sliding_window", before=5, block=4), given(2, 24), strict=True, trainable=True
    )
    wide = copy.deepcopy(model).double()
    if name == "GPT-OSS":
        mixtures.one_by_one(wide)
        mixtures.routed_in_float64(wide)
    with masked_attention(WINDOW, sinks=name == "GPT-OSS") as calls:
        wanted = wide(**given(3, 17)).last_hidden_state
    found = sparse(**given(3, 17)).last_hidden_state
    assert found.dtype == dtype
    assert len(sparse.report.regions) == len(calls) > 0
    step = torch.finfo(dtype).eps
    assert distance(found, wanted) <= STEPS * step * wanted.abs().max()
    mine, theirs = gradients([found], sparse), gradients([wanted], wide)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for parameter, gradient in theirs.items():
        assert distance(mine[parameter], gradient) <= GRADIENT_STEPS * step * largest, parameter


class Layer(nn.Module):
    """Attention with itself, in one of several ways to convert what is in between."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.sinks = nn.Parameter(torch.randn(2))
        self.way = getattr(self, way)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        found: Tensor = self.way(q, k, v, mask)
        return found.transpose(1, 2).flatten(2)

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.mT * 0.3
        return scores if mask is None else scores + mask

    def converted(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return functional.softmax(self.scores(q, k, mask).float(), dim=-1).type_as(v) @ v

    def operands(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = self.scores(q.float(), k.float(), None)
        scores = scores if mask is None else scores.to(q.dtype) + mask
        return (functional.softmax(scores, dim=-1).float() @ v.float()).to(v.dtype)

    def wide(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """With a mask that is in float32."""
        weights = functional.softmax(self.scores(q, k, mask), dim=-1)
        return weights.to(v.dtype) @ v

    def beside(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = self.scores(q, k, mask)
        sinks = self.sinks[:, None, None].expand(len(q), -1, q.shape[2], -1)
        both = torch.cat([scores.float(), sinks.float()], -1)
        return functional.softmax(both - both.amax(-1, keepdim=True), -1)[..., :-1].to(v.dtype) @ v

    def exact(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        weights = functional.softmax(self.scores(q, k, mask), dim=-1, dtype=torch.float64)
        return weights.to(v.dtype) @ v

    def rounded(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return functional.softmax(self.scores(q, k, mask), dim=-1, dtype=torch.float32).to(v.dtype) @ v


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("way", "dtype"),
    [(way, torch.bfloat16) for way in ("converted", "operands", "wide", "beside", "rounded")]
    + [("rounded", torch.float64)],
    ids=str,
)
def test_ways_to_convert(way, dtype):
    model, x = Layer(way).to(dtype), torch.randn(2, 20, 16).to(dtype)
    mask = torch.randn(2, 1, 1, 20).to(torch.float32 if way == "wide" else dtype)
    sparse = sparsify.apply(
        model.eval(), recipe("sliding_window", before=5, block=4), (x, mask), strict=True, trainable=True
    )
    (region,) = sparse.report.regions
    assert ("Z[" in region.einsum) == (way == "beside")
    with masked_attention(WINDOW, sinks=way == "beside"):
        wanted = copy.deepcopy(model).double()(x.double(), mask.double())
    found = sparse(x, mask)
    assert found.dtype == dtype
    step = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)  # float32 where the model rounds to it
    assert distance(found, wanted) <= 4 * step * wanted.abs().max()


def test_softmax_wider_than_kernels_stays():
    with pytest.raises(
        RecipeError, match=r"computed in torch.float64, and its operands are in torch.float32"
    ):
        sparsify.apply(Layer("exact").eval(), recipe(), (torch.randn(2, 20, 16),))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_backend_finds_it(dtype):
    torch._dynamo.reset()
    model, x = Layer("rounded").eval().to(dtype), torch.randn(2, 20, 16).to(dtype)
    given = recipe("sliding_window", before=5, block=4)
    how = {"recipe": given, "inner": "eager", "strict": True}
    with torch.no_grad(), masked_attention(WINDOW):
        wanted = copy.deepcopy(model).double()(x.double())
    with torch.no_grad():
        found = torch.compile(model, backend="sparsify", options=how)(x)
    assert distance(found, wanted) <= 4 * torch.finfo(dtype).eps * wanted.abs().max()
