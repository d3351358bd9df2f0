"""Attention with a built-in pattern: Hugging Face's BigBird with `attention_type="block_sparse"`.

In: a model, during its capture. Out: within `shown(model)` such a layer computes torch's operator,
`scaled_dot_product_attention`, over all keys, on unpadded texts; `own_pattern(layer)` is its attention pattern. The
layer's own code cuts texts into blocks, pads them to whole blocks, and has another layer for short texts; as a pattern
the layer is one program for all lengths.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional

from sparsify.errors import CaptureError
from sparsify.sparsification.masks.mask_spec import MaskSpec

LAYER: Final = "BigBirdBlockSparseAttention"
MODEL: Final = "BigBirdModel"
# A number of random blocks for which no text is too short.
NONE_TOO_SHORT: Final = -3


def own_pattern(module: nn.Module) -> MaskSpec | None:
    """The built-in attention pattern of a module."""
    if not _is(module, LAYER):
        return None
    layer: Any = module
    numbers = {"block": layer.block_size, "random": layer.num_random_blocks}
    if module.training:
        heads = layer.num_attention_heads
        numbers |= {"training": True, "heads": heads, "seed": layer.seed, "longest": layer.max_seqlen}
    return MaskSpec.of("block_sparse", numbers)


@contextmanager
def shown(model: nn.Module) -> Iterator[None]:
    """A context in which layers with built-in patterns attend to all keys, by torch's operator."""
    with ExitStack() as changes:
        for module in model.modules():
            if _is(module, LAYER):
                changes.enter_context(replaced(module, "forward", partial(attend, module)))
            if _is(module, MODEL) and module.attention_type == "block_sparse":
                changes.enter_context(replaced(module, "_pad_to_block_size", unpadded))
                changes.enter_context(replaced(module, "create_masks_for_block_sparse_attn", masks))
                config: Any = copy.copy(module.config)  # other threads may read the model's own
                config.num_random_blocks = NONE_TOO_SHORT
                changes.enter_context(replaced(module, "config", config))
        yield


def attend(
    layer: Any,
    hidden_states: Tensor,
    band_mask: Any,
    from_mask: Tensor,
    to_mask: Tensor,
    *_: Any,
    output_attentions: bool = False,
    **__: Any,
) -> tuple[Tensor, None]:
    """The layer's result with attention to all keys, without attention weights; 0 for padded queries.

    Args:
        layer: the attention layer.
        hidden_states: [batch, tokens, hidden].
        from_mask, to_mask: 0 for padding, [batch, 1, tokens, 1] and [batch, 1, 1, tokens].
        output_attentions: whether the model wants the weights.

    Raises:
        CaptureError: the model wants the weights.
    """
    if output_attentions:
        raise CaptureError("under a pattern no weights of attention are kept: leave out output_attentions")
    batch, tokens = hidden_states.shape[:2]
    heads = (batch, tokens, layer.num_attention_heads, layer.attention_head_size)
    query, key, value = (
        part(hidden_states).view(heads).transpose(1, 2) for part in (layer.query, layer.key, layer.value)
    )
    attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=to_mask != 0)
    return (attended * from_mask).transpose(1, 2).reshape(batch, tokens, -1), None


def unpadded(
    input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any, inputs_embeds: Any, **_: Any
) -> tuple[Any, ...]:
    """Lengths of padding, 0, and the unchanged inputs."""
    return 0, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds


def masks(attention_mask: Tensor, block_size: int) -> tuple[None, None, Tensor, Tensor]:
    """No block masks, and the masks of queries and keys."""
    return None, None, attention_mask[:, None, :, None], attention_mask[:, None, None, :]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which an object's own attribute is replaced."""
    attributes = vars(owner)
    is_own, before = name in attributes, attributes.get(name)
    attributes[name] = value
    try:
        yield
    finally:
        attributes.pop(name)
        if is_own:
            attributes[name] = before


def _is(module: nn.Module, name: str) -> bool:
    """Whether a module is the transformers class of a name."""
    return type(module).__name__ == name and type(module).__module__.startswith("transformers.")
