"""Affine indices: sums of index variables, numbers and extents."""

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.affine import Affine, affine
from sparsify.compiler.einsum.text.parse import parse
from sparsify.errors import EinsumError, ParseError, ShapeError


def index_of(text: str):
    """Index of `R` in a statement that reads it."""
    (statement,) = parse(f"Y[i,j] = R[{text}] * X[i,j]")
    return statement.value.args[0].indices[0]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2*i + j - 1", Affine((("i", 2), ("j", 1)), -1)),
        ("j - i + extent(i) - 1", Affine((("j", 1), ("i", -1)), -1, 1, (("i", 1),))),
        ("2 * (extent(j) - j)", Affine((("j", -2),), 0, 1, (("j", 2),))),
        ("extent(i) - extent(i) + i", Affine((("i", 1),))),
        ("(i + extent(j)) / 2", Affine((("i", 1),), 0, 2, (("j", 1),))),
        ("i * extent(i)", None),
        ("extent(i) * extent(j)", None),
    ],
)
def test_forms(text, form):
    found = affine(index_of(text))
    assert found == form
    if found is not None:
        assert affine(found.expression()) == found


def test_forms_with_extents():
    form = Affine((("j", 1), ("i", -1)), -1, 1, (("i", 1),))
    assert str(form) == "j + extent(i) - i - 1"
    assert form.names == ("j", "i") and not form.is_number
    assert not Affine((), 3, 1, (("i", 1),)).is_number
    assert form.bounds({"i": 4, "j": 7}) == (0, 9)
    assert str(form.solved("j", "p")) == "p + i - extent(i) + 1"
    assert form.substituted("j", Affine((("i", 1),))) == Affine((), -1, 1, (("i", 1),))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("length", [7, 5])
@pytest.mark.parametrize("width", [0, 16, None])
def test_entries_by_distance(length, width):
    """Entries outside of the vector are 0."""
    X, R = torch.randn(3, 5, requires_grad=True), torch.randn(length, requires_grad=True)
    places = torch.arange(5) - torch.arange(3)[:, None] + 2
    wide = torch.cat([R, R.new_zeros(7 - length)])[places]
    with sparsify.options.override(**({} if width is None else {"vector_bytes": width})):
        Y = sparsify.evaluate("Y[i,j] = X[i,j] * R[j - i + extent(i) - 1]", X=X, R=R)
    torch.testing.assert_close(Y, X * wide)
    seed = torch.randn(3, 5)
    found, wanted = (torch.autograd.grad(y, [X, R], seed) for y in (Y, X * wide))
    torch.testing.assert_close(found, wanted)


def test_extents_as_numbers():
    X = torch.randn(3, 5)
    torch.testing.assert_close(sparsify.evaluate("y[i] = X[i,j] / extent(j)", X=X), X.mean(1))
    torch.testing.assert_close(sparsify.evaluate("y[i] = X[i,extent(j)-1] + 0 * X[i,j]", X=X), X[:, -1])


def test_what_has_no_extent():
    X = torch.randn(3, 5)
    with pytest.raises(ParseError, match="extent takes one index variable"):
        sparsify.evaluate("y[i] = X[i,j] / extent(2)", X=X)
    with pytest.raises(EinsumError, match="q is no index variable of a tensor"):
        sparsify.evaluate("y[i] = X[i,j] / extent(q)", X=X)
    with pytest.raises(ShapeError, match="index 5 is outside mode 1, which has extent 5"):
        sparsify.evaluate("y[i] = X[i,extent(j)] + 0 * X[i,j]", X=X)
    with pytest.raises(EinsumError, match="extent"):
        sparsify.register_function("extent", "2 * x")
    with pytest.raises(EinsumError, match="not affine"):
        sparsify.evaluate("y[i] = X[i, i * extent(i)]", X=X)
