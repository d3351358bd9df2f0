import pytest
import torch

import sparsify
from sparsify.errors import ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

RANKED = {
    "topk": (lambda a: a.topk(3), 1),
    "all": (lambda a: torch.topk(a, a.shape[1]), 1),
    "smallest": (lambda a: a.topk(2, 0, largest=False), 0),
    "kthvalue": (lambda a: a.kthvalue(4, 0, True), 0),
    "median": (lambda a: a.median(1, True), 1),
    "nanmedian": (lambda a: torch.nanmedian(a, 0, True), 0),
    "max": (lambda a: a.max(1, keepdim=True), 1),
    "min": (lambda a: torch.min(a, 0, True), 0),
}
WHOLE = {
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "max": torch.max,
    "max of two": lambda a: torch.max(a, a.flip(1)),
    "min without the mode": lambda a: a.min(0).values,
    "quantile": lambda a: a.quantile(0.3),
    "quantiles": lambda a: torch.quantile(a, torch.tensor([0.0, 0.77, 1.0], dtype=a.dtype), 1),
}
OPERANDS = {
    "csr": lambda: sparse(7, 9),
    "csc": lambda: -sparse(7, 9, format="csc"),
    "both signs": lambda: sparsify.tensor(
        sparse(7, 9).to_dense() - 1.5 * (sparse(7, 9).to_dense() > 1), "coo"
    ),
    "blocks": lambda: sparse(7, 9, format="bcsr(2, 4)"),
    "fill": lambda: sparse(7, 9).with_fill(1.0),
    "NaN stored": lambda: (
        sparse(7, 9) / (sparse(7, 9) > 1.3).to(torch.float64).with_fill(1.0) * 0 + sparse(7, 9)
    ),
    "NaN unstored": lambda: sparse(7, 9).with_fill(float("nan")),
    "none stored": lambda: sparse(7, 9) > 9,
    "integers": lambda: (sparse(7, 9) * 4).to(torch.int64),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPERANDS)
def test_ranks(name):
    """Places of equal entries may differ from torch's, so that the entries there are compared."""
    stored = OPERANDS[name]()
    stored = stored.to(torch.float32) if stored.dtype == torch.bool else stored
    dense = stored.to_dense()
    for function, mode in RANKED.values():
        got, expected = function(stored), function(dense)
        assert type(got) is type(expected)
        assert got.indices.dtype == torch.int64
        for found in (got.values, dense.gather(mode, got.indices)):
            torch.testing.assert_close(found, expected.values, rtol=0, atol=0, equal_nan=True)
    for whole, function in WHOLE.items():
        if dense.dtype.is_floating_point or "quantile" not in whole:
            got, expected = (getattr(found, "to_dense", found)() for found in map(function, (stored, dense)))
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_three_modes():
    cube = sparse(4, 5, 6, format="csf")
    for mode in (0, 1, -1):
        assert_as_dense(lambda a, m=mode: a.topk(2, m).values, cube)
        assert_as_dense(lambda a, m=mode: a.median(m).values, cube)
        assert_as_dense(lambda a, m=mode: a.max(m).values, cube)


def test_places_are_distinct():
    places = sparse(7, 9).topk(9).indices
    assert torch.equal(places.sort(1).values, torch.arange(9).expand(7, 9))


def test_gradients():
    for function in (
        lambda a: a.max(1).values,
        lambda a: a.topk(2, 0).values,
        lambda a: a.kthvalue(7).values,
        lambda a: a.quantile(0.9, 1),
    ):
        assert_gradients(function, sparse(4, 8))


def test_truth_values():
    stored = sparse(7, 9) > 1
    for name in ("max", "min"):
        got, expected = getattr(stored, name)(1), getattr(stored.to_dense(), name)(1)
        assert torch.equal(got.values, expected.values) and torch.equal(got.indices, expected.indices)


def test_mistakes():
    with pytest.raises(ShapeError, match="topk of 10 of the 9 entries along mode 1"):
        sparse(7, 9).topk(10)
    with pytest.raises(ShapeError, match="kthvalue of 0"):
        sparse(7, 9).kthvalue(0)
