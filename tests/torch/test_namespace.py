"""The drop-in namespace: every name of torch, its submodules, factories with formats, einsum over any mix."""

import subprocess
import sys

import pytest
import torch as real

import sparsify.torch as torch
from sparsify import SparseTensor
from sparsify.errors import EinsumError, FormatError, InvalidTensorError, ShapeError
from sparsify.torch.nn import functional as F

OWN = {"einsum", "nn", "rearrange"}


def test_every_name_of_torch_resolves():
    own = {*OWN, *torch.FACTORIES}
    differing = [n for n in dir(real) if not n.startswith("__") and getattr(torch, n) is not getattr(real, n)]
    assert set(differing) <= own
    assert set(dir(real)) | {"rearrange"} <= set(dir(torch))
    assert all(hasattr(torch.nn, name) for name in dir(real.nn))
    assert all(hasattr(F, name) for name in dir(real.nn.functional))
    with pytest.raises(AttributeError, match="has an attribute 'sparse_zeros'"):
        torch.sparse_zeros  # noqa: B018


def test_submodules_are_those_of_torch_and_are_loaded_once():
    import sparsify.torch.nn.functional
    import sparsify.torch.nn.modules.linear as linear
    import sparsify.torch.utils.data as data
    from sparsify.torch.optim import Adam

    assert linear is real.nn.modules.linear and linear.Linear is torch.nn.Linear
    assert data is real.utils.data and data.__spec__.name == "torch.utils.data"
    assert Adam is real.optim.Adam
    assert sparsify.torch.nn.functional is F and F.relu is real.nn.functional.relu
    with pytest.raises(ModuleNotFoundError, match=r"sparsify.torch.sparse_modules"):
        import sparsify.torch.sparse_modules


def test_all_names_are_imported_by_a_star():
    names: dict = {}
    exec("from sparsify.torch import *", names)
    assert names["einsum"] is torch.einsum and names["relu"] is real.relu


@pytest.mark.sampled(2)
def test_the_compiler_is_not_loaded_before_a_sparse_tensor_is_made():
    code = "import sys, sparsify.torch as t; t.eye(3) + 1; sys.exit('sparsify.compiler' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FACTORY_CALLS = [
    ("tensor", ([[0.0, 1.0], [2.0, 0.0]],), 2),
    ("as_tensor", ([[0.0, 1.0], [2.0, 0.0]],), 2),
    ("zeros", (2, 3), 0),
    ("zeros", ((2, 3),), 0),
    ("empty", (2, 3), 0),
    ("ones", (2, 3), 6),
    ("full", ((2, 3), 7.0), 6),
    ("eye", (3,), 3),
    ("eye", (3, 5), 3),
    ("rand", (2, 3), 6),
    ("randn", (2, 3), 6),
    ("arange", (5,), 4),
    ("linspace", (0, 1, 5), 4),
]


@pytest.mark.parametrize("name, arguments, stored", FACTORY_CALLS, ids=lambda value: str(value))
def test_factories(name, arguments, stored):
    options = {"dtype": real.float64}
    real.manual_seed(0)
    dense = getattr(real, name)(*arguments, **options)
    real.manual_seed(0)
    plain = getattr(torch, name)(*arguments, **options)
    assert type(plain) is real.Tensor and plain.shape == dense.shape
    real.manual_seed(0)
    found = getattr(torch, name)(*arguments, format="coo", **options)
    assert isinstance(found, SparseTensor) and found.nnz == stored and found.dtype == real.float64
    if name != "empty":
        assert real.equal(found.to_dense(), dense)
    if name != "as_tensor":
        leaf = getattr(torch, name)(*arguments, format="coo", requires_grad=True, **options)
        assert leaf.is_leaf and leaf.requires_grad


def test_large_factories_do_not_make_the_dense_tensor():
    assert torch.eye(10**6, format="csr").nnz == 10**6
    assert torch.zeros(10**6, 10**6, format="coo").nnz == 0


def test_tensor_of_sparse_data():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    found = torch.tensor(scipy_sparse.eye_array(3).tocsr(), format="csc", dtype=real.float32)
    assert str(found.format) == "j: dense, i: compressed" and found.dtype == real.float32
    assert torch.tensor(real.eye(2).to_sparse(), format="csr").nnz == 2


