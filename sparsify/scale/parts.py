"""The folder of a partitioned graph: written by `sparsify partition`, mapped by one process for each part.

In: edges and the part of each node. Out: `meta.json` and, for part r, `part-r/graph.safetensors` (rows, edges with
columns `[own | halo]`, halo plan), `part-r/nodes.safetensors` (`x`, `y`, masks) and `part-r/edges.safetensors`.

An edge belongs to the part of its target. Part r numbers its own rows 0 to n_r - 1 in ascending order of their global
numbers, and its halo, the rows of other parts that its edges read, from n_r on, by owner and then by global number.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sparsify.errors import DataError
from sparsify.scale.edge_list import EdgeList

Array = np.ndarray[Any, Any]
LAYOUT: Final = 1
META: Final = "meta.json"


@dataclass(frozen=True)
class Part:
    """One part of a graph.

    Attributes:
        rank, parts: its number, and how many parts there are.
        nodes, edges: of the whole graph.
        rows: int64 [own], the global numbers of its rows.
        halo: int64 [halo], those of the rows of others that its edges read.
        edge_index: int64 [2, edges of the part], sources in `[own | halo]` above targets in `[own]`.
        send_rows: int32, own rows that others read, those of part 0 first.
        send_counts, receive_counts: how many rows go to, and come from, each part.
        node_data: tensors with a row for each own row.
        edge_data: tensors with a row for each edge of the part.
    """

    rank: int
    parts: int
    nodes: int
    edges: int
    rows: torch.Tensor
    halo: torch.Tensor
    edge_index: torch.Tensor
    send_rows: torch.Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    node_data: Mapping[str, torch.Tensor]
    edge_data: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class PartSizes:
    """The sizes of one part, as `meta.json` has them: own rows, edges, halo rows, rows sent."""

    rows: int
    edges: int
    halo: int
    sent: int


def write(edges: EdgeList, part: Array, parts: int, folder: Path, method: str) -> dict[str, Any]:
    """Writes all parts into a new folder; what `meta.json` says.

    Args:
        edges: counted; read once more.
        part: int32 [nodes].
        parts: how many.
        folder: new or empty.
        method: how the parts were made.

    Raises:
        DataError: the folder has files, or the edges are not those that were counted.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty", "give --out a new folder")
    for rank in range(parts):
        (folder / f"part-{rank}").mkdir(parents=True, exist_ok=True)
    order = np.argsort(part, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    local = np.empty(len(part), np.int32)
    local[order] = np.arange(len(part)) - starts[part[order]]
    digest = hashlib.sha256(part.tobytes())
    count, cut = _scatter(edges, part, parts, folder, digest)
    meta = {
        "layout": LAYOUT, "graph": edges.name, "method": method, "parts": parts, "nodes": len(part), "edges": count,
        "cut": cut, "fingerprint": digest.hexdigest()[:16], "node_data": sorted(edges.node_data),
        "edge_data": sorted(edges.edge_data),
    }  # fmt: skip
    halos = [
        _write_edges(edges, part, local, rank, order[starts[rank] : starts[rank + 1]], folder, meta)
        for rank in range(parts)
    ]
    sizes = [_write_plan(rank, halos, part, local, order, starts, folder, meta) for rank in range(parts)]
    meta["sizes"] = [vars(found) for found in sizes]
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return meta


def _scatter(edges: EdgeList, part: Array, parts: int, folder: Path, digest: Any) -> tuple[int, int]:
    """Appends each edge, with its number, to the file of its target's part; how many there are, and how many cut."""
    count = cut = 0
    for rank in range(parts):
        (folder / f"part-{rank}" / "edges.bin").touch()
    for chunk in edges.chunks():
        digest.update(chunk.tobytes())
        owner = part[chunk[1]]
        cut += int((part[chunk[0]] != owner).sum())
        numbered = np.concatenate([chunk, np.arange(count, count + chunk.shape[1])[None]])
        ordered = np.ascontiguousarray(numbered[:, np.argsort(owner, kind="stable")].T)
        ends = np.cumsum(np.bincount(owner, minlength=parts))
        for rank, (start, end) in enumerate(zip(np.concatenate([[0], ends]), ends)):
            if end > start:
                with (folder / f"part-{rank}" / "edges.bin").open("ab") as file:
                    ordered[start:end].tofile(file)
        count += chunk.shape[1]
    return count, cut


def _write_edges(
    edges: EdgeList, part: Array, local: Array, rank: int, rows: Array, folder: Path, meta: Mapping[str, Any]
) -> Array:
    """Writes the data of one part, its edges with local numbers into a temporary file; its halo, global numbers."""
    place = folder / f"part-{rank}"
    source, target, number = np.fromfile(place / "edges.bin", np.int64).reshape(-1, 3).T
    is_remote = part[source] != rank
    halo = np.unique(source[is_remote])
    halo = halo[np.argsort(part[halo], kind="stable")]
    by_number = np.argsort(halo)
    columns = np.empty_like(source)
    columns[~is_remote] = local[source[~is_remote]]
    columns[is_remote] = len(rows) + by_number[np.searchsorted(halo[by_number], source[is_remote])]
    np.stack([columns, local[target].astype(np.int64)]).tofile(place / "edges.bin")
    kept = torch.from_numpy(np.ascontiguousarray(rows))
    _save(
        {name: data[kept] for name, data in edges.node_data.items()}, place / "nodes.safetensors", rank, meta
    )
    kept = torch.from_numpy(np.ascontiguousarray(number))
    _save(
        {name: data[kept] for name, data in edges.edge_data.items()}, place / "edges.safetensors", rank, meta
    )
    return halo


def _write_plan(
    rank: int, halos: list[Array], part: Array, local: Array, order: Array, starts: Array, folder: Path,
    meta: Mapping[str, Any],
) -> PartSizes:  # fmt: skip
    """Writes the edges, rows and halo plan of one part; its sizes."""
    place = folder / f"part-{rank}"
    sent = [local[halo[part[halo] == rank]] for halo in halos]
    edge_index = np.fromfile(place / "edges.bin", np.int64).reshape(2, -1)
    arrays: dict[str, Array] = {
        "rows": order[starts[rank] : starts[rank + 1]].astype(np.int64),
        "halo": halos[rank].astype(np.int64),
        "edge_index": edge_index,
        "send_rows": np.concatenate(sent).astype(np.int32),
        "send_counts": np.array([len(rows) for rows in sent], np.int64),
        "receive_counts": np.bincount(part[halos[rank]], minlength=len(halos)).astype(np.int64),
    }
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    _save(tensors, place / "graph.safetensors", rank, meta)
    (place / "edges.bin").unlink()
    return PartSizes(len(arrays["rows"]), edge_index.shape[1], len(halos[rank]), len(arrays["send_rows"]))


def _save(tensors: dict[str, torch.Tensor], path: Path, rank: int, meta: Mapping[str, Any]) -> None:
    """Writes tensors with the fingerprint of their graph; nothing where there are none."""
    if tensors:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, path, {"fingerprint": meta["fingerprint"], "part": str(rank)})


