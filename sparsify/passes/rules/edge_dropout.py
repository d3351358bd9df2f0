"""Dropout on edges by seeds, so that a kernel can repeat the draw.

In: `%w = dropout(%p, 0.6)`, weights [edges, heads] summed by a scatter selected by a rule, in training.
Out: `%s = randint(2**31 - 1, [heads]); %w = dropped_edges(%p, %s, %rows, %columns, rate=0.6)`, in the graph and in the
reference graph for verification.

The dropped values are a function of the seed and the two nodes of an edge; for messages with per-edge features, of the
number of the edge.
"""

from collections.abc import Iterator, Sequence

from torch import fx

from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.draws import dropped_edges, seeds
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import argument, is_real, operator_name, raw_name, sources, tensor_value
from sparsify.passes.rules.scatters import GATHERS, REPEATS, SCATTERS, messages_of


def edge_dropout(draft: Draft) -> Draft:
    """The draft with seeds for the dropout of its messages, and the reference graph for comparison."""
    if not any(True for _ in dropouts(draft.graph)):
        return draft
    if draft.masked is None:
        draft.masked = fx.Graph()
        draft.masked.output(draft.masked.graph_copy(draft.graph, {}))
    for graph in (draft.masked, draft.graph):
        for node, scatter in list(dropouts(graph)):
            draw(node, ends_of(scatter))
    return draft


def dropouts(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The dropout nodes on values of edges, each once, with the selected scatter that reduces them."""
    visited: set[fx.Node] = set()
    for node in graph.nodes:
        if operator_name(node) in SCATTERS and is_selected(node):
            waiting = [messages_of(node)]
            while waiting:
                candidate = waiting.pop()
                if candidate in visited or operator_name(candidate) in (*GATHERS, *SCATTERS):
                    continue
                visited.add(candidate)
                if is_replaceable(candidate):
                    yield candidate, node
                waiting += candidate.all_input_nodes


def is_selected(scatter: fx.Node) -> bool:
    """Whether a rule selects a scatter, or the adjacency of its indices."""
    marks = [info(node).mark for node in (scatter, *sources([scatter]))]
    return isinstance(marks[0], Mark) or any(isinstance(m, Mark) and m.role == "adjacency" for m in marks[1:])


def is_replaceable(node: fx.Node) -> bool:
    """Whether torch draws a dropout out of place, for a fixed number of features."""
    if raw_name(node) != "dropout" or argument(node, 2, "train", True) is False:
        return False
    value = tensor_value(node)
    return value is not None and value.dim() > 0 and all(str(extent).isdigit() for extent in value.shape[1:])


def draw(node: fx.Node, ends: Sequence[fx.Node]) -> None:
    """Replaces torch's dropout by draws from seeds."""
    value = tensor_value(node)
    assert value is not None, "dropout is of a tensor"
    seed = seeds(node, list(value.shape[1:]), value.new_empty(value.shape[1:]))
    rate = float(argument(node, 1, "p", 0.5))
    with node.graph.inserting_before(node):
        draws = node.graph.call_function(dropped_edges, (node.args[0], seed, *ends), {"rate": rate})
    draws.meta = dict(node.meta)
    node.replace_all_uses_with(draws)
    node.graph.erase_node(node)


def ends_of(scatter: fx.Node) -> tuple[fx.Node, ...]:
    """Receiving and sending nodes of edges if the messages follow from node features; () otherwise."""
    rows = vector_of(places_of(scatter))
    count = str(rows.meta["val"].shape[0])
    waiting, visited, columns = [messages_of(scatter)], set[fx.Node](), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        value = tensor_value(node)
        if node in visited or value is None or not value.is_floating_point():
            continue
        visited.add(node)
        if operator_name(node) in GATHERS:
            columns.add(vector_of(places_of(node)))
        elif node.op == "placeholder" and value.dim() > 0 and str(value.shape[0]) == count:
            return ()
        else:
            waiting += node.all_input_nodes
    columns.discard(rows)
    return (rows, *columns) if len(columns) == 1 else ()


def places_of(node: fx.Node) -> fx.Node:
    """The tensor of places of a gather or a scatter."""
    tensors = (read for read in node.all_input_nodes if not is_real(read) and tensor_value(read) is not None)
    return next(tensors)


def vector_of(places: fx.Node) -> fx.Node:
    """The index tensor without the views that repeat it."""
    while operator_name(places) in REPEATS:
        places = places.all_input_nodes[0]
    return places
