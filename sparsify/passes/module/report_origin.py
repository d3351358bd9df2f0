"""Details of a model for the page of its report: graph, stages, patterns, and a call.

In: a `SparseModule`, inputs of a call. Out: `Details`.
"""

import statistics
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from torch.profiler import profile

from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.errors import SparsifyError
from sparsify.options import current
from sparsify.page.contents import Details, Fact, GraphNode, Roof, SpyPlot, Stage, Work
from sparsify.page.drawings import microseconds
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.calls import anew
from sparsify.passes.capture.draft import kept_buffers
from sparsify.passes.capture.shell import modes
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, scope
from sparsify.passes.module.check.verify import pairs
from sparsify.passes.module.check.watch_call import (
    Watched,
    arguments_of,
    in_turns,
    labelled,
    module_spans,
    traced,
    watched,
)
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.region.printer import extent_names, shape_text
from sparsify.passes.rules.recipe_text import recipe_text
from sparsify.report import HOW, Origin
from sparsify.report_page import ancestor
from sparsify.runtime.machine import machine
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    from sparsify.compiler.explain import Section
    from sparsify.passes.module.sparse_module import SparseModule

# Cells of a picture along its longer side.
CELLS: Final = 64
# Operators without a line in the drawn graph.
SILENT: Final = ("getitem", "sym_size", "size")
TITLES: Final = {"cpp": "C++"}
AGAIN: Final = "sparse = sparsify.apply(model, recipe, inputs)\nsparse.report.to_html(path, inputs=inputs)"


class ReportOrigin(Origin):
    """The model of a report, by a weak reference."""

    def __init__(self, module: "SparseModule") -> None:
        self._module = weakref.ref(module)

    def __reduce__(self) -> Any:
        return Origin, ()

    def details(self, inputs: Any = None, *, compares: bool = True) -> Details:
        """Details of the page in addition to the report; of a call where inputs are given.

        Raises:
            SparsifyError: the model no longer exists, or does not run with the inputs.
        """
        module = self._module()
        if module is None:
            return Origin().details(inputs)
        with kept_buffers(module._source):
            return self._details(module, inputs, compares=compares)

    def _details(self, module: "SparseModule", inputs: Any, *, compares: bool) -> Details:
        """The details of a live module; buffers may change."""
        variant = shown(module) if inputs is None else for_inputs(module, inputs)
        details = Details(recipe=recipe_text(module._request.recipe), versions=versions())
        details.shapes = {name: parameter_text(value) for name, value in module.named_parameters()}
        if variant is not None:
            details.nodes = nodes_of(variant)
            details.stages = dict(stages_of(variant))
        else:
            add_pieces(module, details)
        if inputs is not None:
            look_at_call(module, variant, inputs, details)
            if compares:
                compare(module, inputs, details)
        return details

    def trace(self, path: str | Path, inputs: Any) -> Path:
        """Writes the trace of a warm call.

        Raises:
            SparsifyError: the model no longer exists or does not run with the inputs, or the file cannot be written.
        """
        module = self._module()
        if module is None:
            return Origin().trace(path, inputs)
        target = Path(path).expanduser()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        except OSError as error:
            raise SparsifyError(f"cannot write a trace to {target}: {error}", "choose another path") from None
        with kept_buffers(module._source):
            variant = for_inputs(module, inputs)
            if variant is None:
                events = traced_pieces(module, inputs)
            else:
                events = traced(module, variant, tensors_of(module, inputs))
            events.export_chrome_trace(str(target))
        return target


def traced_pieces(module: "SparseModule", inputs: Any) -> profile:
    """The profile of a call in pieces, with regions named after their pieces."""
    args, kwargs = arguments_of(inputs)
    pieces = module._captures.pieces
    regions = []
    for entry, report in pieces.compiler.reports() if pieces is not None else ():
        origin = None if report is None else report.origin
        piece = origin._module() if isinstance(origin, ReportOrigin) else None
        regions += [(entry.name, r) for v in (piece.variants if piece is not None else ()) for r in v.regions]
    run = anew(module, args, kwargs, module._captures.may_write(modes(module)))
    return labelled({f"{name}.{region.name}": region for name, region in regions}, run)


def shown(module: "SparseModule") -> Variant | None:
    """The variant of the module's present graph."""
    return next((variant for variant in module.variants if variant.report is module.report), None)


