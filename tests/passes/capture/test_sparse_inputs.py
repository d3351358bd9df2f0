"""Parts of sparse inputs are taken apart once, and again after a change."""

import torch

from sparsify.passes.operands.content_memo import REMEMBERED, SparseInputs


def test_remembered_until_it_changes():
    taken = []

    def parts(matrix):
        taken.append(matrix)
        return matrix.indices()[0], matrix.values().clone()

    memory = SparseInputs(parts)
    matrix = torch.eye(3).to_sparse()
    first = memory(matrix)
    assert memory(matrix) is first
    matrix.values().mul_(2)
    assert memory(matrix) is not first
    assert memory(matrix)[1].tolist() == [2.0, 2.0, 2.0]
    assert len(taken) == 2


def test_only_the_last_few_are_kept():
    memory = SparseInputs(lambda matrix: (matrix.values(),))
    matrices = [(torch.eye(2) * n).to_sparse() for n in range(1, REMEMBERED + 4)]
    for matrix in matrices:
        memory(matrix)
    assert len(memory.memo) == REMEMBERED


def test_values_that_need_gradients_are_never_remembered():
    memory = SparseInputs(lambda matrix: (matrix.coalesce().values(),))
    matrix = torch.eye(2).to_sparse().requires_grad_()
    assert memory(matrix)[0].requires_grad
    assert not len(memory.memo)
