"""Files of edges, read in chunks.

In: `open_edges(Path("graph.mtx"))`. Out: an `EdgeList`; its `chunks()` are int64 [2, edges], sources above targets.

Memory grows with the chunk alone for `.npy`, `.pt`, `.mtx`, `.csv`, `.txt`; `.npz` holds the matrix.
"""

import gzip
import io
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch

from sparsify.errors import DataError

Array = np.ndarray[Any, Any]
CHUNK_EDGES: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 24
SUFFIXES: Final = (".npy", ".npz", ".pt", ".mtx", ".csv", ".txt", ".mtx.gz", ".csv.gz", ".txt.gz")
# The name of the values of a matrix.
WEIGHT: Final = "edge_weight"
# Value types of Matrix Market, and signs of the mirrored entries of a symmetric matrix.
FIELDS: Final[dict[str, Any]] = {
    "pattern": None,
    "real": np.float64,
    "double": np.float64,
    "integer": np.int64,
}
SIGNS: Final = {"general": 0, "symmetric": 1, "skew-symmetric": -1}
SEPARATORS: Final = bytes.maketrans(b",;\t\r", b"    ")


@dataclass
class EdgeList:
    """Edges on disk, and the data of nodes and edges.

    Attributes:
        name: name of the file, for messages.
        read: yields the chunks, int64 [2, edges], in file order.
        nodes: number of nodes; None if determined by the largest number in the file.
        node_data: tensors with one row for each node, by name.
        edge_data: tensors with one row for each edge, by name.
        unsorted: tensors of nodes or edges, to be assigned when the number of nodes is known, by name.
    """

    name: str
    read: Callable[[], Iterator[Array]]
    nodes: int | None = None
    node_data: dict[str, torch.Tensor] = field(default_factory=dict)
    edge_data: dict[str, torch.Tensor] = field(default_factory=dict)
    unsorted: dict[str, torch.Tensor] = field(default_factory=dict)

    def chunks(self) -> Iterator[Array]:
        """The edges in the order of the file, sources above targets.

        Raises:
            DataError: an edge has a negative node, or one past the last.
        """
        start, nodes = 0, self.nodes
        for chunk in self.read():
            wrong = (chunk < 0).any(0) if nodes is None else ((chunk < 0) | (chunk >= nodes)).any(0)
            if wrong.any():
                at = int(wrong.argmax())
                raise DataError(
                    f"{self.name}: edge {start + at} goes from node {chunk[0, at]} to node {chunk[1, at]}, and the "
                    f"nodes are 0 to {'the largest' if nodes is None else nodes - 1}",
                    "number nodes from 0, or give their number with --nodes",
                )
            start += chunk.shape[1]
            yield chunk

    def count(self) -> tuple[int, int]:
        """The number of nodes and edges; reads the file once."""
        edges, last = 0, -1
        for chunk in self.chunks():
            edges += chunk.shape[1]
            last = max(last, int(chunk.max(initial=-1)))
        nodes, is_told = last + 1 if self.nodes is None else self.nodes, self.nodes is not None
        if nodes == 0:
            raise DataError(
                f"{self.name} has no nodes", "give a file with edges, or their number with --nodes"
            )
        if nodes > np.iinfo(np.int32).max:
            raise DataError(f"{self.name} has {nodes} nodes", "the most are 2147483647")
        self.nodes = nodes
        self.sort(edges)
        if self.unsorted and not is_told:
            name, left = next(iter(self.unsorted.items()))
            raise DataError(
                f"{self.name}: {name} has {len(left)} rows; the edges go to {nodes} nodes, and there are {edges}",
                "give the number of nodes with --nodes; tensors of another length are left out then",
            )
        for name, data in self.edge_data.items():
            if len(data) != edges:
                raise DataError(f"{self.name}: {name} has {len(data)} rows, and there are {edges} edges")
        return nodes, edges

    def sort(self, edges: int) -> None:
        """Assigns tensors to nodes or edges by their lengths; by their names if both fit."""
        for name, data in list(self.unsorted.items()):
            is_of_edges = len(data) == edges and (len(data) != self.nodes or name.startswith("edge_"))
            if is_of_edges or len(data) == self.nodes:
                (self.edge_data if is_of_edges else self.node_data)[name] = self.unsorted.pop(name)


