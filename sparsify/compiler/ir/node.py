"""The base class of all IR nodes: children and reconstruction.

In: a frozen dataclass, `Call("mul", (Const(2), Index("i")))`. Out: its children, `(Const(2), Index("i"))`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import singledispatch
from itertools import count
from operator import is_
from typing import Final, TypeVar, get_origin, overload

N = TypeVar("N", bound="Node")
M = TypeVar("M", bound="Node")
# Annotations, as texts, of fields without nodes.
PLAIN: Final = ("str", "int", "bool", "float")


class _Remembering:
    """Slots for memoized facts about a subtree: trees are immutable and walked many times."""

    __slots__ = ("_children", "_classes")
    _children: "tuple[Node, ...]"
    _classes: int


@dataclass(frozen=True, slots=True)
class Node(_Remembering):
    """A frozen dataclass; the children are the fields of nodes or tuples of nodes."""

    def __str__(self) -> str:
        return text_of(self)


@singledispatch
def text_of(node: object) -> str:
    """The text of a node: printers register a function for each class of nodes that they print."""
    return repr(node)


# The set of all classes, see `classes`.
ANY: Final = -1
# The bit of each class in sets of classes; the fields of each class, each with a flag for fields of nodes.
_BITS: Final[dict[type[Node], int]] = {}
_NUMBERS: Final = count()  # no two threads get the same
_FIELDS: Final[dict[type[Node], tuple[tuple[str, bool], ...]]] = {}


def _bit(kind: type[Node]) -> int:
    """The bit of a class."""
    return _BITS.get(kind) or _BITS.setdefault(kind, 1 << next(_NUMBERS))


def _fields(kind: type[Node]) -> tuple[tuple[str, bool], ...]:
    """The fields of a class of nodes, each with a flag for fields that may hold nodes."""
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = tuple((f.name, not _is_plain(f.type)) for f in fields(kind))
    return found


def _is_plain(annotation: object) -> bool:
    """Whether a field with this annotation holds neither a node nor a tuple of nodes."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation is not tuple and not issubclass(annotation, Node)
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
    """The nodes in the fields of `node`, including nodes in tuples."""
    found: list[Node] = []
    for name, may_hold in _fields(type(node)):
        if may_hold:
            value = getattr(node, name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found += [item for item in value if isinstance(item, Node)]
    return tuple(found)


def classes(node: Node) -> int:
    """The classes of `node` and of all nodes below it, as a set of bits: see `bits`."""
    try:
        return node._classes
    except AttributeError:
        found = _bit(type(node))
        for child in children(node):
            found |= classes(child)
        object.__setattr__(node, "_classes", found)
        return found


def bits(kinds: Iterable[type[Node]]) -> int:
    """The bit set of classes: `classes(node) & bits((Const,))` is 0 for a tree without constants."""
    found = 0
    for kind in kinds:
        found |= _bit(kind)
    return found


def holds(node: Node, *kinds: type[Node]) -> bool:
    """Whether the tree of `node` contains a node of one of the classes."""
    return classes(node) & bits(kinds) != 0


def walk(node: Node) -> Iterator[Node]:
    """`node` and all nodes below it, parents first."""
    rest = [node]
    while rest:
        current = rest.pop()
        yield current
        rest += children(current)[::-1]


@overload
def find(node: Node, first: type[N], /) -> list[N]: ...
@overload
def find(node: Node, first: type[N], second: type[M], /) -> list[N | M]: ...
@overload
def find(node: Node, /, *kinds: type[Node]) -> list[Node]: ...
def find(node: Node, *kinds: type[Node]) -> Sequence[Node]:
    """The nodes of `walk(node)` of exactly these classes; subtrees without any are not visited."""
    wanted = bits(kinds)
    found: list[Node] = []
    rest = [node] if classes(node) & wanted else []
    while rest:
        current = rest.pop()
        if type(current) in kinds:
            found.append(current)
        if below := current._children:
            rest += [child for child in reversed(below) if child._classes & wanted]
    return found


def map_children(node: N, change: Callable[[Node], Node]) -> N:
    """`node` with `change` applied to each direct child; the same object if nothing changed."""
    before = children(node)
    if not before:
        return node
    after = [change(child) for child in before]
    return node if all(map(is_, after, before)) else _with_children(node, iter(after))


def _with_children(node: N, new: Iterator[Node]) -> N:
    """A copy of `node` with other children."""
    values: list[object] = []
    for name, may_hold in _fields(type(node)):
        value = getattr(node, name)
        if may_hold and isinstance(value, Node):
            value = next(new)
        elif may_hold and isinstance(value, tuple):
            value = tuple([next(new) if isinstance(item, Node) else item for item in value])
        values.append(value)
    return type(node)(*values)