def tensors_of(module: "SparseModule", inputs: Any) -> list[torch.Tensor]:
    """The tensors of a call."""
    args, kwargs = arguments_of(inputs)
    return module.flattened_call(args, kwargs).tensors(module._matrices)


def for_inputs(module: "SparseModule", inputs: Any) -> Variant | None:
    """The variant for a call, captured now if need be; `None` where the call runs in pieces.

    Kernels are compiled and operands packed on return.

    Raises:
        SparsifyError: the model does not run with the inputs, or no whole graph holds the call.
    """
    args, kwargs = arguments_of(inputs)
    try:
        module.measure(*args, repeats=1, **kwargs)
    except SparsifyError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # of the model
        raise SparsifyError(
            f"{type(module).__name__} does not run with the inputs of its page: {error}",
            "give the inputs of a call, inputs=(x, edge_index) or inputs={'x': x}",
        ) from error
    call = module.flattened_call(args, kwargs)
    variant = module.variant_for(call, call.tensors(module._matrices))
    if variant is None and not module.report.pieces:
        raise SparsifyError(f"no graph holds a call with these inputs whole: {module.report.coverage}", HOW)
    return variant


def add_pieces(module: "SparseModule", details: Details) -> None:
    """Puts the graphs and the stages of a model's pieces into the details, under the names of the pieces."""
    pieces = module._captures.pieces
    for entry, report in pieces.compiler.reports() if pieces is not None else ():
        if report is None or report.origin is None:
            continue
        piece_details = report.origin.details()
        details.nodes = [*details.nodes, *(of_piece(entry.name, node) for node in piece_details.nodes)]
        details.stages |= {f"{entry.name}.{name}": stages for name, stages in piece_details.stages.items()}


def of_piece(piece: str, node: GraphNode) -> GraphNode:
    """A node of a piece's graph under the name of the piece."""

    def named(name: str) -> str:
        return f"{piece}.{name}"

    region = named(node.region) if node.region else ""
    return replace(node, name=named(node.name), inputs=[*map(named, node.inputs)], region=region)


def look_at_call(module: "SparseModule", variant: Variant | None, inputs: Any, details: Details) -> None:
    """Adds the details of a call: spans, patterns, work, and the times of the dense model's modules.

    Args:
        variant: variant of the call, `None` for a call in pieces: the dense model's times alone.
    """
    if variant is not None:
        look_at_graph(module, variant, inputs, details)
    args, kwargs = arguments_of(inputs)
    with module._weights.mirrored(module) as mirrored:
        dense = mirrored(module._source)
        if not module._request.has_masks:  # the dense model has no patterns in its attention
            details.dense_spans, details.dense_ms = module_spans(dense, lambda: dense(*args, **kwargs))


def look_at_graph(module: "SparseModule", variant: Variant, inputs: Any, details: Details) -> None:
    """Adds the details of a graph's call: spans, patterns and work."""
    from sparsify.compiler import calibrate

    record = watched(module, variant, tensors_of(module, inputs))
    scopes = {entry.name: entry.scopes for entry in variant.report.regions}
    details.spans = [replace(s, where=", ".join(scopes.get(s.region, [s.where]))) for s in record.spans]
    regions = {region.name: region for region in variant.regions}
    details.spies = [
        spy for name in record.operands for spy in spies_of(regions[name], record.operands[name])
    ]
    details.works = list(works_of(regions, record))
    machine = calibrate.cached_machine(current())
    details.roof = Roof(machine.fma_all, machine.reads_all.points[-1][1], machine.is_measured)


def compare(module: "SparseModule", inputs: Any, details: Details) -> None:
    """Times interleaved calls of both models and compares their outputs."""
    args, kwargs = arguments_of(inputs)
    may_write = module._captures.may_write(modes(module))
    dense, sparse = (anew(model, args, kwargs, may_write) for model in (module.original, module))
    expected, have, times = in_turns(dense, sparse)
    before, after = (statistics.median(column) for column in zip(*times, strict=True))
    note = f"{microseconds(before)} dense, {microseconds(after)} now: medians of {len(times)} calls in turns"
    details.faster = Fact("Faster by", f"{before / after:.2f}x", note)
    errors = [float((want - got).abs().max()) for _, want, got in pairs(expected, have) if want.numel()]
    note = "largest absolute difference of an output in this call"
    details.differs = Fact("Differs by", f"{max(errors, default=0.0):.2g}", note)
    details.command = AGAIN


