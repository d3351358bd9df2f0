"""Models in small configurations, with random weights, and inputs for them.

In: `SUBJECTS["BERT (transformers)"]`. Out: `make()`, a module in float32, and `inputs(batch, length)`, the arguments of
a call; texts are padded to different lengths.

Sequences are tokens of texts, or patches of pictures; the size of pictures is fixed by the model.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import nn

import sparsify
from sparsify.models.autoencoder import Autoencoder
from sparsify.models.dlrm import DLRM

VOCABULARY = 50
TEXT: Final = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES: Final = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
PICTURE: Final = {"image_size": 32, "patch_size": 4}
LONGFORMER: Final = {"kind": "longformer", "window": 6, "global": 2, "block": 8}
BIGBIRD: Final = {"kind": "bigbird", "block": 8, "window": 3, "global": 2, "random": 0}
GIVEN: Final = {"kind": "given"}
WINDOW: Final = {"kind": "sliding_window", "before": 5, "block": 4}

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model to verify.

    Attributes:
        name: name in the table.
        package: package of the model.
        make: maker of the module, from torch's random numbers.
        inputs: arguments of a call for a batch and a length.
        mask: pattern of attention in the recipe, None without attention over tokens.
        dynamic: dynamic dimensions of inputs, None for all.
        shapes: [batch, length] of the inputs to compare.
        given: rule target with sparse values as given (adjacency, bag, batch), "" without.
        given_count: number of products with given sparse matrices.
        gates: number of mixtures of experts.
        widen: further conversion of the float64 copy, for modules with a dtype of their own.
        dense: weights of linear layers without pruning.
        sinks: whether the last score of each query belongs to a sink.
    """

    name: str
    package: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    mask: Mapping[str, Any] | None
    dynamic: Mapping[str, tuple[int, ...]] | None = None
    shapes: tuple[tuple[int, int], ...] = ((2, 40), (3, 27))
    given: str = ""
    given_count: int = 0
    gates: int = 0
    widen: Callable[[nn.Module], None] | None = None
    dense: tuple[str, ...] = ()
    sinks: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.package})"

    @property
    def is_installed(self) -> bool:
        """Whether the package of the model is installed."""
        return find_spec(self.package) is not None


def texts(batch: int, length: int) -> Inputs:
    """Token ids and mask; each text but the first ends with padding: 3 tokens in the second text, 6 in the third."""
    draws = torch.Generator().manual_seed(length)
    padded = 3 * torch.arange(batch)[:, None]
    kept = torch.arange(length) < length - padded
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=draws)
    return {"input_ids": ids * kept, "attention_mask": kept.long()}


def pairs(batch: int, length: int) -> Inputs:
    """Texts and the beginnings of their translations."""
    return {**texts(batch, length), "decoder_input_ids": texts(batch, length // 2 + 1)["input_ids"]}


def pictures(batch: int, length: int = 0) -> Inputs:
    """Random pictures of 32 x 32 pixels."""
    return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(batch))}


def pixels(batch: int, length: int = 0) -> Inputs:
    """Random pictures under torchvision's argument name."""
    return {"x": pictures(batch)["pixel_values"]}


def captions(batch: int, length: int) -> Inputs:
    """Texts and pictures."""
    return {**texts(batch, length), **pictures(batch)}


def vectors(batch: int, length: int) -> Inputs:
    """Token vectors and a padding mask."""
    x = torch.randn(batch, length, 32, generator=torch.Generator().manual_seed(length))
    return {"src": x, "src_key_padding_mask": texts(batch, length)["attention_mask"] == 0}


def rows(batch: int, length: int) -> Inputs:
    """Rows with mostly zero entries, as a sparse matrix."""
    x = torch.rand(length, 24, generator=torch.Generator().manual_seed(length))
    return {"input": sparsify.tensor(x * (x > 0.8), format="csr")}


def bags(batch: int, length: int) -> Inputs:
    """Dense numbers, and indices of bags of rows of three tables."""
    draws = torch.Generator().manual_seed(length)
    indices = torch.randint(0, VOCABULARY, (3, length, 5), generator=draws)
    return {"numbers": torch.randn(length, 13, generator=draws), "indices": indices}


