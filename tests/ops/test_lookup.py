import pytest
import torch

import sparsify
from sparsify.errors import FormatError, ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, dense_of, sparse

INDEX = torch.tensor([[0, 2, 1], [3, 0, 0]])
LOOKUPS = {
    "gather": lambda a: torch.gather(a, 0, INDEX),
    "gather columns": lambda a: a.gather(1, INDEX),
    "take": lambda a: a.take(INDEX),
    "take_along_dim": lambda a: a.take_along_dim(torch.arange(7).reshape(7, 1) % 4, 1),
    "mask": lambda a: a[a > 1],
    "dense mask": lambda a: a[dense_of(a) > 1],
    "masked_select": lambda a: a.masked_select(a > 1.2),
    "rows by a sparse mask": lambda a: a[:, (a > 1)[0]],
    "indices": lambda a: a[torch.tensor([[0], [-1]]), torch.tensor([1, 2, 3])],
    "an index and an integer": lambda a: a[1, torch.tensor([[1, 2], [0, 0]])],
    "argwhere": torch.argwhere,
    "sorted": lambda a: a.unique(),
}


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bcsr(2, 4)", "ell"])
def test_lookups(format):
    stored = sparse(7, 9, format=format)
    for function in LOOKUPS.values():
        assert_as_dense(function, stored)
    assert_as_dense(LOOKUPS["indices"], stored.with_fill(-1.0))
    for number in (0.0, 7, float(stored.values()[3]), float("nan"), torch.tensor(0.0)):
        assert (number in stored) == (number in stored.to_dense())


def test_places_of_what_is_not_zero():
    stored = sparse(7, 9, format="csc")
    dense = stored.to_dense()
    for got, expected in (
        (stored.nonzero(as_tuple=True), dense.nonzero(as_tuple=True)),
        (torch.where(stored > 1), torch.where(dense > 1)),
        (torch.unique(stored, return_counts=True), torch.unique(dense, return_counts=True)),
    ):
        assert all(map(torch.equal, got, expected))
    _, inverse = stored.unique(return_inverse=True)
    assert inverse.nnz == stored.nnz
    assert torch.equal(inverse.to_dense(), dense.unique(return_inverse=True)[1])


def test_shapes_of_almost_all_numbers():
    extents = (2 * 10**6, 2 * 10**6, 2 * 10**6)
    coordinates = torch.tensor([[5, 1_999_999], [7, 3], [0, 1_999_998]])
    cube = sparsify.tensor((coordinates, torch.tensor([2.0, 3.0]), extents), "coo")
    assert cube[[5, 1_999_999, 5], [7, 3, 7], [0, 1_999_998, 1]].tolist() == [2, 3, 0]


def test_entries_on_another_pattern():
    stored, mask = sparse(7, 9), sparse(7, 9, format="coo", seed=3)
    for source in (stored, stored.to_dense()):
        found = source.sparse_mask(mask)
        assert found.pattern is mask.pattern
        assert torch.equal(found.to_dense(), torch.where(mask.to_dense() != 0, stored.to_dense(), 0))


def test_gradients():
    for function in (LOOKUPS["gather"], LOOKUPS["mask"], LOOKUPS["indices"]):
        assert_gradients(function, sparse(7, 9))


def test_arrays_of_layouts():
    stored = sparse(7, 9)
    theirs = stored.to_torch()
    assert stored._nnz() == stored.nnz == theirs._nnz()
    assert torch.equal(stored.to_sparse_csr().crow_indices(), theirs.crow_indices())
    assert torch.equal(stored.col_indices(), theirs.col_indices())
    columns = stored.to_sparse_csc()
    assert torch.equal(columns.ccol_indices().long(), theirs.to_sparse_csc().ccol_indices())
    assert torch.equal(columns.row_indices().long(), theirs.to_sparse_csc().row_indices())
    listed = stored.to_sparse()
    assert torch.equal(listed.indices(), theirs.to_sparse().indices())
    assert torch.equal(listed._values(), theirs.to_sparse().values())
    assert listed.coalesce() is listed and listed.is_coalesced()
    assert (listed.sparse_dim(), listed.dense_dim()) == (2, 0)
    with pytest.raises(FormatError, match=r'crow_indices .* to\(format="csr"\)'):
        columns.crow_indices()


@pytest.mark.parametrize(
    "wrong, error, match",
    [
        (lambda a: a.gather(0, torch.tensor([[7]])), IndexError, "index 7 is out of bounds for mode 0"),
        (lambda a: a.gather(0, torch.tensor([0])), ShapeError, "2 modes by an index of 1"),
        (lambda a: a.gather(0, torch.zeros(1, 10).long()), ShapeError, "no larger but in mode 0"),
        (lambda a: a.take(torch.tensor([63])), IndexError, "index 63"),
        (lambda a: a[[0, 1], [0, 1, 2]], ShapeError, "broadcast together"),
    ],
)
def test_mistakes(wrong, error, match):
    with pytest.raises(error, match=match):
        wrong(sparse(7, 9))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.float32])
def test_single_entries_have_the_dtype_of_the_tensor(dtype):
    dense = torch.tensor([[1, 0], [0, 100]]).to(dtype)
    sparse = sparsify.tensor(dense, "csr")
    for place in [(0, 0), (0, 1), (1, 1)]:
        assert torch.equal(sparse[place], dense[place])
        assert sparse[place].dtype == dtype
