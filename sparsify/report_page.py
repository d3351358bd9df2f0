"""The page of a report: first lines, layers and tables, from a report and the details of a model.

In: `page_of(report, Details())`. Out: a `Page` for `sparsify.page.html`. Every number comes from the report or from the
details.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sparsify.page.contents import Details, Fact, LayerRow, Listing, Page, RegionPanel, Span
from sparsify.page.drawings import size

if TYPE_CHECKING:
    from sparsify.report import DenseEntry, RegionEntry, Report

TIMED: Final = (
    "nobody has timed the models: `sparsify run MODEL --html PATH` does, and `to_html(PATH, inputs=(x, ...))`"
)
UNCAPTURED: Final = "no graph is captured yet: call the model once, or give apply example inputs"
IN_PIECES: Final = "the model runs in pieces, which keep dense parameters beside those that they pack"
COMPARED: Final = "outputs were not compared: give apply verify=True, or to_html inputs of a call"


def page_of(report: "Report", details: Details) -> Page:
    """The page of a report."""
    return Page(
        title=f"{report.model or 'model'} with {report.recipe or 'recipe'}",
        subtitle=report.coverage,
        facts=(details.faster or Fact("Faster by", "", TIMED), smaller(report), differs(report, details)),
        warnings=report.warnings,
        regions=[panel(entry, details) for entry in report.regions],
        layers=layers_of(report, details),
        listings=listings(report),
        details=details,
    )


def listings(report: "Report") -> list[Listing]:
    """Lines and tables of the report not shown elsewhere on the page."""
    _, *lines = [line for line in report.lines(", ".join) if not line.startswith("warning: ")]
    remarks = [Listing("Remarks", ("remark",), [[line] for line in lines])] if lines else []
    tables = [
        table for table in report.tables(", ".join) if table[0] not in ("Regions", "Weights", "Left dense")
    ]
    return [*remarks, *(Listing(title, headers, rows) for title, headers, rows in tables)]


def smaller(report: "Report") -> Fact:
    """The line of the page on smaller parameters."""
    if report.parameter_bytes is None:
        return Fact("Smaller by", "", IN_PIECES if report.pieces else UNCAPTURED)
    before, after = report.parameter_bytes
    peak = ""
    if report.peak_bytes and report.dense_peak_bytes:
        peak = f"; tensors of a call {size(report.dense_peak_bytes)} dense, {size(report.peak_bytes)} now"
    ratio = f"{before / after:.2f}x" if after else ""
    return Fact("Smaller by", ratio, f"parameters {size(before)} dense, {size(after)} held{peak}")


def differs(report: "Report", details: Details) -> Fact:
    """The line of the page on the largest difference of outputs."""
    if details.differs is not None:
        return details.differs
    if report.largest_error is None:
        return Fact("Differs by", "", COMPARED)
    sample = "" if report.compared_rows is None else f", in a sample of {report.compared_rows} rows"
    return Fact(
        "Differs by", f"{report.largest_error:.2g}", f"largest difference of an output, by apply{sample}"
    )


def panel(entry: "RegionEntry", details: Details) -> RegionPanel:
    """A region with stages."""
    times = [
        f"{verb} {value:.1f} us a call"
        for verb, value in (("estimated", entry.estimated_us), ("measured", entry.measured_us))
        if value is not None
    ]
    notes = [", ".join(times)] if times else []
    where = ", ".join(dict.fromkeys(entry.scopes)) or "the model itself"
    stages = details.stages.get(entry.name, ())
    return RegionPanel(entry.name, where, entry.einsum, entry.formats, [*notes, *entry.notes], stages)


def layers_of(report: "Report", details: Details) -> list[LayerRow]:
    """A row for each sparse region, then one for each node left dense."""
    scopes = {entry.name: entry.scopes for entry in report.regions}
    sparse = [sparse_layer(report, entry, details, scopes) for entry in report.regions]
    return [*sparse, *(dense_layer(report, entry, details, scopes) for entry in report.dense)]


Scopes = Mapping[str, Sequence[str]]


def sparse_layer(report: "Report", entry: "RegionEntry", details: Details, scopes: Scopes) -> LayerRow:
    """The row of a region: weights or else sparse operands, and the innermost common module."""
    scope = ancestor(entry.scopes)
    spies = [spy for spy in details.spies if spy.region == entry.name]
    known = {held.name: held for held in report.weights}
    zeros = {pruned.name: pruned.zeros for pruned in report.pruned}
    weights = [name for name in {**known, **zeros} if name.rpartition(".")[0] in entry.scopes]
    held = [known[name] for name in weights if name in known]
    shares = [zeros[name] for name in weights if name in zeros]
    shares = shares or [1 - spy.stored / spy.entries for spy in spies if spy.entries]
    shapes = [details.shapes[name] for name in weights if name in details.shapes] or [s.shape for s in spies]
    return LayerRow(
        scope or "the model itself",
        entry.name,
        "; ".join(shapes),
        shares,
        "; ".join(entry.formats.values()),
        sum(one.bytes_before for one in held) if held else None,
        sum(one.bytes_after for one in held) if held else None,
        details.dense_ms.get(scope),
        after_ms(scope, details.spans, scopes),
        "; ".join(entry.notes[:1]),
    )


def dense_layer(report: "Report", entry: "DenseEntry", details: Details, scopes: Scopes) -> LayerRow:
    """The row of a node left dense, with the reason."""
    zeros = {pruned.name: pruned.zeros for pruned in report.pruned}
    is_timed = bool(entry.scope)
    return LayerRow(
        entry.scope or entry.node,
        shape=details.shapes.get(entry.node, ""),
        zeros=[zeros[entry.node]] if entry.node in zeros else (),
        format="dense",
        ms_before=details.dense_ms.get(entry.scope) if is_timed else None,
        ms_after=after_ms(entry.scope, details.spans, scopes) if is_timed else None,
        reason=f"{entry.op}: {entry.reason}",
    )


def ancestor(scopes: Iterable[str]) -> str:
    """The path of the innermost module that contains all given modules.

    >>> ancestor(["layer.0.output", "layer.0.output.dense"])
    'layer.0.output'
    """
    paths = [scope.split(".") for scope in scopes]
    depth = 0
    while all(len(path) > depth and path[depth] == paths[0][depth] for path in paths) and paths:
        depth += 1
    return ".".join(paths[0][:depth]) if paths else ""


def after_ms(scope: str, spans: Sequence[Span], scopes: Scopes) -> float | None:
    """Time of the spans in place of a module; `None` if a region extends beyond the module."""
    total, is_any = 0.0, False
    for span in spans:
        inside = [is_within(one, scope) for one in scopes.get(span.region, [span.where])]
        if any(inside):
            if not all(inside):
                return None
            total, is_any = total + span.us, True
    return total / 1e3 if is_any else None


def is_within(path: str, scope: str) -> bool:
    """Whether the module `path` equals `scope` or lies inside of `scope`."""
    return not scope or path == scope or path.startswith(f"{scope}.")
