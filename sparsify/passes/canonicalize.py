"""A captured graph in canonical form: functional, without repetitions, no-ops, disguised constants and activations.

In: `%z = new_zeros(%m, [n]); %s = scatter_add_(%z, 0, %i, %m)`, twice.
Out: `%z = zeros([n], dtype, device); %s = scatter_add(%z, 0, %i, %m)`, once.
"""

import operator
from typing import Any

import torch
from torch import fx

from sparsify.passes import operators
from sparsify.passes.joined_gelu import join_gelu
from sparsify.passes.operators import argument, operator_name

END = 2**63 - 1


def canonicalize(graph: fx.Graph) -> None:
    """Rewrites `graph` in place; values and gradients stay the same, but for the rounding of an activation."""
    functionalize(graph)
    for node in list(graph.nodes):
        for rule in RULES:
            if rule(node):
                break
    merge_repetitions(graph)
    join_gelu(graph)
    remove_unused(graph)
    graph.lint()


def functionalize(graph: fx.Graph) -> None:
    """`x.f_(...)` on a fresh tensor without other views becomes `f(x, ...)`, later uses of `x` its result."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op != "call_function" or not operators.is_mutating(node):
            continue
        functional = functional_form(node.target)
        written = node.args[0] if node.args else None
        if functional is None or not isinstance(written, fx.Node) or not is_fresh(written, node):
            continue
        for user in list(written.users):
            if user is not node and order[user] > order[node]:
                user.replace_input_with(written, node)
        node.target = functional


def functional_form(target: Any) -> Any:
    """The overload that does the same without writing into its argument, None when there is none."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    name = target._schema.name.split("::")[-1]
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    if packet is None:
        return None
    wanted = argument_types(target)
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return next(
        (form for form in overloads if not form._schema.is_mutable and argument_types(form) == wanted), None
    )


def argument_types(overload: Any) -> list[str]:
    """The types of an overload's arguments; the name of an overload says less."""
    return [str(item.type) for item in overload._schema.arguments]


def is_fresh(node: fx.Node, writer: fx.Node) -> bool:
    """Whether writing to `node` changes no other tensor: it was made here and has no other view."""
    if node.op != "call_function" or operators.is_mutating(node):
        return False
    others = [user for user in node.users if user is not writer]
    if any(operator_name(user) in operators.VIEWS for user in others):
        return False
    if operator_name(node) in operators.VIEWS:
        base = node.args[0]
        return isinstance(base, fx.Node) and is_fresh(base, node) and len(base.users) == 1
    return operator_name(node) not in ("contiguous", "to", "view_as", "dropout", "_to_copy")


def constant_factory(node: fx.Node) -> bool:
    """`x.new_zeros(size) -> zeros(size, dtype, device)`, likewise ones, full and the `_like` forms."""
    name = operator_name(node)
    value = operators.tensor_value(node)
    if value is None or not name.startswith(("new_", "zeros_like", "ones_like", "full_like")):
        return False
    kind = "zeros" if "zeros" in name else "ones" if "ones" in name else "full" if "full" in name else ""
    if not kind or not isinstance(node.args[0], fx.Node):
        return False
    size = size_of_like(node) if name.endswith("_like") else argument(node, 1, "size")
    if size is None:
        return False
    fill = (argument(node, 2 if name == "new_full" else 1, "fill_value"),) if kind == "full" else ()
    node.target = getattr(torch.ops.aten, kind).default
    node.args = (size, *fill)
    node.kwargs = {"dtype": value.dtype, "device": value.device}
    return True


def size_of_like(node: fx.Node) -> list[Any] | None:
    """The sizes of the tensor that a `_like` factory copies, as numbers or size nodes."""
    return sizes_of(node.args[0], node)


def sizes_of(like: Any, user: fx.Node) -> list[Any] | None:
    """The sizes of `like`, as numbers or as size nodes before `user`, of inputs where possible."""
    value = operators.tensor_value(like)
    if value is None:
        return None
    return [
        int(str(extent)) if str(extent).isdigit() else size_node(like, mode, extent, user)
        for mode, extent in enumerate(value.shape)
    ]


def size_node(like: fx.Node, mode: int, extent: Any, user: fx.Node) -> fx.Node:
    """A node for the size of one mode of `like`."""
    source, source_mode = input_of_extent(user.graph, extent) or (like, mode)
    for known in source.users:
        if operator_name(known) == "sym_size" and known.args == (source, source_mode) and known < user:
            return known
    with user.graph.inserting_before(user):
        size = user.graph.call_function(torch.ops.aten.sym_size.int, (source, source_mode))
    size.meta["val"] = extent
    return size


def input_of_extent(graph: fx.Graph, extent: Any) -> tuple[fx.Node, int] | None:
    """An input and the mode of it that has the same symbol as extent."""
    symbol = getattr(extent, "node", None)
    return None if symbol is None else input_of_expression(graph, symbol.expr)


def input_of_expression(graph: fx.Graph, expression: Any) -> tuple[fx.Node, int] | None:
    """An input and the mode of it whose extent export writes so."""
    for source in graph.find_nodes(op="placeholder"):
        value = operators.tensor_value(source)
        for mode, other in enumerate(value.shape if value is not None else ()):
            if not isinstance(other, int) and other.node.expr == expression:
                return source, mode
    return None


def shifted_size(extent: Any, user: fx.Node) -> fx.Node | None:
    """A node before `user` for an extent of an input and a number, `n - 1`; `None` for other extents."""
    symbol = getattr(extent, "node", None)
    constant, rest = symbol.expr.as_coeff_Add() if symbol is not None else (0, None)
    found = input_of_expression(user.graph, rest) if constant else None
    if found is None:
        return None
    source, mode = found
    size = size_node(source, mode, source.meta["val"].shape[mode], user)
    with user.graph.inserting_before(user):
        shifted = user.graph.call_function(operator.add, (size, int(constant)))
    shifted.meta["val"] = extent
    return shifted


