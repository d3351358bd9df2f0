import pytest
import torch
from torch.nn import functional

from sparsify import SparseTensor
from sparsify.errors import EinsumError, ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, full, sparse, thin

pytestmark = pytest.mark.filterwarnings("error")


def matmul(a, b):
    return a @ b


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "first, second",
    [
        (sparse(7, 9), full(9, 5)),
        (sparse(7, 9, format="coo"), full(9, 5)),
        (sparse(7, 9), full(9)),
        (full(7), sparse(7, 9)),
        (full(3, 7), sparse(7, 9)),
        (full(2, 3, 7), sparse(7, 9)),
        (sparse(7, 9), full(2, 9, 5)),
        (sparse(2, 7, 9, format="csf"), full(2, 9, 5)),
        (sparse(2, 7, 9, format="csf"), full(9, 5)),
        (sparse(2, 7, 9, format="csf"), full(9)),
        (sparse(7, 9), sparse(9, 5, seed=3)),
        (sparse(7, 9, dtype=torch.float32), full(9, 5, dtype=torch.float32)),
    ],
    ids=lambda o: f"{o.format.letters if isinstance(o, SparseTensor) else 'dense'}{list(o.shape)}{o.dtype}",
)
def test_matmul(first, second):
    result = assert_as_dense(matmul, first, second)
    assert (isinstance(first, SparseTensor) and isinstance(second, SparseTensor)) or type(
        result
    ) is torch.Tensor


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function, operands",
    [
        (torch.mm, (sparse(7, 9), full(9, 5))),
        (torch.mv, (sparse(7, 9), full(9))),
        (torch.bmm, (sparse(2, 7, 9, format="csf"), full(2, 9, 5))),
        (torch.addmm, (full(7, 5), sparse(7, 9), full(9, 5))),
        (lambda c, a, b: torch.addmm(c, a, b, alpha=2.0, beta=0.5), (full(5), sparse(7, 9), full(9, 5))),
        (lambda c, a, b: torch.addmm(c, a, b, alpha=2.0, beta=0.5), (thin(7, 5), sparse(7, 9), sparse(9, 5))),
        (functional.linear, (full(4, 9), sparse(7, 9))),
        (functional.linear, (full(4, 9), sparse(7, 9), full(7))),
        (functional.linear, (full(2, 4, 9), sparse(7, 9), full(7))),
        (functional.linear, (full(9), sparse(7, 9), full(7))),
        (functional.linear, (sparse(7, 9), full(3, 9), full(3))),
        (lambda a, b: torch.einsum("ij,kj->ik", a, b), (sparse(7, 9), full(5, 9))),
        (lambda a, b: a.T @ b, (sparse(7, 9), full(7, 2))),
        (torch.addmv, (full(7), sparse(7, 9), full(9))),
        (
            lambda c, a, b: torch.baddbmm(c, a, b, alpha=2.0, beta=0.5),
            (full(2, 7, 5), sparse(2, 7, 9, format="csf"), full(2, 9, 5)),
        ),
        (torch.dot, (sparse(9, format="compressed"), full(9))),
        (torch.outer, (sparse(7, format="compressed"), full(9))),
        (torch.kron, (sparse(3, 4), sparse(2, 5))),
        (torch.kron, (full(3, 2), sparse(2, 3))),
        (lambda *matrices: torch.linalg.multi_dot(matrices), (full(3, 7), sparse(7, 9), full(9, 5))),
        (lambda a, b: torch.tensordot(a, b, 1), (sparse(7, 9), full(9, 5))),
        (
            lambda a, b: torch.tensordot(a, b, ([0, 2], [2, 0])),
            (sparse(4, 7, 9, format="csf"), full(9, 2, 4)),
        ),
    ],
)
def test_relatives_of_matmul(function, operands):
    assert_as_dense(function, *operands)


def test_sparse_mm():
    a, b = sparse(7, 9), full(9, 5)
    torch.testing.assert_close(torch.sparse.mm(a, b), a.to_dense() @ b)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "function, operands",
    [
        (torch.mm, (sparse(4, 5), full(5, 3))),
        (torch.matmul, (sparse(4, 5), sparse(5, 3, format="csc"))),
        (torch.matmul, (full(2, 4), sparse(4, 5))),
        (functional.linear, (full(3, 5), sparse(4, 5), full(4))),
        (torch.bmm, (sparse(2, 4, 5, format="csf"), full(2, 5, 3))),
        (lambda c, a, b: torch.addmm(c, a, b, alpha=0.5), (full(4, 3), sparse(4, 5), full(5, 3))),
    ],
)
def test_gradients(function, operands):
    assert_gradients(function, *operands)


def test_a_parameter_trains_through_linear():
    weight = torch.nn.Parameter(sparse(7, 9))
    functional.linear(full(4, 9), weight).sum().backward()
    assert isinstance(weight.grad, SparseTensor) and weight.grad.pattern is weight.pattern


def test_shapes_that_do_not_fit():
    with pytest.raises(ShapeError, match="9"):
        sparse(7, 9) @ full(8, 5)
    with pytest.raises(ShapeError, match=r"torch\.mm of"):
        torch.mm(sparse(7, 9), full(9))
    with pytest.raises(ShapeError, match="both need"):
        torch.matmul(sparse(7, 9), full().reshape(()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "first, second",
    [
        (sparse(1, 7, 9, format="csf"), full(2, 9, 5)),
        (sparse(2, 7, 9, format="coo"), full(1, 9, 5)),
        (sparse(2, 3, 7, 9, format="csf"), full(2, 1, 9, 5)),
        (full(3, 1, 5, 7), sparse(2, 7, 9, format="csf")),
        (sparse(1, 7, 9, format="csf"), sparse(2, 9, 5, format="coo")),
    ],
)
def test_batches_spread(first, second):
    assert_as_dense(matmul, first, second)


def test_inputs_that_count_nothing_are_not_read():
    a, b, nothing = sparse(7, 9), full(9, 5), torch.full((7, 5), torch.nan, dtype=torch.float64)
    assert_as_dense(lambda c, a, b: torch.addmm(c, a, b, beta=0), nothing, a, b)
    assert_as_dense(lambda c, a, b: torch.addmv(c, a, b, beta=0, alpha=3.0), nothing[:, 0], a, b[:, 0])


def test_what_is_added_has_to_fit():
    with pytest.raises(ShapeError, match=r"\[2, 7, 5\] beside a product of \[7, 5\]"):
        torch.addmm(full(2, 7, 5), sparse(7, 9), full(9, 5))
    with pytest.raises(ShapeError, match=r"\[3, 5\] beside a product of \[4, 2\]"):
        torch.addmm(full(3, 5), sparse(4, 9), full(9, 2))
    whole = [o.to(torch.int64) for o in (full(7, 5), sparse(7, 9), full(9, 5))]
    assert_as_dense(lambda c, a, b: torch.addmm(c, a, b, alpha=3, beta=2), *whole)
    with pytest.raises(EinsumError, match=r"0\.5 times integers"):
        torch.addmm(*whole, alpha=0.5)
    with pytest.raises(EinsumError, match=r"0\.5 times integers"):
        torch.add(whole[1], whole[1], alpha=0.5)
