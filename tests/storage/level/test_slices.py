"""Slices: whose parents take turns, padded to the fullest of them."""

import pytest
import torch

import sparsify
from sparsify.storage.level.arrays import Arrays
from sparsify.storage.level.entries import Entries
from sparsify.storage.level.levels import Sliced
from sparsify.storage.level.slices import parents_of, sliced
from sparsify.storage.pattern import Pattern


def test_positions_of_slices_are_counted_in_int64():
    """`pos` counts slots, which its dtype holds though it does not hold their entries."""
    at = Arrays(8, 16, torch.tensor([0, 2**28], dtype=torch.int32))
    begins = Sliced(16).begin(at, torch.tensor([0, 16]))
    assert begins.dtype == torch.int64
    assert begins.tolist() == [0, 2**32]


def test_a_slice_takes_memory_of_its_positions_not_of_its_extent():
    """All coordinates below all parents would be a tebi of them."""
    rows = torch.arange(0, 2**10, 3)
    coordinates = torch.stack([rows, rows * 2**20])
    entries = torch.sparse_coo_tensor(
        coordinates, torch.ones(len(rows)), (2**10, 2**30), check_invariants=True
    )
    found = sparsify.tensor(entries, "i/4: dense, i%4: dense, j: sliced(4)")
    inside = found.values() != 0
    assert torch.equal(found.pattern.coordinates()[:, inside], coordinates)
    assert found.nnz == 2**10  # every four rows have an entry, and no row has two


def test_parents_of_a_slice_take_turns():
    at = Arrays(9, 4, torch.tensor([0, 1, 3]), torch.tensor([7, 2, 0, 1, 4, 8]))
    found = Sliced(2)
    begins = found.begin(at, torch.arange(5))
    assert begins.tolist() == [0, 1, 2, 3, 6]
    parents = parents_of(begins, found.stride, 6)
    assert parents.tolist() == [0, 1, 2, 3, 2, 3]
    assert found.coordinate(at, parents, torch.arange(6)).tolist() == [7, 2, 0, 1, 4, 8]


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_entries_and_padding_are_distinct_and_in_order(density):
    parents, extent, n = 12, 7, 4
    stored = torch.rand(parents, extent, generator=torch.Generator().manual_seed(1)) < density
    rows, columns = stored.nonzero(as_tuple=True)
    built = sliced(Entries(rows, parents, (columns,), extent, str), n)
    slots = stored.sum(1).view(-1, n).amax(1)
    assert built.pos.tolist() == [0, *slots.cumsum(0).tolist()]
    assert built.positions == int(slots.sum()) * n
    assert built.crd[built.places].equal(columns)
    above = parents_of(
        Sliced(n).begin(Arrays(extent, parents, built.pos), torch.arange(parents + 1)), n, built.positions
    )
    assert above[built.places].equal(rows)
    for parent in range(parents):
        coordinates = built.crd[above == parent].tolist()
        assert coordinates == sorted(set(coordinates)) and all(0 <= c < extent for c in coordinates)


@pytest.mark.parametrize("level", ["compressed", "compressed(unordered)", "hash"])
def test_positions_of_int16(level):
    dense = torch.tensor([[0.0, 2, 3], [0, 0, 0], [4, 0, 5]])
    form = f"{level[:-1]}, pos=int16)" if level.endswith(")") else f"{level}(pos=int16)"
    stored = sparsify.tensor(dense, f"dense, {form}")
    assert stored.pattern.pos[1].dtype == torch.int16
    assert torch.equal(stored.to_dense(), dense) and torch.equal(stored.to(format="csc").to_dense(), dense)
    Pattern(stored.format, stored.shape, stored.pattern.pos, stored.pattern.crd).validated()
