"""Dropout of attention over edges, drawn so that a kernel can draw it again.

In: `%w = dropout(%p, 0.6)`, weights [edges, heads] of attention over edges that a rule reached, in training.
Out: `%s = randint(2**31 - 1, [heads]); %w = dropped_edges(%p, %s, %rows, %columns, rate=0.6)`, here and in the graph
that results are compared with.

Which weights are dropped is a function of the seed and the two nodes of an edge; where messages have parts of their own
for each edge, of the number of the edge in place of its sender.
"""

from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.operators import argument, raw_name, tensor_value
from sparsify.passes.lift.attention.dropout import dropped_edges, seeds
from sparsify.passes.lift.message_passing.aggregation import numbered
from sparsify.passes.lift.message_passing.edge_softmax import EdgeSoftmax, edge_mark, over_nodes, recognise


def edge_dropout(draft: Draft) -> Draft:
    """The draft with seeds for the dropout of its attention over edges, and the graph to compare with."""
    if not _matches(draft.graph):
        return draft
    if draft.masked is None:
        draft.masked = fx.Graph()
        draft.masked.output(draft.masked.graph_copy(draft.graph, {}))
    for graph in (draft.masked, draft.graph):
        while found := _matches(graph):  # several sums may share what is dropped
            _put_in(found[0])
    return draft


def _matches(graph: fx.Graph) -> list[EdgeSoftmax]:
    """Attention over edges that a rule reached, and whose weights torch drops."""
    found = [match for node in graph.nodes if (match := recognise(node)) is not None]
    return [match for match in found if edge_mark(match) is not None and _is_replaceable(match)]


def _is_replaceable(match: EdgeSoftmax) -> bool:
    """Whether torch draws what is dropped, into memory of its own, for a known number of heads."""
    dropout = match.messages.dropout
    if dropout is None or not match.messages.is_drawn_by_torch or raw_name(dropout) != "dropout":
        return False
    value = tensor_value(dropout)
    return value is not None and all(str(extent).isdigit() for extent in value.shape[1:])


def _put_in(match: EdgeSoftmax) -> None:
    """Draws by seeds what torch would draw."""
    node = match.messages.dropout
    assert node is not None, "its weights are dropped"
    value = tensor_value(node)
    assert value is not None, "weights are a tensor"
    columns = match.columns if over_nodes(match) is not None else numbered(match.rows, node)[0].columns
    seed = seeds(node, list(value.shape[1:]), value.new_empty(value.shape[1:]))
    rate = float(argument(node, 1, "p", 0.5))
    with node.graph.inserting_before(node):
        made = node.graph.call_function(
            dropped_edges, (node.args[0], seed, match.rows, columns), {"rate": rate}
        )
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
