"""Graph models in plain torch, as a user would write them: invariants are computed once, before the calls.

In: `gcn(model, graph)`, a model of torch-geometric and its graph. Out: a call without arguments that gives the same
logits by torch's products with CSR matrices. Mostly zero features are CSR.
"""

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsify.models.data import Graph
from sparsify.models.inputs import csr, normalised_adjacency

Pass = Callable[[], Tensor]
# Maximum density of features at which torch's CSR product is faster than the dense product.
SPARSE_FEATURES: Final = 0.2


def features_of(graph: Graph) -> Tensor:
    """Features [n, f], in torch's CSR layout if mostly zero."""
    if graph.feature_density > SPARSE_FEATURES:
        return graph.x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return graph.x.to_sparse_csr()


def gcn(model: Any, graph: Graph) -> Pass:
    """`A relu(A X W1 + b1) W2 + b2`, `A` with Kipf's normalisation."""
    x, adjacency = features_of(graph), normalised_adjacency(graph)
    (w1, b1), (w2, b2) = ((conv.lin.weight.T, conv.bias) for conv in (model.conv1, model.conv2))
    return lambda: adjacency @ (F.relu(adjacency @ (x @ w1) + b1) @ w2) + b2


def gcn_matmul(model: Any, graph: Graph) -> Pass:
    """A call of `model(x, A)` for models that take the normalised adjacency."""
    x, adjacency = features_of(graph), normalised_adjacency(graph)
    return lambda: model(x, adjacency)


def sage(model: Any, graph: Graph) -> Pass:
    """Two layers `M (X W) + b + X V`, `M` the mean over neighbours."""
    source, target = graph.edge_index
    counts = torch.bincount(target, minlength=graph.nodes).float()
    x, mean = features_of(graph), csr(target, source, counts.reciprocal()[target], graph.nodes)

    def layer(conv: Any, x: Tensor) -> Tensor:
        found: Tensor = mean @ (x @ conv.lin_l.weight.T) + conv.lin_l.bias + x @ conv.lin_r.weight.T
        return found

    return lambda: layer(model.conv2, F.relu(layer(model.conv1, x)))


def gin(model: Any, graph: Graph) -> Pass:
    """Two layers `MLP((A + (1 + eps) I) X)`, the first product of the MLP before the sum."""
    source, target = graph.edge_index
    x, adjacency = features_of(graph), csr(target, source, torch.ones(graph.edges), graph.nodes)

    def layer(conv: Any, x: Tensor) -> Tensor:
        first, *rest = conv.nn
        moved = x @ first.weight.T
        found: Tensor = nn.Sequential(*rest)(adjacency @ moved + (1 + conv.eps) * moved + first.bias)
        return found

    return lambda: model.out(F.relu(layer(model.conv2, F.relu(layer(model.conv1, x)))))


def gat(model: Any, graph: Graph) -> Pass:
    """Two layers of attention over sorted edges, one CSR product for each head."""
    own = torch.arange(graph.nodes).expand(2, -1)
    edges = torch.cat([graph.edge_index, own], dim=1)
    pattern = csr(edges[1], edges[0], torch.ones(edges.shape[1]), graph.nodes)
    starts, sources = pattern.crow_indices(), pattern.col_indices()
    targets = torch.arange(graph.nodes).repeat_interleave(starts.diff())
    x, size = features_of(graph), (graph.nodes, graph.nodes)

    def layer(conv: Any, x: Tensor) -> Tensor:
        moved = (x @ conv.lin.weight.T).view(-1, conv.heads, conv.out_channels)
        away, toward = ((moved * part).sum(-1) for part in (conv.att_src, conv.att_dst))
        scores = F.leaky_relu(away[sources] + toward[targets], conv.negative_slope)
        scores = (scores - torch.segment_reduce(scores, "max", offsets=starts, axis=0)[targets]).exp()
        sums = torch.segment_reduce(scores, "sum", offsets=starts, axis=0)
        heads = [
            torch.sparse_csr_tensor(starts, sources, scores[:, head].contiguous(), size=size) @ moved[:, head]
            for head in range(conv.heads)
        ]
        found = torch.stack(heads, dim=1) / sums[..., None]
        joined: Tensor = (found.flatten(1) if conv.concat else found.mean(1)) + conv.bias
        return joined

    return lambda: layer(model.conv2, F.elu(layer(model.conv1, x)))
