"""Other projects' products, and what is said where they are missing."""

import pytest
import torch

from sparsify.bench import peers
from sparsify.bench.place import Place
from sparsify.bench.predicted import uniform
from sparsify.bench.products import against, row, spmm
from sparsify.bench.run import run
from sparsify.bench.table import notes, table
from sparsify.runner.peers import installed, network_peers


@pytest.fixture
def nobody(monkeypatch):
    for module in (peers, network_peers):
        monkeypatch.setattr(module, "load", lambda name: None)


def test_peers_that_are_installed_agree():
    csr, X = uniform(40, 40, 3).to_torch(), torch.randn(40, 5)
    for call in peers.spmm(csr, X).values():
        assert call is None or torch.allclose(torch.as_tensor(call()), csr @ X, atol=1e-5)


@pytest.mark.sampled(2)
def test_runtimes_that_are_installed_agree():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model.eval().requires_grad_(False)
    x = torch.randn(3, 8)
    found = network_peers.network(model, x)
    assert found["inductor"] is not None
    for call in found.values():
        assert call is None or torch.allclose(torch.as_tensor(call()), model(x), atol=1e-5)


def test_openvino_in_int8_agrees_roughly():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    model.eval().requires_grad_(False)
    x = torch.randn(2, 64, 64)
    call = network_peers.openvino_int8(model, (x,))
    if call is None:
        pytest.skip(installed.reason("OpenVINO int8"))
    error = (torch.as_tensor(call()[0]) - model(x)).abs().mean() / model(x).abs().max()
    assert 1e-4 < error < 0.05


def test_a_missing_module_is_none(monkeypatch):
    monkeypatch.setitem(installed.MODULES, "PyG", "no_such_module")
    assert installed.load("PyG") is None
    assert peers.spmm(uniform(9, 9, 2).to_torch(), torch.ones(9, 2))["PyG"] is None


def test_missing_peers_are_named(nobody):
    found = run(["small"], ["spmm-10-2"], quick=True)
    assert found[0]["missing"] == ["pydata/sparse", "GraphBLAS", "PyG"]
    head, *lines = notes(found)[-1].splitlines()
    assert head == "not measured:" and [line.split(":")[0].strip() for line in lines] == sorted(
        found[0]["missing"]
    )


def test_each_missing_peer_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(installed.MODULES, "GraphBLAS", "no_such_module")
    assert installed.reason("GraphBLAS") == "not installed: pip install python-graphblas"
    rows = [{"missing": ["GraphBLAS", "x"], "reasons": {"GraphBLAS": installed.reason("GraphBLAS")}}]
    assert notes(rows)[-1].splitlines()[1:] == [
        "  GraphBLAS: not installed: pip install python-graphblas",
        "  x: not installed",
    ]


def test_a_peer_that_never_answers_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setitem(installed.MODULES, "GraphBLAS", "math")
    monkeypatch.setitem(installed.TRIALS, "GraphBLAS", "import time; time.sleep(60)")
    monkeypatch.setattr(installed, "TRIAL_SECONDS", 0.5)
    assert installed.load("GraphBLAS") is None
    assert (
        installed.reason("GraphBLAS")
        == "installed, and a process with a product beside torch did not end within 0.5 s"
    )
    monkeypatch.setitem(installed.TRIALS, "GraphBLAS", "raise OSError('no such library')")
    assert installed.reason("GraphBLAS") == "installed, and does not run: OSError: no such library"
    monkeypatch.setitem(installed.TRIALS, "GraphBLAS", "pass")
    assert installed.reason("GraphBLAS") == "" and installed.load("GraphBLAS").pi


def test_fresh_results_are_compared_with_the_best(nobody):
    case = against(row("row", "work", None), lambda: 1, {"a": lambda: 2, "b": lambda: 3, "c": None})
    *pooled, fresh = case.targets
    assert [target.baselines for target in pooled] == [("a",), ("b",)]
    assert (fresh.ours, fresh.baselines) == ("sparsify fresh", ("a", "b"))
    assert case.missing == ["c"]


def test_what_was_spent_before_is_apart(nobody):
    case = spmm(10, 2, 4, Place())
    assert "first call" in case.prepared_ms
    assert case.least is not None
    assert case.least.operations == 2 * case.least.gathered / 4


def test_columns_that_nobody_needs_are_not_shown(nobody):
    found = run(["small"], ["spmv-10-2"], quick=True)
    heads = table(found).splitlines()[0].split()
    assert "asked" not in heads
    assert "limit" in heads
    assert "%" in table(found)
