"""What each level format states of itself, and what its functions say on small arrays."""

import pytest
import torch

from sparsify.errors import FormatError
from sparsify.storage.format import Format
from sparsify.storage.level.arrays import Arrays
from sparsify.storage.level.known_levels import LEVELS
from sparsify.storage.level.levels import Bitmap, Compressed, Dense, Grouped, Singleton, Sliced

CAPABILITIES = (
    "can_iterate",
    "can_locate",
    "can_append",
    "can_insert",
    "is_full",
    "is_branchless",
    "is_padded",
)


@pytest.mark.parametrize(
    "found, stated",
    [
        (Dense(), {"can_iterate", "can_locate", "can_insert", "is_full", "is_padded"}),
        (Compressed(), {"can_iterate", "can_append"}),
        (Singleton(), {"can_iterate", "can_append", "is_branchless"}),
        (Grouped(2), {"can_iterate", "is_padded"}),
        (Grouped(), {"can_iterate", "is_padded"}),
        (Bitmap(), {"can_iterate"}),
        (Sliced(4), {"can_iterate", "is_padded"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),
)
def test_capabilities(found, stated):
    assert {name for name in CAPABILITIES if getattr(found, name)} == stated
    assert LEVELS[found.name] is type(found)


def test_parameters_decide():
    assert not Compressed(unique=False).is_unique
    assert not Compressed(ordered=False).is_ordered
    assert Grouped().holds_all and Grouped().has_width
    assert not Grouped(2).holds_all and not Grouped(2).has_width


@pytest.mark.parametrize(
    "found, at, begins, coordinates",
    [
        (Dense(), Arrays(3, 2), [0, 3, 6], [0, 1, 2, 0, 1, 2]),
        (Compressed(), Arrays(9, 2, torch.tensor([0, 1, 3]), torch.tensor([8, 0, 4])), [0, 1, 3], [8, 0, 4]),
        (Singleton(), Arrays(9, 2, None, torch.tensor([5, 2])), [0, 1, 2], [5, 2]),
        (Grouped(2), Arrays(4, 2, None, torch.tensor([0, 3, 1, 2])), [0, 2, 4], [0, 3, 1, 2]),
        (Grouped(), Arrays(9, 2, None, torch.tensor([0, 3, 8, 1, 2, 5])), [0, 3, 6], [0, 3, 8, 1, 2, 5]),
        (
            Bitmap(),
            Arrays(9, 2, torch.tensor([0, 2, 3]), torch.tensor([-127, 0, 0, 1], dtype=torch.int8)),
            [0, 2, 3],
            [0, 7, 8],
        ),
    ],
    ids=str,
)
def test_functions(found, at, begins, coordinates):
    begin = found.begin(at, torch.arange(at.parents + 1))
    assert begin.tolist() == begins
    parents = torch.repeat_interleave(begin.diff())
    positions = torch.arange(begins[-1])
    assert found.coordinate(at, parents, positions).tolist() == coordinates
    if found.can_locate:
        assert found.locate(at, parents, torch.tensor(coordinates)).tolist() == positions.tolist()


@pytest.mark.parametrize(
    "text, message",
    [
        ("dense, sliced(2)", r"i%2: dense right above"),
        ("i/3: dense, i%3: dense, j: sliced(2)", r"i%2: dense right above"),
        ("i/2: dense, i%2: dense, j: sliced(2), k: compressed", "dense levels below, or none"),
    ],
)
def test_slices_have_whole_parents_above(text, message):
    with pytest.raises(FormatError, match=message):
        Format(text)


def test_no_level_locates_but_those_that_say_so():
    with pytest.raises(FormatError, match="cannot locate"):
        Compressed().locate(Arrays(3, 1), 0, 0)
