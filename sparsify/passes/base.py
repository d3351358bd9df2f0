"""What the graph passes share: the draft that they hand on, the order's runner, verification and dumps.

In: a `Draft` with the captured graph of a model. Out: the same draft after each pass of `PASSES`, checked
and dumped.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from sparsify.dump import Dump
from sparsify.options import Options
from sparsify.passes.capture import Captured
from sparsify.recipe import Recipe
from sparsify.report import Report


@dataclass(frozen=True)
class Mark:
    """Why and how a tensor is sparse."""

    rule: str
    where: str
    role: str
    format: str
    static: bool = False
    derived: bool = False

    def __str__(self) -> str:
        how = ", static" if self.static else ""
        return f"{self.role}, {self.format}{how} ({self.where})"


@dataclass
class Draft:
    """The graph of one variant of a model on its way through the passes.

    Attributes:
        captured: the graph and how calls map to it.
        model: the source model; its parameters are those of the graph.
        recipe: what is sparse.
        report: what the passes did.
        options: settings.
        examples: the example tensors by input name.
        strict: whether a node that must stay dense is an error.
        regions: what `lift` found and `fuse` joined, for `emit`.
    """

    captured: Captured
    model: torch.nn.Module
    recipe: Recipe
    report: Report
    options: Options
    examples: dict[str, torch.Tensor] = field(default_factory=dict)
    strict: bool = False
    regions: list[Any] = field(default_factory=list)

    @property
    def graph(self) -> fx.Graph:
        """The graph as it is now."""
        return self.captured.graph

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
