"""The report on a model: its sparse regions, the nodes left dense, conversions, rules and timings.

In: a `Report` filled by the passes. Out: `print(report)`, `report.to_dict()`, `report.to_html("report.html")` (contents
by `report_page`).
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
        nodes: names of the graph nodes replaced by the region.
        scopes: module scopes of the replaced nodes.
        einsum: the einsum program, printed.
        formats: formats of the sparse operands, by name.
        kernel: the cache key of the kernel, "" before the kernel exists.
        cache: `hit` or `miss`, "" when not built yet.
        estimated_us: the cost model's estimate, None if unavailable.
        measured_us: the median of measured calls, None when not measured.
        notes: notable decisions, as the chosen order of products.
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
    """A reason for staying dense by choice: sparse would be slower or larger, or no rule selects the node."""

    __slots__ = ()


@dataclass(slots=True)
class DenseEntry:
    """A node left dense in spite of a rule or a sparse operand, with the reason.

    `chosen`: dense is faster or smaller, or no rule selects the node; otherwise there is no sparse form; `apply` warns.
    """

    node: str
    op: str
    scope: str
    reason: str
    chosen: bool = False


@dataclass(slots=True)
class ConversionEntry:
    """A conversion at the border of a region: number of runs, total time, and bytes of dense operands."""

    name: str
    source: str
    target: str
    count: int = 0
    total_us: float = 0.0
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def bytes_text(self) -> str:
        """Bytes of dense operands before and after, "" without dense operands."""
        return f"{kibibytes(self.bytes_before)} -> {kibibytes(self.bytes_after)}" if self.bytes_before else ""


@dataclass(slots=True)
class ChainEntry:
    """A convolution left to torch, with fused followers, in the form measured to be fastest.

    Attributes:
        node, scope: node and module scope of the convolution.
        operators: all operators of the chain.
        form: form used without gradients.
        times_us: time of each form.
        is_agreed: whether the times are undisturbed by other work.
        bytes_beside: bytes of weights in the chosen form, in addition to the model's weights.
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
    """A packed weight of kernels: storage format in the model, and the bytes before and after."""

    name: str
    format: str
    bytes_before: int
    bytes_after: int


@dataclass(slots=True)
class RoundingEntry:
    """A weight with values in a narrow dtype, and the rounding error.

    Attributes:
        name: name of the weight.
        dtype: dtype of the stored values.
        largest: the largest absolute difference of an entry.
        relative: the norm of the difference over the norm of the weight.
    """

    name: str
    dtype: str
    largest: float
    relative: float


@dataclass(slots=True)
class PrunedEntry:
    """A weight pruned by a rule, and the resulting share of zeros."""

    name: str
    rule: str
    zeros: float


@dataclass(slots=True)
class CalibrationEntry:
    """The calibration data of one-shot pruning, and the errors of layers.

    Attributes:
        digest: SHA-256 of the tensors of the data.
        samples, length: rows of the inputs, and extent of the second mode, 0 without one.
        split: the evaluation data, "" if the recipe does not name any.
        scope: the set of entries with a common share of zeros.
        layers: method and `||X W^T - X W'^T|| / ||X W^T||` (None if not measured), by name of the weight.
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
    """A parameter selected by a rule but not pruned, with the reason; `rule` is "" for a matrix without a rule."""

    name: str
    rule: str
    reason: str


@dataclass(slots=True)
class OrderEntry:
    """The order of a graph's nodes (reordering).

    Attributes:
        name: name of the message passing steps under the order.
        method: `rcm`, `degree` or `metis`.
        source: origin of the edges.
        distances: the mean of |row - column| over the entries, before and after.
        seconds: time to compute the order; 0 before the computation.
        columns: numbers per node permuted by a call, on input and on output.
        gather_us: time of the permutations of a call.
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
    """A graph between two graph breaks of a model.

    Attributes:
        name: name in the report.
        nodes: number of operators.
        regions: number of kernels; 0 if the piece runs the model's own operators.
        cut: reason for the graph break at the end, "" for the last piece.
        note: reason for running the model's own operators, else "".
    """

    name: str
    nodes: int
    regions: int
    cut: str
    note: str = ""

    def cells(self) -> list[str]:
        """The cells of a row of the report."""
        return [self.name, str(self.nodes), str(self.regions), self.cut, self.note]


@dataclass(slots=True)
class RuleEntry:
    """The matches of a rule of the recipe."""

    rule: str
    where: str
    matched: list[str]
    note: str = ""


@dataclass(slots=True)
class WholeCallEntry:
    """The times of a whole call in `apply`.

    Attributes:
        library: library of the fastest dense call.
        dense_us, own_us: microseconds of the dense call, and of the call with kernels.
        undone: scopes of the regions that were undone, as the dense call was faster.
        is_dense: whether all regions were undone; `own_us` is the time before.
    """

    library: str
    dense_us: float
    own_us: float
    undone: list[str] = field(default_factory=list)
    is_dense: bool = False

    def lines(self, names: Callable[[list[str]], str]) -> Iterable[str]:
        """The lines of the report; `names` joins names."""
        now = "with kernels, which were all undone" if self.is_dense else "now"
        yield (
            f"a call by apply: {self.dense_us / 1e3:.3g} ms of the dense model in {self.library}, "
            f"{self.own_us / 1e3:.3g} ms {now}"
        )
        if self.undone:
            yield f"undone, as kernels lost within the call: {names(self.undone)}"


