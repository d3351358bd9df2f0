"""Digests tell bytes apart."""

import pytest
import torch

from sparsify.compiler.arrays import digest

WAYS = {"compiled": lambda: digest._function(), "interpreted": lambda: digest.interpreted}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 7, 63, 64, 255, 256, 257, 4099])
def test_any_byte_counts(way, count):
    function, data = WAYS[way](), torch.zeros(count + 1, dtype=torch.uint8)
    found = {function(data, count), function(data, count + 1)}
    for place in range(count):
        data[place] = 1
        found.add(function(data, count))
        data[place] = 128
        found.add(function(data, count))
        data[place] = 0
    assert len(found) == 2 * count + 2
    assert function(data, count) in found


@pytest.mark.parametrize("way", WAYS)
def test_places_count(way):
    function, data = WAYS[way](), torch.arange(2000)
    found = {function(data, data.nbytes)}
    for distance in (1, 8, 32, 64, 1000):
        for place in range(0, 900, 11):
            other = data.clone()
            other[[place, place + distance]] = data[[place + distance, place]]
            found.add(function(other, other.nbytes))
    assert len(found) == 1 + 5 * len(range(0, 900, 11))


def test_signs_count():
    data = torch.randn(1 << 10)
    assert digest.digest(data) != digest.digest(-data)
    assert digest.digest(torch.zeros(4)) != digest.digest(-torch.zeros(4))


@pytest.mark.parametrize("count", [1, 16384, 16385, 100_000, 1 << 20])
def test_samples_see_what_is_written_to_a_256th_in_a_row(count):
    data = torch.zeros(count, dtype=torch.uint8)
    length = max(1, -(-count // 255))
    found = {digest.sample(data)}
    for start in range(0, count, length):
        data[start : start + length] = 1
        found.add(digest.sample(data))
        data[start : start + length] = 0
    assert len(found) == 1 + len(range(0, count, length))
    assert digest.sample(data) in found


def test_samples_read_little():
    data = torch.zeros(1 << 20, dtype=torch.uint8)
    before = digest.sample(data)
    data[100] = 1  # between the first line and the second one
    assert digest.sample(data) == before
    assert digest.digest(data) != digest.digest(torch.zeros_like(data))
