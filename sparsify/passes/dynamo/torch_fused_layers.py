"""torch's fused layers, decomposed into their operators.

In: `torch._transformer_encoder_layer_fwd(%x, ...)`, found by Dynamo in encoders in evaluation without gradients.
Out: `SPELLED[...]`, a function of the same arguments with linear layers and attention by torch's operator, as in
`nn.TransformerEncoderLayer` with gradients.

Fused operators hide weights and attention from rules. Floating-point masks are added to the scores, also where the
fused operator treats every nonzero number as masked.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

# Type of a key padding mask, of two modes; other types mask scores.
FOR_KEYS: Final = 1


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor,
    in_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The results of `nn.MultiheadAttention`, [texts, tokens, width], and its weights if needed."""
    is_for_keys = mask_type == FOR_KEYS
    attended, weights = functional.multi_head_attention_forward(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        width,
        heads,
        in_weight,
        in_bias,
        None,
        None,
        False,
        0.0,
        out_weight,
        out_bias,
        training=False,
        key_padding_mask=mask if is_for_keys else None,
        need_weights=need_weights,
        attn_mask=None if mask is None or is_for_keys else mask.reshape(-1, *mask.shape[-2:]),
        average_attn_weights=average_weights,
    )
    return attended.transpose(0, 1), weights


def encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor,
    in_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    is_gelu: bool,
    is_norm_first: bool,
    eps: float,
    *weights: Any,
) -> Tensor:
    """The result of `nn.TransformerEncoderLayer` in evaluation, [texts, tokens, width].

    Args:
        x: tokens, [texts, tokens, width].
        width, heads, in_weight, in_bias, out_weight, out_bias: arguments of attention.
        is_gelu: whether the activation is gelu; otherwise relu.
        is_norm_first: whether both parts are normalised before, not after.
        eps: eps of both normalisations.
        weights: weights and biases of both normalisations and of both linear layers; a mask and its type.
    """
    first, second = weights[0:2], weights[2:4]
    mask, mask_type = (*weights[8:], None, None)[:2]
    activation = functional.gelu if is_gelu else functional.relu

    def attend(y: Tensor) -> Tensor:
        settings = (width, heads, in_weight, in_bias, out_weight, out_bias, mask, False, False, mask_type)
        return attention(y, y, y, *settings)[0]

    def feed(y: Tensor) -> Tensor:
        return functional.linear(activation(functional.linear(y, *weights[4:6])), *weights[6:8])

    def normalised(y: Tensor, scale: tuple[Any, ...]) -> Tensor:
        return functional.layer_norm(y, (width,), scale[0], scale[1], eps)

    if is_norm_first:
        x = x + attend(normalised(x, first))
        return x + feed(normalised(x, second))
    x = normalised(x + attend(x), first)
    return normalised(x + feed(x), second)


SPELLED: Final[dict[Any, Callable[..., Any]]] = {
    torch._transformer_encoder_layer_fwd: encoder_layer,
    torch._native_multi_head_attention: attention,
}
