"""Rows of sparse tables, against torch's embedding of dense ones."""

import pytest
import torch
from torch.nn import functional

import sparsify
from sparsify.errors import UnsupportedOperatorError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    "index", [torch.tensor([[1, 0, 6], [6, 6, 2]]), torch.tensor(3), torch.zeros(0, 2).int()]
)
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_rows(index, format):
    with sparsify.strict():
        assert_as_dense(lambda table: functional.embedding(index, table), sparse(7, 9, format=format))


def test_gradients_lie_on_the_pattern_and_leave_padding_out():
    index = torch.tensor([1, 5, 1, 2])
    assert_gradients(lambda table: functional.embedding(index, table), sparse(7, 5))
    table = sparse(7, 9).requires_grad_()
    functional.embedding(index, table, padding_idx=-2).sum().backward()
    want = torch.where(table.detach().to_dense() != 0, torch.tensor([0, 2, 1, 0, 0, 0, 0.0]).view(7, 1), 0)
    assert torch.equal(table.grad.to_dense(), want.double())


def test_lookups_that_cannot_be():
    table = sparse(7, 9)
    for index in (torch.tensor([1, 7]), torch.tensor([-1, 2])):
        with pytest.raises(IndexError, match="indices from 0 to 6"):
            functional.embedding(index, table)
    for row in (7, -8):
        with pytest.raises(IndexError, match=f"padding_idx={row} of a table of 7; a row from -7 to 6"):
            functional.embedding(torch.tensor([1]), table, padding_idx=row)
    with sparsify.strict(), pytest.raises(UnsupportedOperatorError, match="max_norm"):
        functional.embedding(torch.tensor([1]), table, max_norm=1.0)
