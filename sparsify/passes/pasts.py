"""Attention to keys of earlier calls, which a call brings: patterns do not say where its queries stand among them.

In: `%k = cat([%past, %new], -2); %y = scaled_dot_product_attention(%q, %k, %v)`, `%past` an input of the graph.
Out: `has_past(%y)`.
"""

from collections.abc import Iterator
from typing import Any, Final

from torch import fx

from sparsify.passes.operators import VIEWS, argument, is_mutating, operator_name
from sparsify.passes.own_masks import COPIES

# Operators that put keys of this call beside or in place of others.
JOINED: Final = frozenset({"cat", "index_copy", "slice_scatter", "copy"})
MOVED: Final = VIEWS | JOINED | {*COPIES, "repeat_interleave"}
WHY: Final = "a pattern does not say where queries stand among keys of earlier calls, which are inputs"


def has_past(attention: fx.Node) -> bool:
    """Whether the keys of an attention node are joined to an input, and its queries are not."""
    return _joins_input(argument(attention, 1, "key")) and not _joins_input(argument(attention, 0, "query"))


def _joins_input(operand: Any) -> bool:
    """Whether some entries of an operand are those of an input of the graph, beside others."""
    entries = set(_moved(operand))
    is_joined = any(operator_name(node) in JOINED or _is_written(node) for node in entries)
    return is_joined and any(node.op == "placeholder" for node in entries)


def _is_written(node: fx.Node) -> bool:
    """Whether an operator writes into a tensor or a view of it, as caches of a fixed length are filled."""
    own = [user for user in node.users if user.args and user.args[0] is node]
    return any(is_mutating(user) or (operator_name(user) in VIEWS and _is_written(user)) for user in own)


def _moved(operand: Any) -> Iterator[fx.Node]:
    """An operand and the nodes whose entries it has, moved but not changed."""
    left, seen = [operand], set()
    while left:
        node = left.pop()
        if isinstance(node, fx.Node) and node not in seen:
            seen.add(node)
            yield node
            if operator_name(node) in MOVED:
                left += node.args[0] if isinstance(node.args[0], list | tuple) else node.args
