"""Cora, CiteSeer and PubMed: read-only roots, spellings, missing files, downloads."""

import shutil
import socket
import stat
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from sparsify import options
from sparsify.errors import DataError
from sparsify.models import data
from sparsify.models.data import planetoid

SIZES = {"cora": (2708, 10556, 1433, 7), "citeseer": (3327, 9104, 3703, 6), "pubmed": (19717, 88648, 500, 3)}


@pytest.fixture
def own_cache(tmp_path):
    with options.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch):
    """Where the download would come from, there is nobody."""
    monkeypatch.setattr(planetoid, "URL", "http://127.0.0.1:9/data")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    listener = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{listener.server_port}"
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.mark.parametrize("name", ["cora", "citeseer", pytest.param("pubmed", marks=pytest.mark.slow)])
def test_loads_with_the_published_sizes(data_root, own_cache, name):
    graph = data.load(name, data_root)
    assert (graph.nodes, graph.edges, graph.x.shape[1], graph.classes) == SIZES[name]
    assert (len(graph.train), len(graph.val), len(graph.test)) == (20 * graph.classes, 500, 1000)
    sums = graph.x.sum(dim=1)
    assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all()), "rows are normalised"
    source, target = graph.edge_index
    forth, back = source * graph.nodes + target, target * graph.nodes + source
    assert torch.equal(forth.sort().values, back.sort().values), "every edge goes both ways"


@pytest.mark.parametrize("inside", ["Planetoid/Cora", "planetoid/cora", "Cora", "cora"])
def test_root_may_be_spelled_in_any_case(data_root, tmp_path, own_cache, inside):
    shutil.copytree(data_root / "Planetoid/Cora", tmp_path / "root" / inside)
    assert data.load("Cora", tmp_path / "root").nodes == 2708


def test_read_only_root_stays_as_it_is(data_root, tmp_path, own_cache):
    root = tmp_path / "root"
    shutil.copytree(data_root / "Planetoid/Cora", root / "Planetoid/Cora")
    everything = [root, *root.rglob("*")]
    for path in everything:
        path.chmod(stat.S_IREAD | stat.S_IEXEC if path.is_dir() else stat.S_IREAD)
    before = sorted(root.rglob("*"))
    graph = data.load("cora", root)
    again = data.load("cora", root)  # the copies are not read-only
    for path in everything:
        path.chmod(0o700)
    assert graph.fingerprint == again.fingerprint
    assert sorted(root.rglob("*")) == before


def test_without_files_and_network_the_error_says_what_to_do(tmp_path, own_cache, no_network):
    with pytest.raises(DataError) as caught:
        data.load("cora", tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "Cora/raw/ind.cora.x" in text
    assert "127.0.0.1:9" in text
    assert "--data-root" in text
    assert "--dataset synthetic" in text


def test_copy_in_the_cache_serves_without_root_and_network(data_root, own_cache, no_network):
    first = data.load("cora", data_root)
    assert data.load("cora").fingerprint == first.fingerprint


def test_downloads_what_is_missing(data_root, own_cache, server, monkeypatch):
    folder, url = server
    for file in planetoid.file_names("cora"):
        shutil.copyfile(data_root / "Planetoid/Cora/raw" / file, folder / file)
    monkeypatch.setattr(planetoid, "URL", url)
    assert data.load("cora").nodes == 2708


def test_foreign_files_are_never_unpickled(data_root, own_cache, server, monkeypatch):
    folder, url = server
    for file in planetoid.file_names("cora"):
        shutil.copyfile(data_root / "Planetoid/Cora/raw" / file, folder / file)
    (folder / "ind.cora.graph").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    monkeypatch.setattr(planetoid, "URL", url)
    with pytest.raises(DataError, match="are not those of the benchmark"):
        data.load("cora")


def test_processed_copy_that_was_cut_short_is_made_anew(data_root, own_cache):
    first = data.load("cora", data_root)
    processed = own_cache / "datasets/Planetoid/Cora/processed/data.pt"
    processed.write_bytes(processed.read_bytes()[:1000])
    assert data.load("cora", data_root).fingerprint == first.fingerprint


def test_silent_server_is_given_up(own_cache, monkeypatch):
    """A server that accepts and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setattr(planetoid, "URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(planetoid, "TIMEOUT_S", 0.2)
        started = time.monotonic()
        with pytest.raises(DataError, match="timed out"):
            data.load("citeseer")
        assert time.monotonic() - started < 5
