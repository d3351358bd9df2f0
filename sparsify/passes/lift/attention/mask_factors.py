"""What a mask that a model builds is made of, so that none is kept for each pair of query and key without need.

In: `%m = expand(and(and(ones, ge(%i, 0)), index(%padding, ...)), [b, 1, q, k])`, `%i` the numbers of queries.
Out: the factors `[index(%padding, ...)]`, [b, 1, 1, k]; and whether a factor `le(%j, %i)` leaves out keys behind the
query.
"""

from typing import Final

import torch
from torch import fx

from sparsify.passes.graph.constant_values import constant, counted_mode
from sparsify.passes.graph.operators import COPIES, operator_name, overwritten, tensor_value

CONJUNCTIONS: Final = ("__and__", "logical_and", "bitwise_and")


def factors(mask: fx.Node) -> list[fx.Node]:
    """The truth values that must all hold, without those that always do; they are broadcast from the last mode on.

    A mask of numbers is one factor.
    """
    value, name = tensor_value(mask), operator_name(mask)
    first = mask.args[0] if mask.args else None
    if mask in overwritten(mask.graph):
        return [mask]
    if value is None or value.dtype != torch.bool or not isinstance(first, fx.Node):
        return [] if is_true(mask) else [mask]
    if name in (*COPIES, "expand") and first.meta["val"].dtype == torch.bool:
        return factors(first)
    second = mask.args[1] if len(mask.args) > 1 else None
    if name in CONJUNCTIONS and isinstance(second, fx.Node) and first.meta["val"].dtype == torch.bool:
        return list(dict.fromkeys(factors(first) + factors(second)))
    return [] if is_true(mask) else [mask]


def is_true(node: fx.Node) -> bool:
    """Whether a tensor of truth values holds everywhere: `ones`, and numbers counted from 0 that are at least 0."""
    value, name = tensor_value(node), operator_name(node)
    if name == "ge" and not isinstance(node.args[1], fx.Node) and node not in overwritten(node.graph):
        return counted_mode(node.args[0]) is not None and bool(node.args[1] == 0)
    return value is not None and value.dtype == torch.bool and constant(node) == 1


def is_causal(node: fx.Node) -> bool:
    """Whether a tensor of truth values holds for keys that are not behind the query, `j <= i`."""
    if operator_name(node) not in ("le", "ge") or node in overwritten(node.graph):
        return False
    keys, queries = node.args[:2] if operator_name(node) == "le" else node.args[1::-1]
    return counted_mode(keys) == -1 and counted_mode(queries) == -2
