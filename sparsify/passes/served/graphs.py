"""Graphs of torch.fx as JSON and back: operators, functions and methods by name.

In: `%y = aten.add.Tensor(%x, 1)`. Out: `["call_function", "y", {"operator": "aten::add.Tensor"}, [{"node": "x"}, 1],
{}]`, and an equal graph.

A graph in a file can call only operators of torch, the functions listed below, and the targets known to `Others`.
"""

import builtins
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final, Protocol

import torch
from torch import fx

from sparsify.errors import DataError
from sparsify.passes.graph.direct_calls import HOLDERS
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.served.values import decoded, encoded

# Functions of this package called by graphs, with their modules, imported when a graph calls the function.
OWN: Final[Mapping[str, str]] = {
    "call_region": "sparsify.passes.call.region_operator",
    "call_results": "sparsify.passes.call.region_operator",
    "node_order": "sparsify.passes.reorder.node_order",
    "row_scales": "sparsify.passes.region.sparse_operand",
    "as_dense": "sparsify.passes.module.weights.sparse_parameters",
    "add_product": "sparsify.passes.module.variants.reuse_memory",
    "add_product_": "sparsify.passes.module.variants.reuse_memory",
    "require": "sparsify.passes.graph.direct_calls",
    "dropped_edges": "sparsify.passes.graph.draws",
    "dropped_weights": "sparsify.passes.graph.draws",
    "attention_mask": "sparsify.passes.lift.attention.mask",
    "tokens_of_slots": "sparsify.passes.lift.experts.capacity",
    "safe_softmax": "sparsify.passes.lift.attention.reference",
    "scaled_by_width": "sparsify.passes.lift.attention.reference",
}
# Functions with the handle of a call as first argument.
HANDLED: Final = ("call_region", "call_results", "node_order")
# Functions of numbers, tensors and tuples, by module.
PYTHON: Final[dict[str, tuple[Any, frozenset[str]]]] = {
    "python": (
        operator,
        frozenset(
            (
                *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "matmul"),
                *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "invert", "getitem"),
                *("lshift", "rshift", "iadd", "isub", "imul", "itruediv"),
            )
        ),
    ),
    "math": (math, frozenset(("floor", "ceil", "trunc", "sqrt", "log2", "log", "exp", "pow"))),
    "builtins": (builtins, frozenset(("min", "max", "abs", "int", "float", "round", "bool", "sum"))),
    "sym": (
        torch,
        frozenset(
            ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite", "sym_sum", "_sym_sqrt")
        ),
    ),
}
# Operators with side effects.
REFUSED: Final = frozenset(("aten::from_file", "aten::save"))
OPERATOR: Final = re.compile(r"((\w+)::(\w+))\.(\w+)")
METHOD: Final = type(torch.Tensor.add_)


class Others(Protocol):
    """Targets of nodes besides functions: regions, and objects in the place of several nodes."""

    def handle(self, value: Any) -> Any:
        """The handle of a call as data, or the handle of data."""

    def target(self, value: Any) -> Any:
        """Conversion of a target to data, None for unknown targets, or from data."""