def hugging_face(name: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Maker of a transformers model: `BertModel` of a `BertConfig` with `sizes`."""

    def make() -> nn.Module:
        if find_spec("torchvision") is not None:
            torchvision_models()  # transformers imports torchvision, and would fail without the operators
        import transformers

        config = getattr(transformers, f"{name}Config")(**sizes)
        found: nn.Module = getattr(transformers, f"{name}Model")(config)
        return found

    return make


def encoder() -> nn.Module:
    """Encoder of torch (`nn.TransformerEncoder`)."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 48, batch_first=True), 2)


def torchvision_models() -> Any:
    """`torchvision.models`, with definitions of the operators missing in CPU-only builds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
        import torchvision.models
    return torchvision.models


def torchvision_vit() -> nn.Module:
    """Vision transformer of torchvision, with random weights in the head (zero by default)."""
    model: nn.Module = torchvision_models().VisionTransformer(32, 4, 2, 2, 32, 48, num_classes=10)
    nn.init.normal_(model.heads.head.weight)  # type: ignore[union-attr, arg-type]
    return model


def torchvision_swin() -> nn.Module:
    """Swin transformer of torchvision: windows of 4 x 4 patches, every other layer shifted."""
    model: nn.Module = torchvision_models().SwinTransformer(
        [2, 2], 16, [2, 2], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=10
    )
    return model


def _texts(name: str, kind: str, mask: Mapping[str, Any], **sizes: Any) -> Subject:
    return Subject(name, "transformers", hugging_face(kind, **TEXT, **sizes), texts, mask)


# Soft caps as small as the scores, so that capping shows; every other layer has a window.
_GEMMA = {
    "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 1, "attn_logit_softcapping": 0.05,
    "sliding_window": 9,
}  # fmt: skip
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
_CLIP = {
    "text_config": {**TEXT, **SIZES, "projection_dim": 16},
    "vision_config": {**SIZES, **PICTURE},
    "projection_dim": 16,
}
_ALL: Final = (
    _texts("BERT", "Bert", BIGBIRD, **SIZES),
    _texts("DistilBERT", "DistilBert", LONGFORMER, dim=32, n_layers=2, n_heads=2, hidden_dim=48),
    _texts("RoBERTa", "Roberta", BIGBIRD, **SIZES, max_position_embeddings=128),
    _texts("ALBERT", "Albert", LONGFORMER, **SIZES, embedding_size=16),
    _texts("BigBird, original_full", "BigBird", BIGBIRD, **SIZES, attention_type="original_full"),
    replace(
        _texts(
            "BigBird, block_sparse",
            "BigBird",
            GIVEN,
            **SIZES,
            attention_type="block_sparse",
            block_size=4,
            num_random_blocks=1,
        ),
        shapes=((2, 40), (3, 37)),  # shorter texts have full attention
    ),
    _texts("GPT-2", "GPT2", LONGFORMER, n_embd=32, n_layer=2, n_head=2, n_inner=48),
    _texts("Llama", "Llama", BIGBIRD, **SIZES, num_key_value_heads=1),
    _texts("Gemma 2", "Gemma2", BIGBIRD, **SIZES, **_GEMMA),
    Subject(
        "T5",
        "transformers",
        hugging_face("T5", vocab_size=VOCABULARY, **_T5),
        pairs,
        LONGFORMER,
    ),
    Subject("ViT", "transformers", hugging_face("ViT", **SIZES, **PICTURE), pictures, BIGBIRD),
    Subject("CLIP", "transformers", hugging_face("CLIP", **_CLIP), captions, LONGFORMER),
    Subject("nn.TransformerEncoder", "torch", encoder, vectors, BIGBIRD),
    Subject("ViT", "torchvision", torchvision_vit, pixels, BIGBIRD),
    Subject("Swin", "torchvision", torchvision_swin, pixels, WINDOW, {"x": (0,)}),
    Subject(
        "Autoencoder, sparse batch",
        "torch",
        partial(Autoencoder, 24, 16),
        rows,
        None,
        given="input:input",
        given_count=1,
        dense=("0.weight",),
    ),
    Subject(
        "DLRM",
        "torch",
        partial(DLRM, tables=3, rows=VOCABULARY, columns=8, hidden=16),
        bags,
        None,
        given="op:embedding_bag",
        given_count=3,
    ),
)
SUBJECTS: Final = {str(subject): subject for subject in _ALL}
