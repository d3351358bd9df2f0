"""One canonical view of operators: every way of writing an operator has one name.

In: an fx node calling `torch.ops.aten.index_add_.default`, `torch.index_add`, `Tensor.index_add_` or
`operator.add`.
Out: `"index_add"`, `"index_add"`, `"index_add"`, `"add"`.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

OPERATORS: dict[Callable[..., Any], str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.matmul: "matmul",
    operator.neg: "neg",
    operator.pow: "pow",
    operator.getitem: "getitem",
    operator.iadd: "add",
    operator.imul: "mul",
    operator.isub: "sub",
    operator.itruediv: "div",
}
ALIASES = {
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "negative": "neg",
    "concat": "cat",
    "concatenate": "cat",
    "spmm": "mm",
    "numpy_T": "t",
    "size": "sym_size",
    "_unsafe_view": "view",
    "reshape": "view",
    "feature_dropout": "dropout",
    "_softmax": "softmax",
}
# The mask of a trained weight in a graph.
FILL_PRESERVING = frozenset(
    [
        "relu",
        "mul",
        "neg",
        "abs",
        "sign",
        "sqrt",
        "square",
        "sin",
        "tan",
        "asin",
        "atan",
        "sinh",
        "tanh",
        "asinh",
        "atanh",
        "erf",
        "clone",
        "contiguous",
        "to",
        "_to_copy",
        "t",
        "transpose",
        "permute",
        "alias",
        "detach",
        "lift_fresh_copy",
        "gelu",
        "silu",
    ]
)
VIEWS = frozenset(
    [
        "view",
        "expand",
        "expand_as",
        "unsqueeze",
        "squeeze",
        "t",
        "transpose",
        "permute",
        "select",
        "slice",
        "alias",
        "detach",
        "unbind",
        "split",
        "chunk",
        "narrow",
        "as_strided",
        "diagonal",
        "unfold",
        "view_as",
        "getitem",
    ]
)
# Operators that copy numbers to other memory or another dtype.
COPIES = frozenset(["to", "_to_copy", "clone", "contiguous", "alias", "detach"])
ALIASING = VIEWS | COPIES
LAYOUT_ONLY = frozenset(["t", "transpose", "permute", "contiguous", "view", "unsqueeze", "clone"])
RANDOM = frozenset(
    [
        "dropout",
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "bernoulli",
        "multinomial",
        "randint",
        "native_dropout",
    ]
)
RECURRENT = frozenset(
    ["lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"]
)
DROPOUTS = frozenset(["dropout", "alpha_dropout", "feature_alpha_dropout"])
# By the environment of a capture.
_data_extents: WeakKeyDictionary[Any, dict[Any, int]] = WeakKeyDictionary()


def operator_name(node: fx.Node) -> str:
    """The canonical name of the operator called by `node`, "" for other nodes."""
    raw = raw_name(node)
    name = raw[:-1] if raw.endswith("_") and not raw.endswith("__") else raw
    return ALIASES.get(name, name)


def raw_name(node: fx.Node) -> str:
    """The operator's original name, with the underscore of an in-place form."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[-1]
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target.__name__
    if callable(target) and target in OPERATORS:
        return OPERATORS[target]
    return str(getattr(target, "__name__", target))


def is_mutating(node: fx.Node) -> bool:
    """Whether the operator writes into one of its arguments."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    raw = raw_name(node)
    return (raw.endswith("_") and not raw.endswith("__")) or target in (
        operator.iadd,
        operator.imul,
        operator.isub,
    )


def updates_statistics(node: fx.Node) -> bool:
    """Whether the operator is a normalisation in training, with updates of its running statistics."""
    if operator_name(node) not in ("batch_norm", "instance_norm"):
        return False
    return isinstance(argument(node, 3, "running_mean"), fx.Node) and bool(argument(node, 5, "training"))


def overwritten(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes that may alias memory overwritten in the graph: `%m` of `fill_(slice(%m))`."""
    aliases: set[fx.Node] = set()
    for writer in graph.nodes:
        node: Any = (
            writer.args[0] if writer.op.startswith("call") and is_mutating(writer) and writer.args else None
        )
        while isinstance(node, fx.Node) and node not in aliases:
            aliases.add(node)
            node = node.args[0] if node.args else None
    if aliases:
        for node in graph.nodes:
            if operator_name(node) in ALIASING and node.args and node.args[0] in aliases:
                aliases.add(node)
    return frozenset(aliases)


def is_random(node: fx.Node) -> bool:
    """Whether two calls with the same arguments may differ."""
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags and not draws_nothing(node)
    return operator_name(node) in RANDOM and not is_inactive_dropout(node)


