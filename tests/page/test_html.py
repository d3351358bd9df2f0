"""Pages of reports: well-formed, self-contained, escaped, small; what a browser makes of them."""

import shutil
import subprocess
import zlib

import pytest

from sparsify.errors import SparsifyError
from sparsify.page import html
from sparsify.page.contents import Details, GraphNode, Roof, Span, SpyPlot, Stage, Work
from sparsify.page.drawings import percent, roofline, size, timeline
from sparsify.page.graph import lines_of, tracks_of
from sparsify.page.png import png
from sparsify.report import PrunedEntry, RegionEntry, Report, WeightEntry
from sparsify.report_page import after_ms, page_of

from .pages import checked

HOSTILE = '<script>alert("1")</script>&amp;'
LOOPS = "parallel forall i:\n  forall p < 3:  // rows\n    y[i] += 2.5 * x[p]"


def report(regions: int = 2) -> Report:
    found = Report(model=f"Net{HOSTILE}", recipe="mine", parameter_bytes=(4096, 1024), largest_error=1.5e-6)
    for number in range(1, regions + 1):
        name, scope = f"region_{number}", f"layer.{number}"
        found.regions.append(
            RegionEntry(name, ["mm"], [scope], "y[i] = A[i,j] * x[j]", {"A": "dense, compressed"})
        )
        found.weights.append(WeightEntry(f"{scope}.weight", "csr", 4096, 1024))
        found.pruned.append(PrunedEntry(f"{scope}.weight", "weights", 0.9))
    found.left_dense("softmax", "softmax", "head", f"needs {HOSTILE}")
    found.warnings.append(f"mind {HOSTILE}")
    return found


def details(regions: int = 2) -> Details:
    names = [f"region_{number}" for number in range(1, regions + 1)]
    nodes = [GraphNode("x", "input", "float32[n]", "x")]
    for number, name in enumerate(names, 1):
        nodes.append(
            GraphNode(
                f"call_{number}", "call_region", "float32[n]", f"layer.{number}", [nodes[-1].name], name
            )
        )
    nodes.append(GraphNode("output", "output", "", "", [nodes[-1].name, "x"]))
    spans = [Span(name, 10.0 * at, 10.0, f"layer.{at + 1}", name) for at, name in enumerate(names)]
    return Details(
        stages={name: [Stage("schedule", "order i, j"), Stage("C++", LOOPS)] for name in names},
        nodes=nodes,
        shapes={f"layer.{n}.weight": "float32[32, 32]" for n in range(1, regions + 1)},
        spies=[SpyPlot(HOSTILE, "region_1", "4 x 4", 2, 16, ((0.5, 0.0), (0.0, 0.5)))],
        spans=spans,
        dense_spans=[Span("Linear", 0.0, 40.0, "layer.1")],
        dense_ms={"layer.1": 0.04},
        works=[Work("region_1", 2000.0, 400.0)],
        roof=Roof(80_000.0, 12_000.0, True),
        recipe=f"name: {HOSTILE}\n",
        command="sparsify run net --html page.html",
        versions={"torch": "2.13.0"},
    )


def test_a_page_is_well_formed_and_loads_nothing():
    page = checked(html.render(page_of(report(), details())))
    assert page.tags.count("script") == 1
    assert {"region_1", "region_2", "graph", "layers", "call", "sparsity", "again"} <= set(page.ids)
    assert page.text.count(HOSTILE) >= 4  # as text: title, warning, reason, recipe


def test_values_are_those_of_the_report():
    page = checked(html.render(page_of(report(), details())))
    for part in ("4.00x", "parameters 4.0 KiB dense, 1.0 KiB held", "1.5e-06", "90.0 %", "0.040", "0.010"):
        assert part in page.text, part
    for part in ("sparsify run net --html page.html", "torch 2.13.0", "softmax: needs", "float32[32, 32]"):
        assert part in page.text, part


def test_what_is_not_known_says_how_to_get_it():
    text = checked(html.render(page_of(Report(model="GCN"), Details()))).text
    assert text.count("not known") == 3
    assert "sparsify run MODEL --html PATH" in text and "verify=True" in text


def test_a_page_of_many_regions_is_small_and_has_equal_kernels_once():
    text = html.render(page_of(report(200), details(200)))
    page = checked(text)
    assert text.count("y[i] += 2.5") == 1
    assert len(page.stages) == 400 and len(set(page.stages)) == 2
    assert len(text) < 500_000