def nodes_of(variant: Variant) -> list[GraphNode]:
    """The operators of a graph; parts of results are read as the results themselves."""
    graph = variant.captured.graph
    scopes = {entry.name: ancestor(entry.scopes) for entry in variant.report.regions}
    sizes = extent_names(graph)
    shown_names: dict[fx.Node, str] = {}
    nodes = []
    for node in graph.nodes:
        if node.op == "get_attr":
            continue
        operator = operator_of(node)
        read = list(dict.fromkeys(shown_names[one] for one in node.all_input_nodes if one in shown_names))
        if operator in SILENT:
            if operator == "getitem" and read:
                shown_names[node] = read[0]
            continue
        shown_names[node] = node.name
        call = info(node).call
        region = call.name if call is not None else ""
        where = str(info(node).input_name or node.name) if node.op == "placeholder" else scope(node)
        where = scopes.get(region) or where
        nodes.append(GraphNode(node.name, operator, shape_text(node, sizes), where, read, region))
    return nodes


def operator_of(node: fx.Node) -> str:
    """The operation of a node, in a word."""
    match node.op:
        case "call_function":
            return operator_name(node)
        case "placeholder":
            return "input"
        case "call_method":
            return str(node.target)
    return node.op


def stages_of(variant: Variant) -> Iterator[tuple[str, list[Stage]]]:
    """The stages of each region, by region name."""
    from sparsify.passes.call.region_text import region_section

    calls = {region.name: region for region in variant.regions}
    for entry in variant.report.regions:
        section = region_section(calls[entry.name], replace(entry, measured_us=None), "")
        yield entry.name, [stage for stage in flat(section.inner) if stage.title != "einsum"]


def flat(sections: "Sequence[Section]", before: str = "") -> Iterator[Stage]:
    """The texts of sections; nested sections carry both titles."""
    for section in sections:
        title = before + TITLES.get(section.title, section.title)
        if section.text:
            yield Stage(title, section.text)
        yield from flat(section.inner, f"{title.partition(':')[0]}: ")


def spies_of(region: RegionCall, operands: Sequence[Any]) -> Iterator[SpyPlot]:
    """The patterns of the sparse operands of a region."""
    sources = region.origin.sources if region.origin is not None else {}
    for name, operand in zip(region.program.inputs, operands, strict=False):
        if isinstance(operand, SparseTensor) and operand.dim() >= 2 and operand.numel():
            text = sources.get(name, name)
            shape = " x ".join(map(str, operand.shape))
            yield SpyPlot(text, region.name, shape, operand.pattern.nnz, operand.numel(), cells_of(operand))


def cells_of(tensor: SparseTensor) -> tuple[tuple[float, ...], ...]:
    """The shares of stored entries in cells of the last two modes, over all others."""
    at = tensor.coordinates()[-2:]
    rows, columns = tensor.shape[-2:]
    cell = max(1, -(-max(rows, columns) // CELLS))
    lines, across = -(-rows // cell), -(-columns // cell)
    at = at[:, (at[0] < rows) & (at[1] < columns)]  # blocks reach beyond the end
    count = torch.bincount((at[0] // cell) * across + at[1] // cell, minlength=lines * across)
    shares = count.view(lines, across) / (cell**2 * max(1, tensor.numel() // (rows * columns)))
    return tuple(tuple(line) for line in shares.tolist())


def works_of(regions: Mapping[str, RegionCall], record: Watched) -> Iterator[Work]:
    """The work of regions with known sizes."""
    from sparsify.compiler.schedule.cost.operation_count import counted

    for name, operands in record.operands.items():
        program = regions[name].program
        sizes = sizes_of(program, operands)
        try:
            operations, moved = counted(program, sizes.extents, sizes.stored)
        except KeyError:  # an extent without an operand
            continue
        yield Work(name, operations, moved)


def parameter_text(value: torch.Tensor) -> str:
    """The dtype and the shape of a parameter."""
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def versions() -> dict[str, str]:
    """The machine and the versions of packages."""
    return {name: str(value) for name, value in machine().items() if value != ""}
