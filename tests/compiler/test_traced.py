import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsify.api import tensor
from sparsify.compiler import traced
from sparsify.storage.tensor import SparseTensor


def block(weight, x):
    """Products, sums, a softmax and a product of a pattern of its own with a dense tensor."""
    hidden = functional.linear(x, weight)
    attended = torch.softmax(weight, 1) * x.mean(0)
    return hidden.sum(0) + attended.sum(1) + torch.einsum("ij,j->i", weight, x[0])


def thin():
    return torch.rand(7, 9) * (torch.rand(7, 9) < 0.4)


def test_compiles_as_one_graph_with_gradients():
    torch._dynamo.reset()
    weight, x = nn.Parameter(tensor(thin())), torch.rand(3, 9, requires_grad=True)
    expected = block(weight, x)
    got = torch.compile(block, backend="aot_eager", fullgraph=True)(weight, x)
    torch.testing.assert_close(got, expected)
    wanted = torch.autograd.grad(expected.square().sum(), (weight, x))
    found = torch.autograd.grad(got.square().sum(), (weight, x))
    assert isinstance(found[0], SparseTensor)
    torch.testing.assert_close(found[0].values(), wanted[0].values())
    torch.testing.assert_close(found[1], wanted[1])


def test_sparse_results_keep_their_pattern():
    torch._dynamo.reset()
    weight, x = tensor(thin()), torch.rand(9)
    got = torch.compile(lambda a, b: a * b, backend="aot_eager", fullgraph=True)(weight, x)
    assert got.format == weight.format
    torch.testing.assert_close(got.to_dense(), weight.to_dense() * x)


def test_results_of_unknown_pattern_become_dense():
    torch._dynamo.reset()
    first, second = tensor(thin(), "coo"), tensor(thin(), "coo")
    with pytest.warns(RuntimeWarning, match="has a pattern that a traced graph cannot know"):
        got = torch.compile(torch.add, backend="aot_eager", fullgraph=True)(first, second)
    torch.testing.assert_close(got, first.to_dense() + second.to_dense())


def test_exports():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(tensor(thin()))

        def forward(self, x):
            return torch.relu(x @ self.weight.T)

    layer, x = Layer(), torch.rand(3, 9)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_numbers_of_kernels_follow_from_what_they_are(monkeypatch):
    weight, x = tensor(thin()), torch.rand(9)
    numbers = []
    for functions in ((torch.mv, torch.mul), (torch.mul, torch.mv)):
        monkeypatch.setattr(traced, "_handles", {})
        monkeypatch.setattr(traced, "_traced", {})
        torch._dynamo.reset()
        for function in functions:
            torch.compile(function, backend="aot_eager", fullgraph=True)(weight, x)
        numbers.append(list(traced._traced))
    assert len(set(numbers[0])) == 2 and numbers[0] == numbers[1][::-1]