def test_factories_of_layouts():
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    A = torch.sparse_coo_tensor(indices, values, (2, 3))
    assert isinstance(A, SparseTensor) and str(A.format) == "coordinate, coordinate"
    assert A.to_dense().tolist() == [[0, 0, 1], [5, 0, 0]]  # repeated coordinates are added, as torch does
    A.sum().backward()
    assert values.grad.tolist() == [1, 1, 1]
    assert str(torch.sparse_coo_tensor(indices, values, (2, 3), format="csr").format) == "dense, compressed"
    csr = torch.sparse_csr_tensor(real.tensor([0, 1, 2]), real.tensor([0, 1]), real.ones(2), size=(2, 2))
    assert str(csr.format) == "dense, compressed"
    rows = torch.sparse_coo_tensor(real.tensor([[0, 1]]), real.ones(2, 3), (2, 3))
    assert str(rows.format) == "compressed, dense"


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: torch.eye(3, format="csr", out=real.eye(3)), FormatError, "out= and a format"),
        (lambda: torch.rand(3, 3, format="csr", device="meta"), FormatError, "on meta in a format; the CPU"),
        (lambda: torch.ones(3, 3, format="csr", layout=real.sparse_csr), FormatError, "one of the two"),
        (lambda: torch.zeros(3, 3, format="csr", pin_memory=True), FormatError, "zeros with pin_memory"),
        (lambda: torch.zeros(format="csr"), ShapeError, "has no size; extents, zeros"),
        (lambda: torch.empty((), format="csr"), FormatError, "a format of 2 modes"),
        (lambda: torch.zeros(None, format="csr"), InvalidTensorError, "None in mode 0"),
        (lambda: torch.eye(-1, format="csr"), ShapeError, "eye of -1 by -1"),
        (lambda: torch.ones(3, format="csr"), FormatError, "a format of 2 modes"),
        (lambda: F.one_hot(real.tensor([3]), 2), ShapeError, "with the class 3; num_classes=4"),
        (lambda: F.one_hot(real.tensor([-1]), 2), ShapeError, "the class -1; classes from 0"),
        (lambda: F.one_hot(real.tensor([1.0]), 2), TypeError, "one_hot of torch.float32"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_one_hot(shape):
    classes = real.randint(0, 4, shape)
    found, wanted = F.one_hot(classes, 4), real.nn.functional.one_hot(classes, 4)
    assert isinstance(found, SparseTensor) and found.dtype == real.int64
    assert found.nnz == classes.numel() and real.equal(found.to_dense(), wanted)
    if classes.numel():
        assert real.equal(F.one_hot(classes).to_dense(), real.nn.functional.one_hot(classes))
    if len(shape) == 1:
        assert str(found.format) == "dense, singleton"
        assert str(F.one_hot(classes, 4, format="csr").format) == "dense, compressed"


def test_einsum_over_layouts_of_torch():
    A, B, C = real.rand(5, 5).relu() * (real.rand(5, 5) < 0.5), real.rand(5, 3), real.rand(3, 5)
    wanted = real.einsum("ij,ik,kj->ij", A, B, C)
    for sparse in (A.to_sparse(), A.to_sparse_csr(), torch.tensor(A, format="csc")):
        found = torch.einsum("ij,ik,kj->ij", sparse, B, C, format="csr")
        assert str(found.format) == "dense, compressed"
        real.testing.assert_close(found.to_dense(), wanted)
    assert type(torch.einsum("ij,jk->ik", A, B)) is real.Tensor
    assert isinstance(torch.einsum("ij,jk->ik", A, B, format="csr"), SparseTensor)
    real.testing.assert_close(torch.einsum("ij,jk->ik", [A.to_sparse(), B]), A @ B)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["dense", "coo", "csr", "stored"])
@pytest.mark.parametrize(
    "first, second, result",
    [
        ([0, 1], [1, 2], [0, 2]),
        ([0, 1], [1, 2], None),
        ([..., 1], [1, 2], [..., 2]),
        ((51, 25), (25, 0), None),
        ([30, 26], [26, 25], [25, 30]),
    ],
)
def test_lists_of_subscripts(layout, first, second, result):
    A, B = real.rand(5, 6) * (real.rand(5, 6) < 0.5), real.rand(6, 3)
    operand = {
        "dense": A,
        "coo": A.to_sparse(),
        "csr": A.to_sparse_csr(),
        "stored": torch.tensor(A, format="csr"),
    }[layout]
    rest = () if result is None else (result,)
    wanted = real.einsum(A, list(first), B, list(second), *rest)
    real.testing.assert_close(torch.einsum(operand, first, B, second, *rest), wanted)
    found = torch.einsum(operand, first, B, second, *rest, format="csr")
    assert isinstance(found, SparseTensor)
    real.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.parametrize(
    "subscripts, message",
    [((0, 1), "lists? of subscripts"), ([0, 52], "subscript 52 .*0 to 51"), (["i", 1], "subscript 'i'")],
)
def test_lists_of_subscripts_that_are_none(subscripts, message):
    A = torch.eye(3, format="csr")
    arguments = (A, A) if subscripts == (0, 1) else (A, subscripts)
    with pytest.raises(EinsumError, match=message):
        torch.einsum(*arguments)


def test_functions_of_the_namespace_compile_into_one_graph():
    def mixed(a, b):
        return torch.relu(torch.einsum("ij,kj->ik", a, torch.rearrange(b, "jk->kj")))

    a, b = real.rand(4, 5), real.rand(5, 3)
    compiled = real.compile(mixed, backend="eager", fullgraph=True)
    real.testing.assert_close(compiled(a, b), mixed(a, b))