def read_meta(folder: Path) -> dict[str, Any]:
    """What `meta.json` of a folder says.

    Raises:
        DataError: there is none, or it is of another layout.
    """
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        layout = meta["layout"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder} has no readable {META}",
            f"make it with sparsify partition GRAPH --parts N --out {folder}",
        ) from None
    if layout != LAYOUT:
        raise DataError(
            f"{folder} has layout {layout}, this version reads {LAYOUT}", "partition the graph again"
        )
    return meta


def read(folder: Path, rank: int, meta: Mapping[str, Any] | None = None) -> Part:
    """One part of a folder; its tensors are mapped from the files.

    Raises:
        DataError: a file is missing or damaged, or belongs to another graph or part.
    """
    meta = read_meta(folder) if meta is None else meta
    place = folder / f"part-{rank}"
    arrays = _load(place / "graph.safetensors", rank, meta)
    node_data = _load(place / "nodes.safetensors", rank, meta) if meta["node_data"] else {}
    edge_data = _load(place / "edges.safetensors", rank, meta) if meta["edge_data"] else {}
    sizes, own = meta["sizes"][rank], len(arrays["rows"])
    found = PartSizes(own, arrays["edge_index"].shape[1], len(arrays["halo"]), len(arrays["send_rows"]))
    if vars(found) != sizes:
        raise DataError(f"{place} has {found}, and {META} says {sizes}", "partition the graph again")
    send_counts, receive_counts = (tuple(arrays[name].tolist()) for name in ("send_counts", "receive_counts"))
    return Part(
        rank, meta["parts"], meta["nodes"], meta["edges"], arrays["rows"], arrays["halo"], arrays["edge_index"],
        arrays["send_rows"], send_counts, receive_counts, node_data, edge_data,
    )  # fmt: skip


def _load(path: Path, rank: int, meta: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a file of a part.

    Raises:
        DataError: it is missing or damaged, or belongs to another graph or part.
    """
    if not path.is_file():
        raise DataError(
            f"{path} is missing", "copy the whole folder of this part, or partition the graph again"
        )
    try:
        with safe_open(path, "pt") as file:
            written = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} is damaged: {error}", "partition the graph again") from None
    if written.get("fingerprint") != meta["fingerprint"]:
        raise DataError(
            f"{path} is of graph {written.get('fingerprint')}, and {META} of graph {meta['fingerprint']}",
            "do not mix the folders of several graphs or partitions",
        )
    if written.get("part") != str(rank):
        raise DataError(f"{path} is of part {written.get('part')}", "name the folders as they were written")
    return tensors
