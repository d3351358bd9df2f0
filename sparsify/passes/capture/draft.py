"""The draft that the graph passes hand on: the captured graph, marks, regions, the report.

In: a captured graph and what `apply` was asked for. Out: `Draft(captured, model, asked, report, options)`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from sparsify.options import Options
from sparsify.passes.capture.export import Captured, Dynamic
from sparsify.passes.graph import operators
from sparsify.passes.graph.node_info import info
from sparsify.recipe import Recipe, Rule
from sparsify.report import CalibrationEntry, PassedEntry, PrunedEntry, Report
from sparsify.sparsification.mask_spec import MaskSpec
from sparsify.sparsification.sparsified import Parts
from sparsify.storage.format import Format
from sparsify.warn import warn


@dataclass
class Pruning:
    """The result of pruning a model.

    Attributes:
        taken: by the position of a rule the names of parameters that it pruned, with their shares of zeros.
        passed: by the position of a rule the names that it selects and passed over, with reasons.
        unnamed: matrices that products read, and that no rule names.
        is_guess: whether products were not looked at: there was no call.
        is_known: whether `passed` is known.
        calibration: the data of rules that need some, and the errors of layers.
        merged: by name of a weight the name of its mask, which is its pattern now.
    """

    taken: dict[int, dict[str, float]] = field(default_factory=dict)
    passed: dict[int, dict[str, str]] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()
    is_guess: bool = False
    is_known: bool = False
    calibration: CalibrationEntry | None = None
    merged: dict[str, str] = field(default_factory=dict)

    def describe(self, report: Report, rules: Sequence[Rule]) -> None:
        """Writes into a report what was pruned and what was passed over."""
        labels = [rule.id or f"rule {place + 1}" for place, rule in enumerate(rules)]
        report.pruned = [
            PrunedEntry(n, labels[at], zeros)
            for at, found in self.taken.items()
            for n, zeros in found.items()
        ]
        report.passed_over = [
            PassedEntry(name, labels[at], reason)
            for at, found in self.passed.items()
            for name, reason in found.items()
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
    outputs: Parts | None = None
    gradients: Parts | None = None

    def __str__(self) -> str:
        how = ", static" if self.static else ""
        how += f", in {self.reorder} order" if self.reorder != "none" else ""
        how += f", as {self.dtype}" if self.dtype != "same" else ""
        how += f", {self.mask}" if self.mask is not None else ""
        return f"{self.role}, {self.format}{how} ({self.where})"


@dataclass(frozen=True)
class Asked:
    """The arguments of `apply`.

    Attributes:
        recipe: what is sparse.
        dynamic: which dimensions of the inputs may vary.
        strict: whether what must stay dense is an error.
        verify: whether every variant is compared with the dense model.
        trainable: whether sparse parameters get gradients; None as the model's mode says.
        inplace: whether the source model may change.
        pruning: what rules pruned, and what they passed over.
        calibration: batches of inputs for rules that need some.
        is_calibrated: whether the weights have the zeros of such rules already.
        pieces: gives for a sparse model the ways to cut a model that no graph holds into pieces, best first; None where
            the source model runs then.
        is_quiet: whether warnings are in reports alone.
        trains_dense: why weights that train start dense under their masks, "" where kernels compute with them.
    """

    recipe: Recipe
    dynamic: Dynamic = None
    strict: bool = False
    verify: bool = True
    trainable: bool | None = None
    inplace: bool = False
    pruning: Pruning = field(default_factory=Pruning)
    calibration: Any = field(default=None, compare=False)
    is_calibrated: bool = False
    pieces: Callable[[Any], Iterable[Any]] | None = field(default=None, compare=False)
    is_quiet: bool = False
    trains_dense: str = ""

    def report(self, model: str) -> Report:
        """A new report, with what was pruned."""
        report = Report(model, self.recipe.name)
        self.pruning.describe(report, self.recipe.rules)
        return report

    def is_trainable(self, training: bool) -> bool:
        """Whether sparse parameters get gradients in this mode of the model."""
        return training if self.trainable is None else self.trainable

    @property
    def has_masks(self) -> bool:
        """Whether rules mask attention or sparsify results, so that the source model computes something else."""
        return any(rule.origin in ("mask", "sparsified") for rule in self.recipe.rules)

    @property
    def has_gates(self) -> bool:
        """Whether rules are for gates of experts."""
        return any(rule.role == "gate" for rule in self.recipe.rules)


class Notices:
    """The warnings about one model, each text once.

    Args:
        model: its name.
        is_quiet: whether nobody is warned.
    """

    def __init__(self, model: str, is_quiet: bool = False) -> None:
        self.model, self.is_quiet = model, is_quiet
        self.said: set[str] = set()

    def warn(self, text: str) -> None:
        """Warns, unless it was said before."""
        if text not in self.said:
            self.said.add(text)
            if not self.is_quiet:
                warn(f"{self.model}: {text}")


# What tells apart the operands that are made of weights: a name, and whether the transpose is read.
Key = tuple[str, bool]


@dataclass(frozen=True)
class Stored:
    """How a weight is packed already.

    Attributes:
        formats: the one that the model holds it in, then those that are beside it for calls of other graphs.
        bytes: of all of them.
    """

    formats: tuple[Format, ...]
    bytes: int


@dataclass
class Draft:
    """The graph of one variant of a model on its way through the passes.

    Attributes:
        captured: the graph and how calls map to it.
        model: the source model; its parameters are those of the graph.
        asked: what `apply` was asked for.
        report: what the passes did.
        options: settings.
        examples: the example tensors by input name.
        regions: parts of it that become kernels, for `emit`.
        notices: where warnings go.
        formats: that were chosen for weights.
        stored: how weights are packed already.
        masked: the graph with the patterns of rules in its attention, as the dense model has them not, and with the
            draws of kernels that drop weights of edges.
        has_general: whether the front end makes regions of what no recogniser knows.
        trains_dense: why weights that train are left to torch, "" where kernels compute with them.
        operators: the graph without regions, for calls whose edges come for the first time.
        edges: the positions of inputs that say where edges are, where there is such a graph.
        once: what nodes that follow from parameters alone compute.
    """

    captured: Captured
    model: torch.nn.Module
    asked: Asked
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

    @property
    def graph(self) -> fx.Graph:
        """The graph as it is now."""
        return self.captured.graph

    @property
    def recipe(self) -> Recipe:
        """The recipe: which tensors are sparse, and how."""
        return self.asked.recipe

    @property
    def is_strict(self) -> bool:
        """Whether what must stay dense is an error."""
        return self.asked.strict or self.options.strict or self.recipe.compile.fallback == "error"

    @property
    def is_trainable(self) -> bool:
        """Whether sparse parameters get gradients."""
        return self.asked.is_trainable(self.captured.training)

    def computed_once(self, node: fx.Node) -> torch.Tensor | None:
        """The value of a node that follows from parameters alone, `None` for others."""
        if operators.tensor_value(node) is None or not operators.is_constant(node):
            return None
        with torch.no_grad():
            found = self.value_once(node)
        return found if isinstance(found, torch.Tensor) else None

    def value_once(self, node: fx.Node) -> Any:
        """The value of a node from parameters, computed once; several tensors for some."""
        if node.op == "get_attr":
            return self.known_tensor(node)
        if node not in self.once:
            args, kwargs = fx.map_arg((node.args, node.kwargs), self.value_once)
            self.once[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self.once[node]

    def known_tensor(self, node: fx.Node) -> torch.Tensor | None:
        """The example input, the parameter or the captured constant behind a node, or what follows from these two."""
        if node.op == "placeholder":
            return self.examples.get(str(info(node).input_name or node.target))
        if node.op != "get_attr":
            return self.computed_once(node)
        if node.target in self.captured.constants:
            return self.captured.constants[str(node.target)]
        owner, _, name = str(node.target).rpartition(".")
        found = getattr(self.model.get_submodule(owner), name, None)
        return found if isinstance(found, torch.Tensor) else None


@contextmanager
def kept_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards the buffers of `model` are as they were before."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
