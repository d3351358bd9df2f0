"""Patterns of weights: formats with blocks without sorting, equal to sorted entries."""

import pytest
import torch

from sparsify.passes.operands import alignment
from sparsify.passes.operands.alignment import align_entries, pattern_of_entries
from sparsify.storage.format import Format
from sparsify.storage.tensor import values_at

FORMATS = [
    "j/8: dense, i: dense, j%8: compressed(crd=int8)",
    "i/4: dense, j: compressed, i%4: dense",
    "i/4: dense, j/8: compressed, i%4: dense, j%8: dense",
    "j/4: dense, i/4: compressed, j%4: dense, i%4: dense",
    "i: dense, j/4: dense, j%4: grouped(2)",
    "dense, compressed",
]


def matrix(shape, form):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if "grouped" in form:
        return values * (torch.arange(shape[1]) % 4 < 2)
    return values * (torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.2)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(12, 16), (13, 20), (1, 4), (64, 4)])
@pytest.mark.parametrize("is_mask", [True, False])
def test_patterns_equal_those_of_sorted_entries(shape, form, is_mask):
    dense = matrix(shape, form)
    stored = dense != 0 if is_mask else dense
    expected, found = align_entries(stored, Format(form)).pattern, pattern_of_entries(stored, Format(form))
    assert (found.format, found.shape, found.nnz) == (expected.format, expected.shape, expected.nnz)
    for have, want in zip(found.arrays_in_place(), expected.arrays_in_place(), strict=True):
        assert have.dtype == want.dtype and have.tolist() == want.tolist()
    assert found.coordinates().tolist() == expected.coordinates().tolist()
    assert values_at(dense, found).tolist() == values_at(dense, expected).tolist()


@pytest.mark.parametrize("form", FORMATS[:4])
def test_patterns_of_few_entries(form):
    """Entries far apart are sorted: the laid-out mask takes longer to read."""
    dense = torch.zeros(40, 64)
    for count in range(3):
        found = pattern_of_entries(dense, Format(form))
        expected = align_entries(dense, Format(form)).pattern
        assert found.coordinates().tolist() == expected.coordinates().tolist(), count
        dense[7 * count, 9 * count] = 1.0


def test_formats_with_blocks_are_not_sorted(monkeypatch):
    monkeypatch.setattr(alignment, "align_entries", lambda *_: pytest.fail("sorts"))
    pattern_of_entries(matrix((12, 16), ""), Format(FORMATS[0]))
    with pytest.raises(pytest.fail.Exception):
        pattern_of_entries(matrix((12, 16), ""), Format(FORMATS[-1]))
