"""One graph for both halves of a part.

In: the graphs of `scale.place` over the rows of either half, equal node for node. Out: `merged(...)`, a graph over the
part's own rows:

    %ticket = exchange_begin(%inner, %boundary)
    ... nodes up to the next exchange, of the inner half
    %halo = exchange_halo(%ticket, %boundary)
    ... the same nodes of the boundary half

Nodes that do not depend on rows are computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.passes.graph.node_info import info
from sparsify.scale.overlap.halves import Half
from sparsify.scale.parts import Part
from sparsify.scale.place import NUMBERS
from sparsify.scale.placement import EDGES, NODES, Placement

aten: Final = torch.ops.aten
OPERATORS: Final = torch.ops.sparsify
EXCHANGE, REDUCE = OPERATORS.halo_exchange.default, OPERATORS.halo_reduce.default
SUM, MAXIMUM = OPERATORS.all_reduce_sum.default, OPERATORS.all_reduce_amax.default
HALVES: Final = ("inner", "boundary")


@dataclass
class _Merge:
    """The state of merging.

    Attributes:
        graph: the new graph.
        plan: number of the plan of both halves.
        copies: for each half, nodes of the new graph by nodes of the graph of the half.
        tensors: buffers of the new graph by name.
    """

    graph: fx.Graph
    plan: int
    copies: tuple[dict[fx.Node, fx.Node], dict[fx.Node, fx.Node]] = field(default_factory=lambda: ({}, {}))
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def buffer(self, name: str, tensor: Tensor) -> fx.Node:
        """A buffer of the new graph, under a name apart from the names of the model."""
        name = f"halves_{name}"
        if name not in self.tensors:
            self.tensors[name] = tensor
        return self.graph.get_attr(name)

    def call(self, target: Any, *args: Any) -> fx.Node:
        """A call in the new graph."""
        return self.graph.call_function(target, args)

    def is_shared(self, pair: Sequence[fx.Node]) -> bool:
        """Whether neither half's rows determine the value of a node."""
        operands = zip(*(node.all_input_nodes for node in pair), strict=True)
        return all(self.copies[0][first] is self.copies[1].get(second) for first, second in operands)

    def copy(self, half: int, pair: Sequence[fx.Node]) -> None:
        """A node of one half; a shared node is copied with the first half."""
        node = pair[half]
        if self.is_shared(pair):
            if pair[0] not in self.copies[0]:
                self.share(pair, self.graph.node_copy(pair[0], self.copies[0].__getitem__))
            return
        self.copies[half][node] = self.graph.node_copy(node, self.copies[half].__getitem__)

    def share(self, pair: Sequence[fx.Node], copied: fx.Node) -> None:
        """Sets the value of a node in both halves."""
        self.copies[0][pair[0]] = self.copies[1][pair[1]] = copied


def is_mergeable(graph: fx.Graph, outputs: Sequence[Placement]) -> str:
    """Why a graph over local rows cannot be computed by halves; empty if possible."""
    if any(node.target is MAXIMUM for node in graph.nodes):
        return "maxima over the rows of all processes"
    others = {str(one.space) for one in outputs if one.is_sharded} - {NODES, EDGES}
    return f"outputs with rows of {', '.join(sorted(others))}" if others else ""


