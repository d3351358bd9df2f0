"""Reading and writing the tensors of others."""

import numpy as np
import pytest
import scipy.sparse
import torch

from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage.interop.tensors import tensor
from tests.storage.generate import FORMATS, SHAPES, Case

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)
LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc")


def as_layout(dense, layout):
    """A dense tensor in a layout of torch."""
    if layout == "coo":
        return dense.to_sparse()
    block = {"blocksize": (2, 3)} if layout in ("bsr", "bsc") else {}
    return getattr(dense, f"to_sparse_{layout}")(**block)


def pointers(sparse):
    """Where the index arrays and the values are."""
    return {a.data_ptr() for a in (*sparse.pattern.arrays_in_place(), sparse.values())}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("content", ["random", "none", "all"])
def test_torch_layouts(layout, content):
    dense = Case("csr", (4, 6), content).dense()
    data = as_layout(dense, layout)
    stored = tensor(data, format=None)
    assert torch.equal(stored.to_dense(), dense)
    assert stored.values().data_ptr() == data.values().data_ptr()
    back = stored.to_torch()
    assert back.layout == data.layout
    assert torch.equal(back.to_dense(), dense)
    assert back.values().data_ptr() == data.values().data_ptr()
    for form in ("csr", "coo", "bcsr(2, 2)"):
        assert torch.equal(tensor(data, form).to_dense(), dense)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_torch_values_are_shared_and_index_arrays_copied(layout):
    data = as_layout(Case("csr", (4, 6), "random").dense(), layout)
    outer = data.crow_indices() if layout in ("csr", "bsr") else data.ccol_indices()
    inner = data.col_indices() if layout in ("csr", "bsr") else data.row_indices()
    shared = pointers(tensor(data, format=None)) & {x.data_ptr() for x in (outer, inner, data.values())}
    assert shared == {data.values().data_ptr()}


def test_torch_batches_and_dense_modes():
    dense = torch.zeros(2, 4, 6)
    dense[0, 1, 2], dense[0, 3, 3], dense[1, 0, 5], dense[1, 3, 0] = 1.0, 2.0, 3.0, 4.0
    for layout in ("csr", "csc"):
        assert torch.equal(tensor(as_layout(dense, layout), format=None).to_dense(), dense)
    hybrid = torch.rand(3, 4, 2).to_sparse(2)
    stored = tensor(hybrid, format=None)
    assert str(stored.format) == "coordinate, coordinate, dense"
    assert torch.equal(stored.to_dense(), hybrid.to_dense())
    wide = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([2, 0]), torch.rand(2, 3), (2, 3, 3))
    assert torch.equal(tensor(wide, format=None).to_dense(), wide.to_dense())


def test_torch_coo_that_is_not_coalesced():
    data = torch.sparse_coo_tensor([[1, 0, 1], [2, 1, 2]], torch.tensor([1.0, 5.0, 2.0]), (2, 3))
    with pytest.raises(InvalidTensorError, match=r"entry 2 is a duplicate of the coordinates \(1, 2\)"):
        tensor(data)
    assert tensor(data, duplicates="sum").values().tolist() == [5.0, 3.0]
    assert torch.equal(tensor(data, "coo", duplicates="sum").to_dense(), data.to_dense())
    unique = torch.sparse_coo_tensor([[1, 0], [2, 1]], torch.tensor([1.0, 5.0]), (2, 3))
    assert torch.equal(tensor(unique).to_dense(), unique.to_dense())


@pytest.mark.parametrize(
    "data, message",
    [
        (([[0], [1]], [1.0], None), "the shape None"),
        (([[0], [1]], [1.0], 2), "the shape 2"),
        (([[0], [1]], [1.0], (2, 2.0)), "has 2.0 in mode 1"),
        ((None, [1.0], (2, 2)), "cannot read coordinates of type NoneType"),
        (([[0], [1]], None, (2, 2)), "cannot read values of type NoneType"),
        (([[0], [-1]], [1.0], (2, 2)), r"coordinates \(0, -1\), outside the shape \(2, 2\) in mode 1"),
        (([[0], [1]], torch.ones(1, device="meta"), (2, 2)), "values on meta"),
        ((torch.zeros(2, 1, device="meta").long(), [1.0], (2, 2)), "coordinates of mode 0 on meta"),
        (torch.ones(2, 2, device="meta"), "a tensor on meta"),
        (([[0], [1]], [1.0], (2, 2**64)), "more entries than torch can count"),
    ],
    ids=range(10),
)
def test_data_that_makes_no_tensor(data, message):
    with pytest.raises(InvalidTensorError, match=message):
        tensor(data)


