"""The draft passed through the graph passes: the captured graph, marks, regions, the report.

In: a captured graph and the settings of `apply`. Out: `Draft(captured, model, asked, report, options)`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from sparsify.options import Options
from sparsify.passes.capture.captured import Captured, Dynamic
from sparsify.passes.graph import operators
from sparsify.passes.graph.node_info import info
from sparsify.report import CalibrationEntry, PassedEntry, PrunedEntry, Report
from sparsify.sparsification.masks.mask_spec import MaskSpec
from sparsify.storage.format import Format
from sparsify.warn import warn

if TYPE_CHECKING:
    from sparsify.recipe import Recipe, Rule
    from sparsify.sparsification.sparsified import Parts


@dataclass
class Pruning:
    """The result of pruning a model.

    Attributes:
        taken: names of the parameters pruned by a rule, with their shares of zeros, by rule position.
        passed: names selected but passed over by a rule, with reasons, by rule position.
        unnamed: matrices read by products that no rule names.
        is_guess: whether products were not observed, for lack of a call.
        is_known: whether `passed` is known.
        calibration: calibration data, and the errors of layers.
        merged: mask names by weight name; the mask is the weight's pattern now.
    """

    taken: dict[int, dict[str, float]] = field(default_factory=dict)
    passed: dict[int, dict[str, str]] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()
    is_guess: bool = False
    is_known: bool = False
    calibration: CalibrationEntry | None = None
    merged: dict[str, str] = field(default_factory=dict)

    def describe(self, report: Report, rules: "Sequence[Rule]") -> None:
        """Writes the pruned and the passed-over weights into a report."""
        labels = [rule.id or f"rule {number + 1}" for number, rule in enumerate(rules)]
        report.pruned = [
            PrunedEntry(n, labels[at], zeros)
            for at, weights in self.taken.items()
            for n, zeros in weights.items()
        ]
        report.passed_over = [
            PassedEntry(name, labels[at], reason)
            for at, weights in self.passed.items()
            for name, reason in weights.items()
        ]
        report.calibration = self.calibration
        report.passed_over += [
            PassedEntry(name, "", "a product reads it, no rule names it") for name in self.unnamed
        ]


@dataclass(frozen=True)
class Mark:
    """Why and how a tensor is sparse."""

    rule: str
    where: str
    role: str
    format: str
    static: bool = False
    derived: bool = False
    reorder: str = "none"
    dtype: str = "same"
    mask: MaskSpec | None = None
    outputs: "Parts | None" = None
    gradients: "Parts | None" = None

    def __str__(self) -> str:
        how = ", static" if self.static else ""
        how += f", in {self.reorder} order" if self.reorder != "none" else ""
        how += f", as {self.dtype}" if self.dtype != "same" else ""
        how += f", {self.mask}" if self.mask is not None else ""
        return f"{self.role}, {self.format}{how} ({self.where})"


@dataclass(frozen=True)
class ApplyRequest:
    """The arguments of `apply`.

    Attributes:
        recipe: sparsity rules.
        dynamic: variable dimensions of the inputs.
        strict: whether a dense fallback is an error.
        verify: whether every variant is compared with the dense model.
        trainable: whether sparse parameters get gradients; None follows the model's mode.
        inplace: whether the source model may change.
        pruning: weights pruned and passed over by rules.
        calibration: batches of inputs for rules that need calibration.
        is_calibrated: whether the weights have the zeros of calibrated rules already.
        pieces: function from a sparse model to compilers of pieces, best first, for models that no graph holds; None
            runs the source model.
        known_pieces: pieces of a folder, with the kinds of calls that ran in pieces; None without.
        is_quiet: whether warnings are in reports alone.
        trains_dense: reason why trained weights start dense under masks, "" where kernels compute with them.
    """

    recipe: "Recipe"
    dynamic: Dynamic = None
    strict: bool = False
    verify: bool = True
    trainable: bool | None = None
    inplace: bool = False
    pruning: Pruning = field(default_factory=Pruning)
    calibration: Any = field(default=None, compare=False)
    is_calibrated: bool = False
    pieces: Callable[[Any], Iterable[Any]] | None = field(default=None, compare=False)
    known_pieces: Any = field(default=None, compare=False)
    is_quiet: bool = False
    trains_dense: str = ""

    def report(self, model: str) -> Report:
        """A new report, with the pruned weights."""
        report = Report(model, self.recipe.name)
        self.pruning.describe(report, self.recipe.rules)
        return report

    def is_trainable(self, training: bool) -> bool:
        """Whether sparse parameters get gradients in a mode of the model."""
        return training if self.trainable is None else self.trainable

    @property
    def has_masks(self) -> bool:
        """Whether rules mask attention or sparsify results, so that the source model's function differs."""
        return any(rule.origin in ("mask", "sparsified") for rule in self.recipe.rules)

    @property
    def has_gates(self) -> bool:
        """Whether rules are for gates of experts."""
        return any(rule.role == "gate" for rule in self.recipe.rules)


