"""Memos find results by the entries of tensors."""

import gc

import pytest
import torch

import sparsify
from sparsify.passes.operands.content_memo import Memo, fingerprint, reading_once, sampled


class Counted:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


def test_the_same_entries_give_the_same_result():
    memo, make, x = Memo(4), Counted(), torch.arange(6)
    assert [memo.get((x, 3), make) for _ in range(2)] == [1, 1]
    assert memo.get((x.clone(), 3), make) == 1
    assert memo.get((x, 4), make) == 2
    assert memo.get((x.int(), 3), make) == 3
    assert memo.get((x.view(2, 3), 3), make) == 4
    x.data[2] = 7
    assert memo.get((x, 3), make) == 5


def test_results_of_entries_that_were_overwritten_make_room():
    memo, make, x, y = Memo(4), Counted(), torch.zeros(3), torch.full((3,), 8.0)
    memo.get((y,), make)
    for n in range(3):
        x.fill_(n)
        memo.get((x,), make)
    assert list(memo) == [4, 1]
    del y
    gc.collect()
    memo.get((torch.full((3,), 9.0),), make)
    assert list(memo) == [5, 4]


def test_static_leaves_go_by_identity_and_version():
    memo, make, x = Memo(4, static=[0]), Counted(), torch.zeros(3)
    memo.get((x,), make)
    x.data[0] = 1
    assert memo.get((x,), make) == 1
    x[0] = 2
    assert memo.get((x,), make) == 2
    assert memo.get((x.clone(),), make) == 3


def test_a_write_while_the_result_is_made_is_not_remembered():
    memo, x = Memo(4), torch.zeros(3)

    def make() -> float:
        found = float(x.sum())
        x.data.fill_(5)
        return found

    assert memo.get((x,), make) == 0
    assert len(memo) == 0


def test_within_a_call_tensors_are_read_once_unless_a_write_is_counted():
    memo, make, x = Memo(4), Counted(), torch.zeros(3)

    def call(x: torch.Tensor) -> None:
        assert [memo.get((x,), make) for _ in range(2)] == [1, 1]
        x.data[0] = 1
        assert memo.get((x,), make) == 1
        x[0] = 2
        assert memo.get((x,), make) == 2

    reading_once(call, [x])
    x.data[0] = 3
    assert memo.get((x,), make) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(7, 5).t(),
        lambda: torch.randn(9, 9)[2:, ::2],
        lambda: torch.randn(4, 1, 3).expand(4, 6, 3),
        lambda: torch.randn(5, dtype=torch.complex64).conj(),
        lambda: torch._neg_view(torch.randn(5)),
        lambda: torch.randn(3).bfloat16(),
        lambda: torch.zeros(0, 3),
        lambda: torch.tensor(True),
        lambda: torch.full((3,), float("nan")),
    ],
)
def test_any_tensor_has_a_fingerprint(make):
    x = make()
    assert fingerprint(x) == fingerprint(x) == fingerprint(x.detach())
    if x.numel():
        other = x.clone()
        if other.stride() == x.stride():
            assert fingerprint(other) == fingerprint(x)
        other[(0,) * other.dim()] = 3 if other.dtype != torch.bool else False
        assert fingerprint(other) != fingerprint(x)


@pytest.mark.parametrize("read", [fingerprint, sampled])
def test_sparse_tensors_are_read_by_their_parts(read):
    sparse = sparsify.tensor(torch.eye(4), format="csr")
    before = read(sparse)
    assert read(sparse) == before
    assert read(sparsify.tensor(torch.eye(4).flip(0), format="csr")) != before
    sparse._vals.data[1] = 7
    assert read(sparse) != before
