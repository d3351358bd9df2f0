import pytest
import torch

import sparsify
from sparsify.errors import ShapeError
from tests.ops.operands import sparse

pytestmark = pytest.mark.filterwarnings("error")


def test_allclose():
    A, nan, inf = sparse(7, 9), float("nan"), float("inf")
    B = A.with_values(A.values() * (1 + 1e-9))
    more = sparsify.tensor(B.to_dense() + torch.eye(7, 9, dtype=torch.float64) * 1e-12, "csr")
    assert torch.allclose(A, B) and not A.allclose(B, rtol=1e-12, atol=0)
    for other in (more, more.to_dense(), more.to(format="csc")):
        assert torch.allclose(A, other) and not torch.allclose(A, other, rtol=0, atol=1e-13)
    odd = A.to_dense()
    odd[0, 0], odd[1, 1] = nan, inf
    A, B = sparsify.tensor(odd, "csr"), sparsify.tensor(odd, "coo")
    assert torch.allclose(A, B, equal_nan=True) and not torch.allclose(A, B)
    assert not torch.allclose(A.with_fill(0.1), A) and torch.allclose(A[2:], B[2:])


def test_of_different_kinds():
    with pytest.raises(ShapeError, match="the same shape"):
        torch.allclose(sparse(7, 9), sparse(9, 7))
    assert torch.allclose(sparse(7, 9).float(), sparse(7, 9, format="coo"))
