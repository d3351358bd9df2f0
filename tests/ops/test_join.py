import pytest
import torch

from sparsify.errors import ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bcsr(2, 4)"])
def test_one_after_the_other(format):
    first, second = sparse(7, 9, format=format), sparse(7, 9, seed=5)
    for join in (
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.cat((a, b, a), -1),
        lambda a, b: torch.stack([a, b]),
        lambda a, b: torch.stack([a, b], 2),
        lambda a, b: torch.hstack([a, b]),
        lambda a, b: torch.vstack([a, b]),
        lambda a, b: a.repeat(2, 3),
        lambda a, b: a[:1].expand(4, 9),
        lambda a, b: a[:, :1].expand(2, -1, 3),
    ):
        assert_as_dense(join, first, second)
    assert torch.cat([first, second]).format == first.format


def test_vectors_dtypes_and_fills():
    vector, other = sparse(7, format="compressed"), sparse(7, format="compressed", dtype=torch.float32)
    assert_as_dense(lambda a, b: torch.hstack([a, b]), vector, other)
    assert_as_dense(lambda a, b: torch.vstack([a, b]), vector, other)
    assert torch.cat([vector.with_fill(2.0), vector.with_fill(2.0)]).fill == 2


def test_numbers_that_outgrow_their_width():
    stored = sparse(2, 100, format="dense, compressed(crd=int8)")
    assert_as_dense(lambda a: torch.cat([a, a], 1), stored)


def test_gradients():
    assert_gradients(lambda a, b: torch.cat([a, b, a], 1), sparse(4, 5), sparse(4, 2, seed=5))
    assert_gradients(lambda a: a[:, :1].expand(4, 3), sparse(4, 5))


def test_mistakes():
    with pytest.raises(ShapeError, match=r"cat of \[7, 9\] and \[7, 8\] along mode 0; equal extents"):
        torch.cat([sparse(7, 9), sparse(7, 8)])
    with pytest.raises(ShapeError, match="tensors of one shape"):
        torch.stack([sparse(7, 9), sparse(7, 8)])
