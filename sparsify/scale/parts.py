"""The folder of a partitioned graph: written by `sparsify partition`, mapped by one process for each part.

In: edges and the part of each node. Out: `meta.json` and, for part r, `part-r/graph.safetensors` (rows, edges with
columns `[own | halo]`, halo plan), `part-r/nodes.safetensors` (`x`, `y`, masks) and `part-r/edges.safetensors`.

An edge belongs to the part of the target. Part r numbers its own rows 0 to n_r - 1 in ascending order of global
numbers, and its halo, the rows of other parts read by its edges, from n_r on, by owner and then by global number.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sparsify.errors import DataError
from sparsify.scale.edge_list import EdgeList

Array = np.ndarray[Any, Any]
LAYOUT: Final = 3
META: Final = "meta.json"
GRAPH, NODE_DATA, EDGE_DATA = "graph.safetensors", "nodes.safetensors", "edges.safetensors"


@dataclass(frozen=True)
class Part:
    """One part of a graph.

    Attributes:
        rank, parts: number of the part, and number of parts.
        nodes, edges: numbers of the whole graph.
        rows: int64 [own], global numbers of the own rows.
        halo: int64 [halo], global numbers of the rows read from other parts.
        edge_index: int64 [2, edges of the part], sources in `[own | halo]` above targets in `[own]`.
        edge_numbers: int64 [edges of the part], global numbers of the edges.
        send_rows: int32, own rows read by others, in the order of the parts.
        send_counts, receive_counts: numbers of rows sent to, and received from, each part.
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
    edge_numbers: torch.Tensor
    send_rows: torch.Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    node_data: Mapping[str, torch.Tensor]
    edge_data: Mapping[str, torch.Tensor]


class PartSizes(BaseModel):
    """The sizes of one part in `meta.json`: own rows, edges, halo rows, rows sent."""

    model_config = ConfigDict(frozen=True, strict=True)

    rows: NonNegativeInt
    edges: NonNegativeInt
    halo: NonNegativeInt
    sent: NonNegativeInt


class Meta(BaseModel):
    """Contents of `meta.json`: sizes of the graph and of each part, names of data, and the SHA-256 sum of each file.

    `fingerprint` is a digest of edges and parts, also stored in the files of parts.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    layout: int
    graph: str
    method: str
    parts: PositiveInt
    nodes: PositiveInt
    edges: NonNegativeInt
    cut: NonNegativeInt
    fingerprint: str
    node_data: list[str]
    edge_data: list[str]
    sizes: list[PartSizes]
    sums: dict[str, str]

    @model_validator(mode="after")
    def _has_all_parts(self) -> "Meta":
        if len(self.sizes) != self.parts:
            raise ValueError(f"it has the sizes of {len(self.sizes)} parts, and there are {self.parts}")
        missing = {
            f"part-{rank}/{name}" for rank in range(self.parts) for name in self.names
        } - self.sums.keys()
        if missing:
            raise ValueError(f"the sum of {min(missing)} is missing")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The files of each part."""
        data = ((NODE_DATA, self.node_data), (EDGE_DATA, self.edge_data))
        return (GRAPH, *(name for name, tensors in data if tensors))

    @property
    def digest(self) -> str:
        """A digest of the content of all files."""
        return hashlib.sha256(json.dumps(sorted(self.sums.items())).encode()).hexdigest()[:16]


def write(edges: EdgeList, part: Array, parts: int, folder: Path, method: str) -> dict[str, Any]:
    """Writes all parts into a new folder; the content of `meta.json`.

    Args:
        edges: counted edges; read once more.
        part: int32 [nodes].
        parts: number of parts.
        folder: new or empty folder.
        method: partitioning method.

    Raises:
        DataError: the folder has files, or the edges changed after counting.
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
    meta["sizes"] = [found.model_dump() for found in sizes]
    files = sorted(folder.glob("part-*/*.safetensors"))
    meta["sums"] = {f"{path.parent.name}/{path.name}": _sum(path) for path in files}
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return meta


def _scatter(edges: EdgeList, part: Array, parts: int, folder: Path, digest: Any) -> tuple[int, int]:
    """Appends each edge, with its number, to the file of the target's part; the numbers of edges, and of cut edges."""
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
    """Writes the data of one part, with locally numbered edges in a temporary file; the halo in global numbers."""
    place = folder / f"part-{rank}"
    source, target, number = np.fromfile(place / "edges.bin", np.int64).reshape(-1, 3).T
    is_remote = part[source] != rank
    halo = np.unique(source[is_remote])
    halo = halo[np.argsort(part[halo], kind="stable")]
    by_number = np.argsort(halo)
    columns = np.empty_like(source)
    columns[~is_remote] = local[source[~is_remote]]
    columns[is_remote] = len(rows) + by_number[np.searchsorted(halo[by_number], source[is_remote])]
    np.stack([columns, local[target].astype(np.int64), number]).tofile(place / "edges.bin")
    kept = torch.from_numpy(np.ascontiguousarray(rows))
    _save({name: data[kept] for name, data in edges.node_data.items()}, place / NODE_DATA, rank, meta)
    kept = torch.from_numpy(np.ascontiguousarray(number))
    _save({name: data[kept] for name, data in edges.edge_data.items()}, place / EDGE_DATA, rank, meta)
    return halo


