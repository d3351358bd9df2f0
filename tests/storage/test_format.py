"""The text of formats, what they store and what they refuse."""

import pickle

import pytest

from sparsify.errors import FormatError
from sparsify.storage.format import Format
from sparsify.storage.level.levels import Compressed, Dense, OnePerParent, Singleton
from tests.storage.generate import FORMATS

NAMED = (
    "csr",
    "csc",
    "coo",
    "dcsr",
    "dcsc",
    "csf",
    "bcsr(16, 16)",
    "bcsc(4, 8)",
    "dense",
    "coo(4)",
    "scalar",
    "nm(2, 4)",
    "nm(2, 4, group=16)",
    "ell",
    "dia",
)


@pytest.mark.parametrize("text", [*NAMED, *(text for texts in FORMATS.values() for text in texts)])
def test_text_reads_back(text):
    form = Format(text)
    assert Format(str(form)) == form
    assert hash(Format(str(form))) == hash(form)
    assert pickle.loads(pickle.dumps(form)) == form


@pytest.mark.parametrize(
    "text, printed, letters",
    [
        ("csr", "dense, compressed", "d0s1"),
        ("csc", "j: dense, i: compressed", "d1s0"),
        ("coo", "coordinate, coordinate", "o0o1"),
        ("compressed, singleton", "coordinate, coordinate", "o0o1"),
        ("compressed(nonunique), singleton, dense", "coordinate, coordinate, dense", "o0o1d2"),
        (
            "bcsr(16,16)",
            "i/16: dense, j/16: compressed, i%16: dense, j%16: dense",
            "d0/16s1/16d0%16d1%16",
        ),
        ("k: dense , h:compressed( crd = int16 )", "j: dense, i: compressed(crd=int16)", "d1s0"),
        ("ell", "dense, grouped", "d0g1"),
        ("dense, dense, singleton", "dense, dense, singleton", "d0d1q2"),
        ("dense, singleton(crd=int8), singleton", "dense, singleton(crd=int8), singleton", "d0q1q2"),
        ("compressed, singleton, dense, singleton", "coordinate, coordinate, dense, singleton", "o0o1d2q3"),
        ("dia", "j-i: compressed, i: dense", "s1-id0"),
        ("nm(2,4)", "i: dense, j/4: dense, j%4: grouped(2)", "d0d1/4g1%4"),
        (
            "nm(2, 4, group=16)",
            "i/16: dense, j/4: dense, j%4: grouped(2), i%16: dense",
            "d0/16d1/4g1%4d0%16",
        ),
        ("j-i: compressed, i: dense", "j-i: compressed, i: dense", "s1-id0"),
    ],
)
def test_text(text, printed, letters):
    assert str(Format(text)) == printed
    assert Format(text).letters == letters


def test_ordering_and_levels():
    assert Format("dense, compressed", ordering=(1, 0)) == Format("csc")
    assert Format([Dense(), Compressed()]) == Format("csr")
    assert Format("coo").levels[0].level == Compressed(unique=False)
    assert Format("coo").levels[1].level == Singleton()
    assert Format("dense, singleton").levels[1].level == OnePerParent()
    assert Format(Format("dense, singleton").levels) == Format("dense, singleton")
    moved = [Format("compressed, compressed").levels[0], Format("dense, singleton").levels[1]]
    assert Format(moved) == Format("coo")
    assert Format("csc").ordering == (1, 0)
    assert Format("csr").permuted((1, 0)) == Format("csc")
    assert Format("coo", rank=1) == Format("compressed")
    assert Format("dense", rank=3) == Format("dense, dense, dense")
    assert Format("dense").rank == 1
    assert Format("bcsr(2, 3)").rank == 2 and not Format("bcsr(2, 3)").is_short


@pytest.mark.parametrize(
    "text, message",
    [
        ("compresed", "no format is called 'compresed'; did you mean compressed?"),
        ("csrr", "no format is called 'csrr'; did you mean csr? dense, coo,"),
        ("dense, compresed", "no level is called 'compresed'"),
        ("dense(3, 4)", "at most the number of modes"),
        ("dense, compressed(crd=float)", "crd=float of a compressed level"),
        ("dense, compressed(sorted)", "has no parameter 'sorted'"),
        ("i: dense, i: compressed", "each mode once"),
        ("i/4: dense, j: compressed, i%8: dense", "same n"),
        ("i/0: dense, i%0: dense", "block of 0"),
        ("i: dense, compressed", "only some levels"),
        ("dense, compressed(nonunique)", "nonunique level without a singleton"),
        ("bcsr(4)", "two sizes"),
        ("nm(2)", "n of m entries: nm(2, 4)"),
        ("nm(2, 4, rows=3)", "cannot read the format"),
        ("csr(3)", "takes none"),
        ("dense; compressed", "cannot read"),
        ("", "cannot read"),
        ("i*2: dense", "i/16"),
    ],
)
def test_refused(text, message):
    with pytest.raises(FormatError) as error:
        Format(text)
    assert message in str(error.value)


def test_refused_ordering_and_rank():
    with pytest.raises(FormatError, match="ordering"):
        Format("dense, compressed", ordering=(0, 0))
    with pytest.raises(FormatError, match="3"):
        Format("csr", rank=3)
