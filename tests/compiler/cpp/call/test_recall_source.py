"""Tests of `sparsify.compiler.cpp.call.recall_source`: changes of tensors seen in C."""

import pytest
import torch

from tests.compiler.kernel.test_recall import Counted, sparse


@pytest.mark.parametrize(
    "write",
    [
        lambda vector: vector.add_(1),
        lambda vector: vector.data.mul_(2),
        lambda vector: vector.numpy().fill(3),
        lambda vector: vector.resize_(3),
        lambda vector: vector.set_(torch.zeros(5).untyped_storage()),
        lambda vector: setattr(vector, "data", torch.ones(5)),
        lambda vector: setattr(vector, "data", vector.data.view(torch.int32)),
        lambda vector: setattr(vector, "data", vector.data.view(5, 1)),
    ],
    ids=["torch", "data", "numpy", "resize", "set", "exchange", "dtype", "shape"],
)
def test_writes_to_vectors_are_seen(write):
    counted, vector = Counted(), torch.arange(5.0)
    first = counted.recall((vector,))
    write(vector)
    assert counted.recall((vector,)) is not first
    assert counted.is_recalled(vector)


def test_writes_to_sparse_weights_are_seen():
    counted, weight = Counted(), sparse(300)
    assert counted.is_recalled(weight)
    weight._vals[12345] += 1  # of 27,000 entries, between the samples: the version tells
    assert counted.recall((weight,)) == [2]
    weight.values().data.mul_(2)
    assert counted.recall((weight,)) == [3]
    assert counted.is_recalled(weight)


def test_another_pattern_is_seen():
    counted, weight = Counted(), sparse()
    assert counted.is_recalled(weight)
    for number in range(2, 50):
        other = sparse()
        weight._pattern, weight._vals = other._pattern, other._vals
        del other
        assert counted.recall((weight,)) == [number]


class Derived(torch.Tensor):
    """A class that may compute its entries."""


@pytest.mark.parametrize(
    "leaf",
    [
        torch.zeros(5000),
        torch.zeros(3).as_subclass(Derived),
        torch.zeros(3, device="meta"),
        torch.zeros(4, 4)[:, 1],
        torch.zeros(3, dtype=torch.complex64).conj(),
    ],
    ids=["large", "derived", "meta", "strided", "conj"],
)
def test_tensors_whose_changes_are_not_seen_are_computed_in_each_call(leaf):
    assert not Counted().is_recalled(leaf)


def test_many_leaves_are_computed_in_each_call():
    assert Counted().is_recalled(*[torch.zeros(1)] * 16)
    assert not Counted().is_recalled(*[torch.zeros(1)] * 17)


def test_inference_tensors():
    with torch.inference_mode():
        vector, weight = torch.zeros(5), sparse(300)
        counted = Counted()
        assert counted.is_recalled(vector, weight)
        vector.add_(1)
        assert counted.recall((vector, weight)) == [2]
