"""Message passing beside the features that it reads: `x + A x` reads `x` by rows and by columns of the adjacency."""

import copy

import pytest
import torch
from graph_models import MESSAGES
from torch import nn

from sparsify.passes.apply import apply

WIDTH = 6


class Residual(nn.Module):
    """What is next to the sum over neighbours."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = getattr(self, way)
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, edge_index):
        return self.way(x, edge_index)

    def summed(self, x, edge_index):
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])

    def plain(self, x, edge_index):
        return x + self.summed(x, edge_index)

    def stepped(self, x, edge_index):
        return x + 0.1 * torch.tanh(self.linear(x) + self.summed(x, edge_index))

    def behind(self, x, edge_index):
        h = self.linear(x)
        return self.summed(h, edge_index) - h


@pytest.mark.parametrize("way", ["plain", "stepped", "behind"])
def test_one_kernel_computes_both(way):
    model = Residual(way)
    double = copy.deepcopy(model).double()
    double.way = getattr(double, way)
    sparse = apply(model, MESSAGES, (torch.randn(10, WIDTH), torch.randint(0, 10, (2, 30))), strict=True)
    (region,) = sparse.report.regions
    assert any("add" in node or "sub" in node for node in region.nodes)
    for nodes, edges in ((10, 30), (23, 50)):
        x, edge_index = torch.randn(nodes, WIDTH), torch.randint(0, nodes, (2, edges))
        given = [x.clone().requires_grad_(), x.double().requires_grad_()]
        results = [run(y, edge_index) for run, y in zip((sparse, double), given, strict=True)]
        torch.testing.assert_close(results[0], results[1].float(), rtol=1e-4, atol=1e-5)
        for result in results:
            result.square().sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad.float(), rtol=1e-4, atol=1e-4)
    assert len(sparse.variants) == 1
