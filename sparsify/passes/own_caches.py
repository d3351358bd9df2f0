"""Caches of transformers' decoders: the keys and values that a call returns, and calls that bring some.

In:  the output of a model, `{"logits": %l, "past_key_values": DynamicCache(..)}`. Out: `shown(output)`, the same with
the tensors of the cache as leaves of a tree, which a graph can return; the tree puts a cache together again.

A call that brings an empty cache is like one that brings none, and fills it with the keys that it returns. A cache
that holds keys of earlier calls asks for attention to these too, for which no pattern is known: such a call is
computed as the model does.
"""

import copy
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

MODULE: Final = "transformers.cache_utils"
# How many layers each part of a cache has: one part, or that of attention to its own text and that to the other.
Layers = tuple[int, ...]


class Kept:
    """A cache as a node of a tree, its keys and values the leaves."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache


def shown(output: Any) -> Any:
    """An output with `Kept` in place of caches that consist of keys and values alone; others stay as they are."""
    if MODULE not in sys.modules:
        return output
    return pytree.tree_map(lambda leaf: Kept(leaf) if _parts(leaf) else leaf, output, is_leaf=is_cache)


def given(values: Sequence[Any]) -> list[Any]:
    """The caches among the arguments of a call."""
    return [value for value in values if is_cache(value)] if MODULE in sys.modules else []


def is_cache(value: Any) -> bool:
    """Whether `value` is a cache of transformers."""
    return MODULE in sys.modules and isinstance(value, sys.modules[MODULE].Cache)


def has_past(cache: Any) -> bool:
    """Whether a cache holds keys of earlier calls, or is of a kind whose contents are not known."""
    parts = _parts(cache)
    return not parts or any(part.get_seq_length() for part in parts)


def fresh(value: Any) -> Any:
    """A copy of an empty cache, which whoever runs a model with it fills; other values as they are."""
    return copy.deepcopy(value) if is_cache(value) and not has_past(value) else value


def fill(cache: Any, output: Any) -> None:
    """Gives a cache that a call brought empty the keys and values of the one that the call returns."""
    leaves = pytree.tree_leaves(output, is_leaf=is_cache)
    returned = next((leaf for leaf in leaves if is_cache(leaf)), None)
    if returned is not None and type(returned) is type(cache):
        vars(cache).update(vars(returned))


def _parts(cache: Any) -> list[Any]:
    """The caches of plain layers that a cache consists of; none where it is of another kind."""
    if not is_cache(cache):
        return []
    module: Any = sys.modules[MODULE]
    pair = (
        [cache.self_attention_cache, cache.cross_attention_cache]
        if type(cache) is module.EncoderDecoderCache
        else [cache]
    )
    plain = all(
        type(part) is module.DynamicCache and all(type(layer) is module.DynamicLayer for layer in part.layers)
        for part in pair
    )
    return pair if plain else []


def _flatten(kept: Kept) -> tuple[list[torch.Tensor], Layers]:
    """Keys and values, layer by layer, and how many layers each part has."""
    parts = [[layer for layer in part.layers if layer.is_initialized] for part in _parts(kept.cache)]
    tensors = [tensor for layers in parts for layer in layers for tensor in (layer.keys, layer.values)]
    return tensors, tuple(len(layers) for layers in parts)


def _unflatten(tensors: Any, layers: Layers) -> Any:
    """A cache of these keys and values."""
    module: Any = sys.modules[MODULE]
    left = iter(tensors)
    parts = []
    for count in layers:
        part = module.DynamicCache()
        part.layers = [_layer(next(left), next(left)) for _ in range(count)]
        parts.append(part)
    return parts[0] if len(parts) == 1 else module.EncoderDecoderCache(*parts)


def _layer(keys: Any, values: Any) -> Any:
    """A layer that holds keys and values."""
    module: Any = sys.modules[MODULE]
    layer = module.DynamicLayer()
    if isinstance(keys, torch.Tensor):
        layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer


pytree.register_pytree_node(
    Kept, _flatten, _unflatten, serialized_type_name="sparsify.passes.own_caches.Kept"
)
