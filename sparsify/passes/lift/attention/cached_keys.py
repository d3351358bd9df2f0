"""Attention to keys of earlier calls, which a call brings: patterns do not say where its queries stand among them.

In: `%k = cat([%past, %new], -2) * 2; %y = scaled_dot_product_attention(%q, %k, %v)`, `%past` an input of the graph.
Out: `pasts(graph, [%y]) == {%y}`.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from torch import fx

from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import VIEWS, argument, is_mutating, operator_name, tensor_value

WHY: Final = "a pattern does not say where queries stand among keys of earlier calls, which are inputs"
# Operators that put the entries of one operand beside or in place of those of others.
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
# The operand whose rows are those of the result; each row is made from rows of others.
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
        inputs: of the graph, those whose rows became its rows.
        joined: of these, those whose rows are beside or in place of rows of others.
    """

    inputs: frozenset[fx.Node] = frozenset()
    joined: frozenset[fx.Node] = frozenset()


def pasts(graph: fx.Graph, attention: Iterable[fx.Node]) -> set[fx.Node]:
    """The attention nodes that read keys of earlier calls.

    These are keys which join an input to others, an input that no query comes from; as many keys as queries stand
    where the queries do.
    """
    asked = set(attention)
    if not asked:
        return set()
    return _Origins(graph, asked).pasts


class _Origins:
    """The origins of all nodes of a graph, from its first to its last; `pasts`, what was asked about them.

    A tensor and its views have one origin, which operators that write into one of them change.
    """

    def __init__(self, graph: fx.Graph, asked: set[fx.Node]) -> None:
        self.known: dict[fx.Node, Origin] = {}
        self.bases: dict[fx.Node, fx.Node] = {}
        self.pasts: set[fx.Node] = set()
        for node in graph.nodes:
            if node in asked and self.is_past(node):
                self.pasts.add(node)
            self.add(node)

    def add(self, node: fx.Node) -> None:
        """Notes the origin of a node, or how it changes that of what it writes into."""
        name, operands = operator_name(node), _tensors(node)
        is_written = is_mutating(node) or name == "setitem"
        base = self.bases[operands[0]] if operands and (is_written or name in VIEWS) else node
        self.bases[node] = base
        if node.op == "placeholder" or (node.op == "get_attr" and _is_state(node)):
            self.known[node] = Origin(frozenset({node}))
        elif is_written and operands:
            # What is written may be a part of the tensor.
            self.known[base] = self.of(operands, is_joined=True)
        elif base is node:
            rows = ROWS.get(name)
            if rows is not None and rows < len(operands):
                operands = [operands[rows]]
            if (spelled := info(node).attention) is not None:
                operands = [spelled.query]  # masks and keys are no rows of it
            self.known[node] = self.of(
                operands, is_joined=name in JOINED or (name == "add" and _is_alike(operands))
            )

    def of(self, operands: Iterable[fx.Node], *, is_joined: bool) -> Origin:
        """The origin of what is made of operands."""
        origins = [self.known[self.bases[operand]] for operand in operands]
        inputs = frozenset[fx.Node]().union(*[origin.inputs for origin in origins])
        joined = frozenset[fx.Node]().union(*[origin.joined for origin in origins])
        if is_joined:
            # Parameters alone are keys of every call, such as a null key.
            parts = [origin.inputs for origin in origins if origin.inputs]
            joined |= inputs - inputs.intersection(*parts)
        return Origin(inputs, joined)

    def is_past(self, attention: fx.Node) -> bool:
        """Whether keys join an input that no query comes from to others."""
        spelled = info(attention).attention
        if spelled is None:
            query, key = argument(attention, 0, "query"), argument(attention, 1, "key")
            rows, columns = _rows(query), _rows(key)
        else:
            query, key = spelled.query, spelled.key
            rows, columns = map(str, spelled.scores.meta["val"].shape[-2:])
        if rows == columns:
            return False
        return bool(self.known[self.bases[key]].joined - self.known[self.bases[query]].inputs)


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The operands of a node that are tensors; sizes of tensors and which entries are chosen are none of its rows."""
    name = operator_name(node)
    if name == "sym_size":
        return []
    operands: list[fx.Node] = []
    skipped = {"where": (0,), "index_put": (1,), "index_copy": (2,), "scatter": (2,), "masked_scatter": (1,)}
    for at, given in enumerate((*node.args, *node.kwargs.values())):
        if at not in skipped.get(name, ()):
            fx.map_arg(given, operands.append)
    return operands


def _is_state(node: fx.Node) -> bool:
    """Whether an operator writes into a tensor of the model or a view of it, as caches of a fixed length are filled."""
    own = [user for user in node.users if user.args and user.args[0] is node]
    return any(is_mutating(user) or (operator_name(user) in VIEWS and _is_state(user)) for user in own)


def _is_alike(operands: Iterable[fx.Node]) -> bool:
    """Whether operands have the same extents: none of them is repeated along others."""
    values = [tensor_value(operand) for operand in operands]
    return len({str(None if value is None else tuple(value.shape)) for value in values}) == 1


def _rows(operand: Any) -> str:
    """The number of tokens an operand has, as a number or a formula of sizes."""
    value = tensor_value(operand)
    assert value is not None, "attention is of tensors"
    return str(value.shape[-2])
