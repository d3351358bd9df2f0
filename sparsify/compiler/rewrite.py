"""Strategies that apply rewrite rules to trees.

In: a node and rules (functions from node to node or `None`). Out: the rewritten node, or the same object.
"""

from collections.abc import Callable

from sparsify.compiler.node import Node, map_children

Rule = Callable[[Node], Node | None]


def first(*rules: Rule) -> Rule:
    """The rule that tries `rules` in order and gives the first result."""

    def try_each(node: Node) -> Node | None:
        for rule in rules:
            result = rule(node)
            if result is not None:
                return result
        return None

    return try_each


def bottom_up(node: Node, *rules: Rule) -> Node:
    """`node` with the first matching rule applied once at every node, children before parents."""
    rule = first(*rules)

    def visit(current: Node) -> Node:
        rebuilt = map_children(current, visit)
        result = rule(rebuilt)
        return rebuilt if result is None else result

    return visit(node)


def fixpoint(node: Node, *rules: Rule, limit: int = 100) -> Node:
    """`node` rewritten bottom-up until no rule changes it any more."""
    for _ in range(limit):
        result = bottom_up(node, *rules)
        if result is node or result == node:
            return result
        node = result
    raise AssertionError(f"rules {[rule.__name__ for rule in rules]} did not settle after {limit} rounds")
