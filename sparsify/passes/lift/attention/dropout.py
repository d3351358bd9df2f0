"""Dropout inside of attention, by random numbers that are a function of a seed, the query and the key.

In: `%y = scaled_dot_product_attention(%q, %k, %v, dropout_p=0.1)` in training.
Out: `%s = randint(2**31 - 1, [batch, heads]); %y = dropped_attention(%q, %k, %v, %s, dropout_p=0.1)`.

The seeds, one for each head of a call, come from torch's generator. The kernel draws the same numbers where it needs
them, forwards and backwards: which weights are dropped depends on seeds, queries and keys alone.
"""

from torch import Tensor

from sparsify.passes.graph.draws import dropped_weights
from sparsify.passes.lift.attention.reference import attention_weights, weighted_sums


def dropped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor,
    *,
    attn_mask: Tensor,
    dropout_p: float,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention some of whose weights are 0, the others divided by how many are left on average.

    Densely: what the kernel is compared with, and what runs where none can be built.

    Args:
        query: [.., queries, width]; `key` and `value` are like it.
        seed: integers, one for each [queries, keys] of weights.
        attn_mask: of truth values, or what is added to the scores.
        dropout_p: how likely a weight is dropped.
        scale: of the scores, `width ** -0.5` by default.
        enable_gqa: whether several heads of queries share one of keys and values.

    Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, Dropout, 2014.
    """
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    weights = attention_weights(query, key, attn_mask, scale=scale)
    return weighted_sums(dropped_weights(weights, seed, rate=dropout_p), value)