def _write_plan(
    rank: int, halos: list[Array], part: Array, local: Array, order: Array, starts: Array, folder: Path,
    meta: Mapping[str, Any],
) -> PartSizes:  # fmt: skip
    """Writes the edges, rows and halo plan of one part; the sizes of the part."""
    place = folder / f"part-{rank}"
    sent = [local[halo[part[halo] == rank]] for halo in halos]
    columns, targets, numbers = np.fromfile(place / "edges.bin", np.int64).reshape(3, -1)
    edge_index = np.stack([columns, targets])
    arrays: dict[str, Array] = {
        "rows": order[starts[rank] : starts[rank + 1]].astype(np.int64),
        "halo": halos[rank].astype(np.int64),
        "edge_index": edge_index,
        "edge_numbers": numbers,
        "send_rows": np.concatenate(sent).astype(np.int32),
        "send_counts": np.array([len(rows) for rows in sent], np.int64),
        "receive_counts": np.bincount(part[halos[rank]], minlength=len(halos)).astype(np.int64),
    }
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    _save(tensors, place / GRAPH, rank, meta)
    (place / "edges.bin").unlink()
    return PartSizes(
        rows=len(arrays["rows"]),
        edges=edge_index.shape[1],
        halo=len(halos[rank]),
        sent=len(arrays["send_rows"]),
    )


def _save(tensors: dict[str, torch.Tensor], path: Path, rank: int, meta: Mapping[str, Any]) -> None:
    """Writes tensors with the fingerprint of their graph; no file for no tensors."""
    if tensors:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, path, {"fingerprint": meta["fingerprint"], "part": str(rank)})


def _sum(path: Path) -> str:
    """The SHA-256 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_meta(folder: Path) -> Meta:
    """Contents of the `meta.json` of a folder.

    Raises:
        DataError: the file is missing, damaged, or of another layout.
    """
    again = f"sparsify partition GRAPH --parts N --out {folder}"
    try:
        found = json.loads((folder / META).read_text(encoding="utf-8"))
        layout = found["layout"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{folder} has no readable {META}", f"make it with {again}") from None
    if layout != LAYOUT:
        raise DataError(
            f"{folder} has layout {layout}, this version reads {LAYOUT}", "partition the graph again"
        )
    try:
        return Meta.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{folder / META} is damaged: {f'{where}: ' if where else ''}{first['msg']}",
            f"partition the graph again, {again}",
        ) from None


def read(folder: Path, rank: int, meta: Meta | None = None) -> Part:
    """One part of a folder; tensors are memory-mapped from the files.

    Raises:
        DataError: a file is missing or damaged, or belongs to another graph, partition or part.
    """
    meta = read_meta(folder) if meta is None else meta
    if not 0 <= rank < meta.parts:
        raise DataError(f"{folder} has no part {rank}", f"its parts are 0 to {meta.parts - 1}")
    place = folder / f"part-{rank}"
    loaded = {name: _load(place / name, rank, meta) for name in meta.names}
    arrays, sizes = loaded[GRAPH], meta.sizes[rank]
    found = PartSizes(
        rows=len(arrays["rows"]), edges=arrays["edge_index"].shape[1],
        halo=len(arrays["halo"]), sent=len(arrays["send_rows"]),
    )  # fmt: skip
    if found != sizes:
        raise DataError(f"{place} has {found}, and {META} says {sizes}", "partition the graph again")
    send_counts, receive_counts = (tuple(arrays[name].tolist()) for name in ("send_counts", "receive_counts"))
    return Part(
        rank, meta.parts, meta.nodes, meta.edges, arrays["rows"], arrays["halo"], arrays["edge_index"],
        arrays["edge_numbers"], arrays["send_rows"], send_counts, receive_counts,
        loaded.get(NODE_DATA, {}), loaded.get(EDGE_DATA, {}),
    )  # fmt: skip


def _load(path: Path, rank: int, meta: Meta) -> dict[str, torch.Tensor]:
    """The tensors of a file of a part.

    Raises:
        DataError: the file is missing or damaged, or belongs to another graph or part.
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
    if written.get("fingerprint") != meta.fingerprint:
        raise DataError(
            f"{path} is of graph {written.get('fingerprint')}, and {META} of graph {meta.fingerprint}",
            "do not mix the folders of several graphs or partitions",
        )
    if written.get("part") != str(rank):
        raise DataError(f"{path} is of part {written.get('part')}", "name the folders as they were written")
    if _sum(path) != meta.sums[f"part-{rank}/{path.name}"]:
        raise DataError(
            f"{path} is not the file that {META} knows: its SHA-256 sum is another one",
            "do not mix the folders of several partitions, copy the folder again, or partition the graph again",
        )
    return tensors
