import pytest
import torch

import sparsify
from sparsify.errors import ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("format", ["csf", "coo", "dense, dense, compressed"])
def test_modes_together_and_apart(format):
    stored = sparse(4, 6, 10, format=format)
    for change in (
        lambda a: a.reshape(24, 10),
        lambda a: a.reshape(4, -1),
        lambda a: a.view(2, 2, 5, 12),
        lambda a: a.reshape(8, 30),
        lambda a: a.reshape(-1),
        lambda a: torch.reshape(a, (3, 80)),
        lambda a: torch.flatten(a, 1),
        lambda a: a.flatten(),
        lambda a: a.ravel(),
        lambda a: a.unflatten(2, (5, 2)),
        lambda a: a.reshape(1, 4, 1, 60),
        lambda a: a.reshape_as(torch.empty(60, 4)),
    ):
        assert_as_dense(change, stored)


def test_modes_of_one_keep_the_format():
    stored = sparse(7, 9)
    for change in (lambda a: a.unsqueeze(0), lambda a: a.unsqueeze(-1), lambda a: a[None].squeeze(0)):
        result = assert_as_dense(change, stored)
        assert {"dense", "compressed"} == {level.level.name for level in result.format.levels}
    assert stored.unsqueeze(0).squeeze(0).format == stored.format
    assert_as_dense(lambda a: a.squeeze(), sparse(1, 9, 1, format="csf"))
    assert stored.squeeze() is stored


def test_blocks_and_fills():
    assert_as_dense(lambda a: a.reshape(9, 7), sparse(7, 9, format="bcsr(2, 4)"))
    assert_as_dense(lambda a: a.reshape(3, 21), sparse(7, 9).with_fill(2.0))


def test_patterns_are_made_once():
    stored = sparse(4, 6)
    assert stored.reshape(8, 3).pattern is (stored * 2).reshape(8, 3).pattern


def test_nothing_and_a_large_shape():
    assert_as_dense(lambda a: a.reshape(0, 8), sparse(0, 4))
    extent = 10**9
    coordinates = torch.tensor([[5, extent - 1], [7, 3]])
    large = sparsify.tensor((coordinates, torch.ones(2), (extent, extent)), format="coo")
    assert large.reshape(extent // 10, extent * 10).coordinates().tolist() == [
        [0, extent // 10 - 1],
        [5 * extent + 7, 9 * extent + 3],
    ]


def test_gradients():
    assert_gradients(lambda a: a.reshape(10, 2), sparse(4, 5))


def test_mistakes():
    with pytest.raises(ShapeError, match=r"shape '\[5, 5\]' is invalid for input of size 63"):
        sparse(7, 9).reshape(5, 5)
