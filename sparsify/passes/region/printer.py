"""Text of graphs: one operator per line, with shape, module and mark.

In: the graph of `relu(conv1(x, edge_index))`. Out: lines such as

    %linear = linear(%x, conv1.lin.weight)    float32[n, 128]  conv1.lin

An `Origin` has the texts of a region for `explain`: the replaced nodes, the marks of the operands, and the tensors
that the operands are computed from.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.text.printer import declaration_parts
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, scope, tensor_value
from sparsify.passes.operands.convolution_operands import Chosen
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand, SparseOperand

if TYPE_CHECKING:
    from sparsify.passes.region.region import Region

LETTERS: Final = ("n", "m", "p", "q", "r", "s", "t")
SYMBOL: Final = re.compile(r"\b[a-z]+\d+\b")
IMPLIED: Final = ("device", "pin_memory", "layout", "dtype")
WIDEST: Final = 72


def graph_text(nodes: Iterable[fx.Node], sizes: dict[str, str]) -> str:
    """The lines of nodes, with named extents; parameters appear inline as arguments."""
    return aligned([cells(node, sizes) for node in nodes if node.op != "get_attr"])


def whole_graph(draft: Draft) -> str:
    """The present graph as text."""
    return graph_text(draft.graph.nodes, extent_names(draft.graph))


def extent_names(graph: fx.Graph) -> dict[str, str]:
    """A letter for each extent left open by the capture, in order of appearance."""
    symbols: dict[str, None] = {}
    for node in graph.nodes:
        value = tensor_value(node)
        for extent in value.shape if value is not None else ():
            if not isinstance(extent, int):
                symbols |= dict.fromkeys(SYMBOL.findall(str(extent)))
    return {
        symbol: LETTERS[number] if number < len(LETTERS) else f"n{number - len(LETTERS) + 1}"
        for number, symbol in enumerate(symbols)
    }


def cells(node: fx.Node, sizes: dict[str, str]) -> tuple[str, str, str]:
    """The columns of a node's line: computation, shape, and module with mark."""
    mark = info(node).mark
    notes = [scope(node)] if scope(node) else []
    if isinstance(mark, Mark):
        notes.append(f"# {mark}")
    if isinstance(chosen := info(node).form, Chosen):
        notes.append(f"# by {chosen.form}, with what follows")
    if node.op == "placeholder":
        return f"%{node.name}", shape_text(node, sizes), "  ".join(["input", *notes])
    if node.op == "output":
        return f"return {value_text(node.args[0])}", "", ""
    region = info(node).call
    name = region.name if region is not None else operator_name(node)
    args = node.args[1:] if region is not None else node.args
    texts = [value_text(arg) for arg in args]
    texts += [f"{key}={value_text(arg)}" for key, arg in node.kwargs.items() if key not in IMPLIED]
    return f"%{node.name} = {name}({', '.join(texts)})", shape_text(node, sizes), "  ".join(notes)


def value_text(value: Any) -> str:
    """An argument of an operator; a parameter by its qualified name."""
    match value:
        case fx.Node(op="get_attr"):
            return str(value.target)
        case fx.Node():
            return f"%{value.name}"
        case list() | tuple():
            return f"[{', '.join(map(value_text, value))}]"
        case torch.dtype() | torch.layout():
            return str(value).removeprefix("torch.")
    return str(value)


def shape_text(node: fx.Node, sizes: dict[str, str]) -> str:
    """`float32[n, 128]`; nothing for a value other than a tensor."""
    value = tensor_value(node)
    if value is None:
        return ""
    extents = [SYMBOL.sub(lambda m: sizes.get(m[0], m[0]), str(extent)) for extent in value.shape]
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(extents)}]"


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows in columns; a cell much wider than the others shifts only its own line."""
    if not rows:
        return ""
    widths = [
        max((len(row[n]) for row in rows if len(row[n]) <= WIDEST), default=0) for n in range(len(rows[0]))
    ]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def regions_text(draft: Draft) -> str:
    """The nodes of each region and its program."""
    from sparsify.passes.region.region import Region

    parts = []
    sizes = extent_names(draft.graph)
    for number, region in enumerate(draft.regions, 1):
        assert isinstance(region, Region), "emit replaces regions by calls"
        notes = [f"note: {note}" for note in region.notes]
        nodes = graph_text(sorted(set(region.covered)), sizes)
        parts.append("\n".join([f"region {number}", nodes, *notes, str(region.program)]))
    return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class Origin:
    """The text of `explain` about a region, in addition to its program.

    Attributes:
        graph: replaced nodes, one per line.
        marked: sparse operands, with the rules that mark them.
        sources: tensor that each operand is computed from, by the operand's name in the program.
    """

    graph: str
    marked: str
    sources: Mapping[str, str]


def origin(
    region: "Region",
    leaves: Mapping[str, Sequence[fx.Node]],
    replaced: Mapping[fx.Node, fx.Node],
    sizes: dict[str, str],
) -> Origin:
    """The origin of a region.

    Args:
        region: region with its program.
        leaves: nodes from which operands are computed once, by operand name.
        replaced: calls of earlier regions, by replaced node.
        sizes: names of the graph's extents.
    """
    marks = []
    sources = {}
    for name, operand in region.operands.items():
        short = region.names[name]
        now = replaced.get(operand, operand) if isinstance(operand, fx.Node) else operand
        sources[short] = source(now, leaves.get(short))
        if isinstance(operand, Matrix | Bags):
            mark = operand.mark
            assert region.program is not None, "regions have programs"
            name, _, levels = declaration_parts(region.program.declaration(short))
            marks.append((f"{name}: {mark.role}, {levels}", f"rule {mark.rule}, {mark.where}"))
    return Origin(graph_text(sorted(set(region.covered)), sizes), aligned(marks), sources)


def source(operand: fx.Node | SparseOperand, leaves: Sequence[fx.Node] | None) -> str:
    """The text of the tensor that an operand is computed from."""
    if isinstance(operand, PatternOperand):
        return f"{operand.spec}, made once for each length"
    if isinstance(operand, Bags):
        return f"the bags of {plain(operand.indices)} from {plain(operand.offsets)} on, as they are"
    if isinstance(operand, Matrix) and operand.dense is not None:
        return f"{plain(operand.dense)}{', transposed' if operand.transposed else ''}, converted once"
    if leaves is None:
        assert isinstance(operand, fx.Node), "matrices follow from leaves"
        return plain(operand)
    tensors = [leaf for leaf in leaves if operator_name(leaf) not in ("sym_size", "size")]
    names = ", ".join(dict.fromkeys(map(plain, tensors)))
    if tensors and all(leaf.op == "get_attr" for leaf in tensors):
        return f"{names}, turned once"
    values = getattr(operand, "values", None)
    weighted = f", values %{values.name}" if isinstance(values, fx.Node) and values not in leaves else ""
    return f"from {names}{weighted}, once per graph"


def plain(node: fx.Node) -> str:
    """An input or parameter by its own name, any other node as in graph text; `adj` for a part of `adj`."""
    return (
        str(info(node).input_name or node.name).split(".")[0]
        if node.op == "placeholder"
        else value_text(node)
    )
