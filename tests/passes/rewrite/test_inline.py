"""Statements put into those that read them: messages by matrices of edges are one sum of products."""

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify.passes.apply import apply

FEATURES, OUT = 6, 3


class EdgeMatrices(nn.Module):
    """Messages are the features of neighbours times a matrix for each edge."""

    def forward(self, x, edge_index, matrices):
        source, receiver = edge_index
        messages = torch.bmm(x[source].unsqueeze(1), matrices).squeeze(1)
        return x.new_zeros(len(x), OUT).index_add(0, receiver, messages)


def arguments(nodes, edges, seed):
    x, edge_index = graph(nodes, edges, seed=seed, features=FEATURES)
    edge_index[:, 0] = edge_index[:, 1]  # two edges between the same nodes
    return x.double(), edge_index, torch.randn(edge_index.size(1), FEATURES, OUT, dtype=torch.float64)


@pytest.mark.sampled(2)
def test_vectors_of_edges_are_not_stored_between_two_sums():
    model = EdgeMatrices()
    sparse = apply(model, MESSAGES, arguments(20, 70, 0), trainable=True)
    (region,) = sparse.report.regions
    assert "stored" not in region.einsum, "no vector for each edge"
    assert region.einsum.count("=") == 1
    for nodes, edges, seed in ((20, 70, 1), (33, 5, 2), (9, 200, 3)):
        x, edge_index, matrices = arguments(nodes, edges, seed)
        results = []
        for run in (model, sparse):
            given = x.clone().requires_grad_(), matrices.clone().requires_grad_()
            found = run(given[0], edge_index, given[1])
            results.append([found, *torch.autograd.grad(found.square().sum(), given)])
        for found, wanted in zip(*results, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
