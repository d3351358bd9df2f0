"""Attention over the edges of a graph as one einsum program over its adjacency: GAT, GATv2, TransformerConv.

In:  `%m = scatter_reduce(.., %s, amax); %p = exp(%s - %m[%rows]); %d = scatter_add(.., %p); %w = %p / %d[%rows];
      %y = scatter_add(zeros, 0, %rows, %w * index_select(%x, 0, %columns))`, `%s` a score for each edge and head.
Out: a region of five statements over `x`, what scores are made of, and the adjacency `A`.

Edges that join the same two nodes have the same score and count as often as they are there: `A` stores the logarithm
of their number. Nodes that no edge leads to get 0.

Source: Velickovic et al., Graph attention networks, 2018, equations 1 to 4.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Const
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.passes.base import Mark
from sparsify.passes.canonicalize import size_node
from sparsify.passes.lift.edges import EDGE, Edges, Modes, modes_before
from sparsify.passes.lift.gather_scatter import gathered_index, is_first_mode, is_one, is_zeros
from sparsify.passes.lift.matrix import Matrix
from sparsify.passes.operators import argument, is_inactive_dropout, operator_name, sources, tensor_value
from sparsify.passes.region import Region
from sparsify.storage.format import Format

DTYPES: Final = {torch.float32: "float32", torch.float64: "float64"}
# What models add to the sum of a row, whose largest term is 1, against divisions by 0.
NEGLIGIBLE: Final = 1e-15
# Index variables of heads and features.
OUTPUT: Final = {2: ("f",), 3: ("h", "f")}
VIEWS: Final = ("view", "unsqueeze", "squeeze", "expand")


@dataclass(frozen=True)
class EdgeSoftmax:
    """Attention over edges.

    Attributes:
        node: the scatter that sums the weighted messages.
        rows: the receiving node of each edge, [edges].
        columns: the sending one.
        scores: what the softmax is taken of, [edges, ..].
        weights: the softmax, of the same shape.
        modes: the index variables of the weights.
        values: factors of the messages beside the weights, each with its index variables.
        extent: the number of receiving nodes, a number or a size node.
        covered: nodes of the softmax and of the weighted sum.
    """

    node: fx.Node
    rows: fx.Node
    columns: fx.Node
    scores: fx.Node
    weights: fx.Node
    modes: Modes
    values: tuple[tuple[Any, Modes], ...]
    extent: Any
    covered: tuple[fx.Node, ...]


def recognise(node: fx.Node) -> EdgeSoftmax | None:
    """The attention over edges that ends in the scatter `node`, `None` when it is something else."""
    value = tensor_value(node)
    if value is None or value.dim() not in OUTPUT or value.dtype not in DTYPES:
        return None
    summed = scattered(node, "sum")
    if summed is None or not is_zeros(summed[0]):
        return None
    base, rows, messages = summed
    split = _split(messages, (EDGE, *OUTPUT[value.dim()]))
    weighted = None if split is None else softmax_over(split[0], rows)
    if split is None or weighted is None:
        return None
    weights, modes, values = split
    scores, covered = weighted
    columns = {
        gathered_index(found)
        for found in _behind([scores, *(v for v, _ in values if isinstance(v, fx.Node))], rows)
    }
    columns -= {rows, None}
    column = next(iter(columns)) if len(columns) == 1 else None
    if column is None:
        return None
    extent = base.args[0][0]  # type: ignore[index]
    return EdgeSoftmax(node, rows, column, scores, weights, modes, values, extent, (node, *covered))


def scattered(node: Any, reduce: str) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(base, row of each message [edges], messages) of a scatter along the first mode; `None` for others."""
    name = operator_name(node) if isinstance(node, fx.Node) else ""
    kinds = {"sum": ("scatter_add", "index_add", "scatter_reduce"), "amax": ("scatter_reduce",)}[reduce]
    if name not in kinds:
        return None
    base, index = node.args[0], argument(node, 2, "index")
    messages = argument(node, 3, "source" if name == "index_add" else "src")
    if name == "index_add" and argument(node, 4, "alpha", 1) != 1:
        return None
    if name == "scatter_reduce":
        if argument(node, 4, "reduce") != reduce:
            return None
        if reduce == "amax" and argument(node, 5, "include_self", True) and not is_nothing(base):
            return None
    if not isinstance(base, fx.Node) or not is_first_mode(argument(node, 1, "dim"), base):
        return None
    rows = repeated_vector(index)
    return (base, rows, messages) if rows is not None and isinstance(messages, fx.Node) else None


