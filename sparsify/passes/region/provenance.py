"""Where a region comes from: the nodes that it replaces, the marks of its operands, the tensors behind their names.

In: a region before its nodes are replaced. Out: an `Origin`, whose texts `explain` shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import fx

from sparsify.compiler.einsum.printer import declaration_parts
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.region.printer import aligned, graph_text, in_order, value_text
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand

if TYPE_CHECKING:
    from sparsify.passes.region.region import Region


@dataclass(frozen=True, slots=True)
class Origin:
    """What `explain` says of a region besides its program.

    Attributes:
        graph: the nodes that it replaces, a line each.
        marked: its sparse operands, and the rules that make them so.
        sources: the tensor behind each operand, by the operand's name in the program.
    """

    graph: str
    marked: str
    sources: Mapping[str, str]


def origin(
    graph: fx.Graph,
    region: "Region",
    leaves: Mapping[str, Sequence[fx.Node]],
    replaced: Mapping[fx.Node, fx.Node],
    sizes: dict[str, str],
) -> Origin:
    """The origin of a region.

    Args:
        graph: that the region is in.
        region: with its program.
        leaves: the nodes from which operands are computed once, by name.
        replaced: the calls of earlier regions, by the nodes whose place they took.
        sizes: the names of the graph's extents.
    """
    marks = []
    sources = {}
    for name, operand in region.operands.items():
        short = region.names[name]
        now = replaced.get(operand, operand) if isinstance(operand, fx.Node) else operand
        sources[short] = source(now, leaves.get(short))
        if isinstance(operand, Matrix | Bags):
            mark = operand.mark
            assert region.program is not None, "fuse finishes programs"
            name, _, levels = declaration_parts(region.program.declaration(short))
            marks.append((f"{name}: {mark.role}, {levels}", f"rule {mark.rule}, {mark.where}"))
    return Origin(graph_text(in_order(graph, region.covered), sizes), aligned(marks), sources)


def source(operand: fx.Node | Matrix | PatternOperand | Bags, leaves: Sequence[fx.Node] | None) -> str:
    """The tensor behind an operand, in words."""
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
    """An input or parameter under its own name, another node as graphs print it; `adj` for a part of it."""
    return (
        str(info(node).input_name or node.name).split(".")[0]
        if node.op == "placeholder"
        else value_text(node)
    )
