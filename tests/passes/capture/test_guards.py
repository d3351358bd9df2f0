"""What graphs take for granted of extents: how comparisons of sums of them ended."""

import pytest
import torch
from torch.export import Dim

import sparsify
from sparsify.passes.capture.export import extents_of
from sparsify.passes.capture.guards import granted


class Last(torch.nn.Module):
    """The last five rows of matrices that are put under each other."""

    def forward(self, x, y):
        return torch.cat([x, y], -2)[:, -5:]


def condition(*lengths):
    """What is granted for matrices of these lengths, as a function of others, and the formulas of the lengths."""
    given = tuple(torch.randn(2, length, 4) for length in lengths)
    spec = tuple({1: Dim.AUTO} for _ in lengths)
    graph = torch.export.export(Last(), given, dynamic_shapes=spec, strict=False).graph
    names = [extents_of(node)[1] for node in graph.find_nodes(op="placeholder")]
    holds = granted(graph)
    return lambda *others: holds is None or holds(dict(zip(names, others, strict=True)))


@pytest.mark.parametrize(
    ("captured", "same", "other"),
    [
        ((2, 3), [(2, 3), (3, 2)], [(2, 2), (3, 3)]),  # the length of the second is 5 less that of the first
        ((4, 3), [(3, 3), (9, 9)], [(2, 2), (2, 3)]),
    ],
)
def test_conditions(captured, same, other):
    holds = condition(*captured)
    assert all(holds(*lengths) for lengths in same)
    assert not any(holds(*lengths) for lengths in other)


def test_what_is_for_all_lengths():
    class Whole(torch.nn.Module):
        def forward(self, x):
            return x * 2

    graph = torch.export.export(
        Whole(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.AUTO},), strict=False
    ).graph
    assert granted(graph) is None
    graph = torch.export.export(Whole(), (torch.randn(4, 3),), strict=False).graph
    assert granted(graph) is None


class Branches(torch.nn.Module):
    """A layer whose code asks how many rows there are, alone and with the columns."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)

    def forward(self, x):
        y = self.layer(x)
        if x.shape[0] > 5:
            y = 2 * y
        return y + 1 if x.shape[0] + x.shape[1] > 30 else y


@pytest.mark.sampled(2)
def test_branches_on_extents():
    recipe = {
        "schema": 1,
        "name": "branches",
        "sparsify": [
            {
                "targets": ["param:layer.weight"],
                "role": "weight",
                "prune": {"method": "magnitude", "sparsity": 0.8},
            }
        ],
    }
    sparse = sparsify.apply(Branches().eval(), recipe, (torch.randn(4, 16),), trainable=False)
    for rows in (3, 8, 14, 15, 40, 1, 4):
        x = torch.randn(rows, 16)
        with torch.no_grad():
            torch.testing.assert_close(sparse(x), sparse.original(x))
