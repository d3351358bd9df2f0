"""What the graph passes share: the draft that they hand on, the order's runner, verification and dumps.

In: a `Draft` with the captured graph of a model. Out: the same draft after each pass of `PASSES`, checked
and dumped.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

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


Pass = Callable[[Draft], Draft]


def run(passes: Sequence[Pass], draft: Draft) -> Draft:
    """The draft after all passes; each result is verified and handed to the dump."""
    for position, step in enumerate(passes):
        draft = step(draft)
        verify(draft, step.__name__)
        dump(draft, position, step.__name__)
    return draft


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


def dump(draft: Draft, position: int, stage: str) -> None:
    """Writes the graph after `stage` where `SPARSIFY_DUMP` asks for it."""
    if not {"all", "graph", stage} & set(draft.options.dump):
        return
    text = printed(draft)
    if draft.options.dump_dir is None:
        print(f"--- {stage}\n{text}", file=sys.stderr)
        return
    draft.options.dump_dir.mkdir(parents=True, exist_ok=True)
    path = draft.options.dump_dir / f"{position:02d}-{stage}.graph"
    path.write_text(text + "\n", encoding="utf-8")


def printed(draft: Draft) -> str:
    """The graph, one node a line, with marks behind it."""
    lines = []
    for node in draft.graph.nodes:
        mark = node.meta.get("sparse")
        text = node.format_node() or f"return {node.args[0]}"
        lines.append(f"{text}    # {mark}" if mark is not None else text)
    return "\n".join(lines)
