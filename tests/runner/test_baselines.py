"""The dense model by other libraries in the table of a run."""

import json

import pytest
import torch

from sparsify import options
from sparsify.errors import SparsifyError
from sparsify.runner.measure import Timing
from sparsify.runner.peers import baselines, installed
from sparsify.runner.peers.baselines import Baseline, Baselines, parsed
from sparsify.runner.run import run

SIZES = {"features": 96, "hidden": 128, "layers": 2}


@pytest.fixture(scope="module", autouse=True)
def untimed():
    with options.override(tune_seconds=0):
        yield


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()


def test_names_of_baselines():
    assert parsed(None) is None and parsed("none") == ()
    assert parsed(" Torch,onednn,torch") == ("torch", "onednn")
    assert parsed("all") == tuple(baselines.LIBRARIES)
    with pytest.raises(SparsifyError, match=r"no baseline 'openvinno'; did you mean openvino"):
        parsed("openvinno")
    with pytest.raises(SparsifyError, match="one of torch, onednn"):
        parsed("tpu9000")


def test_each_baseline_that_is_asked_for_has_a_row_with_its_time_or_how_to_get_it(monkeypatch):
    for package in ("OpenVINO", "ONNX Runtime"):
        monkeypatch.setitem(installed.MODULES, package, "no_such_module")
    wanted = "torch,onednn,bf16,openvino,onnxruntime"
    result = run(
        "mlp", overrides=SIZES, sparse_weights="0.9", batch=32, seconds=0.0, quiet=True, baseline=wanted
    )
    assert result.verified
    found = {one.name: one for one in result.baselines}
    assert set(found) == set(wanted.split(","))
    assert found["onednn"].largest_error < 1e-5 < found["bf16"].largest_error < 0.2
    assert found["torch"].timing.runs_ms and found["bf16"].timing.runs_ms
    text = str(result)
    assert "not installed: pip install openvino" in text
    assert "not installed: pip install onnxruntime onnx onnxscript" in text
    assert "weights packed, activations and normalisations fused" in text
    read = json.loads(json.dumps(result.to_dict()))["baselines"]
    assert [one["name"] for one in read if one["median_ms"] is None] == ["openvino", "onnxruntime"]
    assert {name for name, _ in result.timings()} == {"dense", "sparse", "torch", "onednn", "bf16"}


def test_without_names_the_fastest_is_shown_and_the_others_beside_it(monkeypatch):
    def timings(*calls, **_):
        return [Timing(0.0, [ms]) for ms in (5.0, 4.0, 3.0)][: len(calls)]

    monkeypatch.setattr(baselines.measure, "interleave", timings)
    found = [
        (Baseline("onednn"), lambda: 1),
        (Baseline("openvino"), lambda: 2),
        (Baseline("bf16", "no"), None),
    ]
    (best,), (call,) = baselines.fastest(found, lambda: 0)
    assert (best.name, best.beside, call()) == ("openvino", {"oneDNN": 4.0}, 2)
    best.timing = Timing(0.0, [3.0])
    assert best.row(Timing(0.0, [1.5]))[:3] == ["OpenVINO", "3 ms", ""]
    assert best.row(Timing(0.0, [1.5]))[3].endswith("as many threads; oneDNN 4 ms")


def test_torch_itself_may_be_the_fastest(monkeypatch):
    monkeypatch.setattr(
        baselines.measure, "interleave", lambda *_, **__: [Timing(0.0, [2.0]), Timing(0.0, [4.0])]
    )
    (best,), calls = baselines.fastest([(Baseline("onednn"), lambda: 1)], lambda: 0)
    assert calls == [] and best.row(Timing()) == [
        "torch",
        "",
        "",
        "the fastest of those tried: 2 ms, oneDNN 4 ms",
    ]


def test_a_library_that_fails_says_why_and_the_run_goes_on(monkeypatch):
    def fails(model, inputs):
        raise NotImplementedError("no such operator\nand more")

    monkeypatch.setitem(baselines.LIBRARIES, "onednn", baselines.Library("oneDNN", "", fails, is_first=True))
    x = torch.randn(3, 8)
    ((baseline,), calls) = Baselines(("onednn",)).made(model(), (x,), model()(x))
    assert baseline.reason == "does not run this model: NotImplementedError: no such operator" and calls == []


def test_onednn_computes_what_torch_does_with_no_kernel_of_ours():
    x, dense = torch.randn(64, 8), model()
    with options.override(tune_seconds=0.01):
        call = baselines.onednn(dense, (x,))
    torch.testing.assert_close(call(), dense(x))


def test_results_of_other_shapes_are_said():
    assert baselines.largest_difference(torch.zeros(2), torch.zeros(3)) is None
    assert baselines.largest_difference({"a": torch.zeros(2)}, [torch.ones(2).numpy()]) == 1.0
    inf, nan = float("inf"), float("nan")
    assert baselines.largest_difference(torch.tensor([-inf, nan, 1.0]), torch.tensor([-inf, nan, 1.5])) == 0.5
    assert baselines.largest_difference(torch.tensor([1.0, 2.0]), torch.tensor([nan, 2.0])) == inf
    assert baselines.largest_difference(torch.tensor([1j]), torch.tensor([2j])) == 1.0
    for error in (0.5, inf):
        wrong = Baseline("openvino", largest_error=error, timing=Timing(0.0, [1.0]))
        assert wrong.row(Timing(0.0, [1.0]))[3].endswith(f"; differs by {error:.1e}")
    found = Baseline("inductor", largest_error=None, timing=Timing(0.0, [1.0]))
    assert found.row(Timing(0.0, [1.0]))[3].endswith("its results have other shapes")
