"""The contents of a report page, as plain data.

In: what a report, a measurement and the stages of kernels say. Out: `Page`, which `html.write` renders. What nobody has
measured is `None`, and the page shows how to measure it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the first screen: what it says, the value, where it comes from. Without a value: how to get one."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A text of a region, such as its loops; pages hold equal texts once."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class RegionPanel:
    """A sparse region: its name, the modules it is of, its einsum, formats of operands, notes and stages."""

    name: str
    where: str
    einsum: str
    formats: Mapping[str, str]
    notes: Sequence[str] = ()
    stages: Sequence[Stage] = ()


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operator of the model's graph; `region` is the name of the region that it calls, "" for dense operators."""

    name: str
    operator: str
    shape: str
    where: str
    inputs: Sequence[str] = ()
    region: str = ""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer: what it reads sparse or why it is dense, bytes, milliseconds before and after.

    `zeros` are the shares of zeros of its sparse tensors.
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
    """A piece of the time of a call, in microseconds from its start; `region` is "" for dense operators."""

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
        stages: of each region, by its name.
        nodes: of the graph, in its order.
        shapes: of parameters, by name.
        spies: of the sparse operands of the call.
        spans, dense_spans: of the call, and of the leaf modules of the dense model.
        dense_ms: the time of each module of the dense model, by its path.
        works, roof: of regions, and of the machine.
        faster, differs: lines of the first screen.
        recipe: as YAML.
        command: that makes the page again.
        versions: of packages, and the machine.
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
        title, subtitle: its head.
        facts: the first screen.
        warnings: of the report.
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
