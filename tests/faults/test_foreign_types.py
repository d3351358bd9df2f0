"""Operands that are no tensors of torch: proxies, overriding classes, arrays of numpy and scipy, numbers, texts."""

import operator
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import sparsify
from sparsify.errors import ConversionError, FormatError
from sparsify.storage.tensor import SparseTensor

EYE = torch.eye(3)


def dense_of(found):
    return found.to_dense() if isinstance(found, SparseTensor) else found


class Layer(nn.Module):
    """A sparse matrix by its input in three ways, the matrix held as a parameter, a buffer or an attribute."""

    def __init__(self, held):
        super().__init__()
        matrix = sparsify.tensor(EYE)
        if held == "buffer":
            self.register_buffer("weight", matrix)
        else:
            self.weight = nn.Parameter(matrix) if held == "parameter" else matrix

    def forward(self, x):
        return torch.relu(self.weight @ x) + self.weight * x + functional.linear(x, self.weight)


@pytest.mark.parametrize("held", ["parameter", "buffer", "attribute"])
def test_symbolic_trace(held):
    layer, x = Layer(held), torch.rand(3, 3)
    traced = fx.symbolic_trace(layer)
    assert torch.equal(dense_of(traced(x)), dense_of(layer(x)))


def test_other_tracers_see_the_same():
    layer, x = Layer("buffer"), torch.rand(3, 3)
    expected = dense_of(layer(x))
    assert torch.equal(make_fx(lambda x: dense_of(layer(x)))(x)(x), expected)
    assert torch.equal(dense_of(torch.export.export(layer, (x,)).module()(x)), expected)
    rows = torch.vmap(lambda row: layer.weight @ row)(x)
    torch.testing.assert_close(rows, x)


class Foreign:
    """A class that overrides torch's functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func.__name__


class Overriding(torch.Tensor):
    """A tensor that overrides torch's functions."""

    __torch_function__ = Foreign.__torch_function__


class Plain(torch.Tensor):
    """A tensor that overrides nothing."""


@pytest.mark.parametrize("other", [Foreign(), EYE.as_subclass(Overriding)], ids=["class", "tensor"])
def test_overriding_classes_have_their_turn(other):
    S = sparsify.tensor(EYE)
    assert (S * other, S - other, S @ other) == ("mul", "sub", "matmul")
    assert (torch.add(S, other), torch.rsub(other, S)) == ("add", "rsub")
    assert (functional.linear(S, other), torch.cat([S, other])) == ("linear", "cat")
    assert torch.where(S > 0, S, other) == "where"


def test_plain_subclasses_are_tensors():
    S, plain = sparsify.tensor(EYE), torch.rand(3, 3).as_subclass(Plain)
    torch.testing.assert_close((S @ plain).as_subclass(torch.Tensor), plain.as_subclass(torch.Tensor))
    assert isinstance(S * plain, SparseTensor)


OTHERS = {
    "array": np.eye(3),
    "objects": np.array([None]),
    "matrix": scipy.sparse.eye(3).tocsr(),
    "sparse array": scipy.sparse.csr_array(np.eye(3)),
    "fraction": Fraction(1, 3),
    "text": "a",
    "list": [1, 2, 3],
    "nothing": None,
    "object": object(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_type_errors_by_the_protocol_of_python(other):
    S = sparsify.tensor(EYE)
    for compute in (operator.mul, operator.matmul, operator.add):
        for operands in ((S, other), (other, S)):
            with pytest.raises(TypeError):
                compute(*operands)


def test_numbers_of_numpy_are_numbers():
    S = sparsify.tensor(EYE)
    for found in (S * np.float32(2), np.float32(2) * S, np.int64(2) * S):
        assert isinstance(found, SparseTensor) and torch.equal(found.to_dense(), 2 * EYE)


def test_numpy_reads_no_sparse_tensor():
    with pytest.raises(ConversionError, match=r"__array__ .* \.to_dense\(\)"):
        np.asarray(sparsify.tensor(EYE))


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3, 4), (2, 1, 3, 2)], ids=str)
def test_formats_by_the_number_of_modes(shape):
    dense = torch.rand(shape)
    for data in (dense, dense.numpy(), sparsify.tensor(dense, "coo") if shape else dense):
        found = sparsify.tensor(data)
        assert str(found.format) == (", ".join(["compressed"] * len(shape)) or "scalar")
        assert torch.equal(found.to_dense(), dense)


def test_formats_of_lists_and_of_matrices():
    listed = sparsify.tensor((torch.tensor([[3, 0]]), torch.tensor([1.0, 2.0]), (4,)))
    assert str(listed.format) == "compressed" and listed.to_dense().tolist() == [2, 0, 0, 1]
    assert sparsify.tensor(torch.eye(2)).format == sparsify.Format("csr")
    with pytest.raises(FormatError, match="2 modes for a tensor of 3"):
        sparsify.tensor(torch.ones(2, 2, 2), "csr")
