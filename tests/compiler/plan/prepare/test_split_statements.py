import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.plan.prepare.split_statements import cut
from tests.compiler.random_programs.operands import operand


def texts(text, **formats):
    program = declare(parse(text), {name: operand(form) for name, form in formats.items()})
    return [str(statement) for statement in cut(program).statements]


@pytest.mark.parametrize(
    "text, formats, after",
    [
        (
            "Y[i,k] = relu(A[i,j] * A[j,k] - A[i,k])",
            {"A": "csr"},
            ["w[i,k] = sum(j, A[i,j] * A[j,k])", "Y[i,k] = relu(w[i,k] - A[i,k])"],
        ),
        (
            "y[i] = max(j, A[i,j]) + sum(k, B[k,i])",
            {"A": "csr", "B": "csr"},
            ["w[i] = max(j, A[i,j])", "w1[i] = sum(k, B[k,i])", "y[i] = w[i] + w1[i]"],
        ),
        (
            "Y[i,k] = where(sum(j, A[i,j] * A[j,k]) > A[i,k], sum(j, A[i,j] * A[j,k]), 0)",
            {"A": "csr"},
            ["w[i,k] = sum(j, A[i,j] * A[j,k])", "Y[i,k] = where(w[i,k] > A[i,k], w[i,k], 0)"],
        ),
        # One sum meets dense operands in its own nest, sums of dense operands are computed where they are needed.
        ("Y[i,k] = relu(A[i,j] * T[j,k] + b[k])", {"A": "csr", "T": "dense, dense", "b": "dense"}, None),
        (
            "S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])",
            {"A": "csr", "Q": "dense, dense", "K": "dense, dense"},
            None,
        ),
        ("Y[i,k] = A[i,j] * B[j,k]", {"A": "csr", "B": "csr"}, None),
    ],
)
def test_cut(text, formats, after):
    assert texts(text, **formats) == (after or [str(s) for s in parse(text)])


def test_products_that_meet_operands_store_no_more_than_both():
    place = torch.arange(1000)
    values = torch.ones(1000)
    A = sparsify.tensor((torch.stack([place, (place + 1) % 1000]), values, (1000, 1000)), "csr")
    found = sparsify.evaluate("Y[i,k] = relu(A[i,j] * A[j,k] - A[i,k])", A=A, format="csr")
    assert found.nnz == 2000
    dense = A.to_dense()
    torch.testing.assert_close(found.to_dense(), torch.relu(dense @ dense - dense))
