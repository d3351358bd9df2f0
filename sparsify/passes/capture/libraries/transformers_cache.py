"""Caches of transformers' decoders: the keys and values that a call returns, and calls that bring some.

In:  the output of a model, `{"logits": %l, "past_key_values": DynamicCache(..)}`. Out: `shown(output)`, the same with
the tensors of the cache as leaves of a tree, which a graph can return; the tree puts a cache together again.

A call that brings an empty cache is like one that brings none, fills it with the keys that it computes and returns it.
Of a cache that holds keys of earlier calls these are inputs of the graph, `opened`. A pattern of attention does not
say where queries stand among them: under patterns such calls are computed as the model does.

Layers of attention to a window keep its keys alone, and count all that they saw: the number is the extent of a tensor
without entries.
"""

import copy
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree
from torch.utils._pytree import SequenceKey

MODULE: Final = "transformers.cache_utils"
# The lengths of the windows of layers, None for those without, for each part: one part, or that of attention to its
# own text and that to the other.
Layers = tuple[tuple[int | None, ...], ...]


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


def opened(value: Any) -> Any:
    """`Kept` in place of a cache with keys of earlier calls and nothing else; other values as they are."""
    return Kept(value) if is_plain(value) and has_past(value) else value


def is_plain(value: Any) -> bool:
    """Whether a value is a cache that consists of keys and values alone."""
    return bool(_parts(value))


def has_past(cache: Any) -> bool:
    """Whether a cache holds keys of earlier calls, or is of a kind whose contents are not known."""
    parts = _parts(cache)
    return not parts or any(part.get_seq_length() for part in parts)


def fresh(value: Any) -> Any:
    """A copy of an empty cache, which whoever runs a model with it fills; other values as they are."""
    if not is_cache(value) or has_past(value):
        return value
    found = copy.copy(value)
    if hasattr(found, "is_updated"):
        found.is_updated = dict(found.is_updated)
        found.self_attention_cache = fresh(found.self_attention_cache)
        found.cross_attention_cache = fresh(found.cross_attention_cache)
    else:
        found.layers = [_empty(layer) for layer in found.layers]
    return found


def copied(value: Any) -> Any:
    """A copy of a cache, which whoever runs a model with it changes; other values as they are."""
    kept = opened(value)
    return fresh(value) if kept is value else _unflatten(*_flatten(kept))


def filled(cache: Any, output: Any) -> Any:
    """An output whose cache is the one that the call brought, with the keys and values of the one that was returned."""
    leaves = pytree.tree_leaves(output, is_leaf=is_cache)
    returned = next((leaf for leaf in leaves if is_cache(leaf)), None)
    if returned is None or type(returned) is not type(cache):
        return output
    vars(cache).update(vars(returned))
    return pytree.tree_map(lambda leaf: cache if leaf is returned else leaf, output, is_leaf=is_cache)


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
    plain = all(type(part) is module.DynamicCache and all(map(_is_plain_layer, part.layers)) for part in pair)
    return pair if plain else []


def _is_plain_layer(layer: Any) -> bool:
    """Whether a layer consists of keys and values, all of them or those of a window."""
    module: Any = sys.modules[MODULE]
    is_window = type(layer) is module.DynamicSlidingWindowLayer and not layer.record_past
    return type(layer) is module.DynamicLayer or is_window


def _flatten(kept: Kept) -> tuple[list[torch.Tensor], Layers]:
    """Keys and values, layer by layer, with how many keys layers of windows saw, and these windows."""
    parts = [[layer for layer in part.layers if layer.is_initialized] for part in _parts(kept.cache)]
    tensors = list[torch.Tensor]()
    for layer in (layer for layers in parts for layer in layers):
        tensors += layer.keys, layer.values
        if layer.is_sliding:
            tensors.append(layer.keys.new_empty((layer.cumulative_length, 0)))
    windows = [[layer.sliding_window if layer.is_sliding else None for layer in layers] for layers in parts]
    return tensors, tuple(map(tuple, windows))


def _flatten_with_keys(kept: Kept) -> tuple[list[tuple[Any, torch.Tensor]], Layers]:
    """The same, each tensor with its place."""
    tensors, layers = _flatten(kept)
    return [(SequenceKey(place), tensor) for place, tensor in enumerate(tensors)], layers


def _unflatten(tensors: Any, layers: Layers) -> Any:
    """A cache of these keys and values."""
    module: Any = sys.modules[MODULE]
    left = iter(tensors)
    parts = []
    for windows in layers:
        part = module.DynamicCache()
        part.layers = [
            _layer(next(left), next(left)) if window is None else _window_layer(window, *islice(left, 3))
            for window in windows
        ]
        parts.append(part)
    return parts[0] if len(parts) == 1 else module.EncoderDecoderCache(*parts)


def _layer(keys: Any, values: Any) -> Any:
    """A layer that holds keys and values."""
    module: Any = sys.modules[MODULE]
    return _filled(module.DynamicLayer(), keys, values)


def _window_layer(window: int, keys: Any, values: Any, seen: Any) -> Any:
    """A layer that holds the keys and values of a window, and saw as many keys as `seen` has rows."""
    module: Any = sys.modules[MODULE]
    layer = _filled(module.DynamicSlidingWindowLayer(sliding_window=window), keys, values)
    if isinstance(seen, torch.Tensor):
        layer.cumulative_length = seen.shape[0]
    return layer


def _empty(layer: Any) -> Any:
    """A layer like another one, without keys; a copy would hold its tensors, which traces do not copy."""
    return type(layer)(sliding_window=layer.sliding_window) if layer.is_sliding else type(layer)()


def _filled(layer: Any, keys: Any, values: Any) -> Any:
    """A layer with keys and values."""
    if isinstance(keys, torch.Tensor):
        layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer


pytree.register_pytree_node(
    Kept,
    _flatten,
    _unflatten,
    serialized_type_name="sparsify.passes.capture.libraries.transformers_cache.Kept",
    flatten_with_keys_fn=_flatten_with_keys,
)
