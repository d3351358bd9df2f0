"""Aggregations over the same edges as one region of several results, with what is computed of them entry by entry.

In: the regions of `%s = scatter_add(zeros, 0, %rows, %m)` and `%l = scatter_reduce(zeros, 0, %rows, %m, amax)`, and
`%a = div(%s, %n)`.
Out: one region of `%a` and `%l`: `Y[i,f] = sum(j, A[i,j] * X[j,f]) / u[i]; m[i,f] max= ..; Y1[i,f] = ..`.

Whether the results share a kernel, which reads messages once for all of them, is decided by the cost model of the
compiler; a kernel for each is what regions apart would be.

Source: several aggregators over one neighbourhood, Corso et al., Principal neighbourhood aggregation for graph nets,
2020.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Index
from sparsify.compiler.node import Node, find, map_children
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.fuse.fuse import fragment_of, may_join
from sparsify.passes.graph.canonicalize import is_writer
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import is_random, operator_name, tensor_value
from sparsify.passes.lift.message_passing import aggregation
from sparsify.passes.lift.message_passing.aggregation import OUTPUT, Aggregation, Messages
from sparsify.passes.lift.message_passing.edge_features import FUNCTIONS, INFIX
from sparsify.passes.lift.message_passing.gather_scatter import gathered_index
from sparsify.passes.region import region as regions
from sparsify.passes.region.fragment import Fragment


def together(draft: Draft) -> Draft:
    """The draft with one region in place of those of aggregations over the same edges."""
    if draft.recipe.fuse.enabled:
        for group in groups(draft):
            join(draft, group)
    return draft


@dataclass
class Group:
    """Aggregations over the same edges that read the same messages, none of which depends on another one.

    Attributes:
        mark: of their edges.
        matches: in the order of the graph.
        tables: what their messages are computed from, entry by entry.
        behind: all nodes that depend on them.
    """

    mark: Mark
    matches: list[Aggregation] = field(default_factory=list)
    tables: set[fx.Node] = field(default_factory=set)
    behind: set[fx.Node] = field(default_factory=set)

    def takes(self, draft: Draft, match: Aggregation) -> bool:
        """Whether one more belongs to it."""
        is_apart = match.scatter.messages in self.behind or not self.tables & tables(match)
        limit = draft.recipe.fuse.max_einsums or len(draft.graph.nodes)
        is_full = len(self.matches) >= limit
        return not is_apart and not is_full and may_join(draft, self.matches[0].node, match.node)


def groups(draft: Draft) -> list[Group]:
    """The aggregations over the same edges, as far as each has a region or fragment of its own and there are two."""
    found: dict[Any, list[Group]] = {}
    for match, mark in aggregations(draft):
        value = tensor_value(match.node)
        assert value is not None, "an aggregation is a tensor"
        is_over_nodes = aggregation.over_nodes([match]) is not None
        if not is_over_nodes and fragment_of(match.node) is not None:
            continue  # weights of edges are values of the matrix
        scatter, columns = match.scatter, match.columns if is_over_nodes else None
        receivers = scatter.base.args[0][0]  # type: ignore[index]
        alike = found.setdefault((scatter.rows, columns, receivers, str(value.shape), value.dtype, mark), [])
        group = next((one for one in alike if one.takes(draft, match)), None)
        if group is None:
            alike.append(group := Group(mark))
        group.matches.append(match)
        group.tables |= tables(match)
        group.behind |= behind([match.node])
    return [group for alike in found.values() for group in alike if len(group.matches) > 1]


def aggregations(draft: Draft) -> Iterator[tuple[Aggregation, Mark]]:
    """The aggregations that were lifted, with the marks of their edges."""
    for node in draft.graph.nodes:
        fragment, region = fragment_of(node), info(node).region
        is_message = fragment is not None and fragment.kind == "message" and not feeds_product(node)
        if not is_message and (region is None or not info(node).is_aggregation):
            continue
        match, read = aggregation.recognise(node), fragment or region
        if match is not None and read is not None:
            yield match, read.matrices[0].mark


def feeds_product(node: fx.Node) -> bool:
    """Whether a product is all that reads a sum, or what is computed of it: the order of both is chosen then."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        fragment = fragment_of(node)
        if fragment is None or fragment.kind != "pointwise":
            return fragment is not None and fragment.kind == "product"
    return False


def tables(match: Aggregation) -> set[fx.Node]:
    """What messages are computed from, entry by entry, but what receivers have."""
    found: set[fx.Node] = set()
    waiting = [match.scatter.messages]
    while waiting:
        node = waiting.pop()
        if operator_name(node) in (*INFIX, *FUNCTIONS):
            waiting += node.all_input_nodes
        elif gathered_index(node) is not match.scatter.rows:
            found.add(node)
    return found


