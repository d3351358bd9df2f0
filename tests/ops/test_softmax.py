import pytest
import torch

import sparsify
from tests.ops.operands import assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")


def expected(stored, dim):
    """Softmax with unstored entries as minus infinity; rows without entries are 0."""
    dense = stored.to_dense()
    dense = torch.where(dense == 0, -torch.inf, dense)
    return torch.softmax(dense, dim).nan_to_num(0.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax(format, dim):
    stored = sparse(7, 9, format=format)
    for function in (torch.softmax, torch.nn.functional.softmax):
        result = function(stored, dim)
        torch.testing.assert_close(result.to_dense(), expected(stored, dim))
        assert result.pattern is stored.pattern
    logarithm = torch.log_softmax(stored, dim)
    torch.testing.assert_close(logarithm.values(), torch.softmax(stored, dim).values().log())
    assert logarithm.fill == -torch.inf


def test_as_torch_sparse_softmax():
    stored = sparse(7, 9, format="coo")
    of_torch = torch.sparse.softmax(stored.to_torch(), 1)
    torch.testing.assert_close(torch.sparse.softmax(stored, 1).values(), of_torch.coalesce().values())


def test_empty_and_batched():
    assert torch.softmax(sparse(3, 4) * 0, 1).nnz == sparse(3, 4).nnz
    cube = sparse(2, 7, 9, format="csf")
    torch.testing.assert_close(torch.softmax(cube, 2).to_dense(), expected(cube, 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients(dim):
    assert_gradients(lambda a: torch.softmax(a, dim), sparse(4, 5))


def test_rows_without_entries_take_no_memory():
    rows, columns = [5, 5, 10**9 - 1], [7, 10**8, 3]
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    stored = sparsify.tensor(([rows, columns], values, (10**9, 10**9)), format="coo")
    result = torch.softmax(stored, 1)
    expected = torch.cat([values[:2].softmax(0), torch.ones(1, dtype=torch.float64)])
    assert result.pattern is stored.pattern
    torch.testing.assert_close(result.values(), expected)
    weights = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    (got,) = torch.autograd.grad((result.values() * weights).sum(), values)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), values)
    torch.testing.assert_close(got, wanted)