def draws_nothing(node: fx.Node) -> bool:
    """Whether a dropout operator drops nothing: out of training, or with probability 0."""
    arguments = {
        item.name: argument(node, position, item.name, item.default_value)
        for position, item in enumerate(node.target._schema.arguments)  # type: ignore[union-attr]
    }
    is_trained = all(arguments.get(name, True) is not False for name in ("train", "training"))
    rate = arguments.get("dropout_p", arguments.get("dropout", 1))
    return not is_trained or rate == 0 or is_inactive_dropout(node)


def is_inactive_dropout(node: fx.Node) -> bool:
    """Whether `node` is an inactive dropout: out of training, or with probability 0."""
    if operator_name(node) not in DROPOUTS:
        return False
    probability = argument(node, 1, "p", 0.5)
    return argument(node, 2, "train", True) is False or probability == 0


def is_dropout(node: fx.Node) -> bool:
    """Whether `node` drops entries independently: in training, with a probability above 0."""
    return raw_name(node) in ("dropout", "dropout_") and not is_inactive_dropout(node)


def is_constant(node: fx.Node) -> bool:
    """Whether a node is computed from parameters and buffers alone, the same in every call."""
    reads_attribute = False
    for part in ancestors([node]):
        if part.op == "get_attr":
            reads_attribute = True
        elif part.op == "placeholder" or is_random(part) or is_mutating(part) or updates_statistics(part):
            return False
    return reads_attribute


def parameter_behind(node: fx.Node) -> fx.Node | None:
    """The attribute that `node` is a transpose or copy of; None for other nodes."""
    while (
        node.op == "call_function" and operator_name(node) in LAYOUT_ONLY and len(node.all_input_nodes) == 1
    ):
        node = node.all_input_nodes[0]
    return node if node.op == "get_attr" else None


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of `node` by position or by keyword."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


def scope(node: fx.Node) -> str:
    """The qualified name of the node's module, "" for the model itself.

    `@1` marks a second call.
    """
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    key, (path, _) = list(stack.items())[-1]
    _, repeated, call = key.rpartition("@")  # export numbers the calls of a shared module in the keys alone
    return f"{path}@{call}" if repeated else str(path)


def module_type(node: fx.Node) -> str:
    """The class name of the node's module."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    _, kind = list(stack.values())[-1]
    return (kind if isinstance(kind, str) else kind.__name__).split(".")[-1]


def tensor_value(node: Any) -> torch.Tensor | None:
    """The fake tensor of `node`, None for other values."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_real(node: fx.Node) -> bool:
    """Whether a node is a floating-point tensor, or has one among several results."""
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(part, torch.Tensor) and part.is_floating_point() for part in parts)


def data_extents(extent: torch.SymInt) -> dict[Any, int]:
    """The data-dependent extents of the example inputs, by symbol."""
    return _data_extents.setdefault(extent.node.shape_env, {})


def known_size(extent: Any, unknown: int | None = None) -> int | None:
    """The number of an extent for the example inputs; `unknown` for run-time values."""
    if isinstance(extent, fx.Node):
        extent = extent.meta.get("val")
    if isinstance(extent, int):
        return extent
    if not isinstance(extent, torch.SymInt):
        return None
    hint = extent.node.hint
    if hint is not None:
        return int(hint)
    if unknown is None:
        return None
    symbols: Mapping[Any, Any] = getattr(extent.node.shape_env, "backed_var_to_val", {})
    symbols = {**data_extents(extent), **symbols}
    value = extent.node.expr.subs({s: symbols.get(s, unknown) for s in extent.node.expr.free_symbols})
    return int(value) if value.is_Integer else None


def ancestors(
    nodes: Iterable[fx.Node], is_passed: Callable[[fx.Node], bool] = lambda node: True
) -> Iterator[fx.Node]:
    """Nodes and all of their ancestors, each once, lazily.

    Args:
        is_passed: whether the search continues at the inputs of a node.
    """
    visited, waiting = set[fx.Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            yield node
            if is_passed(node):
                waiting += node.all_input_nodes


def between(outputs: Iterable[fx.Node], operands: Collection[fx.Node]) -> list[fx.Node]:
    """The nodes between operands and outputs, in the order of the graph; without inputs and attributes."""
    leaves = ("placeholder", "get_attr")
    nodes = ancestors(outputs, lambda node: node not in operands)
    return sorted(node for node in nodes if node not in operands and node.op not in leaves)


def sources(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The inputs and attributes from which `nodes` are computed."""
    return [node for node in ancestors(nodes) if node.op in ("placeholder", "get_attr")]
