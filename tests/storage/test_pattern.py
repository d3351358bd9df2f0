"""Patterns: immutable, shared, with what is derived from them cached."""

import copy
import pickle

import pytest
import torch

from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.pattern import LevelStatistics, Pattern, shared
from tests.storage.generate import Case


def test_immutable_and_equal_to_itself_only():
    first, second = (Case("csr", (7, 9), "random").stored().pattern for _ in range(2))
    assert first != second and first.equals(second) and second.equals(first)
    assert not first.equals(Case("csr", (7, 9), "random", seed=1).stored().pattern)
    assert not first.equals(Case("csc", (7, 9), "random").stored().pattern)
    with pytest.raises(AttributeError, match="immutable"):
        first.nnz = 3
    assert copy.deepcopy(first) is first
    assert pickle.loads(pickle.dumps(first)).equals(first)


def test_derived_structure_is_made_once():
    pattern = Case("csr", (7, 9), "random").stored().pattern
    made = []
    for _ in range(3):
        assert pattern.cached("key", lambda: made.append(1) or len(made)) == 1
    assert pattern.kept_coordinates() is pattern.kept_coordinates()


def test_coordinates_stay_where_gradients_will_ask_again():
    dense = torch.eye(5)
    for format in ("csr", "i/2: dense, j: compressed, i%2: dense"):
        frozen = tensor(dense, format)
        assert torch.equal(frozen.to_dense(), dense)
        assert frozen.pattern.recall("coordinates") is None
        learned = frozen.with_values(frozen.values().clone().requires_grad_())
        assert torch.equal(learned.to_dense(), dense)
        assert frozen.pattern.recall("coordinates") is not None
        assert torch.equal(frozen.to_dense(), dense)


def test_patterns_over_the_same_memory_are_one():
    pattern = tensor(torch.eye(4)).pattern
    assert shared(pattern.format, pattern.shape, pattern._pos, pattern._crd) is pattern
    other = [None if a is None else a.clone() for a in pattern.crd]
    other[1][0] = 1
    assert shared(pattern.format, pattern.shape, pattern._pos, other) is not pattern


def test_statistics():
    dense = torch.tensor([[1.0, 2, 0], [0, 0, 0], [3, 0, 0], [0, 0, 0]])
    assert tensor(dense).pattern.statistics() == (
        LevelStatistics(1, 4, 4, 4.0),
        LevelStatistics(4, 3, 2, 0.75),
    )
    assert tensor(dense, "dcsr").pattern.statistics() == (
        LevelStatistics(1, 2, 2, 2.0),
        LevelStatistics(2, 3, 2, 1.5),
    )
    assert tensor(dense, "coo").pattern.statistics() == (
        LevelStatistics(1, 3, 3, 3.0),
        LevelStatistics(3, 3, 1, 1.0),
    )


def test_blocks_that_reach_over_the_edge():
    pattern = tensor(torch.ones(3, 4), "bcsr(2, 3)").pattern
    assert pattern.nnz == 24
    assert pattern.density == 2.0
    assert int(pattern.inside().sum()) == 12
    assert tensor(torch.ones(4, 6), "bcsr(2, 3)").pattern.inside() is None


def test_of_lists():
    pattern = Pattern(Format("csr"), (2, 3), (None, torch.tensor([0, 1, 2])), (None, torch.tensor([2, 0])))
    assert pattern.coordinates().tolist() == [[0, 1], [2, 0]]
    assert pattern.positions(1) == 2 and pattern.nnz == 2 and pattern.density == pytest.approx(1 / 3)
    assert len(pattern.arrays()) == 2


def test_reach_tells_bands_from_scattered_entries():
    rows = torch.arange(600).repeat_interleave(4)
    band = (rows + torch.arange(4).repeat(600)).clamp(max=599)
    anywhere = torch.randint(600, (2400,), generator=torch.Generator().manual_seed(0))
    found = [
        tensor(
            torch.sparse_coo_tensor(torch.stack([rows, columns]), torch.ones(2400), (600, 600)).coalesce(),
            "csr",
        )
        for columns in (band, anywhere)
    ]
    near, far = (made.pattern.reach() for made in found)
    assert near <= 2
    assert far > 60


@pytest.mark.parametrize("shape", [(0, 0), (3, 3), (1, 5)])
def test_reach_of_next_to_nothing(shape):
    assert tensor(torch.zeros(shape), "csr").pattern.reach() == 0
