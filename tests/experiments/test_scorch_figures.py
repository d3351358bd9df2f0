"""The figures of Scorch: on small files of the formats that they read, and without any."""

import gzip
import itertools
import json
import struct
import zlib

import pytest
import scipy.io
import scipy.sparse
import torch

from experiments.reproduce.figure import OURS, Setting
from experiments.scorch import figure5, figure6, figure7, figure8, slides
from experiments.scorch.pictures import grey_png
from experiments.scorch.texts import FOLDERS, VOCABULARY, texts
from sparsify import options
from sparsify.errors import DataError
from sparsify.models.data.synthetic import synthetic
from tests.cli.conftest import cli  # noqa: F401


def png(pixels: torch.Tensor) -> bytes:
    """A grey PNG whose lines take turns in the five filters."""
    lines = []
    rows = [[0] * pixels.shape[1], *pixels.tolist()]
    for y, (above, line) in enumerate(itertools.pairwise(rows)):
        coded = [y % 5]
        for x, value in enumerate(line):
            left, corner = (line[x - 1], above[x - 1]) if x else (0, 0)
            up, near = above[x], left + above[x] - corner
            paeth = min((left, up, corner), key=lambda v: abs(near - v))
            coded.append((value - (0, left, up, (left + up) // 2, paeth)[y % 5]) % 256)
        lines.append(bytes(coded))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    size = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(lines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_grey_png(tmp_path):
    pixels = torch.randint(0, 256, (11, 7), generator=torch.Generator().manual_seed(0))
    file = tmp_path / "a.png"
    file.write_bytes(png(pixels))
    assert torch.equal(grey_png(file).long(), pixels)
    file.write_bytes(b"GIF89a")
    with pytest.raises(DataError, match="is no PNG"):
        grey_png(file)


@pytest.fixture
def matrices(tmp_path):
    """A folder with two small matrices, one of them not square."""
    for name, shape in (("HB/west0479", (40, 40)), ("Bai/olm1000", (50, 30))):
        file = tmp_path / "suitesparse" / f"{name}.mtx.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file, "wb") as stream:
            scipy.io.mmwrite(stream, scipy.sparse.random_array(shape, density=0.1, rng=0))
    return tmp_path


def test_values_whose_products_would_overflow_are_scaled(tmp_path):
    file = tmp_path / "a.mtx.gz"
    with gzip.open(file, "wb") as stream:
        scipy.io.mmwrite(stream, scipy.sparse.diags_array([1e20, 5e19]))
    assert figure8.matrix(file).data.tolist() == [1.0, 0.5]


def test_kernels_by_the_command(matrices, tmp_path, cli):  # noqa: F811
    asked = (
        "reproduce",
        "scorch",
        "figure8",
        "--quick",
        "--data-root",
        str(matrices),
        "--out",
        str(tmp_path / "out"),
    )
    found = json.loads(cli(*asked, "--json").out)
    rows = found["figures"]["figure8"]
    assert [row["row"].split()[0] for row in rows] == [op for op in figure8.OPERATIONS for _ in range(2)]
    for row in rows:
        assert row["reason"] == "" and {OURS, "torch.sparse"} <= set(row["outcome"]["times"])
        assert row["outcome"]["facts"]["nonzeros"] > 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"figure8.csv", "figure8.svg", "figure8.txt", "manifest.json"} <= names
    again = cli(*asked)
    assert again.status == 0 and "Geometric mean of 8 rows" in again.out and "cut to a square" in again.out
    assert all(row["reused"] for row in json.loads(cli(*asked, "--json").out)["figures"]["figure8"])


@pytest.mark.parametrize("figure", ["figure6", "figure7", "figure8"])
def test_nothing_could_run(tmp_path, cli, figure):  # noqa: F811
    found = cli("reproduce", "scorch", figure, "--data-root", str(tmp_path), "--out", str(tmp_path / "out"))
    assert found.status == 3
    assert "not measured" in found.out and "--data-root" in found.out


def test_mistakes_are_named(cli):  # noqa: F811
    assert "there is no paper 'scorchd'" in cli("reproduce", "scorchd").err
    assert cli("reproduce", "scorch", "figure9").status == 2


def test_autoencoders(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for number in range(count):
            file = tmp_path / "olivetti_faces" / part / "s01" / f"{number + 1:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(torch.randint(0, 3, (64, 64)) * 100))
    outcome = figure6.measure("faces", Setting(tmp_path, quick=True))
    assert set(outcome.times) == {OURS, "torch CSR", "torch dense"}
    assert outcome.facts["loss"] == pytest.approx(outcome.facts["loss of torch"], rel=1e-4)


def test_graph_networks(tmp_path, monkeypatch):
    pytest.importorskip("torch_geometric")
    graph = synthetic(nodes=120, edges=400, features=20)
    monkeypatch.setattr(figure5.data, "load", lambda name, root, seed: graph)
    with options.override(cache_dir=tmp_path):
        outcome = figure5.measure("cora", Setting(quick=True))
    assert set(outcome.times) == {OURS, figure5.TORCH, figure5.PYG}
    assert outcome.facts["accuracy"] == outcome.facts["accuracy of PyG"]


def test_sizes_are_those_of_the_tables():
    """Tables 1 to 3 of the appendix."""
    settings, note = figure5.settings_of(synthetic(nodes=120, edges=400, features=20), Setting())
    assert (figure5.HIDDEN, settings.lr, settings.weight_decay, settings.epochs, note) == (
        128,
        0.01,
        5e-4,
        200,
        "",
    )
    assert (figure6.HIDDEN, figure6.LR, figure6.BATCH, figure6.EPOCHS) == (256, 0.01, 64, 10)
    assert (figure7.LR, figure7.BATCH, figure7.EPOCHS) == (0.001, 64, 5)
    pytest.importorskip("transformers")
    config = figure7.classifier(4, 50, "block_sparse").config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (128, 256, 2)
    assert (config.num_attention_heads, config.hidden_act, config.block_size) == (4, "gelu", 16)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert config.num_random_blocks == 2


@pytest.mark.sampled(2)
def test_a_mixture_of_experts():
    outcome = slides.mixture(Setting(quick=True))
    assert set(outcome.times) == {OURS, "torch", "the listing"} and outcome.facts["regions"] == 1


@pytest.mark.sampled(3)
@pytest.mark.slow
def test_classifiers(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    words = [f"w{n}" for n in range(40)]
    (tmp_path / "vocab").mkdir()
    (tmp_path / VOCABULARY).write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    place = tmp_path / FOLDERS["ag_news"]
    place.mkdir()
    for part in ("train", "test"):
        lines = [f'"{n % 2 + 1}","{" ".join(words[n : n + 9])}","w1 w2"' for n in range(16)]
        (place / f"{part}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    train, _, classes = texts("ag_news", tmp_path, 16)
    assert classes == 2 and train.tokens.shape == (16, 16) and train.mask[0].sum() == 13
    monkeypatch.setitem(figure7.SEQ, "ag_news", 160)
    monkeypatch.setattr(figure7, "QUICK_BATCH", 2)
    with options.override(quiet=True):
        outcome = figure7.measure("ag_news", Setting(tmp_path, quick=True))
    assert set(outcome.times) == {OURS, "transformers block_sparse", "transformers full attention"}
