"""What a model is called with on a graph.

In: a `Graph` and a registered model. Out: `(x, edge_index)`, or `(x, adj)` with Kipf's normalisation.
"""

import warnings

import torch
from sparsify.models.data import Graph
from sparsify.models.registry import Entry
from torch import Tensor


def example_inputs(entry: Entry, graph: Graph) -> tuple[Tensor, ...]:
    """The arguments of one full pass of the model over the graph."""
    if entry.inputs == "adjacency":
        return graph.x, normalised_adjacency(graph)
    return graph.x, graph.edge_index


def normalised_adjacency(graph: Graph) -> Tensor:
    """`D^-1/2 (A + I) D^-1/2` [n, n] in torch's CSR layout, D the degrees of `A + I`.

    Source: Kipf and Welling, 2017, equation 2.
    """
    own = torch.arange(graph.nodes).expand(2, -1)
    source, target = torch.cat([graph.edge_index, own], dim=1)
    scale = torch.bincount(target, minlength=graph.nodes).float().rsqrt()
    order = torch.argsort(target * graph.nodes + source)
    target, source = target[order], source[order]
    rows = torch.cat([target.new_zeros(1), torch.bincount(target, minlength=graph.nodes).cumsum(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return torch.sparse_csr_tensor(
            rows, source, scale[target] * scale[source], size=(graph.nodes, graph.nodes)
        )
