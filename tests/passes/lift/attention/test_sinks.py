"""Sinks beside scores, shifts that leave a softmax as it is, and what is neither."""

import pytest
import torch
from torch import Tensor, fx

from sparsify.passes.graph.operators import operator_name
from sparsify.passes.lift.attention import sinks


def shifted(x: Tensor) -> Tensor:
    return x - x.max(-1, keepdim=True).values


def weighted(x: Tensor) -> Tensor:
    most = x.amax(-1, keepdim=True)
    return torch.softmax(x - most, -1) * most


WAYS = {
    "plain": lambda x, z: torch.softmax(x, -1),
    "sink": lambda x, z: torch.softmax(torch.cat([x, z], -1), -1)[:, :-1],
    "shifted sink": lambda x, z: torch.softmax(shifted(torch.cat([x, z], -1)), -1)[:, :-1],
    "shifted": lambda x, z: torch.softmax(x - x.amax(-1, keepdim=True), -1),
    "not cut": lambda x, z: torch.softmax(torch.cat([x, z], -1), -1),
    "two columns": lambda x, z: torch.softmax(torch.cat([x, z, z], -1), -1)[:, :-2],
    "cut without": lambda x, z: torch.softmax(x, -1)[:, :-1],
    "another shift": lambda x, z: torch.softmax(x - x.amax(0, keepdim=True), -1),
    "shift that is read": lambda x, z: weighted(x),
}


@pytest.mark.parametrize(
    ("way", "is_cut", "scores", "has_sinks"),
    [
        ("plain", False, "sin", False),
        ("sink", True, "sin", True),
        ("shifted sink", True, "sin", True),
        ("shifted", False, "sin", False),
        ("not cut", False, "cat", False),
        ("two columns", False, "cat", False),
        ("cut without", True, None, False),
        ("another shift", False, "sub", False),
        ("shift that is read", False, "sub", False),
    ],
)
def test_apart(way, is_cut, scores, has_sinks):
    given = torch.randn(3, 5), torch.randn(3, 1)
    exported = torch.export.export(_Module(way), given).module().graph
    (softmax,) = [node for node in exported.nodes if operator_name(node) == "softmax"]
    exported.eliminate_dead_code()  # places of maxima
    assert is_cut == any(sinks.is_without_last(user) for user in softmax.users)
    found = sinks.apart(softmax.args[0], is_cut)
    if scores is None:
        assert found is None
        return
    assert found is not None
    assert scores in (found.scores.name, operator_name(found.scores))
    assert (found.sinks is not None) == has_sinks
    assert isinstance(found.scores, fx.Node)


class _Module(torch.nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return WAYS[self.way](x.sin(), z)
