"""The base of every IR node: what its children are and how to rebuild it.

In: a frozen dataclass, `Call("mul", (Const(2), Index("i")))`. Out: its children, `(Const(2), Index("i"))`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from operator import is_not
from typing import Final, TypeVar, get_origin

N = TypeVar("N", bound="Node")
# Annotations, where they are texts, of fields that hold no nodes.
PLAIN: Final = ("str", "int", "bool", "float")


class _Remembering:
    """Has room for the children of a node: one tree is walked many times and never changes."""

    __slots__ = ("_children",)
    _children: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Node(_Remembering):
    """A frozen dataclass whose children are its fields that are nodes or tuples of nodes."""


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type[Node]) -> tuple[str, ...]:
    """The fields of a class of nodes that may hold nodes."""
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(f.name for f in fields(kind) if not _is_plain(f.type))
    return found


def _is_plain(annotation: object) -> bool:
    """Whether a field with this annotation holds neither a node nor a tuple of nodes."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return not issubclass(annotation, Node | tuple)
    return annotation in PLAIN


def children(node: Node) -> tuple[Node, ...]:
    """The direct children of `node`, in field order."""
    try:
        return node._children
    except AttributeError:
        found = _find_children(node)
        object.__setattr__(node, "_children", found)
        return found


def _find_children(node: Node) -> tuple[Node, ...]:
    """The fields of `node` that are nodes, and the nodes in those that are tuples."""
    found: list[Node] = []
    for name in _names(type(node)):
        value = getattr(node, name)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            found += [item for item in value if isinstance(item, Node)]
    return tuple(found)


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes below it, parents first."""
    rest = [node]
    while rest:
        current = rest.pop()
        yield current
        below = children(current)
        if below:
            rest += below[::-1]


def map_children(node: N, change: Callable[[Node], Node]) -> N:
    """`node` with `change` applied to each direct child; the same object when nothing changed."""
    if not children(node):
        return node
    updates: dict[str, object] = {}
    for name in _names(type(node)):
        value = getattr(node, name)
        if isinstance(value, Node):
            new = change(value)
            if new is not value:
                updates[name] = new
        elif isinstance(value, tuple) and value:
            items = tuple([change(item) if isinstance(item, Node) else item for item in value])
            if any(map(is_not, items, value)):
                updates[name] = items
    return replace(node, **updates) if updates else node
