"""Operands of the tests of operators, and the comparison with torch's dense results."""

import torch

import sparsify
from sparsify import SparseTensor


def thin(*shape, dtype=torch.float64, seed=0):
    """A dense tensor most of whose entries are 0; the others are 0.5 to 1.5."""
    made = torch.Generator().manual_seed(seed)
    entries = torch.rand(shape, generator=made, dtype=torch.float64) + 0.5
    return (entries * (torch.rand(shape, generator=made) < 0.4)).to(dtype)


def full(*shape, dtype=torch.float64, seed=1):
    """A dense tensor of numbers from 0.5 to 1.5."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5).to(
        dtype
    )


def sparse(*shape, format="csr", dtype=torch.float64, seed=0):
    return sparsify.tensor(thin(*shape, dtype=dtype, seed=seed), format)


def dense_of(value):
    return value.to_dense() if isinstance(value, SparseTensor) else value


def assert_as_dense(function, *operands):
    """The result of `function` on operands is that on dense ones; returns it."""
    got = function(*operands)
    expected = function(*(dense_of(operand) for operand in operands))
    dense = dense_of(got)
    assert dense.shape == expected.shape and dense.dtype == expected.dtype
    close = {torch.float32: 1e-5, torch.float64: 1e-12}  # sums of a few products in another order
    tolerance = close.get(expected.dtype, 0)
    torch.testing.assert_close(dense, expected, rtol=tolerance, atol=tolerance)
    return got


def assert_gradients(function, *operands):
    """Gradients of dense operands and of the values of sparse ones are those of finite differences."""

    def of_values(*leaves):
        made = [
            SparseTensor(operand.pattern, leaf, operand.fill) if isinstance(operand, SparseTensor) else leaf
            for operand, leaf in zip(operands, leaves, strict=True)
        ]
        result = function(*made)
        return result.values() if isinstance(result, SparseTensor) else result

    leaves = [
        (o.values() if isinstance(o, SparseTensor) else o).detach().clone().requires_grad_() for o in operands
    ]
    assert torch.autograd.gradcheck(of_values, leaves)