def is_nothing(node: Any) -> bool:
    """Whether `node` makes a tensor of -inf, of which a maximum keeps nothing."""
    is_full = isinstance(node, fx.Node) and operator_name(node) == "full"
    return is_full and argument(node, 1, "fill_value") == -torch.inf


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
        if not is_column or str(inner.shape[0]) != str(value.shape[0]):
            return None
        index = index.args[0]
    return None


def _split(messages: Any, modes: Modes) -> tuple[fx.Node, Modes, tuple[tuple[Any, Modes], ...]] | None:
    """A softmax, and the other factors of a product, each with its index variables."""
    node = messages
    if not isinstance(node, fx.Node):
        return None
    name = operator_name(node)
    if name in VIEWS:
        inner = modes_before(node, modes)
        return None if inner is None else _split(node.args[0], inner)
    if is_inactive_dropout(node):
        return _split(node.args[0], modes)
    if name == "div" and len(node.args) == 2 and _sum_behind(node.args[1]) is not None:
        return node, modes, ()
    if name != "mul" or len(node.args) != 2:
        return None
    for first, second in (node.args, node.args[::-1]):
        found = _split(first, _modes_of(first, node, modes))
        if found is not None:
            return *found[:2], (*found[2], (second, _modes_of(second, node, modes)))
    return None


def _modes_of(operand: Any, result: fx.Node, modes: Modes) -> Modes:
    """The index variables of an operand of a product."""
    value, wide = tensor_value(operand), tensor_value(result)
    if value is None or wide is None:
        return ()
    offset = wide.dim() - value.dim()
    return tuple(
        None if is_one(extent) and not is_one(wide.shape[offset + mode]) else modes[offset + mode]
        for mode, extent in enumerate(value.shape)
    )


