"""Heads of queries that share keys and values, without a copy of these for each of them.

In: `%y = scaled_dot_product_attention(%q, %k, %v, enable_gqa=True)` of 8 heads and 2, or the same of `%k` and `%v` that
are repeated: `reshape(expand(unsqueeze(%k, 2), [b, 2, 4, n, w]), [b, 8, n, w])`.
Out: `%g = scaled_dot_product_attention(unflatten(%q, 1, [2, 4]), unsqueeze(%k, 2), unsqueeze(%v, 2));
%y = flatten(%g, 1, 2)`.

Source: Ainslie, Lee-Thorp, de Jong, Zemlyanskiy, Lebron and Sanghai, GQA, 2023.
"""

from typing import Any

import torch
from torch import fx

from sparsify.passes.graph.insert import call, put_behind
from sparsify.passes.graph.operators import argument, operator_name, tensor_value

aten = torch.ops.aten
# The mode of heads, from the last one.
HEADS = -3


def grouped_heads(given: dict[str, Any]) -> int:
    """How many heads of queries share one of keys and values; 1 where each has its own, or the numbers are not known.

    Args:
        given: arguments of attention by name. Where heads share, `key` and `value` are those without repetition
            afterwards, and `enable_gqa` is gone.
    """
    operands = [given[name] for name in ("query", "key", "value")]
    if not given.get("enable_gqa"):
        operands[1:] = [once(operand) for operand in operands[1:]]
    queries, *others = (_heads(operand) for operand in operands)
    few = others[0]
    if queries is None or few is None or few != others[1] or few == queries:
        return 1
    given.pop("enable_gqa", None)
    given.update(zip(("key", "value"), operands[1:], strict=True))
    return queries // few


def repeat_keys(given: dict[str, Any]) -> None:
    """Gives each head of queries keys and values of its own, for a pattern that differs by head."""
    queries, keys = _heads(given["query"]), _heads(given["key"])
    if given.get("enable_gqa") and queries is not None and keys is not None:
        del given["enable_gqa"]
        for name in ("key", "value"):
            given[name] = call(aten.repeat_interleave.self_int, given[name], queries // keys, HEADS)


def split_heads(operand: fx.Node, count: int, mode: int = HEADS) -> fx.Node:
    """A tensor with its heads in groups of `count`: a mode of groups, and one of heads in a group."""
    value = tensor_value(operand)
    assert value is not None, "heads are of tensors"
    return call(
        aten.unflatten.int, operand, mode % value.dim(), [int(str(value.shape[mode])) // count, count]
    )


def shared_by_heads(operand: fx.Node) -> fx.Node:
    """Keys or values with a mode of extent 1 where queries have those of a group."""
    value = tensor_value(operand)
    assert value is not None, "heads are of tensors"
    return call(aten.unsqueeze.default, operand, value.dim() + 1 + HEADS)


def without_groups(node: fx.Node) -> fx.Node:
    """A new node behind one whose heads are in groups that has them in one mode, as its users know it."""
    value = tensor_value(node)
    assert value is not None, "heads are of tensors"
    return put_behind(node, aten.flatten.using_ints, value.dim() + HEADS - 1, value.dim() + HEADS)


def own_keys(operand: fx.Node) -> tuple[fx.Node, bool]:
    """Keys or values as they are stored, and whether all heads of a group share them."""
    value, base = tensor_value(operand), operand.args[0] if operand.args else None
    if value is None or not isinstance(base, fx.Node) or operator_name(operand) != "unsqueeze":
        return operand, False
    is_shared = int(argument(operand, 1, "dim")) % value.dim() == value.dim() + HEADS
    return (base, True) if is_shared else (operand, False)


def _heads(node: Any) -> int | None:
    """The number of heads of an operand, None for one that has none or whose number only a call knows."""
    value = tensor_value(node)
    if value is None or value.dim() < -HEADS or not str(value.shape[HEADS]).isdigit():
        return None
    return int(str(value.shape[HEADS]))


def once(node: Any) -> fx.Node | None:
    """What `repeat_interleave(k, r, -3)` repeats, also where it is spelled out by views; None for other nodes."""
    whole, name = tensor_value(node), operator_name(node) if isinstance(node, fx.Node) else ""
    base: Any = node.args[0] if whole is not None and node.args else None
    if whole is None or tensor_value(base) is None:
        return None
    if name == "repeat_interleave":
        mode, repeats = argument(node, 2, "dim"), argument(node, 1, "repeats")
        is_heads = mode is not None and int(mode) % whole.dim() == whole.dim() + HEADS
        return base if is_heads and isinstance(repeats, int) else None
    if name in ("clone", "contiguous"):
        return once(base)
    return _viewed_once(base, whole) if name in ("view", "flatten") else None


def _viewed_once(repeated: Any, whole: torch.Tensor) -> fx.Node | None:
    """`%k` where `repeated` is `expand(unsqueeze(%k, 2), [b, g, r, n, w])`, viewed as `whole`, [b, g * r, n, w]."""
    while operator_name(repeated) in ("clone", "contiguous"):
        repeated = repeated.args[0]
    added: Any = repeated.args[0] if operator_name(repeated) == "expand" else None
    if not isinstance(added, fx.Node) or operator_name(added) != "unsqueeze":
        return None
    base, kept = own_keys(added)
    one, many, few = tensor_value(added), tensor_value(repeated), tensor_value(base)
    if not kept or one is None or many is None or few is None or few.dim() != whole.dim():
        return None
    is_repeated = _beside_heads(one) == _beside_heads(many)
    return base if is_repeated and _beside_heads(few) == _beside_heads(whole) else None


def _beside_heads(value: torch.Tensor) -> list[str]:
    """The extents of all modes but that of heads."""
    extents = list(map(str, value.shape))
    del extents[HEADS]
    return extents