def test_texts_beyond_the_limit_are_left_out_with_the_command(monkeypatch):
    monkeypatch.setattr(html, "MOST_CHARACTERS", 40)
    text = checked(html.render(page_of(report(), details()))).text
    assert "sparsify explain MODEL --region 1 prints it" in text
    assert LOOPS.splitlines()[0] not in text


def test_a_path_that_cannot_be_written(tmp_path):
    with pytest.raises(SparsifyError, match="cannot write a report page to"):
        report().to_html(tmp_path)
    with pytest.raises(SparsifyError, match="of no model"):
        report().to_html(tmp_path / "a.html", inputs=(1,))


def test_lines_join_dense_operators_of_a_module():
    nodes = [
        GraphNode("x", "input", "", "x"),
        GraphNode("a", "view", "", "m", ["x"]),
        GraphNode("b", "view", "", "m", ["a"]),
        GraphNode("r", "region", "", "m", ["b"], "region_1"),
        GraphNode("c", "add", "", "m", ["r", "x"]),
    ]
    lines = lines_of(nodes)
    assert [(line.text, line.count, line.reads) for line in lines] == [
        ("input", 1, ()),
        ("view x2", 2, (0,)),
        ("region_1", 1, (1,)),
        ("add", 1, (0, 2)),
    ]
    (track,) = tracks_of(lines)
    assert (track.first, track.last, track.column, track.readers) == (0, 3, 0, (1, 3))


def test_times_of_layers_are_those_of_all_that_runs_in_their_place():
    spans = [
        Span("r", 0.0, 30.0, "", "region_1"),
        Span("norm", 30.0, 10.0, "a.norm"),
        Span("r", 40.0, 5.0, "", "region_2"),
    ]
    scopes = {"region_1": ["a.lin", "a"], "region_2": ["b", "c"]}
    assert after_ms("a", spans, scopes) == pytest.approx(0.04)
    assert after_ms("a.lin", spans, scopes) is None  # the region does more
    assert after_ms("b", spans, scopes) is None
    assert after_ms("d", spans, scopes) is None


def test_pictures():
    file = png(((1.0, 0.0, 0.25),), (1, 2, 3))
    at = file.index(b"IDAT")
    assert zlib.decompress(file[at + 4 : -16]) == b"\0" + bytes([15 << 4, 8 << 4])
    drawn = roofline([Work("region_1", 100.0, 100.0)], {"region_1": 1.0}, Roof(1000.0, 100.0, True))
    assert drawn is not None
    (dot,) = drawn.dots
    assert (
        "0.1 GFLOP/s, 1 operations a byte" in dot.title
    )  # on the slope of the roof, which is 100 bytes a microsecond
    corners = [tuple(map(float, point.split(","))) for point in drawn.roof.split()]
    (x0, y0), (x1, y1), _ = corners
    on_slope = y0 + (dot.x - x0) * (y1 - y0) / (x1 - x0)
    assert dot.y == pytest.approx(on_slope, abs=0.2)
    dense, sparse = timeline([Span("a", 0.0, 40.0)], [Span("b", 0.0, 10.0, "", "region_1")])
    assert (dense.bars[0].width, sparse.bars[0].width, sparse.length) == (100.0, 25.0, "10 us")
    assert roofline([], {}, None) is None and timeline([], []) == []


def test_numbers():
    assert [percent(share) for share in (0.0, 1.0, 0.99972, 0.5)] == ["0.0 %", "100.0 %", "99.97 %", "50.0 %"]
    assert [size(n) for n in (512, 3 << 20, 5 << 30)] == ["0.5 KiB", "3.00 MiB", "5.00 GiB"]


def browser() -> str:
    """The path of Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium is installed")


CLICK = """
<script>
for (const line of document.querySelectorAll(".graph a")) if (line.hash === "#region_2") line.click();
</script>
"""


def test_a_browser_opens_the_region_that_is_chosen(tmp_path):
    path = browser()
    page = report().to_html(tmp_path / "page.html")
    page.write_text(
        html.render(page_of(report(), details())).replace("</body>", f"{CLICK}</body>"), encoding="utf-8"
    )
    command = [path, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    line = done.stdout[done.stdout.index('<li class="sparse chosen">') :]
    assert line.index("region_2") < line.index("</li>")
    article = done.stdout[done.stdout.index('<article id="region_2">') :].partition("</article>")[0]
    schedule = article[article.index('class="schedule"') :].partition("</details>")[0]
    assert 'open=""' in schedule and "order i, j" in schedule
