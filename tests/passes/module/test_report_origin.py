"""What pages show of a model: its graph, stages, and a call."""

import gc
import json

import pytest
import torch
from torch import nn

import sparsify
from sparsify.errors import SparsifyError
from tests.page.pages import checked

RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {
            "targets": ["param:first.weight"],
            "format": "csr",
            "prune": {"method": "magnitude", "sparsity": 0.9},
        }
    ],
}


class Net(nn.Module):
    """A product with a pruned weight, a norm, a dense product."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 48), nn.BatchNorm1d(48), nn.Linear(48, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


@pytest.fixture
def applied():
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    return sparsify.apply(Net().eval(), RECIPE, (x,)), x


def test_a_page_without_inputs_has_graph_and_stages(applied, tmp_path):
    sparse, _ = applied
    page = checked(sparse.report.to_html(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert sparse.report.regions
    assert "region_1" in page.ids and "C++" in page.text and "extern" in page.text
    assert "call" not in page.ids  # nothing was run
    assert page.text.count("not known") == 1  # the times
    assert "sparsity: 0.9" in page.text


@pytest.mark.sampled(2)
def test_a_page_with_inputs_has_times_patterns_and_the_difference(applied, tmp_path):
    sparse, x = applied
    before = sparse(x)
    details = sparse.report.origin.details(x)
    (spy,) = details.spies
    weight = dict(sparse.named_parameters())["first.weight"]
    assert (spy.stored, spy.entries) == (round(0.1 * 64 * 48), 64 * 48)
    assert sum(map(sum, spy.cells)) == pytest.approx(spy.stored)  # a cell for each entry
    assert tuple(weight.shape) in {(48, 64), (64, 48)}
    assert {span.region for span in details.spans if span.region} == {"region_1"}
    assert {"first", "norm", "last", ""} <= set(details.dense_ms)
    assert [span.name for span in details.dense_spans] == ["Linear", "BatchNorm1d", "Linear"]
    page = checked(sparse.report.to_html(tmp_path / "page.html", inputs=x).read_text(encoding="utf-8"))
    assert "not known" not in page.text
    assert {"call", "sparsity", "layers"} <= set(page.ids)
    assert torch.equal(sparse(x), before)


class Broken(Net):
    """Asks for a number between two layers: no graph holds it whole."""

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        if hidden.sum().item() > 1e9:
            print("large")
        return self.last(hidden)


@pytest.mark.sampled(3)
def test_a_page_of_pieces_has_the_graph_and_stages_of_each(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    with pytest.warns(RuntimeWarning, match="pieces that torch.compile finds"):
        sparse = sparsify.apply(Broken().eval(), RECIPE, (x,))
    report = sparse.report
    assert [region.name for region in report.regions] == ["piece 1.region_1"]
    details = report.origin.details(x)
    assert {node.region for node in details.nodes} == {"", "piece 1.region_1"}
    names = {node.name for node in details.nodes}
    assert all(name in names for node in details.nodes for name in node.inputs)
    assert "C++" in [stage.title for stage in details.stages["piece 1.region_1"]]
    assert details.faster and details.differs and not details.spans
    page = checked(report.to_html(tmp_path / "page.html", x).read_text(encoding="utf-8"))
    assert "extern" in page.text and "keep dense parameters beside those that they pack" in page.text
    events = json.loads(report.to_trace(tmp_path / "trace.json", x).read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert sum(name.startswith("piece 1.region_1: ") for name in names) == 1
    assert any(name.startswith("aten::") for name in names)


def test_work_is_counted(applied):
    sparse, x = applied
    (work,) = sparse.report.origin.details(x, compares=False).works
    stored = round(0.1 * 64 * 48)
    assert work.operations >= 2 * 8 * stored
    assert work.operations < 2 * 8 * 64 * 48


def test_a_trace_has_the_names_of_regions(applied, tmp_path):
    sparse, x = applied
    path = sparse.report.to_trace(tmp_path / "trace.json", x)
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert any(name.startswith("region_1: ") for name in names)
    assert any(name.startswith("aten::") for name in names)


@pytest.mark.sampled(2)
def test_buffers_and_modes_stay(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    sparse = sparsify.apply(Net().train(), RECIPE, (x,))
    before = {name: value.clone() for name, value in sparse.named_buffers()}
    state = torch.get_rng_state()
    sparse.report.to_html(tmp_path / "page.html", inputs=(x,))
    assert sparse.training and torch.equal(torch.get_rng_state(), state)
    for name, value in sparse.named_buffers():
        assert torch.equal(value, before[name]), name


def test_wrong_inputs_say_what_to_give(applied, tmp_path):
    sparse, x = applied
    with pytest.raises(SparsifyError, match="inputs"):
        sparse.report.to_html(tmp_path / "page.html", inputs=(x, x, x))


def test_a_report_outlives_its_model(tmp_path):
    report = sparsify.apply(Net().eval(), RECIPE, (torch.randn(8, 64),)).report
    gc.collect()
    assert "origin" not in report.to_dict()
    checked(report.to_html(tmp_path / "page.html").read_text(encoding="utf-8"))
    with pytest.raises(SparsifyError, match="of no model"):
        report.to_html(tmp_path / "page.html", inputs=(torch.randn(8, 64),))
