"""Parts one after the other give what one pass over the whole graph gives, within a limit of memory."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import sparsify
from sparsify.errors import DataError, SparsifyError
from sparsify.scale.in_turns import bytes_of
from sparsify.scale.partition import partition

from .graph_models import NODES, arguments, model, write_graph

PRESENT = ("gat", "hand", "norm", "pooled") if find_spec("torch_geometric") else ("hand", "norm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in three parts."""
    place = tmp_path_factory.mktemp("graph")
    write_graph(place / "graph.pt")
    partition(place / "graph.pt", 3, "stream", place / "parts")
    return place


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PRESENT)
def test_parts_in_turn_equal_one_pass(name: str, folder: Path) -> None:
    net = model(name, torch.float64).eval()
    turns = sparsify.shard(net, graph=folder / "parts", memory="1MB")
    found = turns(*arguments(name, turns.data, torch.float64))
    whole = SimpleNamespace(**torch.load(folder / "graph.pt"))
    torch.testing.assert_close(found, net(*arguments(name, whole, torch.float64)), rtol=1e-12, atol=1e-12)
    assert 0 < turns.needed_bytes < 1_000_000


def test_more_parts_need_less_memory(folder: Path, tmp_path: Path) -> None:
    partition(folder / "graph.pt", 1, "range", tmp_path / "one")
    net = model("hand", torch.float64).eval()
    needed = []
    for place in (tmp_path / "one", folder / "parts"):
        turns = sparsify.shard(net, graph=place, memory="1MB")
        turns(turns.data.x, turns.data.edge_index, turns.data.edge_weight)
        needed.append(turns.needed_bytes)
    assert needed[1] < 0.7 * needed[0]
    low = sparsify.shard(net, graph=folder / "parts", memory=needed[1] - 1)
    with pytest.raises(SparsifyError, match=r"a part of .* needs some .* bytes, .*; more than 3 parts"):
        low(low.data.x, low.data.edge_index, low.data.edge_weight)


def test_errors(folder: Path) -> None:
    net = nn.Linear(8, 8).double()
    turns = sparsify.shard(net, graph=folder / "parts", memory="1MB")
    with pytest.raises(SparsifyError, match=r"in inference alone; model.eval\(\)"):
        turns(turns.data.x)
    net.eval()
    with pytest.raises(DataError, match="computed from a stand-in, which has no values"):
        turns(turns.data.x * 2)
    assert turns(turns.data.x).shape == (NODES, 8)
    with pytest.raises(SparsifyError, match="a recipe and memory="):
        sparsify.shard(net, "gcn", graph=folder / "parts", memory="1MB")  # type: ignore[call-overload]
    for wrong in ("2 parsecs", "-1GB", "0"):
        with pytest.raises(SparsifyError, match='a number of bytes, or "2GB"'):
            bytes_of(wrong)
    assert bytes_of("1.5GiB") == 3 * 2**29
