"""Iteration lattices: the lattice points at which a statement has an effect."""

from collections import defaultdict

import pytest

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops.lower.lattice import prune, statement_points
from sparsify.compiler.notation.nodes import Let, Sequence, Temporary


class Fills:
    """Tensors with patterns of their own and given fills, 0 by default."""

    def __init__(self, **fills: float) -> None:
        self.fills = fills
        self.kinds = defaultdict(lambda: Kind("float32"))

    def fill_of(self, access: Access) -> float:
        return self.fills.get(access.tensor, 0.0)

    def root_of(self, access: Access) -> Access:
        return access


def points(text: str, sparse: str, absent: str = "", **fills: float) -> list[str]:
    """The points of a statement as words of tensors, `` for everywhere."""
    (assign,) = parse(text)
    assert isinstance(assign, Assign)
    accesses = {n for n in walk(assign.value) if isinstance(n, Access)}
    stored = frozenset(a for a in accesses if a.tensor in sparse)
    gone = frozenset(a for a in accesses if a.tensor in absent)
    found = statement_points(assign, stored, Fills(**fills), gone)
    return sorted("".join(sorted(access.tensor for access in point)) for point in found)


@pytest.mark.parametrize(
    ("text", "sparse", "expected"),
    [
        ("y[i] = A[i] * B[i]", "AB", ["AB"]),
        ("y[i] = A[i] + B[i]", "AB", ["A", "AB", "B"]),
        ("y[i] = A[i] * x[i]", "A", ["A"]),
        ("y[i] = A[i] + x[i]", "A", ["", "A"]),
        ("y[i] = A[i] * B[i] + C[i]", "ABC", ["AB", "ABC", "C"]),
        ("y[i] = exp(A[i])", "A", ["", "A"]),
        ("y[i] = relu(A[i])", "A", ["A"]),
        ("y[i] max= A[i]", "A", ["", "A"]),
        ("y[i] = where(stored(A[i]), x[i], 0)", "A", ["A"]),
        ("y[i] = where(stored(A[i]), x[i], C[i])", "AC", ["A", "AC", "C"]),
        ("y[i] = A[i] * 0.0", "A", ["A"]),
        ("y[i] = where(A[i] == 0, 0, x[i])", "A", ["A"]),
        ("y[i] = where(A[i] == 0, 1, x[i])", "A", ["", "A"]),
    ],
)
def test_points(text, sparse, expected):
    assert points(text, sparse) == expected


def test_sums_that_are_rescaled_change_where_the_factor_is_not_one_and_something_is_added():
    """In `y = y * s + w`, `y` changes if `s` is not 1 or `w` is not 0: `s = where(A == 0, 1, x)`, `w += A`."""
    text = "s[i] = where(A[i] == 0, {}, x[i])\nw[i] += A[i]\ny[i] = y[i] * s[i] + w[i]"
    for factor, expected in ((1, ["A"]), (2, ["", "A"])):
        body = parse(text.format(factor))
        temporaries = tuple(Temporary(name, ("i",), "float32") for name in ("s", "w"))
        stored = frozenset({Access("A", (Index("i"),))})
        found = statement_points(Let(temporaries, Sequence(body)), stored, Fills(), frozenset())
        assert sorted("".join(access.tensor for access in point) for point in found) == expected


def test_infinite_fills_annihilate_sums():
    assert points("y[i] min= A[i] + x[i]", "A", A=float("inf")) == ["A"]
    assert points("y[i] max= A[i] - B[i]", "AB", A=float("-inf")) == ["A", "AB"]


def test_fills_that_disagree_are_met_everywhere():
    assert "" in points("y[i] = A[i] + B[i]", "AB", A=float("inf"), B=float("-inf"))


def test_absent_operands_leave_the_others():
    assert points("y[i] = A[i] + B[i]", "A", absent="B") == ["A"]
    assert points("y[i] = A[i] * B[i]", "A", absent="B") == []


@pytest.mark.parametrize(
    ("text", "absent", "expected"),
    [
        ("y[i] = A[i] + B[i]", "B", "A[i]"),
        ("y[i] = A[i] * B[i]", "B", "0.0"),
        ("y[i] = A[i] - B[i]", "A", "0.0 - B[i]"),
        ("y[i] = where(stored(A[i]), x[i], C[i])", "A", "C[i]"),
        ("y[i] = 0.0 * x[i]", "", "0.0 * x[i]"),
        ("y[i] = x[i] * where(stored(A[i]), z[i], 0.0)", "A", "0.0"),
        ("y[i] = x[i] * where(z[i], A[i], 0.0)", "A", "0.0"),
        ("y[i] = x[i] * where(z[i], B[i], 0.0)", "A", "x[i] * where(z[i], B[i], 0.0)"),
    ],
)
def test_prune(text, absent, expected):
    (assign,) = parse(text)
    gone = frozenset(n for n in walk(assign.value) if isinstance(n, Access) and n.tensor in absent)
    assert str(prune(assign.value, gone, Fills())) == expected
