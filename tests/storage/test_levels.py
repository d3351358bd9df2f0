"""What each level format states of itself, its text, and what its functions say on small arrays."""

import pytest
import torch

import sparsify
from sparsify.errors import FormatError
from sparsify.storage.arrays import Arrays
from sparsify.storage.format import Format
from sparsify.storage.known_levels import LEVELS, level
from sparsify.storage.levels import Bitmap, Compressed, Dense, Grouped, Singleton, Sliced
from sparsify.storage.slices import parents_of

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
    "text",
    [*("grouped(2)", "grouped", "grouped(2, crd=int8)"), *("compressed(unordered)", "sliced(16, crd=int8)")],
)
def test_text_reads_back(text):
    name, _, rest = text.rstrip(")").partition("(")
    assert str(level(name, tuple(word.strip() for word in rest.split(",") if word))) == text


@pytest.mark.parametrize(
    "name, parameters, message",
    [
        ("grouped", ("0",), r"grouped\(0\); 1 or more"),
        ("sliced", ("0",), r"sliced\(0\); 1 or more"),
        ("grouped", ("2", "3"), "no parameter '3'"),
        ("grouped", ("crd=int4",), "crd=int4 of a grouped level; one of int8"),
        ("grouped", ("pos=int32",), "no parameter 'pos=int32'; it takes crd=int32, n"),
        ("compressed", ("2",), "no parameter '2'"),
        ("compressed", ("pos=int8",), "pos=int8 of a compressed level; one of int16"),
        ("striped", (), "no level is called 'striped'; one of dense, compressed, singleton, grouped"),
    ],
)
def test_refused(name, parameters, message):
    with pytest.raises(FormatError, match=message):
        level(name, parameters)


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
