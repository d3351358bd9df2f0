"""Message passing on nodes in another order, with neighbours close to each other.

In: `%y = index_add(%zeros, 0, %rows, %w * index_select(%x, 0, %columns))` by a rule with `reorder: rcm`.
Out: `%o = node_order(handle, 0, %n, %edge_index)`, `%p = node_order(handle, 1, ...)`; the same steps with `%p[%rows]`
and `%p[%columns]` on `index_select(%x, 0, %o)`, and `index_select(%y, 0, %p)` for readers that need the original order.

Rowwise operators (`rowwise`) run in either order; a minimal cut selects the order of each, to minimise the permuted
numbers per call: chained layers share one permutation on the way in and one on the way out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.call.bind import extract, leaves_of
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph import canonicalize
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import known_size, operator_name, sources, tensor_value
from sparsify.passes.program.translate import translate
from sparsify.passes.region.sparse_operand import declared_sparse
from sparsify.passes.reorder import gather_scatter
from sparsify.passes.reorder.gather_scatter import GatherScatter
from sparsify.passes.reorder.node_order import NODE_TO_PLACE, PLACE_TO_NODE, NodeOrder, has_metis, node_order
from sparsify.passes.reorder.rowwise import row_operands
from sparsify.passes.rules.mark import rule_error
from sparsify.recipe import Rule
from sparsify.report import ConversionEntry, OrderEntry

aten: Final = torch.ops.aten


@dataclass
class Group:
    """Steps of message passing over one adjacency.

    Attributes:
        mark: mark of the rule with the order.
        matches: the steps.
        rows: extents equal to the number of nodes, as text.
        extents: the extents as numbers or size nodes.
    """

    mark: Mark
    matches: list[GatherScatter]
    rows: set[str] = field(default_factory=set)
    extents: list[Any] = field(default_factory=list)

    def is_rows(self, extent: Any) -> bool:
        """Whether an extent is the number of nodes."""
        return str(extent) in self.rows

    def gathers(self) -> dict[fx.Node, fx.Node]:
        """The gathered features, by gather."""
        return {match.gather: match.features for match in self.matches}


def reorder(draft: Draft) -> Draft:
    """The draft with message passing in the order requested by its rule.

    Raises:
        RecipeError: no message passing to reorder, an adjacency not square or not static, or a missing package for the
            method.
    """
    rules = {rule.id or f"rule {at + 1}": rule for at, rule in enumerate(draft.recipe.rules)}
    rules = {label: rule for label, rule in rules.items() if rule.reorder != "none"}
    if not rules:
        return draft
    groups = list(groups_of(draft))
    for label, rule in rules.items():
        require_possible(draft, label, rule, [group for group in groups if group.mark.rule == label])
    for group in groups:
        matches = [
            gather_scatter.recognise(match.node) for match in group.matches
        ]  # as left by earlier groups
        group.matches = [match for match in matches if match is not None]
        complete(draft, rules[group.mark.rule], group)
        put_in_order(draft, group)
    canonicalize.merge_repetitions(draft.graph)
    canonicalize.remove_unused(draft.graph)
    return draft


def groups_of(draft: Draft) -> Iterator[Group]:
    """The steps with a requested order, grouped by edges."""
    groups: dict[Any, Group] = {}
    for node in draft.graph.nodes:
        match = gather_scatter.recognise(node)
        mark = None if match is None else adjacency_mark(match)
        if match is not None and mark is not None:
            key = (mark.rule, match.rows, match.columns)
            groups.setdefault(key, Group(mark, [])).matches.append(match)
    yield from groups.values()


def require_possible(draft: Draft, label: str, rule: Rule, groups: Sequence[Group]) -> None:
    """Raises where a requested order is impossible."""
    if rule.reorder == "metis" and not has_metis():
        text = "`reorder: metis` needs the package pymetis, which is not installed; pip install pymetis, or use `rcm`"
        raise rule_error(draft.recipe, rule, text)
    entry = next(entry for entry in draft.report.rules if entry.rule == label)
    if entry.matched and not groups:
        text = (
            f"`reorder` of {', '.join(entry.matched)} finds no message passing; it is for adjacencies given as edges "
            "or as sparse tensors; leave it out"
        )
        raise rule_error(draft.recipe, rule, text)


def complete(draft: Draft, rule: Rule, group: Group) -> None:
    """Sets the number of nodes of a group; raises where no single order exists."""
    sizes: dict[str, tuple[Any, int | None]] = {}
    for match in group.matches:
        features = tensor_value(match.features)
        assert features is not None, "messages are gathered from tensors"
        extent = match.extent.meta["val"] if isinstance(match.extent, fx.Node) else match.extent
        sizes.setdefault(str(extent), (match.extent, known_size(extent)))
        rows = features.shape[0]
        if str(rows) not in sizes:
            is_fixed = isinstance(rows, int)
            node = rows if is_fixed else canonicalize.size_node(match.features, 0, rows, match.node)
            sizes[str(rows)] = (node, known_size(rows))
    group.rows, group.extents = set(sizes), [extent for extent, _ in sizes.values()]
    problem = ""
    if len({size for _, size in sizes.values()}) > 1:
        extents = " by ".join(str(size) for _, size in sizes.values())
        problem = (
            f"an adjacency whose rows and columns are the same nodes, and {{}} is {extents}; leave it out"
        )
    problem = problem or why_unknown(draft, group)
    if problem:
        name = f"that of {group.matches[0].node.name}"
        raise rule_error(draft.recipe, rule, f"`reorder` needs {problem.format(name)}")


def why_unknown(draft: Draft, group: Group) -> str:
    """The missing requirement of a memoized order, or ""; `{}` is the adjacency."""
    for leaf in leaves_of(needed(group)):
        if leaf.op == "placeholder" and not group.mark.static:
            name = info(leaf).input_name or leaf.name
            return (
                f"an adjacency that stays the same between calls, and {{}} follows from the input {name}; "
                "say `static: true` where it stays the same"
            )
        if not (leaf.op in ("placeholder", "get_attr") or is_size(leaf)):
            return f"edges that are known before a call, and {{}} depends on {leaf.name}; leave it out"
    for node in draft.graph.nodes:
        if canonicalize.is_writer(node) and group.is_rows(first_extent(node.args[0])):
            return f"tensors that stay as they are, and {node.name} writes into one of the nodes of {{}}; leave it out"
    return ""


def needed(group: Group) -> list[fx.Node]:
    """The nodes that determine an order."""
    match = group.matches[0]
    return [match.rows, match.columns, *(e for e in group.extents if isinstance(e, fx.Node))]


def is_size(node: fx.Node) -> bool:
    """Whether a node is the extent of a tensor."""
    return operator_name(node) in ("sym_size", "size")


def first_extent(node: Any) -> Any:
    """The first extent of a tensor, `None` without one."""
    value = tensor_value(node)
    return value.shape[0] if value is not None and value.dim() > 0 else None


def put_in_order(draft: Draft, group: Group) -> None:
    """Rewrites the steps of a group, and rowwise nodes assigned to the new order."""
    graph = draft.graph
    program = translate(graph)
    operands = {
        node: operands_of_node
        for node in graph.nodes
        if (operands_of_node := row_operands(program, node, group.is_rows)) is not None
        and not any(declared_sparse(operand) for operand in operands_of_node)
    }
    chosen = cheapest(draft, group, operands)
    columns = permuted_columns(group, operands, chosen)
    order, position_of = ask_for_order(draft, group, columns)
    # Tensors that cross between the orders, in their other order.
    reordered: dict[fx.Node, fx.Node] = {}
    gathers = group.gathers()
    for source, user, is_permuted in crossings(graph, group, operands, chosen):
        if source not in reordered:
            anchor = source if position_of < source else position_of
            with graph.inserting_after(anchor):
                reordered[source] = graph.call_function(
                    aten.index_select.default, (source, 0, order if is_permuted else position_of)
                )
            reordered[source].meta["val"] = source.meta["val"]
        if user not in gathers:
            user.replace_input_with(source, reordered[source])
    for match in group.matches:
        gather = match.gather
        features = (
            reordered.get(match.features, match.features) if match.features not in chosen else match.features
        )
        with graph.inserting_before(gather):
            index = placed(position_of, match.columns)
        gather.target, gather.kwargs = aten.index_select.default, {}
        gather.args = (features, 0, index)
        base, _, messages = gather_scatter.scatter_parts(match.node) or (None, None, None)
        with graph.inserting_before(match.node):
            index = placed(position_of, match.rows)
        match.node.target, match.node.kwargs = aten.index_add.default, {}
        match.node.args = (base, 0, index, messages)


def placed(position_of: fx.Node, coordinates: fx.Node) -> fx.Node:
    """Places of the nodes of edges in the order."""
    index = position_of.graph.call_function(aten.index_select.default, (position_of, 0, coordinates))
    index.meta["val"] = tensor_value(coordinates).to(torch.int64)  # type: ignore[union-attr]
    return index


def crossings(
    graph: fx.Graph, group: Group, operands: dict[fx.Node, list[fx.Node]], chosen: set[fx.Node]
) -> list[tuple[fx.Node, fx.Node, bool]]:
    """(tensor, user, whether the user needs the new order) for each tensor that nodes read in another order."""
    result = []
    for source, user, is_permuted in reads(graph, group, operands):
        wants = is_permuted is True or (is_permuted is None and user in chosen)
        if wants != (source in chosen):
            result.append((source, user, wants))
    return result


def reads(
    graph: fx.Graph, group: Group, operands: dict[fx.Node, list[fx.Node]]
) -> Iterator[tuple[fx.Node, fx.Node, bool | None]]:
    """(tensor, user, order): True for the new order, False for the original, `None` for the user's."""
    gathers = group.gathers()
    for source in graph.nodes:
        if not group.is_rows(first_extent(source)):
            continue
        for user in source.users:
            if is_size(user):
                continue
            is_permuted: bool | None = True
            if gathers.get(user) is not source:
                is_permuted = None if source in operands.get(user, ()) else False
            yield source, user, is_permuted


