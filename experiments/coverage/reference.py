"""Reference for masked attention: dense attention under a pattern, independent of sparsify.

In: `with masked_attention({"kind": "longformer", "window": 6, "global": 2, "block": 8}) as calls: model(x)`. Out: the
model's result with every softmax of scores masked by the pattern; `len(calls)` is the number of attention calls.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

# The modes of attention scores, [batch, heads, queries, keys]; scores of routers have fewer modes.
HEADED: Final = 4
Keep = Callable[[Tensor, Tensor, int, int], Tensor]


def longformer(i: Tensor, j: Tensor, rows: int, columns: int, mask: Mapping[str, Any]) -> Tensor:
    """`|i - j| <= window / 2`, and full rows and columns for the first tokens."""
    reach, tokens = int(mask["window"]) // 2, int(mask["global"])
    return ((i - j).abs() <= reach) | (i < tokens) | (j < tokens)


def bigbird(i: Tensor, j: Tensor, rows: int, columns: int, mask: Mapping[str, Any]) -> Tensor:
    """A band of three blocks, and full rows and columns for the first and the last block."""
    assert (mask["window"], mask["global"], mask["random"]) == (3, 2, 0)
    block = int(mask["block"])
    i, j = i // block, j // block
    last = [(extent - 1) // block for extent in (rows, columns)]
    return ((i - j).abs() <= 1) | (i == 0) | (j == 0) | (i == last[0]) | (j == last[1])


def sliding_window(i: Tensor, j: Tensor, rows: int, columns: int, mask: Mapping[str, Any]) -> Tensor:
    """`|i - j| <= before`."""
    return (i - j).abs() <= int(mask["before"])


KINDS = {"longformer": longformer, "bigbird": bigbird, "sliding_window": sliding_window}


def keep(mask: Mapping[str, Any], rows: int, columns: int) -> Tensor:
    """Pattern of a mask, boolean [rows, columns]: True if the query attends to the key."""
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    return KINDS[mask["kind"]](i, j, rows, columns, mask)


@contextmanager
def own_attention(model: nn.Module) -> Iterator[list[torch.Size]]:
    """Context with the model's own attention, sparse already; yields the shapes of its results."""
    calls: list[torch.Size] = []
    layers = [module for module in model.modules() if type(module).__name__.endswith("SparseAttention")]
    hooks = [
        layer.register_forward_hook(lambda _, __, found: calls.append(found[0].shape)) for layer in layers
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def masked_attention(mask: Mapping[str, Any], *, sinks: bool = False) -> Iterator[list[torch.Size]]:
    """Context with attention masked by the pattern; yields the shapes of the scores.

    Args:
        sinks: whether the last score of each query belongs to a sink; every query attends to the sink.
    """
    calls: list[torch.Size] = []
    softmax = functional.softmax

    def masked_softmax(scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if scores.dim() < HEADED:
            return softmax(scores, *args, **kwargs)
        calls.append(scores.shape)
        kept = keep(mask, scores.shape[-2], scores.shape[-1] - sinks)
        kept = functional.pad(kept, (0, int(sinks)), value=True)
        if scores.dtype == torch.float64:
            kwargs.pop("dtype", None)  # float32, requested by models for softmax over narrower dtypes
        return softmax(scores.masked_fill(~kept, -torch.inf), *args, **kwargs)

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        assert dropout_p == 0
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return masked_softmax(scores, dim=-1) @ value

    with (
        patch.object(functional, "scaled_dot_product_attention", attention),
        patch.object(functional, "softmax", masked_softmax),
    ):
        yield calls