def behind(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all that depend on them."""
    waiting, found = list(nodes), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.users
    return found


def join(draft: Draft, group: Group) -> None:
    """Puts one region in place of those of a group, where all that it reads can be computed before."""
    read = aggregation.over_nodes(group.matches) or aggregation.over_edges(group.matches)
    if read is None:
        return
    program = Joint(draft, read, group.behind)
    first = group.matches[0].node
    if not move_before(first, read.edges.names):
        return
    for node in list(draft.graph.nodes):
        fragment = fragment_of(node)
        is_part = fragment is not None and node in group.behind and program.fits(fragment)
        if fragment is not None and is_part and move_before(first, program.others(fragment)):
            program.absorb(fragment)
    results = program.results()
    statements = program.inlined(results)
    region = aggregation.of_statements(
        statements, read.edges, results, read.extents, group.mark, program.covered, read.note
    )
    kinds = ", ".join(KINDS[match.reduce] for match in group.matches)
    region.notes.append(f"{len(results)} results of one program: {kinds} over the same edges")
    for node in program.names:
        set_info(node, region=None, fragment=None, is_aggregation=False)
    set_info(region.output, region=region)


KINDS = {"sum": "sums", "amax": "largest entries", "amin": "smallest entries"}


class Joint:
    """The statements of several aggregations and of what is computed of them.

    Args:
        read: the messages.
        behind: all nodes that depend on aggregations; operands of the program do not.

    Attributes:
        names: of the nodes that statements compute.
        covered: those nodes and others that are needed for nothing else.
    """

    def __init__(self, draft: Draft, read: Messages, behind: set[fx.Node]) -> None:
        self.draft, self.read, self.behind = draft, read, behind
        nodes = [match.node for match in read.matches]
        value = tensor_value(nodes[0])
        assert value is not None, "an aggregation is a tensor"
        self.indices = ("i", *OUTPUT[value.dim()])
        self.names = dict(zip(nodes, read.names, strict=True))
        self.covered = list(nodes)
        self.statements = read.statements()

    def others(self, fragment: Fragment) -> list[fx.Node]:
        """The operands of a fragment that no statement computes."""
        return [
            node
            for node in fragment.operands.values()
            if isinstance(node, fx.Node) and node not in self.names
        ]

    def fits(self, fragment: Fragment) -> bool:
        """Whether a fragment is computed, entry by entry, of results and of operands that do not depend on them."""
        if fragment.kind != "pointwise" or fragment.matrices or fragment.node in self.names:
            return False
        if not may_join(self.draft, self.read.matches[0].node, fragment.node):
            return False
        own = {node.name for node in self.names}
        accesses = [access for access in find(fragment.value, Access) if access.tensor in own]
        whole = tuple(map(Index, fragment.indices))
        is_aligned = len(whole) == len(self.indices) and all(access.indices == whole for access in accesses)
        return bool(accesses) and is_aligned and not self.behind.intersection(self.others(fragment))

    def absorb(self, fragment: Fragment) -> None:
        """Adds the statement of a fragment."""
        value: Expr = regions.place(
            fragment.value,
            {old: Index(new) for old, new in zip(fragment.indices, self.indices, strict=True)},
        )
        for node in fragment.operands.values():
            assert isinstance(node, fx.Node), "fragments of matrices do not fit"
            rank = tensor_value(node).dim()  # type: ignore[union-attr]
            name = self.names.get(node) or self.read.edges.named(node, rank)
            value = regions.renamed(value, node.name, name)
        name = f"T{len(self.names)}"
        self.names[fragment.node] = name
        self.covered += [fragment.node, *fragment.covered]
        self.statements.append(Assign(Access(name, tuple(map(Index, self.indices))), None, value))

    def results(self) -> dict[str, fx.Node]:
        """The nodes that others read, named `Y`, `Y1`, .. in the order of the graph."""
        inside = set(self.covered)
        results = [node for node in sorted(self.names) if set(node.users) - inside]
        return {f"Y{number or ''}": node for number, node in enumerate(results)}

    def inlined(self, results: Mapping[str, fx.Node]) -> list[Assign]:
        """The statements with the names of results, what a single place reads written there."""
        statements = list(self.statements)
        for node, name in self.names.items():
            if node in results.values():
                continue
            own = next(one for one in statements if one.target.tensor == name)
            readers = [one for one in statements if regions.reads(one.value, name)]
            if len(readers) != 1 or regions.reads(readers[0].value, name) != 1:
                continue
            joined = regions.inline(readers[0].value, name, self.indices, own.value)
            at = statements.index(readers[0])
            statements[at] = Assign(readers[0].target, readers[0].monoid, joined)
            statements.remove(own)
        short = {self.names[node]: name for name, node in results.items()}
        return [named(statement, short) for statement in statements]


def named(statement: Assign, short: Mapping[str, str]) -> Assign:
    """A statement with other names of tensors."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        return Access(short.get(node.tensor, node.tensor), node.indices) if isinstance(node, Access) else node

    target, value = visit(statement.target), visit(statement.value)
    assert isinstance(target, Access) and isinstance(value, Expr)
    return Assign(target, statement.monoid, value)


def move_before(first: fx.Node, needed: Iterable[fx.Node]) -> bool:
    """Moves what nodes are computed from in front of `first`; false, and nothing moves, where the order counts."""
    after: set[fx.Node] = set()
    waiting = list(needed)
    while waiting:
        node = waiting.pop()
        if node not in after and first < node:
            after.add(node)
            waiting += node.all_input_nodes
    if any(is_random(node) or is_writer(node) for node in after):
        return False
    for node in sorted(after):
        first.prepend(node)
    return True
