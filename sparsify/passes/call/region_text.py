"""The sections of a region: replaced nodes, program and stages of its kernels.

In: a `RegionCall` and its entry in the report. Out: a `Section`, printable and convertible to plain data.
"""

from collections.abc import Iterator

from sparsify.compiler.explain import Section, explain_kernel
from sparsify.passes.call.region_call import RegionCall
from sparsify.report import RegionEntry


def region_section(region: RegionCall, entry: RegionEntry, which: str) -> Section:
    """The section of a region; `which` distinguishes the variants of a model."""
    scopes = ", ".join(dict.fromkeys(scope.split(".")[0] for scope in entry.scopes))
    found = []
    if region.origin is not None:
        found = [Section("graph", region.origin.graph), Section("marked", region.origin.marked)]
    sources = region.origin.sources if region.origin is not None else {}
    cost = "\n".join(cost_lines(entry))
    if region.library is None:
        found += explain_kernel(region.kernel, sources=sources, cost=cost)
    else:
        found.append(Section("cost", cost))
    return Section(f"{entry.name} of {scopes or 'the model itself'}{which}", inner=tuple(found))


def cost_lines(entry: RegionEntry) -> Iterator[str]:
    """Expected and measured times of a region, and the decisions about it."""
    if entry.estimated_us is not None:
        yield f"estimated {entry.estimated_us:.0f} us a call"
    if entry.measured_us is not None:
        yield f"measured {entry.measured_us:.0f} us a call"
    yield from entry.notes
