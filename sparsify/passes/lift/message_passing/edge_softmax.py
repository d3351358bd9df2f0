"""Attention over the edges of a graph as one einsum program over its adjacency: GAT, GATv2, TransformerConv.

In:  `%m = scatter_reduce(.., %s, amax); %p = exp(%s - %m[%rows]); %d = scatter_add(.., %p); %w = %p / %d[%rows];
      %y = scatter_add(zeros, 0, %rows, %w * index_select(%x, 0, %columns))`, `%s` a score for each edge and head.
Out: a region of five statements over `x`, what scores are made of, and the adjacency `A`.

Edges that join the same two nodes have the same score and count as often as they are there: `A` stores the logarithm
of their number. Nodes that no edge leads to get 0.

In training some of the weights may be dropped, `D = P * where(uniform(seed[h], i, j) < rate, 0, 1 / (1 - rate))`: then
there must be no two edges that join the same nodes, as each is dropped by itself.

Source: Velickovic et al., Graph attention networks, 2018, equations 1 to 4.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph.operators import (
    argument,
    is_dropout,
    is_inactive_dropout,
    operator_name,
    tensor_value,
)
from sparsify.passes.lift.attention.dropout import drawn_factor, dropped_edges
from sparsify.passes.lift.message_passing import aggregation
from sparsify.passes.lift.message_passing.aggregation import (
    DTYPES,
    OUTPUT,
    gathers_behind,
    numbered,
    region_of,
    scattered,
    sending_extent,
)
from sparsify.passes.lift.message_passing.edge_features import EDGE, Edges, Modes, modes_before
from sparsify.passes.lift.message_passing.gather_scatter import gathered_index, is_one, is_zeros
from sparsify.passes.operands.cached_operands import Joins
from sparsify.passes.region.region import Region

# What models add to the sum of a row, whose largest term is 1, against divisions by 0.
NEGLIGIBLE: Final = 1e-15
VIEWS: Final = ("view", "unsqueeze", "squeeze", "expand")


@dataclass(frozen=True)
class Messages:
    """Messages as a softmax and other factors.

    Attributes:
        weights: the softmax, [edges, ..].
        modes: the index variables of the weights.
        values: factors of the messages beside the weights, each with its index variables.
        dropout: what drops weights, torch's operator or `dropped_edges`; `None` where nothing does.
        kept: the index variables of what it leaves.
    """

    weights: fx.Node
    modes: Modes
    values: tuple[tuple[Any, Modes], ...] = ()
    dropout: fx.Node | None = None
    kept: Modes = ()

    @property
    def is_drawn_by_torch(self) -> bool:
        """Whether torch draws which weights are dropped: no kernel can draw the same."""
        return self.dropout is not None and self.dropout.target is not dropped_edges


@dataclass(frozen=True)
class EdgeSoftmax:
    """Attention over edges.

    Attributes:
        node: the scatter that sums the weighted messages.
        rows: the receiving node of each edge, [edges].
        columns: the sending one.
        scores: what the softmax is taken of, [edges, ..].
        messages: the softmax, and what it is multiplied with.
        extent: the number of receiving nodes, a number or a size node.
        covered: nodes of the softmax and of the weighted sum.
    """

    node: fx.Node
    rows: fx.Node
    columns: fx.Node
    scores: fx.Node
    messages: Messages
    extent: Any
    covered: tuple[fx.Node, ...]


def recognise(node: fx.Node) -> EdgeSoftmax | None:
    """The attention over edges that ends in the scatter `node`, `None` when it is something else."""
    value = tensor_value(node)
    if value is None or value.dim() not in OUTPUT or value.dtype not in DTYPES:
        return None
    summed = scattered(node, "sum")
    if summed is None or not is_zeros(summed.base):
        return None
    rows = summed.rows
    messages = _split(summed.messages, (EDGE, *OUTPUT[value.dim()]))
    weighted = None if messages is None else softmax_over(messages.weights, rows)
    if messages is None or weighted is None:
        return None
    scores, covered = weighted
    if messages.dropout is not None:
        covered = (messages.dropout, *covered)
    gathers = gathers_behind([scores, *(value for value, _ in messages.values)])
    columns = {gathered_index(gather) for gather in gathers} - {rows, None}
    if len(columns) != 1:
        return None
    column = next(iter(columns))
    assert column is not None, "gathers have an index"
    extent = summed.base.args[0][0]  # type: ignore[index]
    return EdgeSoftmax(node, rows, column, scores, messages, extent, (node, *covered))


def is_nothing(node: Any) -> bool:
    """Whether `node` makes a tensor of -inf, of which a maximum keeps nothing."""
    is_full = isinstance(node, fx.Node) and operator_name(node) == "full"
    return is_full and argument(node, 1, "fill_value") == -torch.inf


def _split(messages: Any, modes: Modes) -> Messages | None:
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
    if is_dropout(node) or node.target is dropped_edges:
        found = _split(node.args[0], modes)
        if found is None or found.dropout is not None or found.values or modes[:1] != (EDGE,):
            return None
        return replace(found, dropout=node, kept=modes)
    if name == "div" and len(node.args) == 2 and _sum_behind(node.args[1]) is not None:
        return Messages(node, modes)
    if name != "mul" or len(node.args) != 2:
        return None
    for first, second in (node.args, node.args[::-1]):
        found = _split(first, _modes_of(first, node, modes))
        if found is not None:
            return replace(found, values=(*found.values, (second, _modes_of(second, node, modes))))
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
    if summed is None or (summed.rows, summed.messages) != (rows, powers) or not is_zeros(summed.base):
        return None
    shifted: Any = powers.args[0]
    covered = (weights, *found.between, found.total, powers)
    if operator_name(shifted) != "sub" or len(shifted.args) != 2:
        return None if found.added else (shifted, covered)
    scores, largest = shifted.args
    top_node: Any = largest.args[0] if isinstance(largest, fx.Node) else None
    top = scattered(top_node, "amax") if gathered_index(largest) is rows else None
    if top is None or top.rows is not rows or not isinstance(scores, fx.Node):
        return None
    if argument(top_node, 5, "include_self", True) and not is_nothing(top.base):
        return None
    source: Any = top.messages
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


def edge_region(match: EdgeSoftmax, mark: Mark) -> Region | str:
    """The region of attention: over nodes where scores and values are theirs, else over edges; or why there is none."""
    dropout = match.messages.dropout
    drawn_by = None if dropout is None else argument(dropout, 3, "columns")
    found = over_nodes(match) if drawn_by in (None, match.columns) else None
    if drawn_by is not None and found is None and operator_name(drawn_by) != "arange":
        return "weights are dropped by the nodes that edges join, and the messages are those of edges"
    if found is None:
        edges, senders = numbered(match.rows, match.node)
        read = _read(match, edges)
        if read is None:
            return "the messages are not values times the softmax of scores"
    else:
        edges, senders, read = found
    note = "attention over edges with features" if edges.is_numbered else "attention over edges"
    drop = ""
    if dropout is not None:
        seed = argument(dropout, 1, "seed")
        edges.names[seed] = "seed"
        at = ",".join(name or "0" for name in match.messages.kept[1:])
        drop = drawn_factor(f"seed[{at}]" if at else "seed", float(dropout.kwargs["rate"]))  # type: ignore[arg-type]
        note += ", some of them dropped"
    text = program_text(match, *read, drop)
    joins: Joins = "logsumexp" if dropout is None or edges.is_numbered else "nothing"
    return region_of(text, edges, match.node, (match.extent, senders), mark, match.covered, note, joins=joins)


def over_nodes(match: EdgeSoftmax) -> tuple[Edges, Any, tuple[str, str]] | None:
    """Edges, how many nodes send, scores and values where these are made of those of nodes; `None` for others."""
    edges = Edges(match.rows, match.columns, match.node)
    senders = sending_extent([match.scores, *(value for value, _ in match.messages.values)], edges)
    read = None if senders is None else _read(match, edges)
    return None if read is None else (edges, senders, read)


def _read(match: EdgeSoftmax, edges: Edges) -> tuple[str, str] | None:
    """Scores and values in index notation, `None` where they are made of other things than the edges have."""
    score = edges.read(match.scores, match.messages.modes)
    values = [edges.read(value, modes) for value, modes in match.messages.values]
    found = [value for value in values if value is not None]
    return (score, " * ".join(found)) if score and found and len(found) == len(values) else None


def program_text(match: EdgeSoftmax, score: str, values: str, drop: str = "") -> str:
    """The statements of attention over edges in index notation.

    Args:
        score: of an edge, over `i` and `j`.
        values: what the weights are multiplied with.
        drop: the factor of weights that may be dropped, "" without dropout.
    """
    at = "".join(f"{name}," for name in match.messages.modes if name not in (EDGE, None))
    outputs = ",".join(OUTPUT[match.node.meta["val"].dim()])
    weights, dropped = "P", ""
    if drop:  # a statement by itself: drawn once for each entry of a pass, as vectors
        weights = "D"
        dropped = f"""K[{at}i,j] = where(stored(A[i,j]), {drop}, 0)
        D[{at}i,j] = where(stored(A[i,j]), P[{at}i,j] * K[{at}i,j], 0)"""
    return f"""
        S[{at}i,j] = where(stored(A[i,j]), {score} + A[i,j], -inf)
        m[{at}i] max= S[{at}i,j]
        P[{at}i,j] = exp(S[{at}i,j] - where(m[{at}i] == -inf, 0, m[{at}i]))
        d[{at}i] += P[{at}i,j]
        {dropped}
        Y[i,{outputs}] += {weights}[{at}i,j] * {values} / where(d[{at}i] == 0, 1, d[{at}i])"""


def edge_mark(match: EdgeSoftmax) -> Mark | None:
    """The mark of attention over edges."""
    return aggregation.mark_of(match.node, [match.rows, match.columns])
