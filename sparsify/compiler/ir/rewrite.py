"""Strategies that apply rewrite rules to trees.

In: a node and rules (functions from node to node or `None`). Out: the rewritten node, or the same object.
"""

from collections.abc import Callable, Mapping

from sparsify.compiler.ir.node import ANY, Node, bits, classes, map_children

Rule = Callable[[Node], Node | None]


def first(*rules: Rule) -> Rule:
    """The rule that tries `rules` in order and returns the first result."""

    def try_each(node: Node) -> Node | None:
        for rule in rules:
            result = rule(node)
            if result is not None:
                return result
        return None

    return try_each


def by_class(rules: Mapping[type[Node], tuple[Rule, ...]]) -> Rule:
    """The rule that tries the rules of the node's class."""
    tried = {kind: first(*of_class) if len(of_class) > 1 else of_class[0] for kind, of_class in rules.items()}

    def try_own(node: Node) -> Node | None:
        rule = tried.get(type(node))
        return rule(node) if rule is not None else None

    return try_own


def bottom_up(node: Node, *rules: Rule, at: tuple[type[Node], ...] = ()) -> Node:
    """`node` with the first matching rule applied once at every node, children before parents.

    Rules apply to nodes of the classes `at` only: subtrees without such nodes are not visited. An empty `at` visits
    all.
    """
    return _Once(first(*rules) if len(rules) > 1 else rules[0], bits(at) if at else ANY)(node)


def fixpoint(
    node: Node,
    *rules: Rule,
    at: tuple[type[Node], ...] = (),
    limit: int = 100,
    settled: dict[int, Node] | None = None,
) -> Node:
    """`node` rewritten bottom-up until no rule changes it; `at` as for `bottom_up`.

    The result of a rule is rewritten before its parent; settled nodes are not visited again: `settled` holds them by
    identity (with a reference, so that no other object reuses the identity), also for later calls.
    """
    return _Settling(rules, bits(at) if at else ANY, limit, {} if settled is None else settled)(node)


class _Once:
    """`bottom_up` as a function of a node.

    A recursive closure would be a reference cycle: objects held by the rule, such as patterns of operands, would live
    until the next garbage collection.
    """

    __slots__ = ("rule", "wanted")

    def __init__(self, rule: Rule, wanted: int) -> None:
        self.rule, self.wanted = rule, wanted

    def __call__(self, current: Node) -> Node:
        if not classes(current) & self.wanted:
            return current
        rebuilt = map_children(current, self)
        result = self.rule(rebuilt)
        return rebuilt if result is None else result


class _Settling:
    """`fixpoint` as a function of a node."""

    __slots__ = ("limit", "rule", "rules", "settled", "wanted")

    def __init__(self, rules: tuple[Rule, ...], wanted: int, limit: int, settled: dict[int, Node]) -> None:
        self.rules, self.rule = rules, first(*rules) if len(rules) > 1 else rules[0]
        self.wanted, self.limit, self.settled = wanted, limit, settled

    def __call__(self, current: Node) -> Node:
        wanted, settled, rule = self.wanted, self.settled, self.rule
        for _ in range(self.limit):
            if id(current) in settled or not classes(current) & wanted:
                return current
            rebuilt = map_children(current, self)
            result = rule(rebuilt)
            if result is None or result is rebuilt:
                settled[id(rebuilt)] = rebuilt
                return rebuilt
            current = result
        names = [rule.__name__ for rule in self.rules]
        raise AssertionError(f"rules {names} did not settle after {self.limit} rounds")
