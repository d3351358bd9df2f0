"""Inputs of graph models.

In: a `Graph` and a registered model. Out: `(x, edge_index)`, or `(x, adj)` with Kipf's normalisation.
"""

import warnings

import torch
from torch import Tensor

from sparsify.models.data import Graph
from sparsify.models.registry import Entry
from sparsify.models.train import BIG_EDGES


def example_inputs(entry: Entry, graph: Graph) -> tuple[Tensor, ...]:
    """Arguments of one full pass of the model over the graph."""
    if entry.inputs == "adjacency":
        return graph.x, normalised_adjacency(graph)
    return graph.x, graph.edge_index


def training_inputs(entry: Entry, graph: Graph) -> tuple[Tensor, ...]:
    """Arguments of a training pass: on big graphs the edges as a matrix, also accepted by torch-geometric.

    The sums are the same; a matrix needs no message [edges, hidden] in memory.
    """
    if entry.inputs == "adjacency" or graph.edges < BIG_EDGES:
        return example_inputs(entry, graph)
    source, target = graph.edge_index
    return graph.x, csr(target, source, torch.ones(graph.edges), graph.nodes)


def normalised_adjacency(graph: Graph) -> Tensor:
    """`D^-1/2 (A + I) D^-1/2` [n, n] in torch's CSR layout, D the degrees of `A + I`.

    Source: Kipf and Welling, 2017, equation 2.
    """
    own = torch.arange(graph.nodes).expand(2, -1)
    source, target = torch.cat([graph.edge_index, own], dim=1)
    scale = torch.bincount(target, minlength=graph.nodes).float().rsqrt()
    return csr(target, source, scale[target] * scale[source], graph.nodes)


def csr(rows: Tensor, columns: Tensor, values: Tensor, nodes: int) -> Tensor:
    """Matrix [nodes, nodes] with `values` at (rows, columns), in torch's CSR layout."""
    order = torch.argsort(rows * nodes + columns)
    starts = torch.cat([rows.new_zeros(1), torch.bincount(rows, minlength=nodes).cumsum(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return torch.sparse_csr_tensor(starts, columns[order], values[order], size=(nodes, nodes))
