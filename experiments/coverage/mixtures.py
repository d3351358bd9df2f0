"""Models with mixtures of experts in small configurations, with random weights, and inputs for them.

In: `SUBJECTS["Mixtral (transformers)"]`. Out: as in `subjects`.
"""

from typing import Any, Final

import torch
from torch import nn

from experiments.coverage.subjects import (
    BIGBIRD,
    LONGFORMER,
    SIZES,
    TEXT,
    Subject,
    hugging_face,
    pairs,
    texts,
)

EXPERTS: Final = 5
_LAYERS: Final = {**TEXT, **SIZES, "num_experts_per_tok": 2, "use_cache": False}


def one_by_one(model: nn.Module) -> None:
    """Sets the experts to run one after the other, each on its routed tokens ("eager")."""
    config: Any = model.config
    config._experts_implementation = "eager"


def routed_in_float64(model: nn.Module) -> None:
    """Sets the dtype of routers to float64: a router converts its input to a stored dtype."""
    for module in model.modules():
        if isinstance(getattr(module, "router", None), nn.Module):
            routed: Any = module
            routed.router.dtype = torch.float64


def gpt_oss() -> nn.Module:
    """GPT-OSS with nonzero expert biases, and sinks as large as scores."""
    model = hugging_face(
        "GptOss", **_LAYERS, num_key_value_heads=1, num_local_experts=EXPERTS, head_dim=16, sliding_window=9
    )()
    for name, parameter in model.named_parameters():
        if name.endswith(("sinks", "proj_bias")):
            nn.init.normal_(parameter)
    return model


def _mixture(name: str, kind: str, **sizes: Any) -> Subject:
    make = hugging_face(kind, **_LAYERS, **sizes)
    return Subject(name, "transformers", make, texts, BIGBIRD, gates=2, widen=one_by_one)


_SWITCH: Final = {
    "vocab_size": TEXT["vocab_size"], "d_model": 32, "d_kv": 16, "d_ff": 48, "num_heads": 2, "num_layers": 1,
    "num_decoder_layers": 1, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": EXPERTS,
    "expert_capacity": 12, "decoder_start_token_id": 0, "use_cache": False,
}  # fmt: skip
_ALL: Final = (
    _mixture("Mixtral", "Mixtral", num_key_value_heads=1, num_local_experts=EXPERTS),
    _mixture("Qwen2-MoE", "Qwen2Moe", num_key_value_heads=1, num_experts=EXPERTS, moe_intermediate_size=24),
    _mixture(
        "Qwen3-MoE",
        "Qwen3Moe",
        num_key_value_heads=1,
        num_experts=EXPERTS,
        moe_intermediate_size=24,
        head_dim=16,
    ),
    _mixture("OLMoE", "Olmoe", num_experts=EXPERTS),
    Subject("GPT-OSS", "transformers", gpt_oss, texts, BIGBIRD, gates=2, widen=one_by_one, sinks=True),
    Subject(
        "Switch Transformers",
        "transformers",
        hugging_face("SwitchTransformers", **_SWITCH),
        pairs,
        LONGFORMER,
        gates=2,
        widen=routed_in_float64,
        dense=tuple(
            f"{part}.block.0.layer.{place}.mlp.experts.expert_{expert}.{side}.weight"
            for part, place in (("encoder", 1), ("decoder", 2))
            for expert in range(EXPERTS)
            for side in ("wi", "wo")
        ),
    ),
)
SUBJECTS: Final = {str(subject): subject for subject in _ALL}