def encoded_graph(graph: fx.Graph, others: Others) -> list[Any]:
    """The nodes of a graph as data.

    Raises:
        DataError: a node calls a function or holds a value that no file holds.
    """

    def of_node(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return {"node": value.name}
        raise DataError(
            f"a graph of this model holds {value!r:.60}, of class {type(value).__name__}, which no file holds",
            "save without kernels=True, and load with the model",
        )

    nodes = []
    for node in graph.nodes:
        args = list(node.args)
        if has_handle(node.target):
            args[0] = others.handle(args[0])
        target = encoded_target(node.target, others) if node.op == "call_function" else str(node.target)
        rest = [encoded(arg, of_node) for arg in args[1:]] if has_handle(node.target) else None
        given = [args[0], *rest] if rest is not None else [encoded(arg, of_node) for arg in args]
        named = {name: encoded(value, of_node) for name, value in node.kwargs.items()}
        line = [node.op, node.name, target, given, named]
        notes: dict[str, Any] = {}
        if (name := info(node).input_name) is not None:
            notes["input"] = name
        if info(node).is_contiguous:
            notes["contiguous"] = True
        nodes.append([*line, notes] if notes else line)
    return nodes


def encoded_target(target: Any, others: Others) -> Any:
    """The target of a node as data.

    Raises:
        DataError: an unknown function.
    """
    if (found := others.target(target)) is not None:
        return found
    if isinstance(target, torch._ops.OpOverload):
        return {"operator": f"{target._schema.name}.{target._overloadname}"}
    name = str(getattr(target, "__name__", ""))
    if name in OWN and own_function(name) is target:
        return {"own": name}
    for module, (place, names) in PYTHON.items():
        if name in names and getattr(place, name, None) is target:
            return {module: name}
    for number, (holder, public) in enumerate(HOLDERS):
        if getattr(holder, name, None) is target and getattr(public, name, None) is target:
            return {"function": [number, name]}
    if type(target) is METHOD and getattr(torch.Tensor, name, None) is target:
        return {"method": name}
    raise DataError(
        f"a graph of this model calls {name or target!r}, which no file holds",
        "save without kernels=True, and load with the model",
    )


def decoded_graph(nodes: Sequence[Any], others: Others) -> fx.Graph:
    """The graph of data.

    Raises:
        DataError: an operator missing in this version of torch.
        KeyError, TypeError, ValueError, AttributeError: data not made by `encoded_graph`.
    """
    graph, known = fx.Graph(), dict[str, fx.Node]()

    def node_of(kind: str, name: Any) -> fx.Node:
        if kind != "node":
            raise KeyError(kind)
        return known[name]

    for op, name, target, given, named, *notes in nodes:
        function = decoded_target(target, others) if op == "call_function" else checked(op, target)
        first = [others.handle(given[0])] if has_handle(function) else []
        args = [*first, *(decoded(arg, node_of) for arg in given[len(first) :])]
        kwargs = {named_argument(key): decoded(value, node_of) for key, value in named.items()}
        if op == "output":
            known[name] = graph.output(args[0])
            continue
        made = known[name] = graph.create_node(op, function, tuple(args), kwargs, name=name)
        if notes and "input" in notes[0]:
            set_info(made, input_name=str(notes[0]["input"]))
        if notes and notes[0].get("contiguous"):
            set_info(made, is_contiguous=True)
    return graph


def checked(op: str, target: Any) -> str:
    """The checked target of a node that calls no function.

    Raises:
        ValueError: no method of tensors, or an unknown kind of node.
    """
    name = str(target)
    if op == "placeholder" and not is_name(name):
        raise ValueError(f"{name!r} is no name of an argument")
    if op == "get_attr" and not all(map(is_part, name.split("."))):
        raise ValueError(f"{name!r} is no path of a tensor")
    if op == "call_method" and type(getattr(torch.Tensor, name, None)) is not METHOD:
        raise ValueError(f"tensors have no method {name}")
    if op not in ("placeholder", "get_attr", "call_method", "output"):
        raise ValueError(f"{op} is no kind of node")
    return name


def is_name(text: str) -> bool:
    """Whether a text is a valid name in the generated code of a graph."""
    return text.isidentifier() and not iskeyword(text)


def is_part(text: str) -> bool:
    """Whether a part of a path is a name, or safe between quotation marks in generated code.

    >>> is_part("0"), is_part('0"); exit("')
    (True, False)
    """
    return is_name(text) or (text.isprintable() and not {'"', "\\"} & set(text))


def named_argument(name: str) -> str:
    """The checked name of an argument.

    Raises:
        ValueError: the text is no name.
    """
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of an argument")
    return name


def own_function(name: str) -> Callable[..., Any]:
    """The function of this package with a name.

    Raises:
        KeyError: no such function.
    """
    found: Callable[..., Any] = getattr(import_module(OWN[name]), name)
    return found


def has_handle(target: Any) -> bool:
    """Whether the first argument of a function is the handle of a call."""
    name = getattr(target, "__name__", "")
    return name in HANDLED and own_function(name) is target


def decoded_target(data: Mapping[str, Any], others: Others) -> Any:
    """The target of a node, from data."""
    ((kind, found),) = data.items()
    if kind == "operator":
        return operator_of(str(found))
    if kind == "own":
        return own_function(found)
    if kind in PYTHON:
        place, names = PYTHON[kind]
        if found not in names:
            raise KeyError(found)
        return getattr(place, found)
    if kind == "function":
        holder, public = HOLDERS[found[0]]
        function = getattr(holder, str(found[1]))
        if f"aten::{found[1]}" in REFUSED or function is not getattr(public, str(found[1])):
            raise KeyError(found[1])
        return function
    if kind == "method":
        method = getattr(torch.Tensor, str(found))
        if type(method) is not METHOD:
            raise KeyError(found)
        return method
    return others.target(data)


def operator_of(name: str) -> Any:
    """The operator of torch with a qualified name, `aten::add.Tensor`.

    Raises:
        DataError: no such operator in this version of torch.
    """
    parts, found = OPERATOR.fullmatch(name), None
    if parts is not None:
        qualified, namespace, short, overload = parts.groups()
        if qualified not in REFUSED and torch._C._jit_get_schemas_for_operator(qualified):
            found = getattr(getattr(getattr(torch.ops, namespace), short), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise DataError(
            f"a graph calls the operator {name}, which torch {torch.__version__} does not have here",
            "import the package that registers it before load, or use the version of torch that it was saved with",
        )
    return found
