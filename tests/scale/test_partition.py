"""Partitions: every edge and row is in one part, the plans agree, cuts are near those of METIS."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sparsify.errors import DataError
from sparsify.scale import adjacency, parts
from sparsify.scale.multilevel import multilevel
from sparsify.scale.partition import METHODS, partition
from sparsify.scale.parts import Part
from tests.cli.conftest import Cli, cli  # noqa: F401  a fixture


def mesh(side: int, shuffled: bool = False) -> np.ndarray[Any, Any]:
    """A square mesh in both directions, [2, edges]."""
    i = np.arange(side * side).reshape(side, side)
    if shuffled:
        i = np.random.default_rng(0).permutation(i.ravel()).reshape(side, side)
    one = [np.stack([i[:, 1:].ravel(), i[:, :-1].ravel()]), np.stack([i[1:].ravel(), i[:-1].ravel()])]
    edges = np.concatenate(one, 1)
    return np.concatenate([edges, edges[::-1]], 1)


def graph_file(folder: Path, nodes: int = 60) -> Path:
    """A random graph with self loops, equal edges and nodes without edges, with data."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, nodes - 5, (2, 4 * nodes), generator=generator)
    data = {
        "edge_index": torch.cat([edges, edges[:, :3], torch.tensor([[1], [1]])], 1),
        "x": torch.rand(nodes, 3, generator=generator),
        "train_mask": torch.rand(nodes, generator=generator) < 0.5,
        "edge_weight": torch.rand(4 * nodes + 4, generator=generator),
    }
    torch.save(data, folder / "graph.pt")
    return folder / "graph.pt"


def require_whole(found: list[Part], data: dict[str, torch.Tensor]) -> None:
    """The parts together are the graph, and each gets the rows that it needs in the order of its halo."""
    rows = torch.cat([part.rows for part in found])
    assert torch.equal(rows.sort().values, torch.arange(len(data["x"])))
    edges = []
    for rank, part in enumerate(found):
        columns = torch.cat([part.rows, part.halo])
        assert torch.equal(part.node_data["x"], data["x"][part.rows])
        assert torch.equal(part.node_data["train_mask"], data["train_mask"][part.rows])
        ends = (columns[part.edge_index[0]], part.rows[part.edge_index[1]], part.edge_data["edge_weight"])
        edges += list(zip(*(end.tolist() for end in ends)))
        starts = [(other, sum(other.send_counts[:rank])) for other in found]
        sent = [o.rows[o.send_rows[s : s + o.send_counts[rank]].long()] for o, s in starts]
        assert torch.equal(torch.cat(sent), part.halo)
        assert part.receive_counts == tuple(len(each) for each in sent)
    whole = zip(*data["edge_index"].tolist(), data["edge_weight"].tolist())
    assert sorted(edges) == sorted(whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [1, 3, 70])
def test_parts_are_the_graph(method: str, count: int, tmp_path: Path) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    path = graph_file(tmp_path)
    meta = partition(path, count, method, tmp_path / "parts")
    found = [parts.read(tmp_path / "parts", rank) for rank in range(count)]
    require_whole(found, torch.load(path))
    assert not list((tmp_path / "parts").rglob("*.bin"))
    cut = sum(int((part.edge_index[0] >= len(part.rows)).sum()) for part in found)
    assert cut == meta["cut"]
    assert meta["sizes"][0]["halo"] == len(found[0].halo)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("count", [2, 5])
def test_cuts_of_a_mesh(count: int, shuffled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adjacency, "BLOCK_ENTRIES", 5000)  # several blocks of rows
    np.save(tmp_path / "mesh.npy", mesh(60, shuffled))
    found = partition(tmp_path / "mesh.npy", count, "stream", tmp_path / "stream")
    assert max(size["rows"] for size in found["sizes"]) <= 1.03 * 3600 / count + 1
    metis = pytest.importorskip("pymetis")
    assert metis
    other = partition(tmp_path / "mesh.npy", count, "metis", tmp_path / "metis")
    assert found["cut"] <= 1.3 * other["cut"]
    again = partition(tmp_path / "mesh.npy", count, "stream", tmp_path / "again")
    assert again["fingerprint"] == found["fingerprint"]  # the same choices in every run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["star", "path", "clique"])