@pytest.mark.parametrize("form", [3, ["csr", 5], object()])
def test_formats_that_are_none(form):
    with pytest.raises(FormatError, match="the format"):
        tensor(torch.eye(2), form)


def test_strided_and_swapped_arrays():
    dense = torch.arange(12.0).view(3, 4)[:, ::2]
    for form in ("dense", "csr", "coo"):
        assert torch.equal(tensor(dense, form).to_dense(), dense)
    columns = torch.tensor([[0, 9, 1, 9], [1, 9, 2, 9]])[:, ::2]
    stored = tensor((columns, torch.arange(1.0, 5.0)[::2], (2, 3)), None)
    assert stored.to_dense().tolist() == [[0, 1, 0], [0, 0, 3]]
    swapped = np.array([[1.0, 0.0]], dtype=">f8")
    assert tensor(swapped).to_dense().tolist() == [[1, 0]]


def test_a_fill_that_is_no_number_equal_to_itself():
    data = torch.tensor([[1.0, float("nan")], [0.0, float("nan")]])
    stored = tensor(data, fill=float("nan"))
    assert stored.nnz == 2 and torch.equal(stored.to_dense(), data) is False
    assert torch.allclose(stored.to_dense(), data, equal_nan=True)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy(form, kind):
    dense = Case("csr", (4, 6), "random").dense().numpy()
    data = getattr(scipy.sparse, f"csr_{kind}")(dense).asformat(form)
    for target in (None, "csr", "coo", "bcsr(2, 3)"):
        assert np.array_equal(tensor(data, target).to_dense().numpy(), dense)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
def test_scipy_values_are_shared_and_index_arrays_copied(form):
    data = scipy.sparse.csr_array(Case("csr", (4, 6), "random").dense().numpy()).asformat(form)
    stored = tensor(data, format=None)
    here = {a.ctypes.data for a in (data.indptr, data.indices, data.data)}
    assert pointers(stored) & here == {data.data.ctypes.data}
    back = stored.to_scipy()
    assert back.format == form
    assert data.data.ctypes.data == back.data.ctypes.data
    assert not {a.ctypes.data for a in (back.indptr, back.indices)} & (here | pointers(stored))


def test_scipy_unsorted_duplicates_and_ranks():
    arrays = (np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 2, 3]))
    unsorted = scipy.sparse.csr_array(arrays, shape=(2, 3))
    assert tensor(unsorted).values().tolist() == [2.0, 1.0, 3.0]
    repeated = scipy.sparse.csr_array((arrays[0], np.array([2, 2, 1]), arrays[2]), shape=(2, 3))
    with pytest.raises(InvalidTensorError, match=r"entry 1 .*duplicate of 2"):
        tensor(repeated)
    assert tensor(repeated, duplicates="sum").values().tolist() == [3.0, 3.0]
    cube = scipy.sparse.coo_array(np.arange(24.0).reshape(2, 3, 4) % 3)
    assert np.array_equal(tensor(cube, "csf").to_scipy().toarray(), cube.toarray())
    wide = scipy.sparse.csr_array((arrays[0], np.array([2, 9, 1]), arrays[2]), shape=(2, 3))
    with pytest.raises(InvalidTensorError, match=r"entry 1 .* is 9, outside 0 to 2"):
        tensor(wide)


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_to_torch_and_scipy_of_every_format(rank):
    for shape in SHAPES[rank]:
        for form in FORMATS[rank]:
            case = Case(form, shape, "random")
            stored, dense = case.stored(), case.dense()
            assert torch.equal(stored.to_torch().to_dense(), dense), case
            if rank and all(shape):
                assert np.array_equal(stored.to_scipy().toarray(), dense.numpy()), case


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    dense = (Case("csr", (5, 6), "random").dense() * 3).to(dtype)
    for form in ("csr", "bcsr(2, 3)", "dense(2)", "dcsc"):
        stored = tensor(dense, form)
        assert stored.dtype == dtype
        assert torch.equal(stored.to_dense(), dense)
    assert torch.equal(tensor(dense, dtype=torch.complex128).to_dense(), dense.to(torch.complex128))


