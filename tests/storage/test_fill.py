"""The fill rules."""

from math import inf, nan

import numpy as np
import pytest
import torch

import sparsify
from sparsify.storage.fill import decided, is_kept, same

# Per call and place of an unstored operand: its fill, and the result that it decides.
DECIDED = [
    ("mul", 0, 0.0, 0.0),
    ("mul", 1, 0.0, 0.0),
    ("div", 0, 0.0, 0.0),
    ("add", 0, -inf, -inf),
    ("sub", 0, inf, inf),
    ("sub", 1, inf, -inf),
    ("pow", 1, 0.0, 1.0),
    ("min", 1, -inf, -inf),
    ("max", 0, inf, inf),
    ("logical_and", 0, False, False),
    ("logical_or", 1, True, True),
]
OPEN = [
    ("mul", 0, 2.0),
    ("div", 1, 0.0),
    ("add", 0, 0.0),
    ("sub", 1, 0.0),
    ("pow", 0, 0.0),
    ("min", 0, inf),
    ("max", 0, -inf),
    ("logical_and", 0, True),
    ("exp", 0, 0.0),
]


@pytest.mark.parametrize("function, place, fill, result", DECIDED)
def test_what_one_operand_decides(function, place, fill, result):
    assert decided(function, place, fill) == (True, result)


@pytest.mark.parametrize("function, place, fill", OPEN)
def test_what_it_leaves_open(function, place, fill):
    assert not decided(function, place, fill)[0]


@pytest.mark.parametrize("function, place, fill, result", DECIDED)
def test_arrays_of_fills(function, place, fill, result):
    hit, value = decided(function, place, np.array([fill, 5.0 if fill is not True else 0.0]))
    assert hit.tolist() == [True, False]
    assert value[0] == result


def test_reductions_of_unstored_entries():
    assert is_kept("sum", 0.0) and is_kept("sum", -inf) and not is_kept("sum", 1.0)
    assert is_kept("prod", 1.0) and is_kept("prod", 0) and not is_kept("prod", 2.0)
    assert is_kept("max", -1.0) and is_kept("or", False)


def test_nan_is_the_same_as_nan():
    assert same(nan, nan) and same(0, 0.0) and not same(nan, 0.0)


def test_powers_and_choices_of_sparse_operands_are_sparse():
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -1.0]])
    A, X = sparsify.tensor(dense, "csr"), torch.tensor([[2.0, -3.0, inf], [0.5, nan, 4.0]])
    X.requires_grad_()
    power, chosen = sparsify.evaluate(
        """P[i,j] = X[i,j] ** A[i,j]
           C[i,j] = where(X[i,j] > 0, A[i,j], 0)""",
        outputs=("P", "C"),
        A=A,
        X=X,
    )
    assert power.pattern is A.pattern and power.fill == 1
    assert chosen.pattern is A.pattern and chosen.fill == 0
    plain = X.detach()
    torch.testing.assert_close(power.to_dense(), plain**dense)
    torch.testing.assert_close(chosen.to_dense(), torch.where(plain > 0, dense, 0.0))
    (found,) = torch.autograd.grad(power.values().sum(), X)
    torch.testing.assert_close(found, torch.where(dense == 0, 0.0, dense * plain ** (dense - 1)))
