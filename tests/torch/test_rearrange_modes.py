"""`rearrange`: a table of patterns, sparse operands, and what is refused."""

import pytest
import torch

import sparsify
from sparsify.errors import DtypeError, EinsumError, ShapeError
from sparsify.torch import rearrange

x = torch.arange(2.0 * 3 * 4).reshape(2, 3, 4)

PATTERNS = [
    ("abc->cab", {}, x.permute(2, 0, 1)),
    ("a b c -> c a b", {}, x.permute(2, 0, 1)),
    ("abc->abnc", {"n": 5}, x.unsqueeze(2).expand(2, 3, 5, 4)),
    ("ab(cd)->abcd", {"d": 2}, x.reshape(2, 3, 2, 2)),
    ("a b (heads d) -> heads a b d", {"heads": 2}, x.reshape(2, 3, 2, 2).permute(2, 0, 1, 3)),
    ("abc->a(bc)", {}, x.reshape(2, 12)),
    ("abc->a(cb)", {}, x.transpose(1, 2).reshape(2, 12)),
    ("...c->c...", {}, x.permute(2, 0, 1)),
    ("a...->(...)a", {}, x.reshape(2, 12).T),
    ("abc->(na)bc", {"n": 2}, torch.cat([x, x])),
]


@pytest.mark.parametrize("pattern, sizes, wanted", PATTERNS)
def test_patterns(pattern, sizes, wanted):
    assert torch.equal(rearrange(x, pattern, **sizes), wanted)
    found = rearrange(sparsify.tensor(x, "csf"), pattern, **sizes)
    assert isinstance(found, sparsify.SparseTensor) and torch.equal(found.to_dense(), wanted)


def test_repeating_copies_nothing():
    assert rearrange(x, "abc->nabc", n=7).data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "pattern, sizes, error, message",
    [
        ("abc", {}, EinsumError, "no single arrow"),
        ("ab->ba", {}, ShapeError, "has 2 modes"),
        ("abc->ab", {}, EinsumError, "drops c; einsum sums"),
        ("abc->abcn", {}, ShapeError, "adds n without an extent; say n="),
        ("abc->abc", {"n": 2}, EinsumError, "n= is no mode"),
        ("abc->abcn", {"n": -1}, ShapeError, "n=-1"),
        ("abb->ab", {}, ShapeError, "extent 4"),
        ("abc->aabc", {}, EinsumError, "a occurs twice"),
        ("ab(cd)->abcd", {}, ShapeError, r"\(c d\) of extent 4 .* say c="),
        ("ab(cd)->abcd", {"c": 3}, ShapeError, "extents with that product"),
        ("ab(c->abc", {}, EinsumError, "never closed"),
        ("ab+->ab", {}, EinsumError, r"'\+' in the pattern"),
    ],
)
def test_refused(pattern, sizes, error, message):
    with pytest.raises(error, match=message):
        rearrange(x, pattern, **sizes)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(DtypeError, match="rearrange of 'x' of type str; a tensor"):
        rearrange("x", "ab->ba")
