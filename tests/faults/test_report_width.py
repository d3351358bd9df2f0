"""Reports of models with many layers and long names fit the terminal, and lose nothing."""

import json

import pytest
import torch
from torch import nn

import sparsify
from sparsify.report import (
    ChainEntry,
    ConversionEntry,
    DenseEntry,
    OrderEntry,
    RegionEntry,
    Report,
    RoundingEntry,
    RuleEntry,
    WeightEntry,
)

PARTS = ("attention.self.query", "attention.self.key", "attention.output.dense", "intermediate.dense")
WEIGHTS = [f"bert.encoder.layer.{n}.{part}.weight" for n in range(12) for part in PARTS]
FORMAT = "i/16: dense, j/64: dense, i%16: dense, j%64: sliced(16, crd=int8)"
EINSUM = "S[b,i,j] = sum(k, Q[b,i,k] * K[b,j,k])\nY[b,i,k] = relu(" + " + ".join(["S[b,i,j]"] * 40) + ")"


def long_report() -> Report:
    """A report with all tables, of a model with long names."""
    report = Report("BertModel", "pruned", specialised=[f"x{n}[1] = 7" for n in range(50)])
    report.rules.append(RuleEntry("linear layers", "recipe.yaml:9", [f"param:{name}" for name in WEIGHTS]))
    for n, name in enumerate(WEIGHTS):
        note = f"{name} packed: {n}.5% stored, expected {n} us"
        report.regions.append(RegionEntry(f"region_{n}", [name], [name], EINSUM, {"W": FORMAT}, notes=[note]))
        report.dense.append(DenseEntry(f"softmax_{n}", "softmax", name, "w" * 300))
        report.conversions.append(ConversionEntry("W", name, FORMAT, 1, n + 0.5))
        report.weights.append(WeightEntry(name, FORMAT, 4096, 1024 + n))
        report.roundings.append(RoundingEntry(name, "bfloat16", 0.1 * n, 0.01))
        report.orders.append(OrderEntry(name, "rcm", "edge_index"))
        report.chains.append(ChainEntry(f"conv_{n}", name, "conv2d, relu", "NHWC", {"NCHW": n + 0.5}))
        report.warnings.append(f"{name} stays dense: {'no reason ' * 30}")
    report.warnings.append(", ".join(WEIGHTS))
    return report


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_lines_fit_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = str(long_report())
    assert max(map(len, text.splitlines())) <= columns
    flat = "".join(text.split())
    assert "param:bert.encoder.layer.{0-11}.attention.self.key.weight(12)" in flat
    assert "region_{1...45}(12)" in flat


def test_nothing_is_lost(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    report = long_report()
    page = report.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.dumps(report.to_dict())
    for name in (*WEIGHTS, *(f"region_{n}" for n in range(48)), "x49[1] = 7"):
        assert name in data
        assert name in page


class Deep(nn.Module):
    """Eight equal layers under long names."""

    def __init__(self):
        super().__init__()
        self.layers_with_long_names = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x):
        for layer in self.layers_with_long_names:
            x = layer(x).relu()
        return x


def test_reports_of_models(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rule = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.9}, "format": "csr"}
    recipe = {"schema": 1, "name": "pruned", "sparsify": [rule]}
    sparse = sparsify.apply(Deep().eval(), recipe, torch.randn(4, 16))
    assert max(map(len, str(sparse.report).splitlines())) <= 80
    assert "param:layers_with_long_names.{0-7}.weight (8)" in str(sparse.report)
    model = sparsify.explain(sparse).split("\n\n\n")[0]
    assert max(map(len, model.splitlines())) <= 80


def test_many_warnings_are_one_line(monkeypatch):
    from sparsify.passes.module import capture_call

    drafted = capture_call.drafted

    def warning(*args, **kwargs):
        draft = drafted(*args, **kwargs)
        draft.report.warnings.extend(f"{name} stays dense" for name in WEIGHTS)
        return draft

    monkeypatch.setattr(capture_call, "drafted", warning)
    with pytest.warns(
        RuntimeWarning, match=r"layer.{0-11}.attention.self.query.weight stays dense \(12\)"
    ) as found:
        sparse = sparsify.apply(nn.Linear(2, 2).eval(), {"schema": 1, "name": "none"}, torch.ones(1, 2))
    assert len(str(found[0].message)) < 400
    assert len(sparse.report.warnings) == len(WEIGHTS)
