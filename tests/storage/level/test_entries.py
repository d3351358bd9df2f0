"""How entries become levels: padding of groups, and what groups refuse."""

import pytest
import torch

import sparsify
from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor


def test_short_groups_are_padded_with_the_fill_at_distinct_coordinates_in_order():
    dense = torch.tensor([[0.0, 0, 5, 0, 0, 0, 0, 0], [1, 0, 0, 2, 0, 3, 0, 0]])
    A = tensor(dense, "nm(2, 4)")
    assert A.format == Format("i: dense, j/4: dense, j%4: grouped(2)")
    assert A.pattern.pos == (None, None, None)
    assert A.pattern.crd[2].tolist() == [0, 2, 0, 1, 0, 3, 0, 1]
    assert A.values().tolist() == [0, 5, 0, 0, 1, 2, 0, 3]
    assert A.nnz == 8 and torch.equal(A.to_dense(), dense)


@pytest.mark.parametrize("fill", [0.0, 1.0, -1.0, float("inf"), float("-inf")])
@pytest.mark.parametrize("form", ["nm(2, 4)", "nm(1, 3)", "nm(2, 4, group=3)", "dense, grouped"])
def test_padding_holds_the_fill(form, fill):
    dense = torch.full((4, 10), fill)
    dense[1, 3], dense[3, 9], dense[2, 0] = 2, 3, 4
    A = tensor(dense, form, fill=fill)
    assert torch.equal(A.to_dense(), dense)
    assert int((A.values() != fill).sum()) == 3
    for other in ("csr", "coo", "csc", "bcsr(2, 3)", "nm(2, 4)", "dense, grouped"):
        assert torch.equal(A.to(format=other).to_dense(), dense)
    assert torch.equal(tensor(dense, "csr", fill=fill).to(format=form).to_dense(), dense)


def test_padding_of_the_last_group_lies_in_the_tensor_where_it_can():
    A = tensor(torch.tensor([[0.0, 0, 0, 1, 1]]), "nm(2, 4)")
    assert A.pattern.crd[2].tolist() == [0, 3, 0, 1]  # coordinate 1 of the last group is outside
    assert A.pattern.inside().tolist() == [True, True, True, False]
    assert A.to_dense().tolist() == [[0, 0, 0, 1, 1]]


def test_rows_of_a_group_share_their_pattern():
    dense = torch.zeros(4, 8)
    dense[0, 1], dense[1, 3], dense[2, 0], dense[3, 7] = 1, 2, 3, 4
    A = tensor(dense, "nm(2, 4, group=2)")
    assert A.pattern.crd[2].tolist() == [1, 3, 0, 1, 0, 1, 0, 3]
    assert A.nnz == 16 and torch.equal(A.to_dense(), dense)


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.to_sparse(), lambda d: d.to_sparse_csr()])
def test_too_many_entries_name_the_first_group(make):
    dense = torch.zeros(3, 8)
    dense[1, 4:7] = 1
    dense[2, :4] = 1
    with pytest.raises(
        InvalidTensorError, match=r"3 entries in the group of i = 1, j/4 = 1, which holds 2; prune"
    ):
        tensor(make(dense), "nm(2, 4)")
    with pytest.raises(InvalidTensorError, match=r"in the group of i/2 = 0, j/4 = 1, which holds 2"):
        tensor(make(dense), "nm(2, 4, group=2)")


def test_widths_of_rows_are_those_of_the_fullest():
    dense = torch.tensor([[1.0, 0, 0, 2], [0, 0, 3, 0], [0, 0, 0, 0]])
    A = tensor(dense, "dense, grouped")
    assert A.pattern.crd[1].tolist() == [0, 3, 0, 2, 0, 1]
    assert A.nnz == 6 and torch.equal(A.to_dense(), dense)
    assert tensor(torch.zeros(3, 4), "dense, grouped").nnz == 0
    assert tensor(torch.zeros(0, 4), "dense, grouped").nnz == 0


