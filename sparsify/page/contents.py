"""The contents of a report page, as plain data.

In: facts of a report, a measurement and the stages of kernels. Out: `Page`, rendered by `html.write`. Quantities not
measured are `None`; the page then shows how to measure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the first screen: label, value, and origin of the value (without a value: how to get one)."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A text of a region, as the loops; equal texts are stored once in a page."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class RegionPanel:
    """A sparse region: name, modules, einsum, formats of operands, notes and stages."""

    name: str
    where: str
    einsum: str
    formats: Mapping[str, str]
    notes: Sequence[str] = ()
    stages: Sequence[Stage] = ()


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operator of the model's graph; `region` is the name of the called region, "" for dense operators."""

    name: str
    operator: str
    shape: str
    where: str
    inputs: Sequence[str] = ()
    region: str = ""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer: sparse operands or the reason for staying dense, bytes, milliseconds before and after.

    `zeros` are the shares of zeros of the layer's sparse tensors.
    """

    name: str
    region: str = ""
    shape: str = ""
    zeros: Sequence[float] = ()
    format: str = ""
    bytes_before: int | None = None
    bytes_after: int | None = None
    ms_before: float | None = None
    ms_after: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SpyPlot:
    """The entries of a sparse tensor: shares of stored entries in the cells of a coarse grid, row by row."""

    name: str
    region: str
    shape: str
    stored: int
    entries: int
    cells: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a call, in microseconds from the start of the call; `region` is "" for dense operators."""

    name: str
    start_us: float
    us: float
    where: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a region in a call: arithmetic operations and bytes."""

    region: str
    operations: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Roof:
    """Peak rates of a machine in a microsecond: arithmetic operations, and bytes from memory."""

    operations: float
    bytes: float
    is_measured: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """A further table of a report."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(slots=True)
class Details:
    """Details beyond a report: graph, stages, and observations of a call.

    Attributes:
        stages: stages of each region, by name.
        nodes: nodes of the graph, in graph order.
        shapes: shapes of parameters, by name.
        spies: spy plots of the sparse operands of the call.
        spans, dense_spans: spans of the call, and of the leaf modules of the dense model.
        dense_ms: the time of each module of the dense model, by path.
        works, roof: work of regions, and limits of the machine.
        faster, differs: lines of the first screen.
        recipe: recipe as YAML.
        command: command to make the page again.
        versions: versions of packages, and the machine.
    """

    stages: dict[str, Sequence[Stage]] = field(default_factory=dict)
    nodes: Sequence[GraphNode] = ()
    shapes: Mapping[str, str] = field(default_factory=dict)
    spies: Sequence[SpyPlot] = ()
    spans: Sequence[Span] = ()
    dense_spans: Sequence[Span] = ()
    dense_ms: Mapping[str, float] = field(default_factory=dict)
    works: Sequence[Work] = ()
    roof: Roof | None = None
    faster: Fact | None = None
    differs: Fact | None = None
    recipe: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """All of a page.

    Attributes:
        title, subtitle: head of the page.
        facts: the first screen.
        warnings: warnings of the report.
        regions, layers, listings: text and tables.
        details: graph, call and machine.
    """

    title: str
    subtitle: str
    facts: Sequence[Fact]
    warnings: Sequence[str]
    regions: Sequence[RegionPanel]
    layers: Sequence[LayerRow]
    listings: Sequence[Listing]
    details: Details