def test_dense_arrays_lists_and_fills():
    array = np.array([[0.0, 2.0], [np.inf, 0.0]])
    assert tensor(array).nnz == 2
    assert tensor(array, fill=float("inf")).nnz == 3
    assert tensor(np.array([[np.nan, 1.0]]), fill=float("nan")).nnz == 1
    assert tensor([[0, 3]]).to_dense().tolist() == [[0, 3]]
    with pytest.raises(InvalidTensorError, match="the fill 'zero' of type str; a number"):
        tensor(array, fill="zero")
    dense = torch.rand(3, 4)
    assert tensor(dense, "dense(2)").values().data_ptr() == dense.data_ptr()
    assert tensor(dense.T, "j: dense, i: dense").values().data_ptr() == dense.data_ptr()


def test_coordinates_in_any_order():
    coordinates = torch.tensor([[2, 0, 1], [0, 3, 1]])
    values = torch.tensor([1.0, 2.0, 3.0])
    stored = tensor((coordinates, values, (3, 4)), "csr")
    assert stored.values().tolist() == [2.0, 3.0, 1.0]
    free = tensor((coordinates, values, (3, 4)), "coordinate(unordered), coordinate")
    assert free.values().data_ptr() == values.data_ptr()
    assert free.pattern._crd[0].data_ptr() != coordinates.data_ptr()
    assert torch.equal(free.coordinates(), coordinates)
    assert torch.equal(free.to_dense(), stored.to_dense())
    ordered = torch.tensor([[0, 1, 2], [3, 1, 0]], dtype=torch.int32)
    listed = tensor((ordered, values, (3, 4)), "coo")
    assert (
        listed.pattern._crd[1].data_ptr() != ordered[1].data_ptr()
        and listed.pattern._crd[1].dtype == torch.int32
    )
    assert tensor((np.array([[0], [1]]), [5.0], (2, 2))).to_dense().tolist() == [[0, 5], [0, 0]]
    assert tensor(([[0, 1], [1, 0]], [5.0, 6.0], (2, 2)), "coo").nnz == 2


def test_duplicates_are_added_when_asked():
    coordinates = torch.tensor([[1, 0, 1, 1], [2, 1, 2, 0]])
    values = torch.tensor([1.0, 5.0, 2.0, 7.0], dtype=torch.float64, requires_grad=True)
    stored = tensor((coordinates, values, (2, 3)), duplicates="sum")
    assert stored.values().tolist() == [5.0, 7.0, 3.0]
    assert torch.autograd.gradcheck(
        lambda v: tensor((coordinates, v, (2, 3)), "csc", duplicates="sum").to_dense(), values
    )


def test_every_source_is_differentiable():
    dense = Case("csr", (4, 6), "random").dense().requires_grad_()
    for form in ("csr", "bcsr(3, 4)", "dense(2)", "dcsc"):
        assert torch.autograd.gradcheck(lambda d, form=form: tensor(d, form).to_dense() ** 2, dense)
    values = torch.rand(2, dtype=torch.float64, requires_grad=True)
    coo = torch.sparse_coo_tensor([[0, 1], [1, 0]], values, (2, 2)).coalesce()
    tensor(coo).to_dense().sum().backward()
    assert values.grad.tolist() == [1.0, 1.0]
    stored = tensor((torch.tensor([[0, 1], [1, 0]]), values, (2, 2)))
    (grad,) = torch.autograd.grad(stored.to_torch().to_dense().sum(), values)
    assert grad.tolist() == [1.0, 1.0]


ROWS = [torch.arange(6.0).view(3, 2) + 1, torch.zeros(0, 2), torch.ones(5, 2)]


