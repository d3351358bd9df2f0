"""The numbers of rows for which an alternative runs, by times that are given."""

from math import inf

import pytest

from sparsify.passes.choose.autotune import Winner
from sparsify.passes.choose.row_ranges import NAME, described, ranges, timed


def winner(kernel: float, products: float) -> Winner:
    return Winner("rows", (("kernel", kernel), (NAME, products)))


@pytest.mark.parametrize(
    ("is_faster", "expected"),
    [
        (lambda rows: rows < 10, [4, 16]),
        (lambda rows: rows > 30, [4, 16, 64]),
        (lambda rows: True, [4, 16, 64, 256]),
        (lambda rows: False, [4, 16, 64, 256]),
    ],
)
def test_rows_that_are_timed(is_faster, expected):
    def race(rows):
        return winner(2.0, 1.0) if is_faster(rows) else winner(1.0, 2.0)

    found = timed(16, True, race)
    assert [rows for rows in found if rows <= max(expected)] == expected
    assert list(timed(16, False, race)) == [16]


@pytest.mark.parametrize(
    ("ratios", "expected", "text"),
    [
        ({4: 2.0, 16: 0.5}, ((0, 8.0),), "below 8 rows"),
        ({4: 0.5, 16: 2.0}, ((8.0, inf),), "from 8 rows on"),
        ({4: 2.0, 16: 0.5, 64: 4.0}, ((0, 8.0), (25.398, inf)), "below 8 rows and from 25 rows on"),
        ({16: 2.0}, ((0, inf),), "for all rows"),
        ({16: 0.5}, (), "the kernel runs"),
        ({4: 0.5, 16: 2.0, 64: 0.5}, ((8.0, 32.0),), "from 8 to 32 rows"),
    ],
)
def test_ranges(ratios, expected, text):
    found = ranges(ratios, {rows: ratio > 1 for rows, ratio in ratios.items()})
    assert found == expected
    times = {rows: winner(100 * ratio, 100.0) for rows, ratio in ratios.items()}
    assert text in described(times, found)