def open_edges(path: Path, nodes: int | None = None) -> EdgeList:
    """The edges of a file.

    Args:
        path: `.npy` int [2, edges] or [edges, 2]; `.pt` with such a tensor, a mapping with `edge_index`, or a Data of
            torch_geometric; `.csv` or `.txt` with a source and a target in each line, `#` before comments; `.mtx`
            Matrix Market or `.npz` of scipy, an adjacency `A[target, source]`. Text files may be `.gz`.
        nodes: number of nodes, needed if some have no edges.

    Raises:
        DataError: the file is missing, of another kind, or damaged.
    """
    if not path.is_file():
        raise DataError(f"{path} is {'a folder' if path.is_dir() else 'missing'}", "give a file of edges")
    kind = next(
        (suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if path.name.endswith(suffix)), ""
    )
    readers = {
        ".npy": _numpy,
        ".npz": _scipy,
        ".pt": _torch,
        ".mtx": _matrix_market,
        ".csv": _text,
        ".txt": _text,
    }
    reader = readers.get(kind.removesuffix(".gz"))
    if reader is None:
        raise DataError(f"{path.name} is no file of edges", f"give one that ends in {', '.join(SUFFIXES)}")
    try:
        found = reader(path)
    except DataError:
        raise
    except Exception as error:  # every reader raises different errors for damaged files
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if nodes is not None:
        if found.nodes is not None and found.nodes != nodes:
            raise DataError(f"{path} has {found.nodes} nodes, and --nodes asks for {nodes}")
        found.nodes = nodes
    return found


def _slices(open_again: Callable[[], Any], name: str) -> Callable[[], Iterator[Array]]:
    """Chunks of an array or tensor of edges in a file; each chunk maps the file anew, so pages are released.

    Raises:
        DataError: not a pair of rows or columns of integers.
    """
    edge_index = open_again()
    dtype = str(edge_index.dtype).removeprefix("torch.")
    shape = tuple(edge_index.shape)
    if len(shape) != 2 or 2 not in shape or not dtype.startswith(("int", "uint")):
        raise DataError(f"{name} has {dtype} {list(shape)}", "edges are integers, [2, edges] or [edges, 2]")

    def read() -> Iterator[Array]:
        for start in range(0, max(shape) if shape[0] != 2 else shape[1], CHUNK_EDGES):
            whole = open_again()
            rows = whole if shape[0] == 2 else whole.T
            yield np.ascontiguousarray(rows[:, start : start + CHUNK_EDGES], np.int64)

    return read


def _numpy(path: Path) -> EdgeList:
    """Edges of a memory-mapped `.npy` file."""
    return EdgeList(path.name, _slices(lambda: np.load(path, mmap_mode="r"), path.name))


def _scipy(path: Path) -> EdgeList:
    """Entries of a matrix saved by scipy; the values are edge weights."""
    import scipy.sparse

    matrix: Any = scipy.sparse.csr_array(scipy.sparse.load_npz(path))
    _require_square(path.name, matrix.shape)

    def read() -> Iterator[Array]:
        step = max(1, int(CHUNK_EDGES * matrix.shape[0] / max(matrix.nnz, 1)))
        for row in range(0, matrix.shape[0], step):
            targets = np.repeat(
                np.arange(row, min(row + step, matrix.shape[0])), np.diff(matrix.indptr[row : row + step + 1])
            )
            sources = matrix.indices[matrix.indptr[row] : matrix.indptr[min(row + step, matrix.shape[0])]]
            yield np.stack([sources.astype(np.int64), targets.astype(np.int64)])

    weights = torch.from_numpy(matrix.data)
    return EdgeList(path.name, read, matrix.shape[0], edge_data={WEIGHT: weights})