def test_every_part_keeps_its_limit(kind: str, tmp_path: Path) -> None:
    i = np.arange(120 if kind == "clique" else 3000)
    edges = {
        "star": np.stack([0 * i[1:], i[1:]]),
        "path": np.stack([i[:-1], i[1:]]),
        "clique": np.stack(np.meshgrid(i, i)).reshape(2, -1),
    }[kind]
    np.save(tmp_path / "graph.npy", edges)
    rows = [
        size["rows"] for size in partition(tmp_path / "graph.npy", 64, "stream", tmp_path / "parts")["sizes"]
    ]
    assert sum(rows) == len(i)
    assert max(rows) <= max(-(-len(i) // 64), int(len(i) / 64 * 1.03))
    assert min(rows) > 0


def test_edges_are_sorted_into_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adjacency, "BLOCK_ENTRIES", 40)
    path = graph_file(tmp_path)
    edges = parts_edges = adjacency.EdgeList(
        "graph", lambda: iter([torch.load(path)["edge_index"].numpy()]), 60
    )
    rows = adjacency.build(edges, tmp_path)
    dense = np.zeros((60, 60), bool)
    for chunk in parts_edges.chunks():
        dense[chunk[0], chunk[1]] = dense[chunk[1], chunk[0]] = True
    np.fill_diagonal(dense, False)
    found = np.concatenate([crd for _, _, crd in rows.blocks()])
    assert len(rows.bounds) > 4
    assert np.array_equal(rows.pos, np.concatenate([[0], dense.sum(1).cumsum()]))
    assert np.array_equal(found, np.nonzero(dense)[1])
    assert set(multilevel(rows, 3)) == {0, 1, 2}


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = graph_file(tmp_path)
    folder = tmp_path / "parts"
    with pytest.raises(DataError, match="the methods are metis, stream, range"):
        partition(path, 2, "random", folder)
    with pytest.raises(DataError, match="0 parts"):
        partition(path, 0, "range", folder)
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(DataError, match=r"pip install 'sparsify-fx\[scale\]'"):
        partition(path, 2, "metis", folder)
    with pytest.raises(DataError, match=r"has no readable meta.json; make it with sparsify partition"):
        parts.read_meta(folder)
    partition(path, 2, "range", folder)
    with pytest.raises(DataError, match="is not empty"):
        partition(path, 2, "range", folder)
    partition(path, 2, "stream", tmp_path / "other")
    one, two = folder / "part-0" / "graph.safetensors", tmp_path / "other" / "part-0" / "graph.safetensors"
    good = one.read_bytes()
    one.write_bytes(two.read_bytes())
    with pytest.raises(DataError, match="do not mix the folders"):
        parts.read(folder, 0)
    one.write_bytes((folder / "part-1" / "graph.safetensors").read_bytes())
    with pytest.raises(DataError, match="is of part 1"):
        parts.read(folder, 0)
    one.write_bytes(good[:100])
    with pytest.raises(DataError, match="is damaged"):
        parts.read(folder, 0)
    save_file({"rows": torch.zeros(1)}, one)
    with pytest.raises(DataError, match="of graph None"):
        parts.read(folder, 0)
    one.write_bytes(good)
    torch.save({**torch.load(path), "x": torch.ones(60, 3)}, path)
    partition(path, 2, "range", tmp_path / "data")  # the same edges and parts
    rows = folder / "part-0" / "nodes.safetensors"
    kept = rows.read_bytes()
    rows.write_bytes((tmp_path / "data" / "part-0" / "nodes.safetensors").read_bytes())
    with pytest.raises(DataError, match="its SHA-256 sum is another one; do not mix"):
        parts.read(folder, 0)
    rows.write_bytes(kept)
    with pytest.raises(DataError, match="has no part 2; its parts are 0 to 1"):
        parts.read(folder, 2)
    meta = json.loads((folder / "meta.json").read_text())
    for name in ("parts", "sizes", "sums", "fingerprint", "node_data"):
        (folder / "meta.json").write_text(json.dumps({k: v for k, v in meta.items() if k != name}))
        with pytest.raises(DataError, match=rf"meta.json is damaged: {name}: .*; partition the graph again"):
            parts.read_meta(folder)
    for name, value in (("sizes", []), ("parts", 0), ("sums", {}), ("layout", 1)):
        (folder / "meta.json").write_text(json.dumps({**meta, name: value}))
        with pytest.raises(DataError, match=r"damaged: |has layout 1, this version reads 3"):
            parts.read_meta(folder)
    (folder / "meta.json").write_text(json.dumps(meta))
    one.unlink()
    with pytest.raises(DataError, match="missing"):
        parts.read(folder, 0)


def test_command(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    path = graph_file(tmp_path)
    arguments = ("partition", str(path), "--parts", "2", "--method", "range", "--out")
    said = cli(*arguments, str(tmp_path / "one")).out
    lines = dict(line.split("  ", 1) for line in said.splitlines() if "  " in line.strip())
    assert lines["graph"].strip() == "60 nodes, 244 edges"
    assert {"cut", "halo", "balance", "exchange", "speed-up", "assumed"} <= {name.strip() for name in lines}
    found = json.loads(cli(*arguments, str(tmp_path / "two"), "--json", "--columns", "32").out)
    assert found["prediction"]["exchange_bytes"] == 128 * sum(size["halo"] for size in found["sizes"])
    assert found["schema"] == 1 and found["parts"] == 2
