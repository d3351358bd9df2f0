"""Tests of `sparsify.compiler.kernel.recall`: results recalled while the tensors behind them are unchanged."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sparsify
from sparsify.compiler.kernel.recall import recalled


class Counted:
    """A function of leaves that counts its calls."""

    def __init__(self):
        self.count = 0
        self.recall = recalled(self.computed)

    def computed(self, leaves):
        self.count += 1
        return [self.count]

    def is_recalled(self, *leaves):
        before = self.recall(leaves)
        return self.recall(leaves) is before


def sparse(rows=64):
    return sparsify.tensor((torch.rand(rows, rows) < 0.3) * torch.rand(rows, rows), "csr")


def test_results_of_unchanged_leaves_are_recalled():
    counted, place = Counted(), object()
    leaves = (place, sparse(), torch.randn(64), torch.nn.Parameter(torch.randn(16)), None, 7)
    assert counted.is_recalled(*leaves)
    assert counted.count == 1


def test_equal_tensors_are_other_leaves():
    counted, first = Counted(), torch.arange(5.0)
    assert counted.recall((first,)) is not counted.recall((first.clone(),))
    assert counted.recall((first, 1)) is not counted.recall((first, None))
    assert counted.recall((first,)) is not counted.recall((first, first))


def test_two_results_are_kept():
    counted = Counted()
    leaves = [(torch.arange(float(size)),) for size in (1, 2, 3)]
    assert counted.recall(leaves[0]) == [1]
    assert counted.recall(leaves[1]) == [2]
    assert [counted.recall(leaves[0]), counted.recall(leaves[1])] == [[1], [2]]
    assert counted.recall(leaves[2]) == [3]
    assert [counted.recall(leaves[2]), counted.recall(leaves[1])] == [[3], [2]]
    assert counted.recall(leaves[0]) == [4]


def test_kept_results_do_not_keep_tensors():
    counted, weight, vector = Counted(), sparse(), torch.zeros(5)
    counted.recall((weight, vector))
    references = [weakref.ref(weight), weakref.ref(vector)]
    del weight, vector
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    counted.recall((torch.ones(5),))  # in the place of the first one
    assert counted.count == 2


def test_dropped_functions_free_their_results():
    class Result:
        pass

    vector = torch.zeros(5)
    recall = recalled(lambda leaves: Result())
    reference = weakref.ref(recall((vector,)))
    gc.collect()
    assert reference() is recall((vector,))
    del recall
    gc.collect()
    assert reference() is None


def test_a_write_while_the_result_is_computed():
    vector = torch.zeros(5)

    def written(leaves):
        vector.data.add_(1)
        return vector.clone()

    recall = recalled(written)
    assert torch.equal(recall((vector,)), torch.ones(5))
    assert torch.equal(recall((vector,)), torch.full((5,), 2.0))


def test_errors_pass_and_nothing_is_kept():
    calls = []

    def failing(leaves):
        calls.append(leaves)
        if len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    recall, vector = recalled(failing), torch.zeros(5)
    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            recall((vector,))
    assert [recall((vector,)), recall((vector,))] == [3, 3]


def test_dispatch_modes_see_each_call():
    counted, vector = Counted(), torch.zeros(5)
    assert counted.is_recalled(vector)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        assert not counted.is_recalled(vector)


def test_threads():
    vectors = [torch.full((8,), float(number)) for number in range(5)]
    recall = recalled(lambda leaves: leaves[0].clone())

    def correct(number):
        vector = vectors[number % 5]
        return torch.equal(recall((vector, number % 3)), vector)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(correct, range(2000)))


def test_without_a_compiler_each_call_is_computed(monkeypatch):
    monkeypatch.setattr("sparsify.compiler.kernel.recall.fast_path_library", lambda options: None)
    assert not Counted().is_recalled(torch.zeros(5))
