"""Reports: text, plain data and HTML hold the same facts."""

import json

from sparsify.report import ConversionEntry, RegionEntry, Report, RuleEntry


def example() -> Report:
    report = Report(model="GCN", recipe="gcn", specialised=["x[1] = 7"], largest_error=1.5e-6)
    report.regions.append(
        RegionEntry(
            "region_0",
            ["mm", "relu"],
            ["c1"],
            "Y[i,k] = relu(sum(j, A[i,j] * X[j,k]))",
            {"A": "dense(i) compressed(j)"},
            kernel="0123456789abcdef",
            cache="hit",
            estimated_us=12.5,
            notes=["A(XW)"],
        )
    )
    report.left_dense("softmax", "softmax", "c2", "needs <every> entry")
    report.left_dense("softmax", "softmax", "c2", "a later reason")
    report.conversions.append(ConversionEntry("A", "edge_index", "csr", 1, 250.0))
    report.rules.append(RuleEntry("adjacency", "gcn.yaml:9", ["op:message_passing"]))
    return report


def test_text_shows_every_fact():
    text = str(example())
    parts = [
        "1 regions, 1 nodes left dense, 1 of 1 rules matched",
        "relu(sum(j, A[i,j] * X[j,k]))",
        "dense(i) compressed(j)",
        "0123456789 hit",
        "12.5",
        "needs <every> entry",
        "edge_index -> csr",
        "250.0",
        "gcn.yaml:9",
        "x[1] = 7",
        "1.5e-06",
    ]
    for part in parts:
        assert part in text, part
    assert "a later reason" not in text


def test_plain_data_survives_json():
    data = json.loads(json.dumps(example().to_dict()))
    assert data["schema"] == 1
    assert data["regions"][0]["kernel"] == "0123456789abcdef"
    assert data["dense"] == [
        {"node": "softmax", "op": "softmax", "scope": "c2", "reason": "needs <every> entry", "chosen": False},
    ]


def test_html_is_escaped(tmp_path):
    page = example().to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "needs &lt;every&gt; entry" in page
    assert "<every>" not in page
    assert "region_0" in page


def test_an_empty_report_prints():
    assert str(Report()) == "model with recipe: 0 regions, 0 nodes left dense, 0 of 0 rules matched"
