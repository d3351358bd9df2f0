import subprocess
import sys

import pytest
import torch

import sparsify
from sparsify.errors import ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")

PARTS = {
    "rows": lambda a: a[2:5],
    "steps": lambda a: a[::3, 1:8:2],
    "from the end": lambda a: a[-3:, :-1],
    "row": lambda a: a[-2],
    "column": lambda a: a[..., 4],
    "entry": lambda a: a[3, 5],
    "new mode": lambda a: a[None, 2:4, None],
    "twice": lambda a: a[torch.tensor([3, 3, -1])],
    "list": lambda a: a[:, [8, 0, 0]],
    "mask": lambda a: a[torch.arange(7) % 2 == 0],
    "index_select": lambda a: torch.index_select(a, 1, torch.tensor([4, 2, 4])),
    "select": lambda a: a.select(1, 3),
    "narrow": lambda a: a.narrow(0, -4, 2),
    "unbind": lambda a: a.unbind()[6],
    "split": lambda a: a.split([2, 5])[1],
    "chunk": lambda a: a.chunk(4, 1)[2],
    "nothing": lambda a: a[5:2],
}


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bcsr(2, 4)", "dia", "ell"])
def test_parts(format):
    stored = sparse(7, 9, format=format)
    for part in PARTS.values():
        assert_as_dense(part, stored)


@pytest.mark.parametrize("format", ["csf", "coo", "dense, dense, compressed", "dense, compressed, dense"])
def test_parts_of_three_modes(format):
    stored = sparse(4, 5, 6, format=format)
    for part in (
        lambda a: a[1],
        lambda a: a[:, 2],
        lambda a: a[..., 3],
        lambda a: a[0, :, [5, 1]],
        lambda a: a[1, 2],
        lambda a: a[1:3, None, 2, ::2],
    ):
        assert_as_dense(part, stored)


def test_formats_of_parts():
    batch = sparse(4, 5, 6, format="dense, dense, compressed")
    assert str(batch[1].format) == str(batch[:, 2].format) == "dense, compressed"
    assert str(batch[..., 0].format) == "dense, compressed"  # what held the rest of the rows lists them now
    assert sparse(7, 9, format="csc")[1:3].format == sparse(7, 9, format="csc").format
    assert str(sparse(8, 8, format="ell")[1:3].format) == "dense, compressed"


def test_fills_stay():
    stored = sparse(7, 9).with_fill(-1.0)
    assert stored[2:, 1].fill == -1.0
    assert_as_dense(lambda a: a[2:, [1, 1]], stored)
    assert stored[0, int((stored.to_dense()[0] == -1).nonzero()[0])] == -1


def test_gradients():
    for part in (lambda a: a[1:3], lambda a: a[[2, 2, 0]], lambda a: a[1, int(a.coordinates()[1][-1])]):
        assert_gradients(part, sparse(4, 5))


def test_a_large_shape_costs_what_is_stored():
    extent = 10**9
    coordinates = torch.tensor([[5, extent - 1], [7, 3]])
    large = sparsify.tensor((coordinates, torch.ones(2), (extent, extent)), format="dcsr")
    assert large[4:10].nnz == large[:, 3].nnz == large[[extent - 1]].nnz == 1
    assert large[5, 7] == 1 and large[5, 8] == 0


@pytest.mark.parametrize(
    "key, error, match",
    [
        (7, IndexError, "index 7 is out of bounds for mode 0, which has extent 7"),
        ([0, -8], IndexError, "index -8 is out of bounds"),
        ((0, 0, 0), ShapeError, "3 indices for a tensor of 2 modes"),
        (slice(None, None, -1), ShapeError, "torch.flip"),
        (torch.ones(3, dtype=torch.bool), ShapeError, r"a mask of shape \[3\] for mode 0; \[7\]"),
    ],
)
def test_mistakes(key, error, match):
    with pytest.raises(error, match=match):
        sparse(7, 9)[key]


@pytest.mark.sampled(4)
def test_index_select_is_sparse_after_torch_geometric():
    pytest.importorskip("torch_geometric")
    code = (
        "import torch, torch_geometric.hash_tensor, warnings, sparsify\n"
        "warnings.simplefilter('error', RuntimeWarning)\n"
        "A = sparsify.tensor(torch.eye(3), 'csr')\n"
        "assert type(torch.index_select(A, 1, torch.tensor([0, 2]))).__name__ == 'SparseTensor'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
