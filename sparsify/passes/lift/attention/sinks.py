"""Attention whose weights may go to none of the keys: a logit beside the scores of each query, a sink.

In:  `%all = cat([%scores, %z], -1); %w = softmax(%all - amax(%all, -1, True), -1)[..., :-1]`.
Out: `%scores` and `%z`, of one column: the softmax has one more term in its sum, which no value belongs to.

Source: Xiao, Tian, Chen, Han and Lewis, Efficient streaming language models with attention sinks, 2023, section 3.2.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sparsify.passes.graph.insert import call
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.lift.attention.float_casts import are_numbers, keeps_values


@dataclass(frozen=True)
class Apart:
    """The argument of a softmax without what has no keys.

    Attributes:
        scores: of queries and keys.
        sinks: a column beside them, [.., queries, 1]; None without.
    """

    scores: fx.Node
    sinks: fx.Node | None = None

    def logits(self) -> fx.Node | None:
        """A logit for each query, [.., queries]; None without sinks."""
        return None if self.sinks is None else call(torch.ops.aten.select.int, self.sinks, -1, 0)


def apart(node: Any, is_cut: bool) -> Apart | None:
    """The scores that a softmax is taken of, and the sinks; None where something else reads them.

    Args:
        node: the argument of the softmax.
        is_cut: whether the last weight of each query is cut off: it has to be that of a sink.
    """
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    node = without_shift(converted(node))
    if not is_cut:
        return Apart(node)
    node = converted(node)
    value = tensor_value(node)
    if operator_name(node) != "cat" or value is None or len(parts := node.args[0]) != 2:
        return None
    scores, sinks = parts
    beside = tensor_value(sinks)
    is_last = argument(node, 1, "dim", 0) in (-1, value.dim() - 1)
    if (
        not is_last
        or beside is None
        or str(beside.shape[-1]) != "1"
        or not are_numbers(beside.dtype, value.dtype)
    ):
        return None
    return Apart(scores, sinks) if len(scores.users) == 1 else None


def converted(node: fx.Node) -> fx.Node:
    """The numbers that a node alone converts to its dtype."""
    source = node.args[0] if node.args else None
    while isinstance(source, fx.Node) and keeps_values(node, source) and len(source.users) == 1:
        node, source = source, source.args[0] if source.args else None
    return node


def without_shift(node: fx.Node) -> fx.Node:
    """`%x` of `%x - amax(%x, -1, True)`, whose softmax is the same; other nodes themselves."""
    whole, most = (*node.args, None, None)[:2]
    if operator_name(node) != "sub" or argument(node, 2, "alpha", 1) != 1 or not isinstance(most, fx.Node):
        return node
    chain = [most]
    if operator_name(most) == "getitem" and most.args[1] == 0 and isinstance(most.args[0], fx.Node):
        chain.append(most.args[0])  # the entries of `max(%x, -1, True)`, beside their places
    source, value = chain[-1], tensor_value(whole)
    if operator_name(source) != ("max" if len(chain) > 1 else "amax") or source.args[0] is not whole:
        return node
    dims = argument(source, 1, "dim")
    (dim,) = dims if isinstance(dims, list | tuple) and len(dims) == 1 else (dims,)
    is_of_rows = value is not None and dim in (-1, value.dim() - 1) and argument(source, 2, "keepdim")
    is_alone = all(len(part.users) == 1 for part in chain)
    if not is_of_rows or not is_alone or not isinstance(whole, fx.Node) or set(whole.users) != {node, source}:
        return node
    return whole


def is_without_last(node: fx.Node) -> bool:
    """Whether a node is its operand without the last entry of each row: `%w[..., :-1]`."""
    whole = tensor_value(node.args[0]) if operator_name(node) == "slice" else None
    if whole is None or argument(node, 1, "dim", 0) not in (-1, whole.dim() - 1):
        return False
    start, end, step = argument(node, 2, "start"), argument(node, 3, "end"), argument(node, 4, "step", 1)
    return start in (None, 0) and end == -1 and step == 1
