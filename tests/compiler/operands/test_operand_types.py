"""Declarations of operands: format, dtype, fill."""

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.operands.operand_types import describe
from sparsify.errors import DtypeError, EinsumError
from sparsify.storage.format import Format


def test_dense_operands():
    assert describe(torch.ones(2, 3)) == Operand(Format("dense, dense"), "float32")
    assert describe(torch.tensor(1, dtype=torch.int8)) == Operand(Format("scalar"), "int8")


def test_sparse_operands():
    A = sparsify.tensor(torch.eye(3, dtype=torch.float64), "csr")
    found = describe(A)
    assert (str(found.format), found.dtype, found.fill) == ("dense, compressed", "float64", 0.0)
    assert found.index_dtypes == (("", ""), ("int32", "int32"))
    assert describe(sparsify.tensor(torch.eye(3), "csr", fill=1.0)).fill == 1.0


def test_equal_operands_have_one_description():
    first, second = (sparsify.tensor(torch.rand(4, 4).round(), "csr") for _ in range(2))
    assert describe(first) is describe(second)
    assert describe(torch.ones(2, 3)) is describe(torch.zeros(5, 5))
    assert describe(first) is not describe(first.to(format="csc"))


@pytest.mark.parametrize(
    ("operand", "error", "message"),
    [
        (torch.ones(2, dtype=torch.uint8), DtypeError, r"of dtype uint8; .* operand.to\(torch.float32\)"),
        (torch.ones(2).to_sparse(), EinsumError, r"of layout torch.sparse_coo; sparsify.tensor\(operand\)"),
        (
            sparsify.tensor(torch.eye(2).to(torch.complex64), "csr").with_fill(1j),
            DtypeError,
            r"the fill 1j; a real fill",
        ),
    ],
    ids=["dtype", "layout", "fill"],
)
def test_operands_without_kernels(operand, error, message):
    with pytest.raises(error, match=message):
        describe(operand)