def expand_to_sizes(node: fx.Node) -> bool:
    """`x.expand_as(y) -> x.expand(sizes of y)`: y is needed for its shape alone."""
    if operator_name(node) != "expand_as":
        return False
    sizes = sizes_of(node.args[1], node)
    if sizes is None:
        return False
    node.target = torch.ops.aten.expand.default
    node.args = (node.args[0], sizes)
    return True


def no_operation(node: fx.Node) -> bool:
    """`x[:] -> x`, `dropout(x, training=False) -> x`, `alias(x) -> x`."""
    name = operator_name(node)
    whole = name == "slice" and argument(node, 2, "start") in (None, 0) and argument(node, 3, "end") == END
    whole = whole and argument(node, 4, "step", 1) == 1
    if not (whole or name == "alias" or operators.is_inactive_dropout(node)):
        return False
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(node)
    return True


def nothing_in_front(node: fx.Node) -> bool:
    """`cat([empty, x]) -> x`: a vector without entries goes with tensors of every shape."""
    parts = node.args[0] if operator_name(node) == "cat" else None
    if not isinstance(parts, list | tuple):
        return False
    values = [operators.tensor_value(part) for part in parts]
    if any(value is None for value in values):
        return False
    whole = [p for p, v in zip(parts, values, strict=True) if v is not None and not is_nothing(v)]
    if len(whole) != 1 or len(parts) == 1 or is_written(node) or is_written(whole[0]):
        return False
    if any(v is not None and v.dtype != node.meta["val"].dtype for v in values):
        return False
    node.replace_all_uses_with(whole[0])
    node.graph.erase_node(node)
    return True


def is_written(node: fx.Node) -> bool:
    """Whether something writes into a tensor or a view of it."""
    return any(
        is_writer(user) or (operator_name(user) in operators.VIEWS and is_written(user))
        for user in node.users
    )


def is_nothing(value: torch.Tensor) -> bool:
    """Whether a vector is known to have no entries; symbols are not looked at, that would fix them."""
    return value.dim() == 1 and type(value.shape[0]) is int and value.shape[0] == 0


def trivial_assertion(node: fx.Node) -> bool:
    """`assert size >= 0 -> nothing`: true of every size."""
    if operator_name(node) != "_assert_scalar":
        return False
    condition = node.args[0]
    if not isinstance(condition, fx.Node) or getattr(condition.target, "__name__", "") != "ge":
        return False
    if condition.args[1] != 0 or operator_name(condition.args[0]) != "sym_size":  # type: ignore[arg-type]
        return False
    node.graph.erase_node(node)
    return True


def known_metadata(node: fx.Node) -> bool:
    """`assert y is float32, strided, on the CPU -> nothing`, as the graph makes y so."""
    value = operators.tensor_value(node.args[0]) if operator_name(node) == "_assert_tensor_metadata" else None
    if value is None:
        return False
    names = ("size", "stride", "dtype", "device", "layout")
    asked = {name: operators.argument(node, place, name) for place, name in enumerate(names, 1)}
    if asked.pop("size") is not None or asked.pop("stride") is not None:
        return False
    if any(wanted not in (None, getattr(value, name)) for name, wanted in asked.items()):
        return False
    node.graph.erase_node(node)
    return True


def size_through(node: fx.Node) -> bool:
    """`sym_size(y, d) -> sym_size(input, e)` or a number, when an input has the same extent."""
    if operator_name(node) not in ("sym_size", "size") or not isinstance(node.args[0], fx.Node):
        return False
    extent = node.meta.get("val")
    if isinstance(extent, int) or str(extent).isdigit():
        node.replace_all_uses_with(int(extent))  # type: ignore[arg-type]
        node.graph.erase_node(node)
        return True
    if node.args[0].op == "placeholder":
        return False
    found = input_of_extent(node.graph, extent)
    if found is None:
        return False
    node.args = found
    return True


RULES = (
    no_operation,
    nothing_in_front,
    trivial_assertion,
    known_metadata,
    size_through,
    constant_factory,  # makes the tensor it copied from unused
    expand_to_sizes,  # likewise
)


def merge_repetitions(graph: fx.Graph) -> None:
    """Equal pure calls with equal arguments become one; the first stays."""
    seen: dict[Any, fx.Node] = {}
    written = operators.overwritten(graph)
    written |= {argument for node in graph.nodes if is_writer(node) for argument in node.all_input_nodes}
    for node in list(graph.nodes):
        if node.op != "call_function" or is_writer(node) or operators.is_random(node):
            continue
        if written & {node, *node.all_input_nodes}:
            continue
        key = (node.target, frozen(node.args), frozen(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def frozen(value: Any) -> Any:
    """`value` as something hashable that tells 1 from 1.0 and from True."""
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((key, frozen(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return ("slice", frozen(value.start), frozen(value.stop), frozen(value.step))
    return (type(value).__name__, value)


def is_writer(node: fx.Node) -> bool:
    """Whether `node` writes into an argument."""
    return node.op in ("call_function", "call_method") and operators.is_mutating(node)


def remove_unused(graph: fx.Graph) -> None:
    """Drops nodes without users, last first, but none that writes, asserts or draws random numbers."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        name = operator_name(node)
        if (
            is_writer(node)
            or operators.is_random(node)
            or "assert" in name
            or name.startswith("sym_constrain")
        ):
            continue
        graph.erase_node(node)
