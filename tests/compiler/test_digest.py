"""Digests tell bytes apart."""

import pytest
import torch

from sparsify.compiler import digest

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
