"""What is of the distance of each pair of query and key alone, as a vector over distances."""

import pytest
import torch
from torch import Tensor, fx, nn

from sparsify.passes.graph.canonicalize import canonicalize
from sparsify.passes.lift.attention.relative_bias import Distances, spread

TABLE = torch.randn(9, 3)


class Computes(nn.Module):
    """A function of places of queries and keys, as many as a tensor has rows and columns."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.table = nn.Parameter(TABLE)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None]
        return self.function(self, rows, columns, x)


def captured(function) -> tuple[fx.Graph, fx.Node]:
    """The graph of a function for any extents, and the node of what it returns."""
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    program = torch.export.export(
        Computes(function), (torch.zeros(4, 6),), dynamic_shapes={"x": {0: rows, 1: columns}}
    )
    graph = program.graph
    program.graph_module.table = nn.Parameter(TABLE)
    for node in graph.find_nodes(op="placeholder"):
        if node.name == "p_table":
            with graph.inserting_before(node):
                weight = graph.get_attr("table")
            weight.meta = node.meta
            node.replace_all_uses_with(weight)
            graph.erase_node(node)
    canonicalize(graph)
    return graph, next(iter(graph.output_node().args[0]))


def bucket(model, i, j, x):
    d = j - i
    far = torch.min(2 + (d.abs().float() / 2).log().to(torch.long), torch.full_like(d, 3))
    return torch.where(d.abs() < 2, d.abs(), far) + (d > 0).to(torch.long) * 4


OF_DISTANCES = {
    "distance": lambda model, i, j, x: j - i,
    "behind": lambda model, i, j, x: j <= i,
    "before": lambda model, i, j, x: i < j,
    "near": lambda model, i, j, x: ((j - i).abs() < 3) & (i >= j),
    "picked": lambda model, i, j, x: (
        torch.arange(40)[torch.arange(x.shape[1])][None] - torch.arange(50)[torch.arange(x.shape[0])][:, None]
    ),
    "slope": lambda model, i, j, x: model.table[:, :1, None].abs() * -(j - i).abs(),
    "bucket": bucket,
    "table": lambda model, i, j, x: nn.functional.embedding((j - i).clamp(-4, 4) + 4, model.table),
    "heads": lambda model, i, j, x: (
        nn.functional.embedding((j - i).clamp(-4, 4) + 4, model.table).permute(2, 0, 1).unsqueeze(0)
    ),
    "inside": lambda model, i, j, x: ((j - i).unsqueeze(-1) + torch.ones(3)).unsqueeze(0).contiguous(),
}
OTHERS = {
    "of data": lambda model, i, j, x: (j - i) * x,
    "turned": lambda model, i, j, x: (j - i).t(),
    "between": lambda model, i, j, x: (j - i).unsqueeze(1),
    "a place": lambda model, i, j, x: (j - i) + j,
    "backwards": lambda model, i, j, x: i - j,
    "a sum": lambda model, i, j, x: j + i,
    "largest": lambda model, i, j, x: (j - i).amax(1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_DISTANCES)
def test_vectors_say_what_each_pair_has(name):
    graph, node = captured(OF_DISTANCES[name])
    distances = Distances(graph)
    place = distances.mode(node)
    assert place is not None
    along = distances.along(node)
    assert along.meta["val"].dtype == node.meta["val"].dtype
    graph.output_node().args = ((node, along),)
    module = fx.GraphModule(Computes(None), graph)
    for rows, columns in ((4, 6), (5, 3)):
        found, vector = module(torch.zeros(rows, columns))
        moved = vector.movedim(place + 1, -1)
        torch.testing.assert_close(spread(moved, rows, columns).movedim((-2, -1), (place, place + 1)), found)


@pytest.mark.parametrize("name", OTHERS)
def test_what_depends_on_more_is_no_vector(name):
    graph, node = captured(OTHERS[name])
    assert Distances(graph).mode(node) is None
    assert Distances(graph, are_looked_for=False).mode(node) is None
