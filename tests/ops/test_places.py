import pytest
import torch

import sparsify
from sparsify import SparseTensor
from tests.ops.operands import assert_as_dense, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("seed", range(3))
def test_as_dense(function, seed):
    draw = torch.Generator().manual_seed(seed)
    # Few values, so that stored entries tie with each other and with the fill; full rows and empty ones.
    dense = torch.randint(-1, 2, (12, 5), generator=draw).double()
    dense[0], dense[1] = 0, torch.tensor([3.0, -3, 3, -3, 1])
    for fill in (0.0, 1.0, -7.0):
        stored = sparsify.tensor(dense, "csc" if seed else "csr", fill=fill)
        for dim in (0, 1, None):
            assert_as_dense(lambda a, dim=dim: function(a, dim), stored)
        assert_as_dense(lambda a: function(a, 1, keepdim=True), stored)
    cube = sparse(3, 4, 5, format="csf", seed=seed)
    assert_as_dense(lambda a: function(a, 1), cube)
    assert_as_dense(lambda a: function(a, keepdim=True), -cube)


def test_nan_is_the_largest_and_the_smallest():
    dense = torch.tensor([[0.0, 1, 0], [2, float("nan"), 5], [0, 0, 0]])
    for function in (torch.argmax, torch.argmin):
        assert_as_dense(lambda a, f=function: f(a, 1), sparsify.tensor(dense, "csr"))


def test_many_rows():
    n = 10**9
    stored = sparsify.tensor(
        (torch.tensor([[5, 5, 7], [0, 3, 2]]), torch.tensor([1.0, 2, -1]), (n, 4)), "coo"
    )
    found = stored.argmax(1)
    assert isinstance(found, SparseTensor) and found.shape == (n,)
    assert found.coordinates().tolist() == [[5, 7]] and found.values().tolist() == [3, 0]