class Notices:
    """The warnings about one model, each text once.

    Args:
        model: name of the model.
        is_quiet: whether warnings are suppressed.
    """

    def __init__(self, model: str, is_quiet: bool = False) -> None:
        self.model, self.is_quiet = model, is_quiet
        self.said: set[str] = set()

    def warn(self, text: str) -> None:
        """Warns, unless the text was given before."""
        if text not in self.said:
            self.said.add(text)
            if not self.is_quiet:
                warn(f"{self.model}: {text}")


# Placeholder for the names of all nodes.
EVERYTHING: Final = "*"
# Key of operands made of weights: a name, and whether the transpose is read.
Key = tuple[str, bool]


@dataclass(frozen=True)
class Stored:
    """The existing packed form of a weight.

    Attributes:
        formats: the format held by the model, then additional formats for calls of other graphs.
        bytes: size of all forms.
    """

    formats: tuple[Format, ...]
    bytes: int


@dataclass
class Draft:
    """The graph of one variant of a model on its way through the passes.

    Attributes:
        captured: graph and its mapping from calls.
        model: source model; its parameters are shared by the graph.
        request: settings of `apply`.
        report: record of the passes.
        options: settings.
        examples: example tensors by input name.
        regions: parts of the graph that become kernels, for `emit`.
        notices: receiver of warnings.
        formats: formats chosen for weights.
        stored: existing packed forms of weights.
        masked: reference graph with the recipe's attention patterns, absent in the dense model, and with the draws of
            kernels that drop edge weights.
        has_general: whether the front end makes regions of operators without a recogniser.
        trains_dense: reason why trained weights are left to torch, "" where kernels compute with them.
        operators: the graph without regions, for calls with new edges.
        edges: positions of the inputs with edge coordinates, for `operators`.
        once: memoized values of nodes computed from parameters alone.
        undone: reasons why no kernel of this package computes a node, by node name.
        unchanged: the capture before all passes, for another draft of the same call; None where another draft may
            capture recurrent layers or experts in another form.
    """

    captured: Captured
    model: torch.nn.Module
    request: ApplyRequest
    report: Report
    options: Options
    examples: dict[str, torch.Tensor] = field(default_factory=dict)
    regions: list[Any] = field(default_factory=list)
    notices: Notices = field(default_factory=lambda: Notices("model"))
    formats: dict[Key, Format] = field(default_factory=dict)
    stored: Mapping[Key, Stored] = field(default_factory=dict)
    masked: fx.Graph | None = None
    has_general: bool = True
    trains_dense: str = ""
    operators: fx.Graph | None = None
    edges: tuple[int, ...] = ()
    once: dict[fx.Node, Any] = field(default_factory=dict)
    undone: Mapping[str, str] = field(default_factory=dict)
    unchanged: Captured | None = None

    def why_undone(self, node: fx.Node) -> str:
        """The reason why no kernel of this package computes a node, "" where one may."""
        if not self.recipe.compile.allows("own"):
            return "the recipe allows no kernels of sparsify"
        return self.undone.get(EVERYTHING) or self.undone.get(node.name, "")

    @property
    def graph(self) -> fx.Graph:
        """The present graph."""
        return self.captured.graph

    @property
    def recipe(self) -> "Recipe":
        """The recipe: sparse tensors and their formats."""
        return self.request.recipe

    @property
    def is_strict(self) -> bool:
        """Whether a dense fallback is an error."""
        return self.request.strict or self.options.strict or self.recipe.compile.fallback == "error"

    @property
    def is_trainable(self) -> bool:
        """Whether sparse parameters get gradients."""
        return self.request.is_trainable(self.captured.training)

    def computed_once(self, node: fx.Node) -> torch.Tensor | None:
        """The value of a node computed from parameters alone, `None` for other nodes."""
        if operators.tensor_value(node) is None or not operators.is_constant(node):
            return None
        with torch.no_grad():
            value = self.value_once(node)
        return value if isinstance(value, torch.Tensor) else None

    def value_once(self, node: fx.Node) -> Any:
        """The value of a node from parameters, computed once; several tensors for some."""
        if node.op == "get_attr":
            return self.known_tensor(node)
        if node not in self.once:
            args, kwargs = fx.map_arg((node.args, node.kwargs), self.value_once)
            self.once[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self.once[node]

    def known_tensor(self, node: fx.Node) -> torch.Tensor | None:
        """The example input, parameter or constant of a node, or a value computed from parameters and constants."""
        if node.op == "placeholder":
            return self.examples.get(str(info(node).input_name or node.target))
        if node.op != "get_attr":
            return self.computed_once(node)
        if node.target in self.captured.constants:
            return self.captured.constants[str(node.target)]
        owner, _, name = str(node.target).rpartition(".")
        attribute = getattr(self.model.get_submodule(owner), name, None)
        return attribute if isinstance(attribute, torch.Tensor) else None


@contextmanager
def kept_buffers(model: torch.nn.Module) -> Iterator[None]:
    """A context that restores the buffers of `model` on exit."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
