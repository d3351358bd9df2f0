"""Aggregations of messages that are more than weighted rows: sums, largest and smallest entries over incoming edges.

In:  `%y = scatter_reduce(zeros, 0, %rows, relu(index_select(%x, 0, %columns) + index_select(%z, 0, %rows)), amax)`.
Out: a region over the adjacency `A`: `m[i,f] max= where(stored(A[i,j]), relu(x[j,f] + z[i,f]), -inf)`, and 0 for nodes
     that no edge leads to.

Messages that have parts of their own for each edge are computed as they are; `A[i,j]` then says that edge `j` leads to
node `i`.

Source: PNA, Corso et al., 2020, and EdgeConv, Wang et al., 2019, for aggregations that are no sums of neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.dtypes import name_of
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer_format import dense_format
from sparsify.compiler.einsum.nodes import Assign, Const
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph.canonicalize import size_node
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import argument, operator_name, sources, tensor_value
from sparsify.passes.lift.message_passing.edge_features import EDGE, Edges
from sparsify.passes.lift.message_passing.gather_scatter import (
    gathered_index,
    is_first_mode,
    is_one,
    is_zeros,
)
from sparsify.passes.operands.cached_operands import Joins
from sparsify.passes.region.region import Region, Statement
from sparsify.passes.region.sparse_operand import Matrix

DTYPES: Final = {torch.float32: "float32", torch.float64: "float64"}
# Index variables of a result beside that of the node, by the number of modes.
OUTPUT: Final = {2: ("f",), 3: ("h", "f")}
SCATTERS: Final = {
    "sum": ("scatter_add", "index_add", "scatter_reduce"),
    "amax": ("scatter_reduce",),
    "amin": ("scatter_reduce",),
}


@dataclass(frozen=True)
class Scatter:
    """A scatter along the first mode.

    Attributes:
        base: what it starts with.
        rows: the receiving node of each message, [edges].
        messages: [edges, ..].
    """

    base: fx.Node
    rows: fx.Node
    messages: fx.Node


@dataclass(frozen=True)
class Aggregation:
    """Messages that are gathered, computed and scattered.

    Attributes:
        node: the scatter.
        reduce: `sum`, `amax` or `amin`.
        scatter: its parts.
        columns: the sending node of each edge, `None` where messages read more than one other node.
    """

    node: fx.Node
    reduce: str
    scatter: Scatter
    columns: fx.Node | None


def recognise(node: fx.Node) -> Aggregation | None:
    """The aggregation that ends in the scatter `node`, `None` when it is something else."""
    value = tensor_value(node)
    if value is None or value.dim() not in OUTPUT or value.dtype not in DTYPES:
        return None
    for reduce in SCATTERS:
        found = scattered(node, reduce)
        if found is None or not is_zeros(found.base):
            continue
        if reduce != "sum" and argument(node, 5, "include_self", True):
            return None
        gathers = gathers_behind([found.messages])
        if not any(is_of_features(gather) for gather in gathers):
            return None
        columns = {gathered_index(gather) for gather in gathers} - {found.rows, None}
        return Aggregation(node, reduce, found, next(iter(columns)) if len(columns) == 1 else None)
    return None


def is_of_features(gather: fx.Node) -> bool:
    """Whether a gather reads vectors of nodes."""
    value = tensor_value(gather)
    return value is not None and value.dim() > 1 and value.dtype.is_floating_point


def scattered(node: Any, reduce: str) -> Scatter | None:
    """The parts of a scatter by `reduce` along the first mode; `None` for others."""
    name = operator_name(node) if isinstance(node, fx.Node) else ""
    if name not in SCATTERS[reduce] or (name == "scatter_reduce" and argument(node, 4, "reduce") != reduce):
        return None
    base, index = node.args[0], argument(node, 2, "index")
    messages = argument(node, 3, "source" if name == "index_add" else "src")
    if name == "index_add" and argument(node, 4, "alpha", 1) != 1:
        return None
    if not isinstance(base, fx.Node) or not is_first_mode(argument(node, 1, "dim"), base):
        return None
    rows = repeated_vector(index)
    return Scatter(base, rows, messages) if rows is not None and isinstance(messages, fx.Node) else None


def repeated_vector(index: Any) -> fx.Node | None:
    """The vector [edges] that an index repeats along all further modes."""
    while isinstance(index, fx.Node):
        value = tensor_value(index)
        if value is None:
            return None
        if value.dim() == 1:
            return index
        inner = tensor_value(index.args[0]) if index.args else None
        if (
            operator_name(index) not in ("expand", "expand_as", "view", "unsqueeze", "repeat")
            or inner is None
        ):
            return None
        is_column = inner.dim() == 1 or all(is_one(extent) for extent in inner.shape[1:])
        if not is_column or not may_agree(inner.shape[0], value.shape[0]):
            return None
        index = index.args[0]
    return None


def may_agree(one: Any, other: Any) -> bool:
    """Whether two extents are the same; what the data decide has another name wherever export meets it."""
    return str(one) == str(other) or (is_counted(one) and is_counted(other))


def is_counted(extent: Any) -> bool:
    """Whether only the data of a call say how large an extent is, as of the edges that are no loops."""
    symbols = extent.node.expr.free_symbols if isinstance(extent, torch.SymInt) else ()
    return any(str(symbol).startswith("u") for symbol in symbols)


def gathers_behind(nodes: Sequence[Any]) -> list[fx.Node]:
    """The gathers from which tensors over edges are computed."""
    waiting = [node for node in nodes if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    found = []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if gathered_index(node) is not None:
            found.append(node)
        elif node.op == "call_function":
            waiting.extend(node.all_input_nodes)
    return found


def mark_of(node: fx.Node, edges: Sequence[fx.Node]) -> Mark | None:
    """The mark of message passing: its own, or that of an input from which its edges are made."""
    own = info(node).mark
    if isinstance(own, Mark):
        return own
    marks = (info(source).mark for source in sources(list(edges)))
    return next((mark for mark in marks if isinstance(mark, Mark) and mark.role == "adjacency"), None)


def aggregation_region(match: Aggregation, mark: Mark) -> Region | str:
    read = over_nodes([match]) or over_edges([match])
    if read is None:
        return f"{match.scatter.messages.name} is no tensor over edges of the dtype of the result"
    note, results = read.note, {read.names[0]: match.node}
    return of_statements(read.statements(), read.edges, results, read.extents, mark, (match.node,), note)


@dataclass(frozen=True)
class Messages:
    """The messages of aggregations over the same edges, read.

    Attributes:
        matches: the aggregations.
        edges: what was read.
        texts: the messages of each in index notation.
        senders: the number of nodes that send them, or of the edges.
    """

    matches: Sequence[Aggregation]
    edges: Edges
    texts: Sequence[str]
    senders: Any

    @property
    def extents(self) -> tuple[Any, Any]:
        """The extents of the adjacency."""
        return self.matches[0].scatter.base.args[0][0], self.senders  # type: ignore[index]

    @property
    def note(self) -> str:
        """What messages are made of, for the report."""
        return "messages of edges" if self.edges.is_numbered else "messages of nodes"

    @property
    def names(self) -> list[str]:
        """The names of the aggregations, `Y` for one."""
        count = len(self.matches)
        return [f"T{number}" for number in range(count)] if count > 1 else ["Y"]

    def statements(self) -> list[Assign]:
        """The aggregations, that of the count of edges first."""
        value = tensor_value(self.matches[0].node)
        assert value is not None, "an aggregation is a tensor"
        at = ",".join(("i", *OUTPUT[value.dim()]))
        lines = ["n[i] += A[i,j]"] if any(match.reduce != "sum" for match in self.matches) else []
        for number, (match, message) in enumerate(zip(self.matches, self.texts, strict=True)):
            result, held = self.names[number], f"m{number or ''}"
            if match.reduce == "sum":
                lines.append(f"{result}[{at}] = sum(j, A[i,j] * {message})")
                continue
            name, empty = ("max", "-inf") if match.reduce == "amax" else ("min", "inf")
            lines.append(f"{held}[{at}] {name}= where(stored(A[i,j]), {message}, {empty})")
            lines.append(f"{result}[{at}] = where(n[i] == 0, 0, {held}[{at}])")
        return list(parse("\n".join(lines)))


def over_nodes(matches: Sequence[Aggregation]) -> Messages | None:
    """Messages over the same edges as expressions over the nodes that these join; `None` where one is no such."""
    first = matches[0]
    if first.columns is None:
        return None
    edges = Edges(first.scatter.rows, first.columns, first.node)
    texts = _texts(matches, edges)
    senders = sending_extent([match.scatter.messages for match in matches], edges)
    return None if texts is None or senders is None else Messages(matches, edges, texts, senders)


def over_edges(matches: Sequence[Aggregation]) -> Messages | None:
    """Messages over the same edges as they are, but those that others are computed from entry by entry."""
    edges, extent = numbered(matches[0].scatter.rows, matches[0].node)
    edges.given = frozenset(match.scatter.messages for match in matches)
    texts = _texts(matches, edges)
    return None if texts is None else Messages(matches, edges, texts, extent)


def _texts(matches: Sequence[Aggregation], edges: Edges) -> list[str] | None:
    """The messages of each aggregation in index notation."""
    value = tensor_value(matches[0].node)
    assert value is not None, "an aggregation is a tensor"
    modes = (EDGE, *OUTPUT[value.dim()])
    found = [edges.read(match.scatter.messages, modes) for match in matches]
    texts = [text for text in found if text is not None]
    return texts if len(texts) == len(found) else None


def region_of(
    text: str, edges: Edges, node: fx.Node, extents: tuple[Any, Any], mark: Mark, covered: Sequence[fx.Node],
    note: str, joins: Joins = "sum",
) -> Region:  # fmt: skip
    """The region that computes `node` as `Y` by statements over an adjacency `A` and what was read of edges."""
    return of_statements(parse(text), edges, {"Y": node}, extents, mark, covered, note, joins)


def of_statements(
    statements: Sequence[Assign], edges: Edges, results: Mapping[str, fx.Node], extents: tuple[Any, Any], mark: Mark,
    covered: Sequence[fx.Node], note: str, joins: Joins = "sum",
) -> Region:  # fmt: skip
    """The region that computes nodes by statements over an adjacency `A` and what was read of edges.

    Args:
        results: the nodes, all of the same shape and in the order of the graph, by the names that are assigned.
        extents: of `A`.
        covered: nodes that the region replaces beside those that were read.
        joins: what edges between the same nodes become together in `A`.
    """
    nodes = tuple(results.values())
    value = tensor_value(nodes[0])
    assert value is not None, "message passing gives a tensor"
    matrix = Matrix(
        f"A_{nodes[0].name}",
        extents,
        edges.rows,
        edges.columns,
        None,
        None,
        False,
        value.dtype,
        mark,
        joins=joins,
    )
    dtype = DTYPES[value.dtype]
    declared = {"A": Operand(matrix.format, dtype, 0.0, result_index_dtypes(matrix.format))}
    for operand, name in edges.names.items():
        read = operand.meta["val"]
        declared[name] = Operand(dense_format(read.dim()), name_of(read.dtype))
    outputs = OUTPUT[value.dim()]
    known = [*zip(outputs, value.shape[1:], strict=True), *edges.sums.items()]
    sizes = {name: int(str(extent)) for name, extent in known if str(extent).isdigit()}
    program = declare(statements, declared, tuple(results), sizes=sizes)
    named: dict[str, Any] = {name: operand for operand, name in edges.names.items()} | {"A": matrix}
    operands = {named[short].name: named[short] for short in program.inputs}
    names = {operand.name: short for short, operand in named.items()}
    names |= {node.name: short for short, node in results.items()}
    computed: list[Statement] = [(node, ("i", *outputs), Const(0)) for node in nodes]
    replaced = list(dict.fromkeys([*edges.covered, *covered]))
    several = nodes if len(nodes) > 1 else ()
    return Region(computed, operands, replaced, [note], program, names, results=several)


def sending_extent(nodes: Sequence[Any], edges: Edges) -> Any:
    """The number of sending nodes, a number or a size node; `None` where nothing is gathered from them."""
    for gather in gathers_behind(nodes):
        base = gather.args[0]
        value = tensor_value(base)
        if gathered_index(gather) is edges.columns and isinstance(base, fx.Node) and value is not None:
            return extent_of(base, edges.user)
    return None


def numbered(rows: fx.Node, user: fx.Node) -> tuple[Edges, Any]:
    """Edges whose tensors are read as they are, the number of an edge in the place of its sender; and their number."""
    count = extent_of(rows, user)
    value = tensor_value(rows)
    assert value is not None, "the receivers of messages are a tensor"
    with user.graph.inserting_before(user):
        columns = user.graph.call_function(torch.ops.aten.arange.default, (count,))
    columns.meta["val"] = value.new_empty(value.shape, dtype=torch.int64)
    return Edges(rows, columns, user, is_numbered=True), count


def extent_of(node: fx.Node, user: fx.Node) -> Any:
    """The first extent of a tensor, as a number or a size node in front of `user`."""
    extent = node.meta["val"].shape[0]
    return int(str(extent)) if str(extent).isdigit() else size_node(node, 0, extent, user)
