"""Size classes: similar sizes share a class, others do not."""

import pytest
import torch

import sparsify
from sparsify.compiler.schedule.size_class import EXACT, PatternClasses, held, octave
from sparsify.storage.pattern import Pattern


@pytest.mark.parametrize("size", [0, 1, EXACT, EXACT + 1, 127, 128, 1000, (1 << 31) - 1])
def test_a_size_is_in_its_class(size: int) -> None:
    (low, high), (first, last) = octave(size), held(size)
    assert first <= low <= size <= high <= last
    assert (first == last) == (size <= EXACT)


def pattern(stored: int, rows: int = 100) -> Pattern:
    places = torch.arange(stored)
    return sparsify.tensor(
        (torch.stack([places % rows, places // rows]), torch.ones(stored), (rows, 4000))
    ).pattern


def test_patterns_near_the_end_of_a_class_stay_in_it() -> None:
    classes = PatternClasses()
    first = classes.of(pattern(1000))
    assert classes.of(pattern(520)) is first
    assert classes.of(pattern(1100)) is first
    other = classes.of(pattern(2000))
    assert other is not first
    assert classes.of(pattern(1100)) is first
    assert PatternClasses().of(pattern(1000)) is not first


def test_levels_of_another_number_are_another_class() -> None:
    classes = PatternClasses()
    matrix = classes.of(pattern(1000))
    listed = sparsify.tensor(
        (torch.arange(1000).expand(2, -1), torch.ones(1000), (4000, 4000)), "coo"
    ).pattern
    assert classes.of(listed) is not matrix


def test_longest_rows_tell_large_patterns_apart() -> None:
    classes = PatternClasses()
    even = classes.of(pattern(10_000))
    places = torch.stack(
        [torch.cat([torch.zeros(4000).long(), torch.arange(6000) % 99 + 1]), torch.arange(10_000) % 4000]
    )
    uneven = sparsify.tensor((places, torch.ones(10_000), (100, 4000))).pattern
    assert uneven.counts()[0] > 9000
    assert classes.of(uneven) is not even
