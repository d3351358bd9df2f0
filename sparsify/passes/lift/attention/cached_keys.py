"""Attention to keys of earlier calls, passed as inputs: the positions of queries are unknown to patterns.

In: `%k = cat([%past, %new], -2) * 2; %y = scaled_dot_product_attention(%q, %k, %v)`, `%past` an input of the graph.
Out: `pasts(graph, [%y]) == {%y}`.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from torch import fx

from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import VIEWS, argument, is_mutating, operator_name, tensor_value

WHY: Final = "a pattern does not say where queries stand among keys of earlier calls, which are inputs"
# Operators that combine the entries of several operands side by side or by replacement.
JOINED: Final = frozenset(
    {
        "cat",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "copy",
        "index_copy",
        "index_put",
        "masked_scatter",
        "scatter",
        "select_scatter",
        "setitem",
        "slice_scatter",
        "where",
    }
)
# Operand with the rows of the result; each result row is computed from rows of the other operands.
ROWS: Final = {
    "matmul": 0,
    "mm": 0,
    "bmm": 0,
    "linear": 0,
    "addmm": 1,
    "baddbmm": 1,
    "scaled_dot_product_attention": 0,
}


class Origin(NamedTuple):
    """Source of the rows of a tensor.

    Attributes:
        inputs: graph inputs that became rows of the tensor.
        joined: subset of `inputs` with rows next to, or in place of, rows of other inputs.
    """

    inputs: frozenset[fx.Node] = frozenset()
    joined: frozenset[fx.Node] = frozenset()


def pasts(graph: fx.Graph, attention: Iterable[fx.Node]) -> set[fx.Node]:
    """The attention nodes that read keys of earlier calls.

    Keys count as past if an input joins other keys, and no query comes from the input; with equal numbers of keys and
    queries, positions are equal.
    """
    nodes = set(attention)
    if not nodes:
        return set()
    return _Origins(graph, nodes).pasts


class _Origins:
    """The origins of all nodes of a graph, in order; `pasts` holds the attention nodes with past keys.

    A tensor and its views have one origin, updated by in-place operators on either.
    """

    def __init__(self, graph: fx.Graph, nodes: set[fx.Node]) -> None:
        self.origins: dict[fx.Node, Origin] = {}
        self.bases: dict[fx.Node, fx.Node] = {}
        self.pasts: set[fx.Node] = set()
        for node in graph.nodes:
            if node in nodes and self.is_past(node):
                self.pasts.add(node)
            self.add(node)

    def add(self, node: fx.Node) -> None:
        """Records the origin of a node, or the changed origin of its overwritten operand."""
        name, operands = operator_name(node), _tensors(node)
        is_written = is_mutating(node) or name == "setitem"
        base = self.bases[operands[0]] if operands and (is_written or name in VIEWS) else node
        self.bases[node] = base
        if node.op == "placeholder" or (node.op == "get_attr" and _is_state(node)):
            self.origins[node] = Origin(frozenset({node}))
        elif is_written and operands:
            # The write may cover a part of the tensor.
            self.origins[base] = self.of(operands, is_joined=True)
        elif base is node:
            rows = ROWS.get(name)
            if rows is not None and rows < len(operands):
                operands = [operands[rows]]
            if (spelled := info(node).attention) is not None:
                operands = [spelled.query]  # masks and keys contribute no rows
            self.origins[node] = self.of(
                operands, is_joined=name in JOINED or (name == "add" and _is_alike(operands))
            )

    def of(self, operands: Iterable[fx.Node], *, is_joined: bool) -> Origin:
        """The origin of a result of some operands."""
        origins = [self.origins[self.bases[operand]] for operand in operands]
        inputs = frozenset[fx.Node]().union(*[origin.inputs for origin in origins])
        joined = frozenset[fx.Node]().union(*[origin.joined for origin in origins])
        if is_joined:
            # Parameters alone are keys of every call, such as a null key.
            parts = [origin.inputs for origin in origins if origin.inputs]
            joined |= inputs - inputs.intersection(*parts)
        return Origin(inputs, joined)

    def is_past(self, attention: fx.Node) -> bool:
        """Whether keys combine other rows with an input from which no query comes."""
        spelled = info(attention).attention
        if spelled is None:
            query, key = argument(attention, 0, "query"), argument(attention, 1, "key")
            rows, columns = _rows(query), _rows(key)
        else:
            query, key = spelled.query, spelled.key
            rows, columns = map(str, spelled.scores.meta["val"].shape[-2:])
        if rows == columns:
            return False
        return bool(self.origins[self.bases[key]].joined - self.origins[self.bases[query]].inputs)


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The tensor operands of a node that contribute rows; sizes and selections of entries do not."""
    name = operator_name(node)
    if name == "sym_size":
        return []
    operands: list[fx.Node] = []
    skipped = {"where": (0,), "index_put": (1,), "index_copy": (2,), "scatter": (2,), "masked_scatter": (1,)}
    for at, operand in enumerate((*node.args, *node.kwargs.values())):
        if at not in skipped.get(name, ()):
            fx.map_arg(operand, operands.append)
    return operands


def _is_state(node: fx.Node) -> bool:
    """Whether an operator writes into a model tensor or its view, as with caches of fixed length."""
    operators = [user for user in node.users if user.args and user.args[0] is node]
    return any(is_mutating(user) or (operator_name(user) in VIEWS and _is_state(user)) for user in operators)


def _is_alike(operands: Iterable[fx.Node]) -> bool:
    """Whether operands have the same extents, without broadcasting."""
    values = [tensor_value(operand) for operand in operands]
    return len({str(None if value is None else tuple(value.shape)) for value in values}) == 1


def _rows(operand: Any) -> str:
    """The number of tokens an operand has, as a number or a formula of sizes."""
    value = tensor_value(operand)
    assert value is not None, "attention is of tensors"
    return str(value.shape[-2])