def merged(
    graphs: Sequence[fx.Graph],
    inputs: Mapping[str, Placement],
    outputs: Sequence[Placement],
    part: Part,
    halves: Sequence[Half],
    plan: int,
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph for both halves of a part, and its buffers that edges determine.

    Args:
        graphs: graphs over the rows of the inner and the boundary half.
        inputs, outputs: placements of inputs by name, and of outputs.
        part: the part.
        halves: the inner and the boundary half.
        plan: number of the plan of both halves, as of `exchange.register`.
    """
    merge = _Merge(fx.Graph(), plan)
    nodes = list(zip(*(graph.nodes for graph in graphs), strict=True))
    waiting: list[Callable[[], None]] = []  # ends of exchanges
    segment: list[tuple[fx.Node, ...]] = []  # nodes of which the boundary half is to come

    def finish() -> None:
        for end in waiting:
            end()
        for pair in segment:
            merge.copy(1, pair)
        waiting.clear()
        segment.clear()

    for pair in nodes:
        node = pair[0]
        if node.op == "placeholder":
            _input(merge, pair, inputs[str(info(node).input_name or node.target)], part, halves)
        elif node.op == "get_attr":
            _attribute(merge, pair, part, halves)
        elif node.op == "output":
            finish()
            _output(merge, pair, outputs, halves)
        elif node.target in (EXCHANGE, REDUCE, SUM):
            if segment or node.target is not EXCHANGE or pair[1].all_input_nodes[0] not in merge.copies[1]:
                finish()  # exchanges keep their order, in backward passes, too
            if merge.is_shared(pair):
                merge.copy(0, pair)
            else:
                waiting += _exchange(merge, pair, halves)
        else:
            merge.copy(0, pair)
            segment.append(pair)
    return merge.graph, merge.tensors


def _input(
    merge: _Merge, pair: Sequence[fx.Node], placement: Placement, part: Part, halves: Sequence[Half]
) -> None:
    """An input: replicated, or the rows of each half; the numbers of edges are buffers."""
    given = merge.graph.node_copy(pair[0])
    if not placement.is_sharded:
        merge.share(pair, given)
        return
    for half, (node, name, one) in enumerate(zip(pair, HALVES, halves, strict=True)):
        if not node.users:
            continue
        if placement.numbers:
            merge.copies[half][node] = merge.buffer(f"edge_index_{name}", one.edge_index)
            continue
        space = str(placement.space)
        rows = merge.buffer(f"{space}_{name}", one.rows if space == NODES else one.edges)
        merge.copies[half][node] = merge.call(aten.index_select.default, given, placement.mode, rows)


def _attribute(merge: _Merge, pair: Sequence[fx.Node], part: Part, halves: Sequence[Half]) -> None:
    """A parameter or buffer; global numbers of rows and edges are those of each half."""
    name = str(pair[0].target)
    numbers = {NUMBERS[NODES]: part.rows, NUMBERS[EDGES]: part.edge_numbers}
    if name not in numbers:
        merge.share(pair, merge.graph.node_copy(pair[0]))
        return
    for half, (node, one) in enumerate(zip(pair, halves, strict=True)):
        at = one.rows if name == NUMBERS[NODES] else one.edges
        merge.copies[half][node] = merge.buffer(f"{name}_{HALVES[half]}", numbers[name][at])


def _exchange(merge: _Merge, pair: Sequence[fx.Node], halves: Sequence[Half]) -> list[Callable[[], None]]:
    """An exchange, once for both halves; what remains for the boundary half."""
    inner, boundary = (
        copies[node.all_input_nodes[0]] for copies, node in zip(merge.copies, pair, strict=True)
    )
    if pair[0].target is SUM:
        total = merge.call(aten.add.Tensor, inner, boundary)
        merge.share(pair, merge.call(SUM, total, pair[0].args[1]))
        return []
    if pair[0].target is REDUCE:
        both = merge.call(OPERATORS.halves_reduce.default, inner, boundary, merge.plan)
        for half, node in enumerate(pair):
            merge.copies[half][node] = merge.call(getitem, both, half)
        return []
    ticket = merge.call(OPERATORS.exchange_begin.default, inner, boundary, merge.plan)
    borrowed = merge.call(
        aten.index_select.default, boundary, 0, merge.buffer("borrowed_inner", halves[0].borrowed)
    )
    merge.copies[0][pair[0]] = merge.call(aten.cat.default, [inner, borrowed])

    def end() -> None:
        halo = merge.call(OPERATORS.exchange_halo.default, ticket, boundary, merge.plan)
        rows = merge.call(
            aten.index_select.default, inner, 0, merge.buffer("borrowed_boundary", halves[1].borrowed)
        )
        merge.copies[1][pair[1]] = merge.call(aten.cat.default, [boundary, rows, halo])

    return [end]


def _output(
    merge: _Merge, pair: Sequence[fx.Node], outputs: Sequence[Placement], halves: Sequence[Half]
) -> None:
    """The outputs, with the rows of both halves in the order of the part."""
    leaves: list[Any] = []
    for place, placement in enumerate(outputs):
        both: list[Any] = [node.args[0][place] for node in pair]  # type: ignore[index]
        if not isinstance(both[0], fx.Node):
            leaves.append(both[0])
            continue
        inner, boundary = (copies[leaf] for copies, leaf in zip(merge.copies, both, strict=True))
        if not placement.is_sharded:
            leaves.append(inner)
            continue
        is_nodes = placement.space == NODES
        order = torch.cat([half.rows if is_nodes else half.edges for half in halves]).argsort()
        at = merge.buffer(f"order_of_{placement.space}", order)
        joined = merge.call(aten.cat.default, [inner, boundary], placement.mode)
        leaves.append(merge.call(aten.index_select.default, joined, placement.mode, at))
    merge.graph.output(leaves)
