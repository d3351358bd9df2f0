"""Partitioning of a graph's nodes, by one of three methods.

In: `partition(Path("graph.npy"), 4, "stream", Path("parts/"))`. Out: the folder of `parts`, and its `meta.json`.

- `range`: consecutive nodes, without reading edges.
- `stream`: our own multilevel method, edges on disk, memory O(nodes).
- `metis`: METIS, by the package pymetis; the graph is held in memory several times.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from sparsify.errors import DataError
from sparsify.scale import adjacency, parts
from sparsify.scale.adjacency import Adjacency
from sparsify.scale.edge_list import open_edges
from sparsify.scale.multilevel import multilevel

Array = np.ndarray[Any, Any]
METHODS: Final = ("metis", "stream", "range")


def partition(
    graph: Path, count: int, method: str, out: Path, *, nodes: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Writes the parts of a graph into a folder; the content of `meta.json`.

    Args:
        graph: a file supported by `open_edges`.
        count: number of parts, 1 or more; with fewer nodes some parts are empty.
        method: `metis`, `stream` or `range`.
        out: a new or empty folder, also for temporary files.
        nodes: number of nodes, needed if the last ones have no edges.
        seed: random seed of choices between equal parts.

    Raises:
        DataError: the file, the folder, the method or the count is wrong, or pymetis is missing.
        CompilerError: `stream` without a C++ compiler.
    """
    if method not in METHODS:
        raise DataError(f"there is no method {method!r}", f"the methods are {', '.join(METHODS)}")
    if count < 1:
        raise DataError(f"{count} parts", "give --parts 1 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not empty", "give --out a new folder")
    edges = open_edges(graph, nodes)
    total, _ = edges.count()
    if method == "range" or count == 1 or total <= count:
        part = (np.arange(total) * count // total).astype(np.int32)
    else:
        run = _metis() if method == "metis" else multilevel
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="rows-", dir=out) as folder:
            part = run(adjacency.build(edges, Path(folder)), count, seed)
    return parts.write(edges, part, count, out, method)


def _metis() -> Any:
    """METIS as a function of an adjacency, a number of parts and a seed."""
    try:
        import pymetis
    except ImportError:
        raise DataError(
            "method metis needs the package pymetis",
            "pip install 'sparsify-fx[scale]', or use --method stream",
        ) from None

    def run(rows: Adjacency, count: int, seed: int) -> Array:
        crd = np.concatenate([block for _, _, block in rows.blocks()])
        graph = pymetis.CSRAdjacency(rows.pos, crd)
        _, found = pymetis.part_graph(count, graph, options=pymetis.Options(seed=seed))
        return np.asarray(found, np.int32)

    return run