def softmax_over(weights: fx.Node, rows: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """The scores that `exp(s - max) / sum` is the softmax of, over the edges of each row, and the nodes between."""
    powers: Any = weights.args[0]
    found = _sum_behind(weights.args[1])
    if not isinstance(powers, fx.Node) or operator_name(powers) != "exp":
        return None
    if found is None or gathered_index(found.between[0]) is not rows:
        return None
    summed = scattered(found.total, "sum")
    if summed is None or summed[1:] != (rows, powers) or not is_zeros(summed[0]):
        return None
    shifted: Any = powers.args[0]
    covered = (weights, *found.between, found.total, powers)
    if operator_name(shifted) != "sub" or len(shifted.args) != 2:
        return None if found.added else (shifted, covered)
    scores, largest = shifted.args
    if not isinstance(largest, fx.Node):
        return None
    top = scattered(largest.args[0], "amax") if gathered_index(largest) is rows else None
    if top is None or top[1] is not rows or not isinstance(scores, fx.Node):
        return None
    source: Any = top[2]
    chain = [shifted, largest, largest.args[0]]
    while operator_name(source) in ("detach", "alias") and source is not scores:
        chain.append(source)
        source = source.args[0]
    return (scores, (*covered, *chain)) if source is scores else None


@dataclass(frozen=True)
class Divisor:
    """What the weights of a row are divided by: the scatter that sums them, what is added, the nodes between."""

    total: fx.Node
    added: float
    between: tuple[fx.Node, ...]


def _sum_behind(divisor: Any) -> Divisor | None:
    """The sum whose rows a divisor gathers."""
    if not isinstance(divisor, fx.Node) or gathered_index(divisor) is None:
        return None
    node: Any = divisor.args[0]
    between = [divisor]
    added: Any = 0.0
    if operator_name(node) == "add" and len(node.args) == 2:
        between.append(node)
        node, added = node.args
        if not isinstance(added, int | float) or not 0 <= added <= NEGLIGIBLE:
            return None
    return Divisor(node, float(added), tuple(between)) if isinstance(node, fx.Node) else None


def _behind(nodes: list[Any], rows: fx.Node) -> list[fx.Node]:
    """The gathers from which tensors over edges are computed."""
    waiting, seen = [node for node in nodes if isinstance(node, fx.Node)], set()
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


def mark_of(match: EdgeSoftmax) -> Mark | None:
    """The mark of the attention: its own, or that of an input from which its adjacency is made."""
    own = match.node.meta.get("sparse")
    if isinstance(own, Mark):
        return own
    marks = (source.meta.get("sparse") for source in sources([match.rows, match.columns]))
    return next((mark for mark in marks if isinstance(mark, Mark)), None)


def edge_region(match: EdgeSoftmax, mark: Mark) -> Region | str:
    """The region of attention over edges, or why there is none."""
    node = match.node
    value = tensor_value(node)
    assert value is not None, "attention over edges is a tensor"
    edges = Edges(match.rows, match.columns, node)
    outputs = OUTPUT[value.dim()]
    heads = [name for name in match.modes if name not in (EDGE, None)]
    score = edges.read(match.scores, match.modes)
    if score is None:
        return f"the scores of {match.scores.name} have parts that belong neither to nodes nor to heads"
    factors = [edges.read(factor, modes) for factor, modes in match.values]
    if None in factors or not factors:
        return "its messages have parts that belong neither to nodes nor to heads"
    senders = sending_extent(match, edges)
    if senders is None:
        return "nothing is gathered from the senders"
    matrix = Matrix(
        f"A_{node.name}", (match.extent, senders), match.rows, match.columns, None, None, False, value.dtype,
        mark, joins="logsumexp",
    )  # fmt: skip
    dtype = DTYPES[value.dtype]
    declared = {"A": Operand(matrix.format, dtype, 0.0, result_index_dtypes(matrix.format))}
    declared |= {
        name: Operand(Format("dense", rank=operand.meta["val"].dim()), dtype)
        for operand, name in edges.names.items()
    }
    extents = zip(outputs, value.shape[1:], strict=True)
    sizes = {name: int(str(extent)) for name, extent in extents if str(extent).isdigit()}
    text = program_text(heads, outputs, score, " * ".join(factor for factor in factors if factor))
    program = declare(parse(text), declared, ("Y",), sizes=sizes)
    named: dict[str, Any] = {name: operand for operand, name in edges.names.items()} | {"A": matrix}
    operands = {named[short].name: named[short] for short in program.inputs}
    names = {operand.name: short for short, operand in named.items()} | {node.name: "Y"}
    covered = list(dict.fromkeys([*edges.covered, *match.covered]))
    statement = (node, ("i", *outputs), Const(0))
    return Region([statement], operands, covered, ["attention over edges"], program, names)


def sending_extent(match: EdgeSoftmax, edges: Edges) -> Any:
    """The number of sending nodes, a number or a size node."""
    for gather in _behind([match.scores, *(v for v, _ in match.values)], match.rows):
        if gathered_index(gather) is match.columns:
            base = gather.args[0]
            value = tensor_value(base)
            if isinstance(base, fx.Node) and value is not None:
                extent = value.shape[0]
                fixed = str(extent).isdigit()
                return int(str(extent)) if fixed else size_node(base, 0, extent, match.node)
    return None


def program_text(heads: list[str], outputs: tuple[str, ...], score: str, values: str) -> str:
    """The statements of attention over edges in index notation.

    Args:
        heads: index variables of the scores beside those of the edge.
        outputs: those of the result beside the node's.
        score: of an edge, over `i` and `j`.
        values: what the weights are multiplied with.
    """
    at = "".join(f"{name}," for name in heads)
    return f"""
        S[{at}i,j] = where(stored(A[i,j]), {score} + A[i,j], -inf)
        m[{at}i] max= S[{at}i,j]
        P[{at}i,j] = exp(S[{at}i,j] - where(m[{at}i] == -inf, 0, m[{at}i]))
        d[{at}i] += P[{at}i,j]
        Y[i,{",".join(outputs)}] += P[{at}i,j] * {values} / where(d[{at}i] == 0, 1, d[{at}i])"""
