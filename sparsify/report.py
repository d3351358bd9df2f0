"""The report on a model: its sparse regions, the nodes left dense, conversions, rules and timings.

In: the passes fill a `Report`. Out: `print(report)`, `report.to_dict()`, `report.to_html("report.html")`, which
`report_page` fills.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sparsify.errors import SparsifyError
from sparsify.page.contents import Details
from sparsify.report_text import fitted, fold, fold_rows, terminal_width, wrapped

NO_MODEL: Final = "this report is of no model that could be called"
HOW: Final = "use the report of what sparsify.apply returned, sparse.report, while that is alive"


@dataclass(slots=True)
class RegionEntry:
    """One fused region.

    Attributes:
        name: the region's name in the graph.
        nodes: the names of the graph nodes that it replaced.
        scopes: the module scopes of these nodes.
        einsum: the einsum program, printed.
        formats: per sparse operand its format.
        kernel: the key of its kernel, "" before the kernel exists.
        cache: `hit` or `miss`, "" when not built yet.
        estimated_us: what the cost model expects, None when it has no estimate.
        measured_us: the median of measured calls, None when not measured.
        notes: decisions worth reading, such as the chosen order of products.
    """

    name: str
    nodes: list[str]
    scopes: list[str]
    einsum: str
    formats: dict[str, str] = field(default_factory=dict)
    kernel: str = ""
    cache: str = ""
    estimated_us: float | None = None
    measured_us: float | None = None
    notes: list[str] = field(default_factory=list)


class Choice(str):
    """A reason to stay dense that is a choice: sparse would be slower or larger, or no rule asks for it."""

    __slots__ = ()


@dataclass(slots=True)
class DenseEntry:
    """A node that a rule or a sparse operand reached and that stays dense, with the reason.

    `chosen`: dense is faster or smaller, or no rule asks for more; otherwise there is no sparse form, `apply` warns.
    """

    node: str
    op: str
    scope: str
    reason: str
    chosen: bool = False


@dataclass(slots=True)
class ConversionEntry:
    """A conversion at the border of a region: how often it ran, how long it took, and the bytes of dense operands."""

    name: str
    source: str
    target: str
    count: int = 0
    total_us: float = 0.0
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def bytes_text(self) -> str:
        """Bytes of dense operands before and after, nothing where there were none."""
        return f"{kibibytes(self.bytes_before)} -> {kibibytes(self.bytes_after)}" if self.bytes_before else ""


@dataclass(slots=True)
class ChainEntry:
    """A convolution that stays torch's, with what follows it, in the form that was timed to be fastest.

    Attributes:
        node, scope: of the convolution.
        operators: all of them.
        form: in which it runs where no gradients are wanted.
        times_us: of each form.
        is_agreed: whether other work left the times alone.
        bytes_beside: of weights in that form, beside those of the model.
    """

    node: str
    scope: str
    operators: str
    form: str
    times_us: dict[str, float]
    is_agreed: bool = True
    bytes_beside: int = 0

    @property
    def timed(self) -> str:
        """The times in words."""
        times = ", ".join(f"{form} {us:.0f}" for form, us in self.times_us.items())
        return times if self.is_agreed else f"{times} (other work disturbed it)"


@dataclass(slots=True)
class WeightEntry:
    """A weight that kernels read packed: how the model holds it, and the bytes before and after."""

    name: str
    format: str
    bytes_before: int
    bytes_after: int


@dataclass(slots=True)
class RoundingEntry:
    """A weight whose values are stored in a narrow dtype, and how far rounding moved it.

    Attributes:
        name: of the weight.
        dtype: of its values.
        largest: the largest difference of an entry.
        relative: the norm of the difference over that of the weight.
    """

    name: str
    dtype: str
    largest: float
    relative: float


@dataclass(slots=True)
class PrunedEntry:
    """A weight that a rule pruned, and the share of its entries that are 0 then."""

    name: str
    rule: str
    zeros: float


@dataclass(slots=True)
class CalibrationEntry:
    """The calibration data of one-shot pruning, and the errors of layers.

    Attributes:
        digest: SHA-256 of the tensors of the data.
        samples, length: rows of the inputs, and their second mode, 0 without.
        split: the data that results are evaluated on, "" where the recipe does not say it.
        scope: among which entries a share of zeros is kept.
        layers: by name of the weight the method and `||X W^T - X W'^T|| / ||X W^T||`, None where it was not measured.
    """

    digest: str
    samples: int
    length: int
    split: str
    scope: str
    layers: dict[str, tuple[str, float | None]] = field(default_factory=dict)

    def __str__(self) -> str:
        size = f" of {self.length}" if self.length else ""
        return (
            f"calibration: {self.samples} samples{size}, sha256 {self.digest[:16]}, {len(self.layers)} weights, "
            f"{self.scope}, evaluation split: {self.split or 'not said'}"
        )


@dataclass(slots=True)
class PassedEntry:
    """A parameter that a rule selects and did not prune, and why; `rule` is "" for a matrix that no rule names."""

    name: str
    rule: str
    reason: str


@dataclass(slots=True)
class OrderEntry:
    """The order in which the nodes of a graph are visited.

    Attributes:
        name: of the message passing steps that follow it.
        method: `rcm`, `degree` or `metis`.
        source: what the edges follow from.
        distances: the mean of |row - column| over the entries, before and after.
        seconds: how long the order took to compute; 0 as long as nothing was computed.
        columns: how many numbers of each node a call permutes, on the way in and on the way out.
        gather_us: how long it takes to permute that many.
    """

    name: str
    method: str
    source: str
    distances: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    columns: tuple[int, int] = (0, 0)
    gather_us: float | None = None


PIECES = ("piece", "nodes", "regions", "why the graph broke", "note")


@dataclass(slots=True)
class PieceEntry:
    """A graph between two breaks, of a model that no graph holds whole.

    Attributes:
        name: in the report.
        nodes: how many operators it has.
        regions: how many kernels; 0 where it runs as the model has it.
        cut: why it ends before the model does, "" for one that does not.
        note: why it runs as the model has it, "" where it has no region.
    """

    name: str
    nodes: int
    regions: int
    cut: str
    note: str = ""

    def cells(self) -> list[str]:
        """A row of the report."""
        return [self.name, str(self.nodes), str(self.regions), self.cut, self.note]


@dataclass(slots=True)
class RuleEntry:
    """The matches of a rule of the recipe."""

    rule: str
    where: str
    matched: list[str]
    note: str = ""


class Origin:
    """The model that a report is of, as far as the page of the report wants to know more of it; here of none."""

    def details(self, inputs: Any = None, *, compares: bool = True) -> Details:
        """Details of the page besides the report.

        Args:
            inputs: of a call to look at, None for none.
            compares: whether calls of both models are timed and their outputs compared.

        Raises:
            SparsifyError: there is no model for the inputs.
        """
        if inputs is not None:
            raise SparsifyError(NO_MODEL, HOW)
        return Details()

    def trace(self, path: str | Path, inputs: Any) -> Path:
        """Writes the trace of a call.

        Raises:
            SparsifyError: there is no model.
        """
        raise SparsifyError(NO_MODEL, HOW)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Origin":
        return self


@dataclass(slots=True)
class Report:
    """Everything that `apply` did to a model.

    `parameter_bytes` are those of all parameters, dense as they came and as the model holds them, `None` before a graph
    is captured. `peak_bytes` are those of the results and intermediates of a call that live at a time,
    `dense_peak_bytes` the same of the dense model; 0 where nothing was run. Calls whose graphs come for the first time
    and have at most `new_graphs` coordinates of edges run torch's operators; `by_torch` says why all do.
    `compared_rows` is the number of rows in which results were compared, `None` for all. Pages ask `origin` for more.

    >>> report = Report(model="GCN")
    >>> report.left_dense("softmax", "softmax", "", "no sparse operand")
    >>> report.to_dict()["dense"][0]["reason"]
    'no sparse operand'
    """

    model: str = ""
    recipe: str = ""
    regions: list[RegionEntry] = field(default_factory=list)
    dense: list[DenseEntry] = field(default_factory=list)
    conversions: list[ConversionEntry] = field(default_factory=list)
    orders: list[OrderEntry] = field(default_factory=list)
    weights: list[WeightEntry] = field(default_factory=list)
    roundings: list[RoundingEntry] = field(default_factory=list)
    pruned: list[PrunedEntry] = field(default_factory=list)
    passed_over: list[PassedEntry] = field(default_factory=list)
    calibration: CalibrationEntry | None = None
    chains: list[ChainEntry] = field(default_factory=list)
    parameter_bytes: tuple[int, int] | None = None
    peak_bytes: int = 0
    dense_peak_bytes: int = 0
    new_graphs: int = 0
    by_torch: str = ""
    pieces: list[PieceEntry] = field(default_factory=list)
    rules: list[RuleEntry] = field(default_factory=list)
    specialised: list[str] = field(default_factory=list)
    largest_error: float | None = None
    compared_rows: int | None = None
    warnings: list[str] = field(default_factory=list)
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def left_dense(self, node: str, op: str, scope: str, reason: str) -> None:
        """Lists a node as dense; the first reason given for a node stays. One that is a `Choice` gives no warning."""
        if all(entry.node != node for entry in self.dense):
            self.dense.append(DenseEntry(node, op, scope, str(reason), isinstance(reason, Choice)))

    @property
    def coverage(self) -> str:
        """Coverage of the recipe, in one line."""
        matched = sum(1 for rule in self.rules if rule.matched)
        rules = f"{matched} of {len(self.rules)} rules matched"
        return f"{len(self.regions)} regions, {len(self.dense)} nodes left dense, {rules}"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, with `"schema": 1`."""
        data = asdict(replace(self, origin=None))
        del data["origin"]
        return {"schema": 1, "coverage": self.coverage, **data}

    def tables(self, names: Callable[[list[str]], str]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
        """Title, headers and rows of every table that has rows; `names` joins names."""
        regions = [
            [
                entry.name,
                entry.einsum,
                ", ".join(f"{name}: {text}" for name, text in entry.formats.items()),
                " ".join(part for part in (entry.kernel[:10], entry.cache) if part),
                microseconds(entry.estimated_us),
                microseconds(entry.measured_us),
                "; ".join(entry.notes),
            ]
            for entry in self.regions
        ]
        dense = [[entry.node, entry.op, entry.scope, entry.reason] for entry in self.dense]
        moves = [
            [
                c.name,
                f"{c.source} -> {c.target}",
                str(c.count),
                microseconds(c.total_us if c.count else None),
                c.bytes_text,
            ]
            for c in self.conversions
        ]
        orders = [
            [
                entry.name,
                f"{entry.source}, {entry.method}",
                f"{entry.seconds:.2f}",
                "{:.0f} -> {:.0f}".format(*entry.distances) if entry.seconds else "",
                "{} in, {} out".format(*entry.columns),
                microseconds(entry.gather_us),
            ]
            for entry in self.orders
        ]
        rules = [[entry.rule, entry.where, names(entry.matched), entry.note] for entry in self.rules]
        found = [
            ("Rules", ("rule", "where", "matched", "note"), rules),
            ("Pieces", PIECES, [entry.cells() for entry in self.pieces]),
            (
                "Regions",
                ("region", "einsum", "formats", "kernel", "estimated us", "measured us", "notes"),
                regions,
            ),
            ("Left dense", ("node", "operator", "scope", "reason"), dense),
            (
                "Convolutions of torch's",
                ("node", "scope", "operators", "runs", "timed us", "bytes beside"),
                [self.chain_row(entry) for entry in self.chains],
            ),
            *self.weight_tables(),
            (
                "Orders of nodes",
                ("for", "order", "seconds", "mean |row - column|", "columns permuted a call", "us"),
                orders,
            ),
            ("Conversions", ("operand", "conversion", "times", "total us", "bytes"), moves),
        ]
        return [(title, headers, rows) for title, headers, rows in found if rows]

    def chain_row(self, entry: ChainEntry) -> list[str]:
        """The cells of a convolution that stays torch's."""
        beside = kibibytes(entry.bytes_beside) if entry.bytes_beside else ""
        return [entry.node, entry.scope, entry.operators, entry.form, entry.timed, beside]

    def weight_tables(self) -> list[tuple[str, Sequence[str], list[list[str]]]]:
        """The tables of pruned, of packed and of rounded weights."""
        weights = [
            [held.name, held.format, kibibytes(held.bytes_before), kibibytes(held.bytes_after)]
            for held in self.weights
        ]
        roundings = [
            [moved.name, moved.dtype, f"{moved.largest:.3g}", f"{moved.relative:.2e}"]
            for moved in self.roundings
        ]
        pruned: dict[tuple[str, str], list[str]] = {}
        for taken in self.pruned:
            pruned.setdefault((taken.rule, f"{taken.zeros:.1%}"), []).append(taken.name)
        passed: dict[tuple[str, str], list[str]] = {}
        for entry in self.passed_over:
            passed.setdefault((entry.rule, entry.reason), []).append(entry.name)
        return [
            (
                "Pruned",
                ("rule", "zeros", "weights"),
                [[*key, ", ".join(names)] for key, names in pruned.items()],
            ),
            (
                "Not pruned",
                ("rule", "why", "parameters"),
                [[*key, ", ".join(n)] for key, n in passed.items()],
            ),
            (
                "Calibrated",
                ("weight", "method", "relative error"),
                [
                    [name, method, "" if error is None else f"{error:.3g}"]
                    for name, (method, error) in (self.calibration.layers if self.calibration else {}).items()
                ],
            ),
            ("Weights", ("weight", "held", "dense", "now"), weights),
            ("Rounded", ("weight", "values", "largest difference", "relative"), roundings),
        ]

    def lines(self, names: Callable[[list[str]], str]) -> Iterable[str]:
        """The report without its tables; `names` joins names."""
        yield f"{self.model or 'model'} with {self.recipe or 'recipe'}: {self.coverage}"
        if self.largest_error is not None:
            sample = "" if self.compared_rows is None else f", in a sample of {self.compared_rows} rows"
            yield f"largest difference to the dense model: {self.largest_error:.3g}{sample}"
        if self.calibration is not None:
            yield str(self.calibration)
        if self.weights and self.parameter_bytes is not None:
            before, after = self.parameter_bytes
            yield f"parameters: {kibibytes(before)} dense, {kibibytes(after)} held"
        if beside := sum(entry.bytes_beside for entry in self.chains):
            yield f"copies of weights for torch's convolutions, beside the parameters: {kibibytes(beside)}"
        if self.peak_bytes:
            dense = f", the dense model's {kibibytes(self.dense_peak_bytes)}" if self.dense_peak_bytes else ""
            yield f"tensors of a call: at most {kibibytes(self.peak_bytes)} at a time{dense}"
        if self.new_graphs:
            which = f" ({self.by_torch})" if self.by_torch else " that come for the first time"
            yield f"graphs of at most {self.new_graphs} coordinates of edges{which}: torch's operators"
        if self.specialised:
            yield "fixed by the capture: " + names(self.specialised)
        yield from (f"warning: {text}" for text in self.warnings)

    def text(self, width: int | None = None) -> str:
        """The report in lines of at most `width` characters, of the terminal's width without it.

        Names and rows that differ in numbers alone are one, with a count; `to_dict` and `to_html` have all of them.
        """
        columns = terminal_width() if width is None else width
        parts = ["\n".join(wrapped(line, columns) for line in self.lines(folded_names))]
        for title, headers, rows in self.tables(folded_names):
            parts.append(f"{title}\n{fitted(headers, fold_rows(rows), columns)}")
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def to_html(self, path: str | Path, inputs: Any = None) -> Path:
        """Writes the report as one self-contained page and returns its path.

        Args:
            path: of the file.
            inputs: of a call of the model, a tensor, a sequence or a mapping by name. The page then has the times of
                both models, the difference of their outputs, the time of each layer, patterns and a roofline.

        Raises:
            SparsifyError: the file cannot be written, the model is gone, or it does not run with the inputs.

        >>> page = Report(model="GCN").to_html("/dev/null")
        """
        from sparsify.page.html import write
        from sparsify.report_page import page_of

        return write(page_of(self, self._origin().details(inputs)), path)

    def to_trace(self, path: str | Path, inputs: Any) -> Path:
        """Writes the trace of a call, with the names of regions, for Perfetto and `chrome://tracing`; returns its path.

        Args:
            path: of the file, JSON trace events.
            inputs: of the call, a tensor, a sequence or a mapping by name.

        Raises:
            SparsifyError: as `to_html`.

        Source: Trace Event Format, Google, 2016; the events are those of `torch.profiler`.
        """
        return self._origin().trace(path, inputs)

    def _origin(self) -> "Origin":
        """The model that the report is of; of a report of no model, one that knows nothing more."""
        return self.origin or Origin()


def folded_names(names: list[str]) -> str:
    """Names in a list, those that differ in numbers alone as one."""
    return ", ".join(fold(names))


def microseconds(value: float | None) -> str:
    """A time in microseconds, or nothing."""
    return "" if value is None else f"{value:.1f}"


def kibibytes(value: int) -> str:
    """A number of bytes in KiB."""
    return f"{value / 1024:.1f} KiB"
