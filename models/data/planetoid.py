"""Cora, CiteSeer and PubMed, the citation graphs of the Planetoid benchmark.

In: `planetoid("cora", Path("/data"))` with files `/data/Planetoid/Cora/raw/ind.cora.*`. Out: a `Graph` with
row-normalised features and the public split. torch-geometric reads the files from a copy in the cache.
Source: Yang, Cohen and Salakhutdinov, Revisiting semi-supervised learning with graph embeddings, 2016.
"""

import hashlib
import urllib.request
import warnings
from pathlib import Path
from typing import Any

from filelock import FileLock

from sparsify.errors import DataError
from sparsify.models import cache
from sparsify.models.data.folders import copy_files, find
from sparsify.models.data.graph import Graph, normalised_rows

SPELLING = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
TIMEOUT_S = 10.0

# One digest over all parts of a set: the files are pickles, and reading a pickle runs code.
DIGESTS = {
    "cora": "0c183620d48cfe70c51c162cfa4d2d0288a5d6c0cdeac5b857fc92e212546749",
    "citeseer": "83ff60944e8dfba3343ea36b5e26e4c2ac3c9100ce059b3a61bbd6e20e63da91",
    "pubmed": "75ff3d5c07e011150e9fc6656849fe0d49c9bdc9e51d71fed3e047234d6f3bd8",
}


def planetoid(name: str, root: Path | None = None) -> Graph:
    """Citation graph `name`: cora, citeseer or pubmed.

    Args:
        name: name in lower case.
        root: parent folder of `Planetoid/`, or the folder itself. Without a root, or without the set in the root, an
            earlier copy in the cache is used, else the files are downloaded.

    Raises:
        DataError: the files are missing and cannot be downloaded, or are not those of the benchmark.
    """
    folder = cache.folder("datasets") / "Planetoid"
    raw = folder / SPELLING[name] / "raw"
    source = None if root is None else locate(name, root)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):  # the loader writes its processed copy in place
        if source is not None:
            copy_files((source / "raw" / file for file in file_names(name)), raw)
        elif not all((raw / file).is_file() for file in file_names(name)):
            download(name, raw, looked_in=root)
        require_genuine(name, raw)
        return read(name, folder)


def file_names(name: str) -> list[str]:
    """Names of the files of a set."""
    return [f"ind.{name}.{part}" for part in PARTS]


def locate(name: str, root: Path) -> Path | None:
    """Folder under `root` with the `raw/` files of a set."""
    places = [f"Planetoid/{SPELLING[name]}", SPELLING[name], f"data/Planetoid/{SPELLING[name]}"]
    return find(places, root, f"raw/ind.{name}.x")


def download(name: str, raw: Path, looked_in: Path | None) -> None:
    """Downloads the missing files of a set into `raw`, each atomically, with a short timeout."""
    raw.mkdir(parents=True, exist_ok=True)
    for file in file_names(name):
        if (raw / file).is_file():
            continue
        try:
            with urllib.request.urlopen(f"{URL}/{file}", timeout=TIMEOUT_S) as answer:
                content = answer.read()
        except OSError as error:
            raise DataError(missing(name, looked_in, raw, error), remedy(name)) from None
        cache.keep(raw / file, content)


def missing(name: str, looked_in: Path | None, raw: Path, error: OSError) -> str:
    """Error text: the searched places."""
    under = (
        f"no {SPELLING[name]}/raw/ind.{name}.x under {looked_in} (nor under its Planetoid/), "
        if looked_in
        else ""
    )
    return f"{SPELLING[name]} is not here: {under}no copy in {raw}, and {URL} cannot be reached ({error})"


def remedy(name: str) -> str:
    """Error text: ways to get a set."""
    return (
        f"give the folder that holds Planetoid/{SPELLING[name]}/raw/ by --data-root DIR, or connect to the "
        "network; --dataset synthetic needs no files"
    )


def require_genuine(name: str, raw: Path) -> None:
    """Raises unless the files in `raw` are those of the benchmark, bit by bit."""
    found = digest(name, raw)
    if found != DIGESTS[name]:
        raise DataError(
            f"the files {raw}/ind.{name}.* are not those of the benchmark: SHA-256 {found[:16]}, not "
            f"{DIGESTS[name][:16]}",
            "remove that folder, check the data root, and try again",
        )


def digest(name: str, raw: Path) -> str:
    """SHA-256 over the SHA-256 of each file."""
    sums = (hashlib.sha256((raw / file).read_bytes()).digest() for file in file_names(name))
    return hashlib.sha256(b"".join(sums)).hexdigest()


def read(name: str, folder: Path) -> Graph:
    """Graph from the raw files under `folder`."""
    data = loaded(name, folder)
    return Graph(
        name=name,
        x=normalised_rows(data.x),
        edge_index=data.edge_index.contiguous(),
        y=data.y,
        train=data.train_mask.nonzero().flatten(),
        val=data.val_mask.nonzero().flatten(),
        test=data.test_mask.nonzero().flatten(),
        classes=int(data.y.max()) + 1,
        features="bags of words",
    )


def loaded(name: str, folder: Path) -> Any:
    """Result of torch-geometric's loader, which writes a processed copy beside the raw files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old pickles name modules of numpy and scipy that have moved
        try:
            from torch_geometric.datasets import Planetoid
        except ImportError:
            raise DataError(
                f"{SPELLING[name]} is read by torch-geometric, which is not installed",
                "pip install 'sparsify-fx[graph]'",
            ) from None
        try:
            return Planetoid(str(folder), SPELLING[name])[0]
        except (RuntimeError, EOFError, OSError):  # a processed copy that was cut short
            return Planetoid(str(folder), SPELLING[name], force_reload=True)[0]
