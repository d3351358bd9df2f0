"""The halves of a part have all its rows and edges, and the inner half reads own rows alone."""

from pathlib import Path

import pytest
import torch

from sparsify.scale import parts
from sparsify.scale.overlap.halves import halves
from sparsify.scale.partition import partition


@pytest.fixture(scope="module", params=["stream", "range"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mesh with self loops, equal edges and nodes without edges, in three parts."""
    place = tmp_path_factory.mktemp("graph")
    number = torch.arange(120)
    edges = [
        (number[:-9], number[9:]),
        (number[9:], number[:-9]),
        (number[:7], number[:7]),
        (number[:5], number[1:6]),
    ]
    torch.save(torch.cat([torch.stack(pair) for pair in (*edges, edges[-1])], 1), place / "graph.pt")
    partition(place / "graph.pt", 3, request.param, place / "parts", nodes=125)
    return place / "parts"


@pytest.mark.parametrize("rank", range(3))
def test_rows_and_edges_are_divided(folder: Path, rank: int) -> None:
    part = parts.read(folder, rank)
    found = halves(part)
    assert torch.equal(torch.cat([half.rows for half in found]).sort()[0], torch.arange(len(part.rows)))
    count = part.edge_index.shape[1]
    assert torch.equal(torch.cat([half.edges for half in found]).sort()[0], torch.arange(count))
    for half, other in zip(found, reversed(found), strict=True):
        source, target = part.edge_index[:, half.edges]
        assert torch.equal(half.columns[half.edge_index[0]], source)
        assert torch.equal(half.rows[half.edge_index[1]], target)
        own = len(half.rows)
        assert torch.equal(half.columns[:own], half.rows)
        assert torch.equal(half.columns[own : own + len(half.borrowed)], other.rows[half.borrowed])
    inner, boundary = found
    own = len(part.rows)
    assert len(inner.rows) and bool((inner.columns < own).all())
    assert torch.equal(boundary.columns[-len(part.halo) :], own + torch.arange(len(part.halo)))
    reads_halo = torch.zeros(len(boundary.rows), dtype=torch.bool)
    reads_halo[boundary.edge_index[1][boundary.columns[boundary.edge_index[0]] >= own]] = True
    assert bool(reads_halo.all())
