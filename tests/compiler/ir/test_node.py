"""Walks over trees of nodes, and their rebuilding from changed children."""

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Index
from sparsify.compiler.ir.node import children, find, holds, map_children, walk

ROW, COLUMN = Index("i"), Index("j")
A, X = Access("A", (ROW, COLUMN)), Access("x", (COLUMN,))
TREE = Assign(Access("y", (ROW,)), value=Call("mul", (A, Call("add", (X, Const(2))))), monoid="sum")


def test_children_are_in_the_order_of_the_fields():
    assert children(TREE) == (TREE.target, TREE.value)
    assert children(A) == (ROW, COLUMN) and children(Const(2)) == ()


def test_parents_come_before_children():
    assert [str(node) for node in walk(TREE.value)] == [
        *("A[i,j] * (x[j] + 2)", "A[i,j]", "i", "j", "x[j] + 2", "x[j]", "j", "2")
    ]


def test_find_and_holds():
    assert find(TREE, Access) == [TREE.target, A, X]
    assert find(TREE, Const, Call) == [TREE.value, TREE.value.args[1], Const(2)]
    assert holds(TREE, Const) and not holds(A, Const) and find(A, Const) == []


def test_map_children():
    renamed = map_children(A, lambda child: Index("k") if child == COLUMN else child)
    assert renamed == Access("A", (ROW, Index("k")))
    assert map_children(TREE, lambda child: child) is TREE
