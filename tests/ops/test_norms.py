from math import inf

import pytest
import torch
from torch.nn import functional

from tests.ops.operands import assert_as_dense, assert_gradients, full, sparse


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", [2, 1, 3, 0, inf, -inf])
def test_norms(order):
    for stored in (sparse(7, 9), sparse(7, 9, format="csc").with_fill(-0.5)):
        assert_as_dense(lambda a: torch.linalg.vector_norm(a, order), stored)
        assert_as_dense(lambda a: torch.linalg.vector_norm(a, order, dim=1), stored)
        assert_as_dense(lambda a: a.norm(order, dim=0, keepdim=True), stored)


def test_rows_of_length_one():
    stored = sparse(7, 9)
    found = assert_as_dense(functional.normalize, stored)
    assert found.pattern.equals(stored.pattern)
    assert_as_dense(lambda a: functional.normalize(a, p=1, dim=0), stored)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, inf])
def test_distances(p):
    stored = sparse(7, 9)
    assert_as_dense(lambda a, b: torch.cdist(a, b, p), stored, sparse(5, 9, seed=2))
    assert_as_dense(lambda a, b: torch.cdist(b, a, p), stored, full(5, 9))


def test_distances_of_many_rows():
    torch.testing.assert_close(
        torch.cdist(sparse(40, 9), full(5, 9)), torch.cdist(sparse(40, 9).to_dense(), full(5, 9))
    )


def test_gradients():
    assert_gradients(lambda a: torch.linalg.vector_norm(a, dim=1), sparse(4, 5))
    assert_gradients(lambda a, b: torch.cdist(a, b), sparse(4, 5), full(3, 5))
    weight = sparse(4, 5).with_values(torch.zeros(sparse(4, 5).nnz)).requires_grad_()
    weight.norm(dim=1).sum().backward()
    assert not weight.grad.values().any()
