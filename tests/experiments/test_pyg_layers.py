"""Layers of torch-geometric in usual configurations: a few of each kind, captured once and right with other graphs."""

import pytest

from sparsify import options

pytest.importorskip("torch_geometric")

from experiments import pyg_layers

# Layers whose kernels another test does not run, and one or more of each kind of graph: by configuration the captures.
QUICK = {
    "GCNConv, steps": 1,
    "GATv2Conv": 1,
    "ARMAConv": 1,
    "FAConv": 1,
    "AGNNConv": 1,
    "HANConv": 1,
    "HypergraphConv": 1,
    "GraphNorm": 1,
    "to_dense_batch": 1,
    "softmax by graph": 1,
    "global_max_pool": 1,
    "global_add_pool, counted": 2,
    "mean with itself": 1,
}


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "mode"), [*((name, "train") for name in QUICK), ("GraphNorm", "eval")])
def test_layers(name, mode):
    found = pyg_layers.run(name, mode, 200, 1000, is_timed=False)
    assert found.is_right, str(found)
    assert found.regions and found.captures == QUICK[name], str(found)


def test_the_command(capsys, tmp_path):
    rows = list(
        pyg_layers.main(["LEConv", "--nodes", "60", "--edges", "200", "--csv", str(tmp_path / "rows.csv")])
    )
    assert [row.mode for row in rows] == ["eval", "train"]
    assert all(row.is_right and row.speed > 0 and "regions" in str(row) for row in rows)
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3