class Origin:
    """The model of a report, as the source of details for the page; the base class has no model."""

    def details(self, inputs: Any = None, *, compares: bool = True) -> Details:
        """Details of the page besides the report.

        Args:
            inputs: inputs of a call to observe, None for no call.
            compares: whether calls of both models are timed and the outputs compared.

        Raises:
            SparsifyError: no model for the inputs.
        """
        if inputs is not None:
            raise SparsifyError(NO_MODEL, HOW)
        return Details()

    def trace(self, path: str | Path, inputs: Any) -> Path:
        """Writes the trace of a call.

        Raises:
            SparsifyError: no model.
        """
        raise SparsifyError(NO_MODEL, HOW)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Origin":
        return self


@dataclass(slots=True)
class Report:
    """Record of all changes of a model by `apply`.

    `parameter_bytes`: bytes of all parameters, originally dense and as held by the model, `None` before a graph is
    captured. `peak_bytes`: peak bytes of simultaneously live results and intermediates of a call, `dense_peak_bytes`
    the same for the dense model; 0 without a run. Calls with a new graph of at most `new_graphs` coordinates of edges
    run torch's operators; `by_torch` is the reason if all calls do. `compared_rows`: number of rows with compared
    results, `None` for all. `whole_call`: times of a call of the dense and of the sparse model, `None` if not compared.
    `origin` is the source of further details for pages.

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
    whole_call: WholeCallEntry | None = None
    warnings: list[str] = field(default_factory=list)
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def left_dense(self, node: str, op: str, scope: str, reason: str) -> None:
        """Lists a node as dense; the first reason for a node is kept. A `Choice` gives no warning."""
        if all(entry.node != node for entry in self.dense):
            self.dense.append(DenseEntry(node, op, scope, str(reason), isinstance(reason, Choice)))

    @property
    def whole_call_us(self) -> tuple[float, float] | None:
        """Microseconds of a call of the dense and of the sparse model, `None` if not compared."""
        return None if self.whole_call is None else (self.whole_call.dense_us, self.whole_call.own_us)

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
        return {"schema": 1, "coverage": self.coverage, **data, "whole_call_us": self.whole_call_us}

    def tables(self, names: Callable[[list[str]], str]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
        """Title, headers and rows of every nonempty table; `names` joins names."""
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
        """The cells of a convolution left to torch."""
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
        """The lines of the report before the tables; `names` joins names."""
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
        if self.whole_call is not None:
            yield from self.whole_call.lines(names)
        if self.new_graphs:
            which = f" ({self.by_torch})" if self.by_torch else " that come for the first time"
            yield f"graphs of at most {self.new_graphs} coordinates of edges{which}: torch's operators"
        if self.specialised:
            yield "fixed by the capture: " + names(self.specialised)
        yield from (f"warning: {text}" for text in self.warnings)

    def text(self, width: int | None = None) -> str:
        """The report in lines of at most `width` characters, by default the terminal's width.

        Names and rows equal up to numbers are folded into one, with a count; `to_dict` and `to_html` list all.
        """
        columns = terminal_width() if width is None else width
        parts = ["\n".join(wrapped(line, columns) for line in self.lines(folded_names))]
        for title, headers, rows in self.tables(folded_names):
            parts.append(f"{title}\n{fitted(headers, fold_rows(rows), columns)}")
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def to_html(self, path: str | Path, inputs: Any = None) -> Path:
        """Writes the report as one self-contained page and returns the path.

        Args:
            path: path of the file.
            inputs: inputs of a call, a tensor, a sequence or a mapping by name. With inputs the page has the times of
                both models, the difference of outputs, the time of each layer, patterns and a roofline.

        Raises:
            SparsifyError: the file cannot be written, the model is gone, or fails for the inputs.

        >>> page = Report(model="GCN").to_html("/dev/null")
        """
        from sparsify.page.html import write
        from sparsify.report_page import page_of

        return write(page_of(self, self._origin().details(inputs)), path)

    def to_trace(self, path: str | Path, inputs: Any) -> Path:
        """Writes the trace of a call, with names of regions, for Perfetto and `chrome://tracing`; returns the path.

        Args:
            path: path of the file, JSON trace events.
            inputs: inputs of the call, a tensor, a sequence or a mapping by name.

        Raises:
            SparsifyError: as `to_html`.

        Source: Trace Event Format, Google, 2016; the events are those of `torch.profiler`.
        """
        return self._origin().trace(path, inputs)

    def _origin(self) -> "Origin":
        """The model of the report, or an `Origin` without details."""
        return self.origin or Origin()


def folded_names(names: list[str]) -> str:
    """Names in a list; names equal up to numbers are folded into one."""
    return ", ".join(fold(names))


def microseconds(value: float | None) -> str:
    """A time in microseconds, or nothing."""
    return "" if value is None else f"{value:.1f}"


def kibibytes(value: int) -> str:
    """A number of bytes in KiB."""
    return f"{value / 1024:.1f} KiB"
