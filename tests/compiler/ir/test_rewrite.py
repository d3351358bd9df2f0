"""Rewrites of trees: once at every node, or until nothing changes."""

import pytest

from sparsify.compiler.einsum.nodes import Access, Call, Const
from sparsify.compiler.ir.node import Node
from sparsify.compiler.ir.rewrite import bottom_up, by_class, first, fixpoint

X = Access("x", ())


def square(node: Node) -> Node | None:
    """`x * x -> square(x)`."""
    match node:
        case Call("mul", (left, right)) if left == right:
            return Call("square", (left,))
    return None


def less(node: Node) -> Node | None:
    """`n -> n - 1`, down to 0."""
    match node:
        case Const(value) if value > 0:
            return Const(value - 1)
    return None


def endless(node: Node) -> Node | None:
    """`n -> n + 1`."""
    return Const(node.value + 1) if isinstance(node, Const) else None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Call("mul", (X, X)), Call("square", (X,))),
        (
            Call("mul", (Call("mul", (X, X)), Call("square", (X,)))),
            Call("square", (Call("square", (X,)),)),
        ),
        (Call("add", (X, X)), Call("add", (X, X))),  # unchanged
    ],
    ids=str,
)
def test_bottom_up(before, after):
    assert bottom_up(before, square) == after


def test_an_unchanged_tree_is_the_same_object():
    tree = Call("add", (X, Const(2)))
    assert bottom_up(tree, square) is tree and fixpoint(tree, square) is tree
    assert bottom_up(Call("mul", (X, X)), square, at=(Const,)) == Call("mul", (X, X))


def test_once_and_until_nothing_changes():
    tree = Call("add", (Const(3), Const(0)))
    assert bottom_up(tree, less) == Call("add", (Const(2), Const(0)))
    assert fixpoint(tree, less) == Call("add", (Const(0), Const(0)))
    with pytest.raises(AssertionError, match=r"rules \['endless'\] did not settle after 5 rounds"):
        fixpoint(tree, endless, limit=5)


def test_the_first_matching_rule_applies():
    assert first(less, endless)(Const(1)) == Const(0)
    assert first(less, endless)(Const(0)) == Const(1)
    rule = by_class({Const: (less,), Call: (square,)})
    assert (
        rule(Const(4)) == Const(3) and rule(X) is None and rule(Call("mul", (X, X))) == Call("square", (X,))
    )
