"""Tokens of a decoder with pruned weights, and mixtures of experts for few tokens, against torch and transformers.

In: `decoder(80, place)`, `mixture(16, place)`. Out: a `Case`; all contenders have the same weights, zeros included.
"""

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from experiments.serving.networks import TOLERANCES
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
    """Sixteen given tokens after a prompt of sixteen, batch 1, with a KV cache; results are the logits of the tokens.

    Random weights have near ties: rounding decides which token a model of half precision would choose.

    Args:
        zeros: per cent of zeros of the linear layers of blocks.
        dtype: dtype of weights and activations.
        asked: required ratio against the same model in torch, in its dtype or in float32, whichever is faster.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LLAMA if place.scale >= 1 else SMALL
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes)).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    magnitude = {"prune": {"method": "magnitude", "sparsity": zeros / 100}}
    pruned: Any = prune(model, load(_recipe({**LINEAR, **magnitude}))).to(getattr(torch, dtype))
    text = torch.randint(0, sizes["vocab_size"], (1, PROMPT + NEW))
    prompt = text[:, :PROMPT]
    work = f"{sizes['num_hidden_layers']} layers of {sizes['hidden_size']}, {PROMPT} + {NEW} tokens"
    single = pruned if dtype == "float32" else copy.deepcopy(pruned).float()
    case = Case("decoder", work, "generated", [], [], lambda: exact_logits(single, text))
    case.tolerance = TOLERANCES[dtype]
    recipe = _recipe({**LINEAR, "source": "given"})
    sparse = case.prepare(
        "apply", lambda: sparsify.apply(copy.deepcopy(pruned), recipe, prompt, trainable=False, verify=False)
    )
    case.contenders += [
        Contender("sparsify", lambda: logits(sparse, text), baseline=False),
        Contender("torch", lambda: logits(pruned, text)),
    ]
    names = ["torch"]
    if single is not pruned:  # faster than 16 bits on CPUs without instructions for them
        names.append("torch float32")
        case.contenders.append(Contender(names[-1], lambda: logits(single, text)))
    case.targets.append(Target("sparsify", tuple(names), asked, "torch"))
    return case


def logits(model: Any, text: Tensor) -> Tensor:
    """The logits [NEW, vocabulary] behind a prompt and each of the tokens that follow but the last, one by one."""
    found, known = [], None
    with torch.no_grad():
        for step in (text[:, :PROMPT], *text[:, PROMPT:-1].split(1, dim=1)):
            result = model(step, past_key_values=known, use_cache=True)
            found.append(result.logits[0, -1])
            known = result.past_key_values
    return torch.stack(found)


def exact_logits(model: Any, text: Tensor) -> Tensor:
    """The logits of the whole text at once, by a model in float32."""
    with torch.no_grad():
        found: Tensor = model(text[:, :-1]).logits[0, PROMPT - 1 :]
    return found.double()


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
