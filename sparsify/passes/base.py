"""What the graph passes share: the draft that they hand on, the order's runner, verification and dumps.

In: a `Draft` with the captured graph of a model. Out: the same draft after each pass of `PASSES`, checked
and dumped.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from sparsify.dump import Dump
from sparsify.options import Options
from sparsify.passes.capture import Captured, Dynamic
from sparsify.passes.pruning import Pruning
from sparsify.recipe import Recipe
from sparsify.report import Report
from sparsify.sparsification.mask_spec import MaskSpec
from sparsify.storage.format import Format
from sparsify.warn import warn


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

    def __str__(self) -> str:
        how = ", static" if self.static else ""
        how += f", in {self.reorder} order" if self.reorder != "none" else ""
        how += f", as {self.dtype}" if self.dtype != "same" else ""
        how += f", {self.mask}" if self.mask is not None else ""
        return f"{self.role}, {self.format}{how} ({self.where})"


@dataclass(frozen=True)
class Asked:
    """What `apply` was asked for.

    Attributes:
        recipe: what is sparse.
        dynamic: which dimensions of the inputs may vary.
        strict: whether what must stay dense is an error.
        verify: whether every variant is compared with the dense model.
        trainable: whether sparse parameters get gradients; None as the model's mode says.
        inplace: whether the source model may change.
        pruning: what rules pruned, and what they passed over.
    """

    recipe: Recipe
    dynamic: Dynamic = None
    strict: bool = False
    verify: bool = True
    trainable: bool | None = None
    inplace: bool = False
    pruning: Pruning = field(default_factory=Pruning)

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
        """Whether rules put patterns into the model's attention, so that the source model computes something else."""
        return any(rule.origin == "mask" for rule in self.recipe.rules)

    @property
    def has_gates(self) -> bool:
        """Whether rules are for gates of experts."""
        return any(rule.role == "gate" for rule in self.recipe.rules)


class Notices:
    """The warnings about one model, each text once."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.said: set[str] = set()

    def warn(self, text: str) -> None:
        """Warns, unless it was said before."""
        if text not in self.said:
            self.said.add(text)
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
        regions: what `lift` found and `fuse` joined, for `emit`.
        notices: where warnings go.
        formats: that were chosen for weights.
        stored: how weights are packed already.
        masked: the graph with the patterns of rules in its attention, as the dense model has them not, and with the
            draws of kernels that drop weights of edges.
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

    @property
    def graph(self) -> fx.Graph:
        """The graph as it is now."""
        return self.captured.graph

    @property
    def recipe(self) -> Recipe:
        """What is sparse."""
        return self.asked.recipe

    @property
    def is_strict(self) -> bool:
        """Whether what must stay dense is an error."""
        return self.asked.strict or self.options.strict or self.recipe.compile.fallback == "error"

    @property
    def is_trainable(self) -> bool:
        """Whether sparse parameters get gradients."""
        return self.asked.is_trainable(self.captured.training)

    def known_tensor(self, node: fx.Node) -> torch.Tensor | None:
        """The example input, the parameter or the captured constant behind a node."""
        if node.op == "placeholder":
            return self.examples.get(str(node.meta.get("input", node.target)))
        if node.op != "get_attr":
            return None
        if node.target in self.captured.constants:
            return self.captured.constants[str(node.target)]
        owner, _, name = str(node.target).rpartition(".")
        found = getattr(self.model.get_submodule(owner), name, None)
        return found if isinstance(found, torch.Tensor) else None


@dataclass(frozen=True, slots=True)
class Pass:
    """A step on the graph's way.

    Attributes:
        name: as `SPARSIFY_DUMP` calls the result.
        run: makes the next draft.
        text: the result as people read it.
    """

    name: str
    run: Callable[[Draft], Draft]
    text: Callable[[Draft], str]


def run(passes: Sequence[Pass], draft: Draft) -> Draft:
    """The draft after all passes; each result is verified and handed to the dump."""
    dump = Dump(draft.options, f"{type(draft.model).__name__}-{fingerprint(draft)}")
    dump.prepare()
    if dump.wants("graph"):
        dump.write("graph", passes[0].text(draft))
    for step in passes:
        draft = step.run(draft)
        if dump.wants(step.name):
            dump.write(step.name, step.text(draft))
        if draft.options.debug_asserts:
            verify(draft, step.name)
    return draft


def fingerprint(draft: Draft) -> str:
    """Tells the graphs of a model apart: one for each mode, structure and shape of the inputs."""
    parts = (draft.recipe.name, draft.captured.training, draft.captured.extents, str(draft.graph))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@contextmanager
def kept_buffers(model: torch.nn.Module, *, is_counted: bool = True) -> Iterator[None]:
    """Afterwards the buffers of `model` are as they were before.

    Args:
        is_counted: whether autograd notices that they are written, and refuses gradients that read them.
    """
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):
                    (buffer if is_counted else buffer.data).copy_(value)


def verify(draft: Draft, stage: str) -> None:
    """Checks that the graph is well formed after `stage`."""
    try:
        draft.graph.lint()
    except RuntimeError as error:
        raise AssertionError(f"{stage} left a malformed graph: {error}") from error
    for region in draft.regions:
        known = set(draft.graph.nodes)
        lost = [
            node for node in getattr(region, "inputs", ()) if isinstance(node, fx.Node) and node not in known
        ]
        assert not lost, f"{stage} lost {lost}, which a region needs"