def permuted_columns(
    group: Group, operands: dict[fx.Node, list[fx.Node]], chosen: set[fx.Node]
) -> tuple[int, int]:
    """The number of numbers of each node permuted on the way in and on the way out."""
    graph = group.matches[0].node.graph
    crossed = {source: wants for source, _, wants in crossings(graph, group, operands, chosen)}
    into = sum(width(source) for source, wants in crossed.items() if wants)
    return into, sum(width(source) for source, wants in crossed.items() if not wants)


def width(node: fx.Node) -> int:
    """The number of numbers a tensor has for each node, in the example."""
    value = tensor_value(node)
    assert value is not None, "tensors of all nodes have shapes"
    count = 1
    for extent in value.shape[1:]:
        count *= known_size(extent) or 1
    return count


def cheapest(draft: Draft, group: Group, operands: dict[fx.Node, list[fx.Node]]) -> set[fx.Node]:
    """The nodes computed in the new order, minimising the permuted numbers: a minimal cut.

    Each tensor is permuted once for all of its users: a tensor in the original order and a user in the new one are
    separated at the cost of the tensor's width, through a vertex for the permuted tensor, and likewise in reverse.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    start, end = 0, 1
    vertices: dict[Any, int] = {}

    def vertex(key: Any) -> int:
        return vertices.setdefault(key, len(vertices) + 2)

    endless = 2**30
    edges: dict[tuple[int, int], int] = {}
    steps = {match.node for match in group.matches}
    for source, user, is_permuted in reads(draft.graph, group, operands):
        source_vertex = vertex(source)
        other = start if is_permuted is True else end if is_permuted is False else vertex(user)
        into, back = vertex((source, "in")), vertex((source, "out"))
        edges |= {(other, into): endless, (into, source_vertex): width(source)}
        edges |= {(source_vertex, back): width(source), (back, other): endless}
        for node, at in [(source, source_vertex)] + ([(user, other)] if is_permuted is None else []):
            if node in steps:
                edges[start, at] = endless
            elif node not in operands:
                edges[at, end] = endless
    count = len(vertices) + 2
    ends = list(zip(*edges, strict=True))
    capacities = torch.tensor(list(edges.values()), dtype=torch.int32).numpy()
    network = coo_array((capacities, ends), shape=(count, count), dtype="int32").tocsr()
    rest = (network - maximum_flow(network, start, end).flow).tocsr()
    rest.eliminate_zeros()
    # Of equal cuts the last: operators after a step, such as a bias, may join its region.
    end_side = set(breadth_first_order(rest.T.tocsr(), end, return_predecessors=False).tolist())
    return {key for key, at in vertices.items() if isinstance(key, fx.Node) and at not in end_side} | steps


def ask_for_order(draft: Draft, group: Group, columns: tuple[int, int]) -> tuple[fx.Node, fx.Node]:
    """The nodes of a group's order, inserted before all possible users."""
    graph, match = draft.graph, group.matches[0]
    leaves = leaves_of(needed(group))
    last = list(graph.find_nodes(op="placeholder"))[-1]
    for leaf in leaves:
        if leaf.op != "placeholder":
            last.append(leaf)
            last = leaf
    steps = ", ".join(match.node.name for match in group.matches)
    sources = ", ".join(leaf.name for leaf in leaves if not is_size(leaf))
    edges = extract(draft.graph, leaves, [match.rows, match.columns, *group.extents])
    moved = ConversionEntry("order", sources, f"{group.mark.reorder} order")
    entry = OrderEntry(steps, group.mark.reorder, sources, columns=columns)
    draft.report.conversions.append(moved)
    draft.report.orders.append(entry)
    order = NodeOrder(edges, group.mark.reorder, moved, entry)
    extent = group.extents[0]
    symbol = extent.meta["val"] if isinstance(extent, fx.Node) else extent
    nodes = []
    for which in (PLACE_TO_NODE, NODE_TO_PLACE):
        with graph.inserting_after(last):
            last = graph.call_function(node_order, (order.handle, which, extent, *leaves))
        last.meta["val"] = tensor_value(match.rows).new_empty((symbol,), dtype=torch.int64)  # type: ignore[union-attr]
        set_info(last, order=order)
        nodes.append(last)
    return nodes[0], nodes[1]


def adjacency_mark(match: GatherScatter) -> Mark | None:
    """The mark with an order of message passing: its own, or an input's behind its adjacency."""
    made_of = [match.node, *sources([match.rows, match.columns, *match.weights])]
    marks = (info(node).mark for node in made_of)
    return next((mark for mark in marks if isinstance(mark, Mark) and mark.reorder != "none"), None)
