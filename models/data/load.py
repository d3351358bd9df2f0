"""Data sets by name.

In: `load("cora", "/data")`. Out: a `Graph`, or a `DataError` with the searched places.
"""

from pathlib import Path

from sparsify.errors import DataError
from sparsify.models.data.arxiv import arxiv
from sparsify.models.data.graph import Graph
from sparsify.models.data.planetoid import planetoid
from sparsify.models.data.synthetic import synthetic

NAMES = ("synthetic", "cora", "citeseer", "pubmed", "ogbn-arxiv")


def load(name: str = "synthetic", data_root: str | Path | None = None, seed: int = 0) -> Graph:
    """Graph called `name`.

    Args:
        name: one of `NAMES`.
        data_root: folder of real data, only read.
        seed: seed of `synthetic`, and of features generated from the graph.

    Raises:
        DataError: the name is unknown, or the files are neither present nor available for download.
    """
    root = None if data_root is None else Path(data_root).expanduser()
    if root is not None and not root.is_dir():
        raise DataError(
            f"the data root {root} is no folder", "--data-root names the folder that holds the data sets"
        )
    match name.lower().replace("_", "-"):
        case "synthetic":
            return synthetic(seed=seed)
        case "cora" | "citeseer" | "pubmed" as known:
            return planetoid(known, root)
        case "ogbn-arxiv" | "arxiv":
            return arxiv(root, seed)
    raise DataError(f"there is no data set {name!r}", f"one of {', '.join(NAMES)}")
