"""Levels by name: their text with its parameters, and what is refused."""

import pytest

from sparsify.errors import FormatError
from sparsify.storage.level.known_levels import LEVELS, level, registered
from sparsify.storage.level.levels import Compressed, Grouped


@pytest.mark.parametrize(
    "text",
    [
        *(name for name in LEVELS if name != "sliced"),
        *("grouped(2)", "grouped(2, crd=int8)", "compressed(unordered)", "sliced(16, crd=int8)"),
    ],
)
def test_text_reads_back(text):
    name, _, rest = text.rstrip(")").partition("(")
    assert str(level(name, tuple(word.strip() for word in rest.split(",") if word))) == text


def test_parameters_may_stand_in_any_order():
    assert level("grouped", ("crd=int8", "2")) == Grouped(2, "int8")
    assert level("compressed", ("crd=int16", "unordered")) == Compressed(ordered=False, crd="int16")


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
        ("bitmap", ("crd=int16",), "a bitmap level has no parameter 'crd=int16'; it takes none"),
        ("striped", (), "no level is called 'striped'; one of dense, compressed, singleton, grouped"),
    ],
)
def test_refused(name, parameters, message):
    with pytest.raises(FormatError, match=message):
        level(name, parameters)


def test_nothing_is_registered_by_itself():
    assert registered() == ""
