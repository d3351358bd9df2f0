"""Preview of a run: tensors selected by the recipe, without training, compiling or timing anything.

In: a `Request`. Out: a `Preview`: one row for each tensor selected by a rule.
"""

from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Final

import torch
from tabulate import tabulate
from torch import Tensor, fx, nn

from sparsify import options
from sparsify.models.data import Graph
from sparsify.passes import pipeline
from sparsify.passes.capture import calls
from sparsify.passes.capture import draft as base
from sparsify.passes.capture.draft import Draft, Mark, Pruning
from sparsify.passes.capture.export import capture, example_tensors
from sparsify.passes.graph.node_info import info
from sparsify.passes.region.sparse_operand import Bags, Matrix
from sparsify.passes.rules.calibrate import calibration_data, is_calibrated
from sparsify.passes.rules.prune import prune
from sparsify.report import Report
from sparsify.runner.request import Request
from sparsify.runner.subject import subject
from sparsify.sparsification.rules.rounding import narrowed

SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor selected by a rule, the size before and after, and the programs with the tensor as an operand."""

    rule: str
    tensor: str
    format: str
    density: float | None
    bytes_before: int | None
    bytes_after: int | None
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """The rows of a recipe on a model and a graph; prints as a table."""

    model: str
    recipe: str
    data: str
    rows: tuple[Row, ...]
    report: Report

    def to_dict(self) -> dict[str, Any]:
        """The preview as plain data, with `"schema": 1`."""
        rows = [asdict(row) for row in self.rows]
        about = {"schema": 1, "model": self.model, "recipe": self.recipe, "data": self.data}
        return {**about, "rows": rows, "rules": self.report.to_dict()["rules"]}

    def __str__(self) -> str:
        cells = [
            [
                row.rule,
                row.tensor,
                row.format,
                "" if row.density is None else f"{row.density:.2e}",
                size(row.bytes_before),
                size(row.bytes_after),
                "\n".join(row.kernels) or "none",
            ]
            for row in self.rows
        ]
        headers = ["rule", "tensor", "format", "density", "before", "after", "expected kernel"]
        table = tabulate(cells, headers=headers, tablefmt="simple", disable_numparse=True)
        notes = [f"{entry.rule}: {entry.note}" for entry in self.report.rules if entry.note]
        return "\n".join([f"{self.model} with recipe {self.recipe} on {self.data}", table, *notes])


def preview(request: Request) -> Preview:
    """Tensors made sparse by the request's recipe, in the formats expected to be fastest."""
    asked = subject(request)
    with options.override(tune_seconds=0):
        draft = drafted(asked.model, asked.example, request)
    rows = []
    for node in draft.graph.nodes:
        found = info(node).mark
        if isinstance(found, Mark) and not found.derived:
            rows.append(row(draft, asked.graph, node, found))
    return Preview(request.entry.name, request.recipe.name, asked.text, tuple(rows), draft.report)


def drafted(model: nn.Module, example: tuple[Tensor, ...], request: Request) -> Draft:
    """The model's graph after all passes before `emit`."""
    return pipeline.run(
        list(takewhile(lambda step: step.name != "emitted", pipeline.PASSES)),
        captured(model, example, request),
    )


def captured(model: nn.Module, example: tuple[Tensor, ...], request: Request) -> Draft:
    """The model's graph before all passes."""
    pruning = Pruning()
    call = calls.flatten(calls.signature(model), example, {})
    needs_data = any(map(is_calibrated, request.recipe.rules))
    data = calibration_data([call], request.recipe.calibration) if needs_data else None
    model = prune(model, request.recipe, run=lambda copied: copied(*example), pruning=pruning, data=data)
    graph = capture(model, call)
    examples = dict(zip(call.shape.tensor_names(), example_tensors(call), strict=True))
    report = Report(type(model).__name__, request.recipe.name)
    return Draft(
        graph, model, base.ApplyRequest(request.recipe, pruning=pruning), report, options.current(), examples
    )


def row(draft: Draft, graph: Graph | None, node: fx.Node, found: Mark) -> Row:
    """The row of a marked node."""
    form = chosen_format(draft, node, found)
    stored, before = operand(draft, graph, node, form, found.dtype)
    programs = [
        region.program
        for region in draft.regions
        if node in region.covered or any(is_of(o, node) for o in region.operands.values())
    ]
    texts = dict.fromkeys("; ".join(str(s) for s in program.statements) for program in programs)
    after = None if stored is None else sum(t.nbytes for t in arrays(stored))
    if after is not None and found.dtype == "int8":
        after += SCALE_BYTES * stored.shape[0]
    density = None if stored is None else float(stored.density)
    form += f", {found.dtype}" if found.dtype != "same" else ""
    return Row(found.rule, node.name, form, density, before, after, tuple(texts))


def chosen_format(draft: Draft, node: fx.Node, found: Mark) -> str:
    """The format of a mark; for a packed weight the format chosen for its zeros."""
    bags = [o for r in draft.regions for o in r.operands.values() if isinstance(o, Bags) and is_of(o, node)]
    if bags:
        return str(bags[0].declared.format)
    packed = (m.packed for region in draft.regions for m in region.matrices if m.dense is node)
    chosen = next((form for form in packed if form is not None), None)
    return "csr" if found.format == "auto" and chosen is None else str(chosen or found.format)


def is_of(operand: object, node: fx.Node) -> bool:
    """Whether an operand is the marked node, or bags (indices and offsets) that the node reads."""
    if isinstance(operand, Matrix) and operand.dense is node:
        return True
    return isinstance(operand, Bags) and {operand.indices, operand.offsets} <= {*node.all_input_nodes}


def operand(
    draft: Draft, graph: Graph | None, node: fx.Node, form: str, dtype: str
) -> tuple[Any, int | None]:
    """The tensor of a node in its future storage, and the bytes now; None if unknown before a run."""
    from sparsify.api import tensor as sparse_tensor

    known = draft.known_tensor(node)
    is_made = known is None and node.op not in ("placeholder", "get_attr")
    if graph is not None and is_made:  # message passing: its operand is the graph
        edges = graph.edge_index
        ones = graph.x.new_ones(graph.edges)
        return sparse_tensor((edges, ones, (graph.nodes, graph.nodes)), format=form), edges.nbytes
    if known is None or known.dim() != 2:
        return None, None
    stored = known if dtype == "same" else narrowed(known, getattr(torch, dtype))
    return sparse_tensor(stored, format=form), known.nbytes


def arrays(stored: Any) -> list[Tensor]:
    """The arrays of a sparse tensor."""
    parts = [*stored._pattern.arrays_in_place(), stored.values()]
    return [part for part in parts if part is not None]


def size(value: int | None) -> str:
    """Bytes in words."""
    return "" if value is None else f"{value / 2**20:.2f} MiB"