@pytest.mark.parametrize("form", ["dense, dense, singleton", "dense, dense, singleton(crd=int8)"])
def test_singletons_below_dense_levels_have_one_coordinate_each(form):
    dense = torch.zeros(2, 3, 4, dtype=torch.float64)
    dense[0, 0, 3], dense[0, 2, 1], dense[1, 1, 2] = 1, 2, 3
    A = tensor(dense, form)
    assert A.pattern.pos == (None, None, None)
    assert A.pattern.crd[2].tolist() == [3, 0, 1, 0, 2, 0]  # without an entry: padded at the least coordinate
    assert torch.equal(A.to_dense(), dense)
    for other in ("csf", "coo(3)", "dense, dense, grouped(1)", "k: dense, i: dense, j: compressed"):
        assert torch.equal(A.to(format=other).to_dense(), dense)
        assert torch.equal(tensor(dense, other).to(format=form).to_dense(), dense)
    E = torch.rand(3, 4, 5, dtype=torch.float64)
    found = sparsify.einsum("ijk,jkl->il", A, E)
    torch.testing.assert_close(found, torch.einsum("ijk,jkl->il", dense, E))
    twice = sparsify.evaluate("B[i,j,k] = 2 * A[i,j,k]", A=A, format=form)
    assert twice.format == Format(form) and torch.equal(twice.to_dense(), 2 * dense)


def test_singletons_below_dense_levels_refuse_two_coordinates():
    dense = torch.zeros(2, 3, 4)
    dense[1, 2, 1:3] = 1
    with pytest.raises(InvalidTensorError, match=r"2 entries in the group of i = 1, j = 2, which holds 1"):
        tensor(dense, "dense, dense, singleton")
    with pytest.raises(InvalidTensorError, match="1 distinct coordinates out of 0"):
        tensor(torch.zeros(2, 0), "dense, singleton")
    pattern = Pattern(Format("dense, singleton"), (2, 3), (None, None), (None, torch.tensor([0, 3])))
    with pytest.raises(InvalidTensorError, match=r"entry 1 of crd of level 1 .* is 3, outside 0 to 2"):
        SparseTensor(pattern, torch.ones(2))


def test_gradients_of_singletons_below_dense_levels():
    A = tensor(torch.eye(3, dtype=torch.float64), "dense, singleton").requires_grad_()
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda v, x: sparsify.einsum("ij,j->i", A.with_values(v), x),
        (torch.rand(3, dtype=torch.float64, requires_grad=True), x),
    )


def test_groups_wider_than_their_coordinates():
    with pytest.raises(FormatError, match=r"grouped\(5\) of 4 coordinates"):
        Format("i: dense, j/4: dense, j%4: grouped(5)")
    with pytest.raises(FormatError, match=r"nm\(5, 4\)"):
        Format("nm(5, 4)")
    with pytest.raises(InvalidTensorError, match="groups of 3 distinct coordinates out of 2"):
        tensor(torch.eye(2), "dense, grouped(3)")


def test_differentiable_conversion():
    dense = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0]], dtype=torch.float64, requires_grad=True)
    tensor(dense, "nm(2, 4)").to_dense().square().sum().backward()
    assert torch.equal(dense.grad, 2 * dense.detach())


def group(crd, form="nm(2, 4)", shape=(2, 4)):
    """A pattern of groups."""
    count = len(Format(form).levels)
    return Pattern(Format(form), shape, (None,) * count, (*(None,) * (count - 1), torch.tensor(crd)))


@pytest.mark.parametrize(
    "pattern, message",
    [
        (group([0, 3, 1]), "crd of level 2 .* has 3 entries below 2 positions; 4"),
        (group([0, 3, 1, 4]), "entry 3 of crd of level 2 .* is 4, outside 0 to 3"),
        (group([0, 3, 2, 1]), "entry 3 .* is unsorted: 1 after 2"),
        (group([0, 3, 1, 1]), "entry 3 .* is a duplicate of 1"),
        (group([0, 3, 1], "dense, grouped"), "has 3 entries below 2 positions; 2"),
        (group([0, 3, 1, 2.0]), "is torch.float32; convert it"),
    ],
)
def test_malformed(pattern, message):
    with pytest.raises(InvalidTensorError, match=message):
        SparseTensor(pattern, torch.ones(pattern.nnz))


def test_small_coordinates():
    A = sparsify.tensor(torch.eye(4), "i: dense, j/2: dense, j%2: grouped(1, crd=int8)")
    assert A.pattern.crd[2].dtype == torch.int8
    assert torch.equal(sparsify.einsum("ij,jk->ik", A, torch.ones(4, 3)), torch.ones(4, 3))
