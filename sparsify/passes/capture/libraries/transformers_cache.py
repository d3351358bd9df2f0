"""KV caches of transformers' decoders, returned by calls and passed to later calls.

In:  the output of a model, `{"logits": %l, "past_key_values": DynamicCache(..)}`. Out: `shown(output)`, the output with
the tensors of the cache as leaves of a tree, which a graph can return; unflattening rebuilds a cache.

A call with an empty cache is like a call without one; the model fills the cache with the computed keys and returns it.
Keys of earlier calls in a cache are inputs of the graph, `opened`. An attention pattern does not give the positions of
queries among earlier keys: under patterns the source model computes such calls. Layers with window attention keep only
the keys of the window, and count all keys seen: the count is the extent of a tensor without entries.
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
# Attributes of caches whose values `described` tells.
SETTINGS: Final = frozenset(("layers", "layer_class_to_replicate", "offloading"))
# Window lengths of layers, None for layers without, per part: one part, or self-attention and cross-attention.
Layers = tuple[tuple[int | None, ...], ...]


class Kept:
    """A cache as a node of a tree, with keys and values as leaves."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache


def shown(output: Any) -> Any:
    """An output with `Kept` in place of caches made of keys and values alone; other caches are unchanged."""
    if MODULE not in sys.modules:
        return output
    return pytree.tree_map(lambda leaf: Kept(leaf) if _parts(leaf) else leaf, output, is_leaf=is_cache)


def caches_in(values: Sequence[Any]) -> list[Any]:
    """The caches among the arguments of a call."""
    return [value for value in values if is_cache(value)] if MODULE in sys.modules else []


def is_cache(value: Any) -> bool:
    """Whether `value` is a cache of transformers."""
    return MODULE in sys.modules and isinstance(value, sys.modules[MODULE].Cache)


def opened(value: Any) -> Any:
    """`Kept` in place of a cache with nothing but keys of earlier calls; other values are unchanged."""
    return Kept(value) if is_plain(value) and has_past(value) else value


def is_plain(value: Any) -> bool:
    """Whether a value is a cache made of keys and values alone."""
    return bool(_parts(value))


def described(value: Any) -> str | None:
    """The text of an empty cache, equal in all processes; None for other values, and caches with settings of their own.

    No string has this text, whose `repr` has quotes.
    """
    parts = _parts(value) if is_cache(value) else []
    if not parts or has_past(value) or any(set(vars(part)) - SETTINGS or part.offloading for part in parts):
        return None
    layers = [
        [(type(layer).__name__, getattr(layer, "sliding_window", None)) for layer in part.layers]
        for part in parts
    ]
    added = [getattr(part.layer_class_to_replicate, "__name__", None) for part in parts]
    return f"{type(value).__name__} of layers {layers} and {added}"


def has_past(cache: Any) -> bool:
    """Whether a cache holds keys of earlier calls, or is of an unknown kind."""
    parts = _parts(cache)
    return not parts or any(part.get_seq_length() for part in parts)


def fresh(value: Any) -> Any:
    """A copy of an empty cache, to be filled by a run of the model; other values are unchanged."""
    if not is_cache(value) or has_past(value):
        return value
    result = copy.copy(value)
    if hasattr(result, "is_updated"):
        result.is_updated = dict(result.is_updated)
        result.self_attention_cache = fresh(result.self_attention_cache)
        result.cross_attention_cache = fresh(result.cross_attention_cache)
    else:
        result.layers = [_empty(layer) for layer in result.layers]
    return result


def copied(value: Any) -> Any:
    """A copy of a cache, to be changed by a run of the model; other values are unchanged."""
    opened_cache = opened(value)
    return fresh(value) if opened_cache is value else _unflatten(*_flatten(opened_cache))


def filled(cache: Any, output: Any) -> Any:
    """An output with the call's cache in place of the returned one, updated to the returned contents."""
    leaves = pytree.tree_leaves(output, is_leaf=is_cache)
    returned = next((leaf for leaf in leaves if is_cache(leaf)), None)
    if returned is None or type(returned) is not type(cache):
        return output
    vars(cache).update(vars(returned))
    return pytree.tree_map(lambda leaf: cache if leaf is returned else leaf, output, is_leaf=is_cache)


def _parts(cache: Any) -> list[Any]:
    """The plain-layer caches that make up a cache; none for a cache of another kind."""
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
    """Whether a layer consists of keys and values, complete or of a window."""
    module: Any = sys.modules[MODULE]
    is_window = type(layer) is module.DynamicSlidingWindowLayer and not layer.record_past
    return type(layer) is module.DynamicLayer or is_window


def _flatten(opened_cache: Kept) -> tuple[list[torch.Tensor], Layers]:
    """Keys and values by layer, with the number of keys seen by window layers, and the windows."""
    parts = [[layer for layer in part.layers if layer.is_initialized] for part in _parts(opened_cache.cache)]
    tensors = list[torch.Tensor]()
    for layer in (layer for layers in parts for layer in layers):
        tensors += layer.keys, layer.values
        if layer.is_sliding:
            tensors.append(layer.keys.new_empty((layer.cumulative_length, 0)))
    windows = [[layer.sliding_window if layer.is_sliding else None for layer in layers] for layers in parts]
    return tensors, tuple(map(tuple, windows))


def _flatten_with_keys(opened_cache: Kept) -> tuple[list[tuple[Any, torch.Tensor]], Layers]:
    """The flattened tensors, each with its position."""
    tensors, layers = _flatten(opened_cache)
    return [(SequenceKey(position), tensor) for position, tensor in enumerate(tensors)], layers


def _unflatten(tensors: Any, layers: Layers) -> Any:
    """A cache of given keys and values."""
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
    """A layer with given keys and values."""
    module: Any = sys.modules[MODULE]
    return _filled(module.DynamicLayer(), keys, values)


def _window_layer(window: int, keys: Any, values: Any, passed_keys: Any) -> Any:
    """A layer with the keys and values of a window; `passed_keys` has one row per key seen."""
    module: Any = sys.modules[MODULE]
    layer = _filled(module.DynamicSlidingWindowLayer(sliding_window=window), keys, values)
    if isinstance(passed_keys, torch.Tensor):
        layer.cumulative_length = passed_keys.shape[0]
    return layer


def _empty(layer: Any) -> Any:
    """An empty layer of the same kind; a copy would hold the tensors, which traces do not copy."""
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
