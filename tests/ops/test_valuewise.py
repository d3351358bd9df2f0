import torch
from torch.nn import functional

from sparsify.storage.tensor import SparseTensor
from tests.ops.operands import assert_as_dense, sparse


def test_on_the_pattern():
    stored = sparse(7, 9).with_fill(0.5)
    for function in (
        lambda a: torch.isin(a, torch.tensor([0.5, 1.0], dtype=torch.float64)),
        lambda a: torch.isin(a, torch.tensor([0.5], dtype=torch.float64), invert=True),
        lambda a: torch.bucketize(a, torch.tensor([0.0, 0.7, 1.1], dtype=torch.float64), right=True),
        lambda a: a // 0.3,
        lambda a: torch.div(a, 0.3, rounding_mode="trunc"),
        lambda a: torch.div(a, a + 1, rounding_mode="floor"),
    ):
        assert assert_as_dense(function, stored).pattern is stored.pattern


def test_random_values():
    stored = sparse(70, 90)
    torch.manual_seed(0)
    found = functional.dropout(stored, 0.25)
    kept = found.values() != 0
    assert found.pattern is stored.pattern
    torch.testing.assert_close(found.values()[kept], (stored.values() / 0.75)[kept])
    assert 0.7 < kept.double().mean() < 0.8
    assert functional.dropout(stored, training=False) is stored
    assert set((stored.clamp(0, 1)).bernoulli().values().tolist()) == {0.0, 1.0}


def test_dense_tensors_of_the_same_dtype():
    stored = sparse(7, 9)
    for made in (stored.new_zeros(3), stored.new_ones((3,)), stored.new_full((3,), 2), stored.new_empty(3)):
        assert not isinstance(made, SparseTensor)
        assert made.dtype == stored.dtype and made.shape == (3,)
    assert stored.new_zeros(3, dtype=torch.int8).dtype == torch.int8
