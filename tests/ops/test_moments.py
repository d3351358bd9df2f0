import pytest
import torch

from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("format", ["csr", "coo"])
def test_as_dense(format):
    stored = sparse(7, 9, format=format)
    assert_as_dense(lambda a: torch.logsumexp(a, 1), stored)
    assert_as_dense(lambda a: a.var(1), stored)
    assert_as_dense(lambda a: a.logsumexp(1, keepdim=True), stored * 1000)


def test_other_modes_and_arguments():
    stored = sparse(7, 9)
    assert_as_dense(lambda a: torch.std(a, 0, unbiased=False, keepdim=True), stored)
    assert_as_dense(lambda a: a.var(False), stored)
    assert_as_dense(lambda a: torch.var_mean(a, 0, correction=2)[0], stored.with_fill(0.5))
    assert_as_dense(lambda a: torch.std_mean(a, (0, 1))[1], stored)
    assert_as_dense(lambda a: torch.logsumexp(a, (0, 1)), stored.with_fill(-float("inf")))


def test_gradients():
    assert_gradients(lambda a: torch.logsumexp(a, 1), sparse(4, 5))
    assert_gradients(lambda a: torch.var(a, 0), sparse(4, 5))
