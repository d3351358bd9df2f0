import pytest
import torch

from sparsify.errors import FormatError
from tests.ops.operands import sparse


def test_layouts():
    stored = sparse(4, 6)
    for other, letters in (
        (stored.to_sparse(), "o0o1"),
        (stored.to_sparse(layout=torch.sparse_csc), "d1s0"),
        (stored.to_sparse_csc(), "d1s0"),
        (stored.to_sparse_csr(), "d0s1"),
        (stored.to_sparse_bsr((2, 3)), "d0/2s1/3d0%2d1%3"),
        (stored.to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)), "d0/2s1/2d0%2d1%2"),
    ):
        assert other.format.letters == letters
        assert torch.equal(other.to_dense(), stored.to_dense())


def test_layouts_without_a_format():
    with pytest.raises(FormatError, match="dense modes"):
        sparse(4, 6).to_sparse(1)
    with pytest.raises(FormatError, match="strided"):
        sparse(4, 6).to_sparse(layout=torch.strided)
