"""Tokens of a decoder with pruned weights, and mixtures of experts for few tokens, against torch and transformers.

In: `decoder(80, place)`, `mixture(16, place)`. Out: a `Case`; all contenders have the same weights, zeros included.
"""

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.passes.rules.prune import prune
from sparsify.recipe import load
from sparsify.runner.peers.baselines import without_gradients

PROMPT, NEW = 16, 16
# A decoder of Llama's shape with a thousand million parameters, and a small one to try the row out.
LLAMA: Final = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
SMALL: Final = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LINEAR: Final = {"targets": ["param:*proj.weight"], "types": ["Linear"], "role": "weight"}
MIXTRAL: Final = {"num_local_experts": 8, "num_experts_per_tok": 2}
IMPLEMENTATIONS: Final = ("eager", "grouped_mm")


def decoder(zeros: int, place: Place, *, dtype: str = "bfloat16", asked: float | None = None) -> Case:
    """Sixteen tokens after a prompt of sixteen, batch 1, with a KV cache.

    Args:
        zeros: per cent of zeros of the linear layers of blocks.
        dtype: dtype of weights and activations.
        asked: required ratio against the same model in torch.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LLAMA if place.scale >= 1 else SMALL
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes)).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    magnitude = {"prune": {"method": "magnitude", "sparsity": zeros / 100}}
    pruned: Any = prune(model, load(_recipe({**LINEAR, **magnitude}))).to(getattr(torch, dtype))
    prompt = torch.randint(0, sizes["vocab_size"], (1, PROMPT))
    work = f"{sizes['num_hidden_layers']} layers of {sizes['hidden_size']}, {PROMPT} + {NEW} tokens"
    case = Case("decoder", work, "generated", [], [], lambda: tokens(pruned, prompt).double())
    recipe = _recipe({**LINEAR, "source": "given"})
    sparse = case.prepare(
        "apply", lambda: sparsify.apply(copy.deepcopy(pruned), recipe, prompt, trainable=False, verify=False)
    )
    case.contenders += [
        Contender("sparsify", lambda: tokens(sparse, prompt), baseline=False),
        Contender("torch", lambda: tokens(pruned, prompt)),
    ]
    case.targets.append(Target("sparsify", ("torch",), asked, "torch"))
    return case


def tokens(model: Any, prompt: Tensor) -> Tensor:
    """The likeliest tokens [1, PROMPT + NEW] of a model."""
    with torch.no_grad():
        found: Tensor = model.generate(prompt, max_new_tokens=NEW, do_sample=False)
    return found


def mixture(count: int, place: Place, *, asked: float | None = None) -> Case:
    """Mixtral's experts with their router on `count` tokens.

    Args:
        count: tokens of a call.
        place: sizes below 1 make narrow experts.
        asked: required ratio against the faster implementation of transformers.
    """
    width, inside = (512, 1024) if place.scale >= 1 else (32, 64)
    blocks = _blocks(hidden_size=width, intermediate_size=inside)
    x = torch.randn(1, count, width)
    plain = blocks[IMPLEMENTATIONS[0]]
    exact: Callable[[Tensor], Tensor] = copy.deepcopy(plain).double()
    work = f"8 experts of {width} x {inside}, {count} tokens"
    case = Case("mixture", work, "generated", [], [], lambda: exact(x.double()))
    recipe = _recipe({"targets": ["op:experts"], "role": "gate", "source": "computed"})
    sparse = case.prepare("apply", lambda: sparsify.apply(plain, recipe, x, trainable=False, verify=False))
    case.contenders.append(Contender("sparsify", without_gradients(sparse, (x,)), baseline=False))
    case.contenders += [Contender(way, without_gradients(block, (x,))) for way, block in blocks.items()]
    case.targets.append(Target("sparsify", IMPLEMENTATIONS, asked, "transformers"))
    return case


def _blocks(**sizes: int) -> dict[str, nn.Module]:
    """Layers of experts with equal random weights, by implementation of transformers."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    found: dict[str, nn.Module] = {}
    for way in IMPLEMENTATIONS:
        config: Any = MixtralConfig(**sizes, **MIXTRAL)
        config._experts_implementation = way
        block: nn.Module = MixtralSparseMoeBlock(config).eval().requires_grad_(False)
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        found[way] = block
    for block in found.values():
        block.load_state_dict(found[IMPLEMENTATIONS[0]].state_dict())
    return found


def _recipe(rule: dict[str, Any]) -> dict[str, Any]:
    return {"schema": 1, "name": "served", "sparsify": [rule]}
