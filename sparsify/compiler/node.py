"""The base of every IR node: what its children are and how to rebuild it.

In: a frozen dataclass, `Call("mul", (Const(2), Index("i")))`. Out: its children, `(Const(2), Index("i"))`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeVar

N = TypeVar("N", bound="Node")


@dataclass(frozen=True, slots=True)
class Node:
    """A frozen dataclass whose children are its fields that are nodes or tuples of nodes."""


def children(node: Node) -> Iterator[Node]:
    """The direct children of `node`, in field order."""
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def map_children(node: N, change: Callable[[Node], Node]) -> N:
    """`node` with `change` applied to each direct child; the same object when nothing changed."""
    updates: dict[str, object] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Node):
            new = change(value)
            if new is not value:
                updates[field.name] = new
        elif isinstance(value, tuple) and any(isinstance(item, Node) for item in value):
            items = tuple(change(item) if isinstance(item, Node) else item for item in value)
            if any(new is not old for new, old in zip(items, value, strict=True)):
                updates[field.name] = items
    return replace(node, **updates) if updates else node
