"""What patterns tell about their entries."""

import pytest
import torch

import sparsify
from sparsify.compiler.schedule.sizes import APART
from sparsify.storage.statistics import SAMPLE, coordinates_at


def random(shape: tuple[int, ...], entries: int, format: str) -> sparsify.SparseTensor:
    seeded = torch.Generator().manual_seed(0)
    coordinates = torch.stack([torch.randint(n, (entries,), generator=seeded) for n in shape]).unique(dim=1)
    return sparsify.tensor((coordinates, torch.ones(coordinates.shape[1]), shape), format)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "dcsc"])
def test_small_patterns_are_counted(format: str) -> None:
    found = random((50, 70), 60, format)
    counts = {(mode,): int(found.coordinates()[mode].unique().numel()) for mode in (0, 1)}
    assert dict(found.pattern.distinct()) == counts


def test_outer_levels_are_counted_together() -> None:
    found = random((20, 30, 40), 500, "csf")
    both = found.coordinates()[:2].unique(dim=1).shape[1]
    assert found.pattern.distinct()[0, 1] == both


def test_large_patterns_are_estimated() -> None:
    found = random((3000, 2000), 4 * SAMPLE, "csr")
    columns = int(found.coordinates()[1].unique().numel())
    assert found.pattern.distinct()[1,] == pytest.approx(columns, rel=0.1)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr"])
def test_coordinates_at_some_positions(format: str) -> None:
    found = random((50, 70), 60, format)
    at = torch.tensor([0, 7, 33])
    sample = coordinates_at(found.pattern, at)
    for stored, coordinates in zip(found.format.levels, sample, strict=True):
        assert coordinates is not None
        assert coordinates.tolist() == found.coordinates()[stored.expression.mode][at].tolist()


def test_counts_of_each_level() -> None:
    assert random((1000, 1000), 600, "csr").pattern.counts() == (600, 0, 600)
    found = sparsify.tensor(torch.ones(100, 100), "csr").pattern
    assert found.counts() == found.counts(is_turned=True) == (10_000, 100, 10_000)


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_bands_are_crowded(format: str) -> None:
    place = torch.arange(3000).repeat_interleave(3)
    band = torch.stack([place, (place + torch.arange(3).repeat(3000)) % 3000])
    found = sparsify.tensor((band, torch.ones(9000), (3000, 3000)), format).pattern
    assert found.crowding() > 0.95
    assert random((3000, 3000), 9000, format).pattern.crowding() < 0.05
    assert random((3000, 3000), 0, format).pattern.crowding() == 0.0


def test_empty_slots_of_hash_tables_are_no_entries() -> None:
    tables, rows = (random((300, 3000), 9000, format).pattern for format in ("dense, hash", "csr"))
    assert tables.nnz == 2 * rows.nnz
    assert tables.crowding() < 0.05
    assert tables.reach() == pytest.approx(APART * 3000, rel=0.1)  # slots are in no order


def test_an_empty_pattern_says_nothing() -> None:
    assert random((5, 5), 0, "csr").pattern.distinct() == {}


def test_distinct_coordinates_of_padded_rows():
    at = torch.tensor([[0, 0, 2], [1, 2, 1]])
    found = sparsify.tensor((at, torch.ones(3), (4, 3)), "compressed, grouped").pattern
    assert found.nnz == 4
    assert dict(found.distinct()) == {(0,): 2, (1,): len(set(found.coordinates()[1].tolist()))}
    assert sparsify.tensor((at, torch.ones(3), (4, 3)), "dense, grouped").pattern.distinct()[0,] == 4
