"""Files of edges: every kind gives the same edges, damaged ones say what is wrong."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from sparsify.errors import DataError
from sparsify.scale import edge_list
from sparsify.scale.edge_list import open_edges

NODES = 7
EDGES = np.array([[0, 1, 2, 2, 5, 5], [1, 0, 2, 4, 0, 1]])
PAIRS = "\n".join(f"{source} {target}" for source, target in EDGES.T) + "\n"


def write(kind: str, folder: Path) -> Path:
    """The edges as a file of some kind."""
    path = folder / f"graph{kind}"
    header = f"%%MatrixMarket matrix coordinate real general\n% adjacency\n{NODES} {NODES} {EDGES.shape[1]}\n"
    entries = "".join(f"{target + 1} {source + 1} 0.5\n" for source, target in EDGES.T)
    match kind:
        case ".npy":
            np.save(path, EDGES.T.astype(np.int32))
        case ".npz":
            matrix = scipy.sparse.csr_array((np.ones(EDGES.shape[1]), (EDGES[1], EDGES[0])), (NODES, NODES))
            scipy.sparse.save_npz(path, matrix)
        case ".pt":
            torch.save({"edge_index": torch.from_numpy(EDGES), "x": torch.zeros(NODES, 2)}, path)
        case ".mtx":
            path.write_text(header + entries)
        case ".mtx.gz":
            path.write_bytes(gzip.compress((header + entries).encode()))
        case ".csv":
            path.write_text("source,target,weight\n" + PAIRS.replace(" ", ",").replace("\n", ",0.5\n"))
        case ".txt":
            path.write_text("# a comment\n" + PAIRS.rstrip("\n"))
    return path


def pairs_of(path: Path, nodes: int | None = None) -> list[tuple[int, int]]:
    """All edges of a file, sorted."""
    return sorted(tuple(edge) for chunk in open_edges(path, nodes).chunks() for edge in chunk.T.tolist())


@pytest.mark.parametrize("kind", [".npy", ".npz", ".pt", ".mtx", ".mtx.gz", ".csv", ".txt"])
def test_every_kind_gives_the_edges(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_list, "CHUNK_EDGES", 4)
    monkeypatch.setattr(edge_list, "CHUNK_BYTES", 9)
    found = open_edges(write(kind, tmp_path))
    assert pairs_of(tmp_path / f"graph{kind}") == sorted(map(tuple, EDGES.T.tolist()))
    assert found.count() == (6 if kind in (".npy", ".csv", ".txt") else NODES, EDGES.shape[1])


def test_symmetric_matrix_has_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "graph.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 3\n")
    assert pairs_of(path) == [(0, 1), (1, 0), (2, 2)]


def test_data_of_torch_geometric(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.from_numpy(EDGES)
    graph = data.Data(
        x=torch.rand(NODES, 3), y=torch.arange(NODES), edge_index=edges, edge_attr=torch.rand(6, 2)
    )
    torch.save(graph, tmp_path / "graph.pt")
    found = open_edges(tmp_path / "graph.pt")
    assert found.nodes == NODES
    assert sorted(found.node_data) == ["x", "y"] and list(found.edge_data) == ["edge_attr"]


def test_values_of_matrices_are_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_list, "CHUNK_BYTES", 9)
    weights = np.arange(1.0, 7.0, dtype=np.float32)
    matrix = scipy.sparse.coo_array((weights, (EDGES[1], EDGES[0])), (NODES, NODES))
    scipy.sparse.save_npz(tmp_path / "graph.npz", matrix)
    wanted = sorted(zip(*EDGES.tolist(), weights.tolist()))
    entries = "".join(f"{target + 1} {source + 1} {weight}\n" for source, target, weight in wanted)
    (tmp_path / "graph.mtx").write_text(
        f"%%MatrixMarket matrix coordinate real general\n{NODES} {NODES} 6\n{entries}"
    )
    for name, dtype in (("graph.npz", torch.float32), ("graph.mtx", torch.float64)):
        found = open_edges(tmp_path / name)
        edges = np.concatenate(list(found.chunks()), 1)
        assert found.edge_data["edge_weight"].dtype == dtype
        assert sorted(zip(*edges.tolist(), found.edge_data["edge_weight"].tolist())) == wanted
    for symmetry, sign in (("symmetric", 1), ("skew-symmetric", -1)):
        path = tmp_path / f"{symmetry}.mtx"
        path.write_text(f"%%MatrixMarket matrix coordinate integer {symmetry}\n3 3 2\n2 1 7\n3 2 8\n")
        found = open_edges(path)
        edges = np.concatenate(list(found.chunks()), 1)
        assert found.count() == (3, 4)
        pairs = sorted(zip(*edges.tolist(), found.edge_data["edge_weight"].tolist()))
        assert pairs == [(0, 1, 7), (1, 0, sign * 7), (1, 2, 8), (2, 1, sign * 8)]
    path.write_text("%%MatrixMarket matrix coordinate complex hermitian\n3 3 1\n2 1 7 1\n")
    with pytest.raises(DataError, match="has complex values, hermitian; give pattern, real"):
        open_edges(path)


def test_data_finds_its_place_when_nodes_are_known(tmp_path: Path) -> None:
    edges, path = torch.from_numpy(EDGES), tmp_path / "graph.pt"
    torch.save({"edge_index": edges.T, "y": torch.arange(9), "edge_attr": torch.rand(6, 3)}, path)
    with pytest.raises(
        DataError, match=r"y has 9 rows; the edges go to 6 nodes, and there are 6; give .* --nodes"
    ):
        open_edges(path).count()
    found = open_edges(path, 9)
    assert found.count() == (9, 6)
    assert list(found.node_data) == ["y"] and list(found.edge_data) == ["edge_attr"]
    torch.save({"edge_index": edges, "y": torch.arange(6), "edge_attr": torch.rand(6, 3)}, path)
    found = open_edges(path)
    assert found.count() == (6, 6)
    assert list(found.node_data) == ["y"] and list(found.edge_data) == ["edge_attr"]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("graph.txt", "0 1\n1\n", "a line that is no edge"),
        ("graph.txt", "0 1\n1 x\n", "a line that is no edge"),
        ("graph.txt", "0 -1\n", "edge 0 goes from node 0 to node -1"),
        ("graph.txt", "", "has no nodes"),
        ("graph.xyz", "0 1\n", "is no file of edges; give one that ends in .npy, .npz"),
        ("graph.mtx", "%%MatrixMarket matrix array real general\n", "begins with"),
        ("graph.mtx", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1\n", "2 x 3; an adjacency has"),
        ("graph.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n", "1 entries, and its header"),
        ("graph.npy", "no array", "cannot be read"),
        ("graph.pt", "no tensors", "cannot be read without running its code"),
    ],
)  # fmt: skip
def test_damaged_files(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        open_edges(tmp_path / name).count()


def test_nodes(tmp_path: Path) -> None:
    assert open_edges(write(".npy", tmp_path), 9).count() == (9, 6)
    with pytest.raises(DataError, match="edge 3 goes from node 2 to node 4, and the nodes are 0 to 3"):
        pairs_of(tmp_path / "graph.npy", 4)
    with pytest.raises(DataError, match="has 7 nodes, and --nodes asks for 9"):
        open_edges(write(".pt", tmp_path), 9)
    with pytest.raises(DataError, match="missing"):
        open_edges(tmp_path / "nothing.npy")
    np.save(tmp_path / "wrong.npy", np.zeros((2, 3)))
    with pytest.raises(DataError, match="edges are integers"):
        open_edges(tmp_path / "wrong.npy")
