import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsify.api import tensor
from sparsify.storage.tensor import SparseTensor


def block(weight, x):
    """Products, sums, a softmax, and a product of a separate pattern with a dense tensor."""
    hidden = functional.linear(x, weight)
    attended = torch.softmax(weight, 1) * x.mean(0)
    return hidden.sum(0) + attended.sum(1) + torch.einsum("ij,j->i", weight, x[0])


def thin():
    return torch.rand(7, 9) * (torch.rand(7, 9) < 0.4)


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_results_of_unknown_pattern_stay_sparse(fullgraph):
    torch._dynamo.reset()
    first, second = tensor(thin(), "coo"), tensor(thin(), "coo")
    got = torch.compile(torch.add, backend="aot_eager", fullgraph=fullgraph)(first, second)
    assert got.format == torch.add(first, second).format
    torch.testing.assert_close(got.to_dense(), first.to_dense() + second.to_dense())


def test_exports():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(tensor(thin()))

        def forward(self, x):
            return torch.relu(x @ self.weight.T)

    layer, x = Layer(), torch.rand(3, 9)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))
