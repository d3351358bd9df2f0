"""Large shapes: kernels that never make a dense copy, and dense copies that are refused with their size."""

import pytest
import torch
from torch.nn import functional

import sparsify
from sparsify.errors import DenseSizeError, UnsupportedOperatorError
from sparsify.ops.register import memory

EXTENT = 10**6
"""A dense copy of a matrix of this extent takes 4 TB, more than any machine of the tests."""
ROWS, COLUMNS = [3, 3, 999_999, 70], [5, 70, 0, 999_999]
VALUES = [0.5, 2.0, -1.0, 3.0]


@pytest.fixture(scope="module")
def large():
    found = sparsify.tensor((torch.tensor([ROWS, COLUMNS]), torch.tensor(VALUES), (EXTENT, EXTENT)))
    return found.with_values(found.values())


def entries(found):
    """The stored entries by coordinate."""
    places = map(tuple, found.coordinates().T.tolist())
    return {place: value for place, value in zip(places, found.values().tolist(), strict=True) if value}


ANSWERS = {
    "_nnz": (lambda a: a._nnz(), 4),
    "new_zeros": (lambda a: a.new_zeros(3).tolist(), [0, 0, 0]),
    "in": (lambda a: (0.5 in a, 0 in a, 7 in a), (True, True, False)),
    "diag": (lambda a: entries(a.roll(-2, 1).diag()), {(3,): 0.5}),
    "nonzero": (lambda a: a.nonzero().tolist(), sorted(map(list, zip(ROWS, COLUMNS, strict=True)))),
    "where": (lambda a: torch.where(a > 1)[1].tolist(), [70, 999_999]),
    "max": (lambda a: [part[[3, 4, 999_999]].tolist() for part in a.max(1)], [[2, 0, 0], [70, 0, 1]]),
    "min": (lambda a: a.min(0).values[[0, 1]].tolist(), [-1, 0]),
    "topk": (lambda a: a.topk(2).values[3].tolist(), [2, 0.5]),
    "mask": (lambda a: a[a > 0.5].tolist(), [2, 3]),
    "indices": (lambda a: a[[3, 4], [5, 5]].tolist(), [0.5, 0]),
    "dropout": (lambda a: functional.dropout(a, 0.0).nnz, 4),
    "roll": (lambda a: entries(a.roll(2)), {(3, 7): 0.5, (3, 72): 2.0, (999_999, 2): -1.0, (71, 1): 3.0}),
    "gather": (lambda a: a.gather(0, torch.full((1, 6), 3)).tolist(), [[0, 0, 0, 0, 0, 0.5]]),
    "unique": (lambda a: a.unique().tolist(), [-1, 0, 0.5, 2, 3]),
    "counts": (lambda a: a.unique(return_counts=True)[1].tolist(), [1, EXTENT**2 - 4, 1, 1, 1]),
    "median": (lambda a: float(a.median()), 0),
    "medians": (lambda a: float(a.median(1).values.abs().sum()), 0),
    "kthvalue": (lambda a: a.kthvalue(EXTENT).values[[3, 70]].tolist(), [2, 3]),
    "cdist": (lambda a: torch.cdist(a[:4], a[3:4])[:, 0].square().tolist(), [4.25, 4.25, 4.25, 0]),
    "matrix_power": (lambda a: entries(torch.matrix_power(a, 2)), {(3, 999_999): 6.0, (70, 0): -3.0}),
    "norm": (lambda a: a.norm(dim=1)[70].item(), 3),
    "first row": (lambda a: next(iter(a)).nnz, 0),
    "row": (lambda a: entries(a[3]), {(5,): 0.5, (70,): 2.0}),
    "len": (len, EXTENT),
    "repr": (lambda a: len(repr(a)) < 500, True),
    "pad": (lambda a: entries(functional.pad(a, (1, 0)))[3, 6], 0.5),
    "block_diag": (lambda a: torch.block_diag(a, a).shape, (2 * EXTENT, 2 * EXTENT)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(large, name):
    function, expected = ANSWERS[name]
    assert function(large) == expected


def test_rows_come_one_at_a_time(large):
    found = [entries(row) for row, _ in zip(large, range(4), strict=False)]
    assert found == [{}, {}, {}, {(5,): 0.5, (70,): 2.0}]


REFUSED = {
    "cumsum": (lambda a: a.cumsum(0), "one row at a time"),
    "sort": (lambda a: a.sort(), r"S.topk\(k\)"),
    "rand_like": (torch.rand_like, "with_values"),
    "scatter": (lambda a: a.scatter(0, torch.zeros(1, 3).long(), 1.0), r"S.values\(\)"),
    "cdist": (lambda a: torch.cdist(a, a), "cdist would take 4 TB"),
    "add": (lambda a: a + torch.ones(EXTENT), r"act on S.values\(\)"),
    "mode": (lambda a: a.mode(1), r"rows S\[i\]"),
    "topk": (lambda a: a.topk(EXTENT // 2), "dense memory"),
    "cat": (lambda a: torch.cat([a, torch.ones(1, 1).expand(1, EXTENT)]), "dense memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_size(large, name):
    function, remedy = REFUSED[name]
    with pytest.raises(
        DenseSizeError, match=r"would take \d[\d.]* TB of dense memory for operands of"
    ) as raised:
        function(large)
    raised.match(remedy)
    assert isinstance(raised.value, UnsupportedOperatorError)


@pytest.mark.parametrize("convert", ["numpy", "tolist", "__array__"])
def test_no_memory_to_hand_out(large, convert):
    with pytest.raises(UnsupportedOperatorError, match="no dense memory"):
        getattr(large, convert)()


def test_rule(monkeypatch):
    stored = sparsify.tensor(torch.eye(10))  # 11 + 10 + 10 numbers of 4 bytes
    memory.check_bytes("f", 2**30, [stored])
    with pytest.raises(DenseSizeError, match=r"f would take 1.07 GB .* of 124 bytes"):
        memory.check_bytes("f", 2**30 + 1, [stored])
    monkeypatch.setattr(memory, "LEAST_BYTES", 1)
    memory.check_bytes("f", 12_400, [stored])
    with pytest.raises(DenseSizeError):
        memory.check_bytes("f", 12_401, [stored])
    with pytest.raises(DenseSizeError):
        torch.cumsum(sparsify.tensor(torch.eye(1000)), 0)
