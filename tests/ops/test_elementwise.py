import pytest
import torch

from sparsify import SparseTensor
from sparsify.errors import ShapeError
from sparsify.storage.interop.tensors import tensor
from tests.ops.operands import assert_as_dense, assert_gradients, full, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function, other",
    [
        *(
            (torch.mul, other)
            for other in (full(7, 9), full(9), full(7, 1), full(2, 7, 9), full().sum(), 2.5)
        ),
        *((torch.add, other) for other in (full(7, 9), full(1, 9), full(7, 9, dtype=torch.float32), 2.5)),
        *((torch.sub, other) for other in (full(9), 2.5)),
        *((torch.div, other) for other in (full(7, 1), 2.5)),
    ],
    ids=lambda o: str(list(o.shape)) if isinstance(o, torch.Tensor) else getattr(o, "__name__", str(o)),
)
def test_with_dense_operands_and_numbers(function, other):
    result = assert_as_dense(function, sparse(7, 9), other)
    if function in (torch.mul, torch.div):
        assert isinstance(result, SparseTensor)


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_of_two_patterns(format):
    first, second = sparse(7, 9), sparse(7, 9, format=format, seed=5)
    for function in (torch.add, torch.mul):
        assert isinstance(assert_as_dense(function, first, second), SparseTensor)


@pytest.mark.sampled(2)
def test_comparisons_and_choices_of_two_patterns():
    first, second, dense = sparse(7, 9), sparse(7, 9, format="coo", seed=5), full(7, 9)
    for function in (torch.eq, torch.lt, torch.maximum, torch.minimum, torch.logical_xor):
        assert_as_dense(function, first, second)
    assert_as_dense(lambda a, b: torch.where(a > 0.8, a, b), first, second)
    assert_as_dense(lambda a, b: torch.where(a > 0.8, b, 0.0), first, dense)
    assert_as_dense(lambda a, b: a >= b, first, dense)
    assert_as_dense(lambda a, b: b**a, first, dense)


def test_sparse_operands_spread():
    row = sparse(1, 9)
    assert_as_dense(torch.mul, row, full(7, 9))
    assert_as_dense(torch.add, sparse(7, 9, seed=5), row)


def test_of_one_pattern_share_it():
    stored = sparse(7, 9)
    assert (stored + stored).pattern is stored.pattern


def test_operators_and_alpha():
    stored, other = sparse(7, 9), full(7, 9)
    assert_as_dense(lambda a: 2 - a, stored)
    assert_as_dense(lambda a: 1 / (a + 1), stored)
    assert_as_dense(lambda a: -a * 3 - 1, stored)
    assert_as_dense(lambda a, b: torch.add(a, b, alpha=2), stored, other)
    assert_as_dense(lambda a, b: torch.rsub(a, b, alpha=2), stored, other)
    assert_as_dense(lambda a, b: a * b, sparse(2, 7, 9, format="csf"), stored)


@pytest.mark.parametrize("name", ["neg", "relu", "exp", "abs", "sqrt", "sigmoid", "tanh"])
def test_functions_of_one_tensor(name):
    function, stored = getattr(torch, name), sparse(7, 9)
    result = assert_as_dense(function, stored)
    assert result.pattern is stored.pattern
    assert_gradients(function, stored)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function, operands",
    [
        (torch.add, (sparse(4, 5), full(4, 5))),
        (torch.add, (sparse(4, 5), sparse(4, 5, seed=7))),
        (torch.mul, (sparse(4, 5), sparse(4, 5, seed=7))),
        (torch.mul, (sparse(4, 5), full().sum())),
        (torch.div, (sparse(4, 5), full(4, 5))),
    ],
)
def test_gradients(function, operands):
    assert_gradients(function, *operands)


def test_what_annihilates_is_not_read():
    stored = sparse(3, 4)
    result = stored * torch.full((3, 4), float("nan"), dtype=torch.float64)
    assert result.values().isnan().all() and not result.to_dense()[stored.to_dense() == 0].isnan().any()


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ShapeError, match="do not broadcast"):
        sparse(7, 9) + full(8)


@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.mul, torch.div], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
def test_zeros_stay_where_patterns_are_equal(function, dtype):
    dense = torch.tensor([[0, 3, 0], [2, 0, 5]]).to(dtype)
    first, second = tensor(dense, "csr"), tensor(2 * dense, "csr")
    found = function(first, second)
    on_values = function(first.values(), second.values())
    assert (found.pattern, found.fill, found.dtype) == (first.pattern, 0, on_values.dtype)
    torch.testing.assert_close(found.values(), on_values)
    filled = function(first.with_fill(1), second.with_fill(2))
    assert filled.fill == function(torch.tensor(1.0), torch.tensor(2.0)).item()
