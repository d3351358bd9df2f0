"""Kernels read index arrays that nobody can write to, whatever is written to the arrays that a tensor was made of."""

import io

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import sparsify
from sparsify import Format, Pattern, SparseTensor
from sparsify.errors import InvalidTensorError, ShapeError

OUTSIDE = 10**8
ROWS = 24


def matrix() -> scipy.sparse.csr_array:
    return scipy.sparse.random_array(
        (ROWS, ROWS), density=0.2, format="csr", dtype=np.float32, rng=np.random.default_rng(0)
    )


DENSE = torch.from_numpy(matrix().toarray())
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))


def require_right(stored: SparseTensor) -> None:
    """Both orders of the modes, a conversion, and the dense tensor."""
    close = {"rtol": 1e-4, "atol": 1e-5}
    for _ in range(2):  # the second call takes the shortcut
        torch.testing.assert_close(sparsify.einsum("ij,jk->ik", stored, X), DENSE @ X, **close)
    torch.testing.assert_close(sparsify.einsum("ij,ik->jk", stored, X), DENSE.T @ X, **close)
    torch.testing.assert_close(stored.to(format="csc").to_dense(), DENSE)
    torch.testing.assert_close(stored.to_dense(), DENSE)


def of(pos, crd, values) -> SparseTensor:
    return SparseTensor(Pattern(Format("csr"), (ROWS, ROWS), (None, pos), (None, crd)), values)


def tensors(found) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(found.indptr), torch.tensor(found.indices), torch.tensor(found.data)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
def test_arrays_of_scipy(form):
    data = matrix().asformat(form)
    stored = sparsify.tensor(data, format=None)
    sparsify.einsum("ij,jk->ik", stored, X)
    for array in data.coords if form == "coo" else (data.indices, data.indptr):
        array[...] = OUTSIDE
    require_right(stored)


WRITES = {
    "counted": lambda array: array.fill_(OUTSIDE),
    "data": lambda array: array.data.fill_(OUTSIDE),
    "numpy": lambda array: array.numpy().fill(OUTSIDE),
    "dlpack": lambda array: torch.from_dlpack(array).fill_(OUTSIDE),
    "resize": lambda array: array.resize_(10**5).fill_(OUTSIDE),
    "freed": lambda array: array.untyped_storage().resize_(0),
    "set": lambda array: array.set_(torch.full((1,), OUTSIDE, dtype=array.dtype)),
    "shared": lambda array: array.share_memory_().fill_(OUTSIDE),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("is_inference", [False, True])
def test_arrays_of_torch(write, is_inference):
    if is_inference and write in (WRITES["set"], WRITES["shared"]):
        pytest.skip("torch refuses")
    with torch.inference_mode(is_inference):
        pos, crd, values = tensors(matrix())
        stored = of(pos, crd, values)
        sparsify.einsum("ij,jk->ik", stored, X)
        write(crd)
        require_right(stored)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_layouts_of_torch(layout):
    block = {"blocksize": (4, 4)} if layout == "bsr" else {}
    data = DENSE.to_sparse() if layout == "coo" else getattr(DENSE, f"to_sparse_{layout}")(**block)
    stored = sparsify.tensor(data, format=None)
    indices = data._indices() if layout == "coo" else None
    if indices is None:
        indices = data.row_indices() if layout == "csc" else data.col_indices()
    indices.data.fill_(OUTSIDE)
    require_right(stored)


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "dcsr", "coordinate(unordered), coordinate"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_coordinates(form, dtype):
    rows, columns = (torch.tensor(part, dtype=dtype) for part in matrix().tocoo().coords)
    stored = sparsify.tensor(([rows, columns], torch.tensor(matrix().data), (ROWS, ROWS)), form)
    rows.numpy().fill(OUTSIDE)
    columns.data.fill_(OUTSIDE)
    require_right(stored)


def test_files_and_buffers(tmp_path):
    pos, crd, values = tensors(matrix())
    path = tmp_path / "crd"
    crd.numpy().tofile(path)
    mapped = np.memmap(path, crd.numpy().dtype, "r+")
    buffer = bytearray(crd.numpy().tobytes())
    made = [
        of(pos, torch.from_file(str(path), shared=True, size=len(crd), dtype=crd.dtype), values),
        of(pos, torch.from_numpy(mapped), values),
        of(pos, torch.frombuffer(buffer, dtype=crd.dtype), values),
    ]
    mapped[:] = OUTSIDE
    buffer[:] = b"\x7f" * len(buffer)
    for stored in made:
        require_right(stored)


def written_to_arrays_handed_out(stored: SparseTensor):
    yield [stored.coordinates(), stored.pattern.coordinates()]
    yield [array for array in (*stored.pattern.pos, *stored.pattern.crd) if array is not None]
    yield stored.pattern.arrays()
    back = stored.to_scipy()
    yield [torch.from_numpy(back.indices), torch.from_numpy(back.indptr)]
    yield [stored.to_torch().crow_indices(), stored.to_torch().col_indices()]
    yield [stored.pattern.converted(Format("csc"))[0].crd[1]]


def test_arrays_that_are_handed_out():
    stored = sparsify.tensor(matrix())
    for arrays in written_to_arrays_handed_out(stored):
        for array in arrays:
            array.data.fill_(OUTSIDE)
        require_right(stored)
    blocks = sparsify.tensor(torch.ones(3, 4), "bcsr(2, 3)")
    blocks.pattern.inside().data.fill_(True)
    assert torch.equal(blocks.to(format="csr").to_dense(), torch.ones(3, 4))


class Subclass(torch.Tensor):
    """A tensor of a class without operators of its own."""


@pytest.mark.parametrize("kind", ["parameter", "subclass"])
def test_arrays_of_other_classes_are_checked(kind):
    pos, crd, values = tensors(matrix())
    other = nn.Parameter(crd, False) if kind == "parameter" else crd.as_subclass(Subclass)
    stored = of(pos, other, values)
    other.data.fill_(OUTSIDE)
    require_right(stored)
    with pytest.raises(InvalidTensorError, match="outside 0 to 23"):
        of(pos, other, values)


def test_loaded_arrays_share_a_pattern_and_are_checked():
    stored = sparsify.tensor(matrix())
    buffer = io.BytesIO()
    torch.save({"one": stored, "other": stored * 2}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert loaded["one"].pattern is loaded["other"].pattern
    require_right(loaded["one"])
    stored._pattern._crd[1].data[3] = OUTSIDE
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    buffer.seek(0)
    with pytest.raises(InvalidTensorError, match="outside 0 to 23"):
        torch.load(buffer, weights_only=True)


def test_shared_memory_goes_on_working():
    stored = sparsify.tensor(matrix()).share_memory_()
    for array in stored.pattern.arrays():
        array.numpy().fill(OUTSIDE)
    require_right(stored)


@pytest.mark.parametrize("size", [0, 8])
@pytest.mark.parametrize("is_warm", [False, True])
def test_storages_that_are_made_smaller_are_refused(size, is_warm):
    values, x = torch.tensor(matrix().data), X.clone()
    stored = SparseTensor(sparsify.tensor(matrix()).pattern, values)
    for operand, make in ((values, lambda: (stored, X)), (x, lambda: (sparsify.tensor(matrix()), x))):
        if is_warm:
            sparsify.einsum("ij,jk->ik", *make())
            sparsify.einsum("ij,jk->ik", *make())
        operand.untyped_storage().resize_(size)
        for _ in range(2):
            with pytest.raises(ShapeError, match=f"its storage has {size}"):
                sparsify.einsum("ij,jk->ik", *make())
