"""The parts of an evaluation by torch's operators: keys, covers, joins, reductions, products."""

from math import inf, nan

import pytest
import torch

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.reference.cover import cover
from sparsify.compiler.reference.fold import fold, identity, repeated, scatter
from sparsify.compiler.reference.functions import TORCH
from sparsify.compiler.reference.grid import Grid
from sparsify.compiler.reference.join import joined, table
from sparsify.compiler.reference.keys import Keys

FLOAT = Kind("float32")


def test_every_built_in_function_has_an_operator():
    assert {name for name, found in FUNCTIONS.items() if not found.body} == TORCH.keys() | {"where"}


def test_keys_of_shapes_that_no_integer_counts():
    shape = [2**40, 2**40, 2**40]
    columns = [torch.tensor([0, 1, 2**39]), torch.tensor([5, 2**39, 1]), torch.tensor([7, 0, 2**40 - 1])]
    keys = Keys(columns, shape)
    assert (keys.values.diff() > 0).all()
    assert keys.of(columns).tolist() == keys.values.tolist()
    other = keys.of([torch.tensor([1, 3]), torch.tensor([5, 5]), torch.tensor([7, 7])])
    assert not torch.isin(other, keys.values).any()


@pytest.mark.parametrize(
    "text, sets, fill",
    [
        ("y[i,j] = A[i,j] * x[j]", ["A"], 0.0),
        ("y[i,j] = A[i,j] * B[i,j]", ["A B"], 0.0),
        ("y[i,j] = A[i,j] + B[i,j]", ["A", "B"], 0.0),
        ("y[i,j] = (A[i,j] + B[i,j]) * C[i,j]", ["A C", "B C"], 0.0),
        ("y[i,j] = where(stored(A[i,j]), x[j], -inf)", ["A"], -inf),
        ("y[i,j] = exp(A[i,j])", ["A"], 1.0),
        ("y[i,j] = A[i,j] + x[j]", None, None),  # no fill of a sum decides it
        ("y[i,j] = x[i] * x[j]", None, None),
        ("y[i,j] = where(A[i,j], x[i], x[j])", None, None),
    ],
)
def test_cover(text, sets, fill):
    (statement,) = parse(text)
    zero = Grid(torch.tensor(0.0), torch.tensor(True), FLOAT)
    found = cover(
        statement.value,
        lambda leaf: zero if isinstance(leaf, Access) and leaf.tensor in "ABC" else None,
        dict.fromkeys("ABCx", FLOAT),
    )
    if sets is None:
        assert found.sets is None
        return
    names = [" ".join(sorted(leaf.tensor for leaf in leaves)) for leaves in found.sets]
    assert sorted(names) == sets
    assert found.grid.values.item() == fill


def test_join_of_two_matrices_and_of_windows():
    i, j, k = map(Index, "ijk")
    extents = {"i": 2, "j": 3, "k": 2}
    first = table(Access("A", (i, j)), (i, j), torch.tensor([[0, 1, 1], [2, 0, 2]]), extents)
    second = table(Access("B", (j, k)), (j, k), torch.tensor([[0, 2, 2], [1, 0, 1]]), extents)
    parts = list(joined([first, second], extents))
    points = sorted(
        zip(*(torch.cat([part.columns[name] for part in parts]).tolist() for name in "ijk"), strict=True)
    )
    assert points == [(0, 2, 0), (0, 2, 1), (1, 0, 1), (1, 2, 0), (1, 2, 1)]
    (statement,) = parse("y[h] = x[2*h+r-1]")
    index = statement.value.body.indices
    found = table(statement.value.body, index, torch.tensor([[0, 3]]), {"h": 2, "r": 3})
    pairs = sorted(zip(found.columns["h"].tolist(), found.columns["r"].tolist(), strict=True))
    assert pairs == [(0, 1), (1, 2)], "2h + r - 1 is 0 or 3"


@pytest.mark.parametrize("monoid", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "complex64"])
def test_scattered_values_are_folded_ones(monoid, dtype):
    if dtype == "complex64" and monoid in ("min", "max"):
        pytest.skip("complex numbers have no order")
    kind = Kind(dtype)
    values = torch.tensor([3, -2, 5, 7, 1, 4]).to(getattr(torch, dtype))
    index = torch.tensor([1, 0, 1, 1, 3, 0])
    total = torch.full((4,), identity(monoid, kind), dtype=values.dtype)
    scatter(monoid, total, index, values, kind)
    for place in range(4):
        own = Grid(values[index == place], None, kind)
        assert total[place] == fold(monoid, own, 0, [len(own.values)]).values


def test_fill_entries_end_a_reduction():
    values = torch.tensor([[nan, inf], [1.0, 2.0]])
    is_fill = torch.tensor([[False, True], [False, False]])
    found = fold("sum", Grid(values, is_fill, FLOAT), 1, [2]).grid(FLOAT)
    assert found.values.tolist() == [inf, 3.0], "an unstored infinity decides the sum, whatever else is added"
    assert found.is_fill.tolist() == [True, False]


def test_values_repeated_by_doubling():
    counts = torch.tensor([0, 1, 2, 5, 1000])
    assert repeated("sum", torch.tensor(3.0), counts, FLOAT).tolist() == [0, 3, 6, 15, 3000]
    assert repeated("max", torch.tensor(-1.0), counts, FLOAT).tolist() == [-inf, -1, -1, -1, -1]
