"""Bits of coordinates: packed into bytes and back, counted in order."""

import torch

from sparsify.storage.level.bits import coordinates, packed, row_bytes, unpacked


def test_bytes_have_the_first_flag_in_the_lowest_bit():
    flags = torch.zeros(2, 16, dtype=torch.bool)
    flags[0, [0, 9]] = flags[1, 7] = True
    assert packed(flags).tolist() == [1, 2, -128, 0]
    assert coordinates(packed(flags), 12).tolist() == [0, 9, 7]
    assert coordinates(packed(flags[:0]), 0).tolist() == []


def test_round_trip():
    flags = torch.rand(5, 24, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(unpacked(packed(flags), 5, 20), flags)
    assert [row_bytes(extent) for extent in (0, 1, 8, 9)] == [0, 1, 1, 2]