def _require_square(name: str, shape: tuple[int, ...]) -> None:
    """Raises unless a matrix is an adjacency of one set of nodes."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise DataError(
            f"{name} is {' x '.join(map(str, shape))}", "an adjacency has as many rows as columns"
        )


def _torch(path: Path) -> EdgeList:
    """Edges of a tensor, a mapping or a Data saved by torch; memory-mapped."""
    loaded = _load(path)
    if isinstance(loaded, torch.Tensor):
        return EdgeList(path.name, _slices(lambda: loaded, path.name))
    if isinstance(loaded, (tuple, list)) and len(loaded) == 2 and hasattr(loaded[0], "to_dict"):
        loaded = loaded[0]  # a data set of torch_geometric: data, and the start of each graph
    data = loaded.to_dict() if hasattr(loaded, "to_dict") else loaded
    if not isinstance(data, dict) or not isinstance(data.get("edge_index"), torch.Tensor):
        raise DataError(
            f"{path.name} has a {type(loaded).__name__} without a tensor edge_index",
            "save a tensor, a mapping or a torch_geometric Data with edge_index; heterogeneous graphs are not read yet",
        )
    edge_index = data["edge_index"]
    tensors = {
        name: v
        for name, v in data.items()
        if isinstance(v, torch.Tensor) and v.dim() and name != "edge_index"
    }
    x = data.get("x")
    nodes = data.get("num_nodes", None if x is None else len(x))
    read = _slices(lambda: edge_index, path.name)
    found = EdgeList(path.name, read, None if nodes is None else int(nodes), unsorted=tensors)
    if nodes is not None:
        found.sort(max(edge_index.shape) if edge_index.shape[0] != 2 else edge_index.shape[1])
    return found


def _load(path: Path) -> Any:
    """Contents of a file of `torch.save`; no code of the file runs: tensors, mappings, graphs of torch_geometric."""
    allowed: list[Any] = []
    with suppress(ImportError):
        from torch_geometric.data import data, storage

        names = ("BaseStorage", "NodeStorage", "EdgeStorage", "GlobalStorage")
        allowed = [
            data.Data,
            data.DataEdgeAttr,
            data.DataTensorAttr,
            *(getattr(storage, name) for name in names),
        ]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        found = str(error).partition("Unsupported ")[2].partition(" was not")[0] or "no file of torch.save"
        raise DataError(
            f"{path.name} cannot be read without running its code: {found}",
            'save torch.save({"edge_index": edge_index, "x": x}, ...) or a Data of tensors',
        ) from None


def _open(path: Path) -> IO[bytes]:
    """A text file, possibly compressed."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _blocks(file: IO[bytes], first: bytes = b"") -> Iterator[bytes]:
    """Whole lines of a text, a few MiB at a time."""
    rest = first
    while block := file.read(CHUNK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
    if rest:
        yield rest


def _pairs(block: bytes, name: str) -> Array:
    """The first two numbers of each line, int64 [lines, 2]."""
    return _columns(block, name, np.int64, (0, 1)).reshape(-1, 2)


def _columns(block: bytes, name: str, dtype: Any, columns: tuple[int, ...]) -> Array:
    """The numbers of each line in some columns, [lines, columns]; `#` and `%` begin comments.

    Raises:
        DataError: a line with fewer numbers, or with other text.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of blocks without numbers
        try:
            text = io.BytesIO(block.translate(SEPARATORS))
            return np.loadtxt(text, dtype, comments=["#", "%"], usecols=columns, ndmin=2)
        except ValueError as error:
            raise DataError(
                f"{name} has a line that is no edge: {error}", "a source and a target in each line"
            ) from None


def _text(path: Path) -> EdgeList:
    """Lines of a source and a target; skips further columns and a header of names."""

    def read() -> Iterator[Array]:
        with _open(path) as file:
            first = file.readline()
            word = (first.translate(SEPARATORS).split() or [b"#"])[0]
            is_header = word[:1].isalpha() or word[:1] in b"\"'_"
            for block in _blocks(file, b"" if is_header else first):
                yield np.ascontiguousarray(_pairs(block, path.name).T)

    return EdgeList(path.name, read)


def _matrix_market(path: Path) -> EdgeList:
    """Entries of a coordinate matrix; for a symmetric one, both directions. Values are edge weights."""
    with _open(path) as file:
        kind = file.readline().lower().split()
        if kind[:3] != [b"%%matrixmarket", b"matrix", b"coordinate"] or len(kind) < 5:
            raise DataError(
                f"{path.name} begins with {b' '.join(kind)[:60]!r}", "%%MatrixMarket matrix coordinate ..."
            )
        while (line := file.readline()).lstrip()[:1] == b"%" or not line.strip():
            if not line:
                raise DataError(f"{path.name} ends before its sizes")
        height, width, entries = map(int, line.split())
        start = file.tell()
    _require_square(path.name, (height, width))
    field, symmetry = kind[3].decode(), kind[4].decode()
    if field not in FIELDS or symmetry not in SIGNS:
        raise DataError(
            f"{path.name} has {field} values, {symmetry}", f"give {', '.join(FIELDS)}; {', '.join(SIGNS)}"
        )

    def blocks() -> Iterator[tuple[bytes, Array]]:
        found = 0
        with _open(path) as file:
            file.seek(start)
            for block in _blocks(file):
                edges = (_pairs(block, path.name) - 1).T[::-1]
                found += edges.shape[1]
                yield block, edges
        if found != entries:
            raise DataError(f"{path.name} has {found} entries, and its header says {entries}")

    def read() -> Iterator[Array]:
        for _, edges in blocks():
            mirrored = edges[:, edges[0] != edges[1]][::-1]
            both = edges if symmetry == "general" else np.concatenate([edges, mirrored], 1)
            yield np.ascontiguousarray(both)

    weights = _weights(blocks(), path.name, FIELDS[field], SIGNS[symmetry])
    return EdgeList(path.name, read, height, edge_data={} if weights is None else {WEIGHT: weights})


def _weights(blocks: Iterator[tuple[bytes, Array]], name: str, dtype: Any, sign: int) -> torch.Tensor | None:
    """The values of Matrix Market as a mapped temporary file; for a symmetric matrix, of both directions.

    Args:
        blocks: lines and their edges.
        name: name of the file.
        dtype: dtype of the values; None without values.
        sign: sign of the value of the other direction, 0 without one.
    """
    if dtype is None:
        return None
    with tempfile.TemporaryFile() as file:
        for block, edges in blocks:
            values = _columns(block, name, dtype, (2,)).reshape(-1)
            values.tofile(file)
            if sign:
                (sign * values[edges[0] != edges[1]]).tofile(file)
        count = file.tell() // np.dtype(dtype).itemsize
        file.flush()
        return torch.from_numpy(np.memmap(file, dtype, "r+", shape=count) if count else np.empty(0, dtype))
