import pytest
import torch

import sparsify
from sparsify import SparseTensor
from sparsify.errors import EinsumError, ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")
FUNCTIONS = [torch.sum, torch.mean, torch.amax, torch.amin]


@pytest.mark.parametrize(
    "function, format", [*((f, "csr") for f in FUNCTIONS), (torch.sum, "csc"), (torch.amax, "coo")]
)
def test_along_modes(function, format):
    stored = sparse(7, 9, format=format)
    assert_as_dense(function, stored)
    for dim in (0, 1, -1, (0, 1)):
        assert_as_dense(lambda a, dim=dim: function(a, dim), stored)
        assert_as_dense(lambda a, dim=dim: function(a, dim, keepdim=True), -stored)


def test_of_three_modes_and_other_fills():
    cube = sparse(2, 7, 9, format="csf")
    for dim in (0, 2, (1, 2)):
        assert_as_dense(lambda a, dim=dim: a.sum(dim), cube)
    assert_as_dense(lambda a: (a + 1).sum(1), sparse(7, 9))
    assert_as_dense(lambda a: a.max() - a.min(), sparse(7, 9))


def test_whether_and_how_many():
    stored = sparse(7, 9)
    stored = torch.cat([stored, torch.ones_like(stored)[:1].with_fill(0)])
    for function in (torch.prod, torch.any, torch.all, torch.count_nonzero):
        assert_as_dense(function, stored)
        assert_as_dense(lambda a, f=function: f(a, 1), stored.with_fill(1.0))
    assert_as_dense(lambda a: a.bool().any(0), stored)


def test_means_of_numbers_whose_sum_is_too_large():
    stored = sparsify.tensor(torch.full((2, 1000), 100.0, dtype=torch.float16).tril(900), "csr")
    assert_as_dense(torch.mean, stored)
    assert_as_dense(lambda a: a.mean(1), stored)


def test_means_of_integers_ask_for_a_dtype():
    stored = sparse(7, 9).to(torch.int64)
    assert_as_dense(lambda a: a.mean(1, dtype=torch.float64), stored)
    for function in (torch.mean, torch.softmax):
        with pytest.raises(EinsumError, match=r"int64; .*dtype=torch.float32"):
            function(stored, 1)


def test_stored_entries_below_the_fill():
    assert float((-sparse(1, 9)).amax()) == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", ["coo", "dcsr", "csc"])
def test_vectors_of_many_rows_are_sparse(format):
    """A dense vector of 10^9 rows would be out of proportion to three entries."""
    n = 10**9
    at = torch.tensor([[5, 5, 10**9 - 1], [0, 3, 2]])
    stored = sparsify.tensor((at, torch.tensor([1.0, 2, -1]), (n, 4)), format)
    for function, wanted in ((torch.sum, [3.0, -1]), (torch.mean, [0.75, -0.25]), (torch.amax, [2.0, 0])):
        found = function(stored, 1)
        assert isinstance(found, SparseTensor) and found.shape == (n,) and found.fill == 0
        assert found.coordinates().tolist() == [[5, n - 1]] and found.values().tolist() == wanted
    assert stored.sum(1, keepdim=True).shape == (n, 1)
    assert stored.sum(0).tolist() == [1, 0, -1, 2]


def test_sparse_sum():
    stored = sparse(7, 9)
    torch.testing.assert_close(torch.sparse.sum(stored, 1), stored.to_dense().sum(1))


@pytest.mark.parametrize("function", [torch.mean, torch.amax])
def test_gradients(function):
    for dim in (0, 1):
        assert_gradients(lambda a, dim=dim: function(a, dim), sparse(4, 5))


def test_modes_that_are_not_there():
    with pytest.raises(ShapeError, match="mode 2 of a tensor of 2"):
        sparse(7, 9).sum(2)
    with pytest.raises(ShapeError, match="twice"):
        sparse(7, 9).sum((0, -2))
    with pytest.raises(ShapeError, match="no entries"):
        (sparse(0, 9)).amax(0)