def test_jagged_rows_share_their_values():
    rows = torch.nested.nested_tensor(ROWS, layout=torch.jagged)
    stored = tensor(rows, None)
    assert str(stored.format) == "dense, ragged, dense" and stored.shape == (3, 5, 2)
    assert stored.values().data_ptr() == rows.values().data_ptr()
    assert torch.equal(stored.to_dense(), rows.to_padded_tensor(0.0))
    written = stored.to_nested()
    assert written.layout == torch.jagged and torch.equal(written.offsets(), rows.offsets())
    assert torch.equal(written.values(), rows.values())
    assert torch.equal(tensor(rows).to_dense(), stored.to_dense())
    assert torch.equal(stored.to_torch().to_dense(), stored.to_dense())
    with pytest.raises(
        FormatError, match=r'a nested tensor of .*; to\(format="dense, ragged, dense"\) first'
    ):
        tensor(rows).to_nested()
    with pytest.raises(FormatError, match="fill 1"):
        tensor(torch.ones(2, 3), "dense, ragged", fill=1).to_nested()


def test_jagged_rows_with_gaps_are_copied():
    wide = torch.arange(42.0).view(3, 7, 2)
    rows = torch.nested.narrow(wide, 1, torch.tensor([0, 1, 2]), torch.tensor([3, 2, 5]), layout=torch.jagged)
    stored = tensor(rows, None)
    wanted = torch.stack([torch.cat([row, torch.zeros(5 - len(row), 2)]) for row in rows.unbind()])
    assert torch.equal(stored.to_dense(), wanted)
    with pytest.raises(InvalidTensorError, match="lengths along mode 2; lengths along mode 1"):
        tensor(torch.nested.nested_tensor(ROWS, layout=torch.jagged).transpose(1, 2))


def test_gradients_reach_jagged_rows():
    values = torch.ones(8, 2, requires_grad=True)
    rows = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 3, 8]))
    tensor(rows, None).to_dense().mul(torch.arange(30.0).view(3, 5, 2)).sum().backward()
    assert values.grad[:3].flatten().tolist() == list(range(6))
    assert values.grad[3:].flatten().tolist() == list(range(20, 30))


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: tensor(([[0, 5]], [1.0, 2.0], (3,)), "compressed"),
            r"entry 1 .*\(5,\), outside the shape \(3,\)",
        ),
        (lambda: tensor(([[0, -1]], [1.0, 2.0], (3,)), "compressed"), r"entry 1 .*\(-1,\), outside"),
        (lambda: tensor(([[0, 1]], [1.0], (3,)), "compressed"), r"values of shape \[1\]"),
        (lambda: tensor(([[0, 0], [1, 1]], [1.0, 2.0], (3, 3))), r"entry 1 is a duplicate of .*\(0, 1\)"),
        (lambda: tensor(([[0.5]], [1.0], (3,)), "compressed"), "coordinates of torch.float64"),
        (lambda: tensor(([[0]], [1.0], (3, 3))), "coordinates of 1 modes for a shape of 2"),
        (lambda: tensor(([[0]], [1.0], (-3,)), "compressed"), "has -3 in mode 0"),
        (lambda: tensor(([0], [1.0], (3,)), "compressed"), r"coordinates of shape \[1\]"),
        (lambda: tensor(([[0]], [1.0], (0,)), "compressed"), "mode has no extent|no entries"),
        (lambda: tensor(torch.zeros(2, 2, dtype=torch.uint8)), "values of torch.uint8"),
        (lambda: tensor("csr"), "cannot read data of type str"),
        (lambda: tensor(torch.zeros(2, 2), duplicates="ignore"), "duplicates='ignore'"),
    ],
)
def test_refused(make, message):
    with pytest.raises(InvalidTensorError, match=message):
        make()


def test_refused_formats():
    with pytest.raises(FormatError, match="2 modes"):
        tensor(torch.zeros(2, 2, 2), "csr")
    with pytest.raises(FormatError, match="fill 1"):
        tensor(torch.zeros(2, 2), fill=1).to_torch()
    with pytest.raises(FormatError, match="fill 1"):
        tensor(torch.zeros(2, 2), fill=1).to_scipy()
