"""A functional graph in canonical form: without repetitions, no-ops, disguised constants and activations.

In: `%z = new_zeros(%m, [n]); %s = scatter_add_(%z, 0, %i, %m)`, twice.
Out: `%z = zeros([n], dtype, device); %s = scatter_add(%z, 0, %i, %m)`, once.
"""

import operator
from typing import Any

import torch
from torch import fx

from sparsify.passes.graph import operators
from sparsify.passes.graph.gelu import join_gelu
from sparsify.passes.graph.operators import argument, operator_name

END = 2**63 - 1
SLICE = (("dim", 0), ("start", None), ("end", END), ("step", 1))


def canonicalize(graph: fx.Graph) -> None:
    """Rewrites `graph` in place, with equal values and gradients except for an activation's rounding."""
    for node in list(graph.nodes):
        for rule in RULES:
            if rule(node):
                break
    merge_repetitions(graph)
    join_gelu(graph)
    remove_unused(graph)
    graph.lint()


def constant_factory(node: fx.Node) -> bool:
    """`x.new_zeros(size) -> zeros(size, dtype, device)`, likewise ones, full and the `_like` forms."""
    name = operator_name(node)
    value = operators.tensor_value(node)
    if value is None or not name.startswith(("new_", "zeros_like", "ones_like", "full_like")):
        return False
    kind = "zeros" if "zeros" in name else "ones" if "ones" in name else "full" if "full" in name else ""
    if not kind or not isinstance(node.args[0], fx.Node):
        return False
    size = sizes_of(node.args[0], node) if name.endswith("_like") else argument(node, 1, "size")
    if size is None:
        return False
    fill = (argument(node, 2 if name == "new_full" else 1, "fill_value"),) if kind == "full" else ()
    node.target = getattr(torch.ops.aten, kind).default
    node.args = (size, *fill)
    node.kwargs = {"dtype": value.dtype, "device": value.device}
    return True


def sizes_of(like: Any, user: fx.Node) -> list[Any] | None:
    """The sizes of `like`, as numbers or as size nodes before `user`, from inputs where possible."""
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
    for existing in source.users:
        if (
            operator_name(existing) == "sym_size"
            and existing.args == (source, source_mode)
            and existing < user
        ):
            return existing
    with user.graph.inserting_before(user):
        size = user.graph.call_function(torch.ops.aten.sym_size.int, (source, source_mode))
    size.meta["val"] = extent
    return size


def input_of_extent(graph: fx.Graph, extent: Any) -> tuple[fx.Node, int] | None:
    """An input and its mode with the same symbol as an extent."""
    symbol = getattr(extent, "node", None)
    return None if symbol is None else input_of_expression(graph, symbol.expr)


def number_of_expression(graph: fx.Graph, expression: Any) -> fx.Node | None:
    """A node that computes a symbolic expression, such as `u0 + 1` for `index.max() + 1`."""
    numbers: list[fx.Node] = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)]
    return next((node for node in numbers if node.meta["val"].node.expr == expression), None)


def input_of_expression(graph: fx.Graph, expression: Any) -> tuple[fx.Node, int] | None:
    """An input and its mode with a symbolic extent."""
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
    input_mode = input_of_expression(user.graph, rest) if constant else None
    if input_mode is None:
        return None
    source, mode = input_mode
    size = size_node(source, mode, source.meta["val"].shape[mode], user)
    with user.graph.inserting_before(user):
        shifted = user.graph.call_function(operator.add, (size, int(constant)))
    shifted.meta["val"] = extent
    return shifted


def part(node: fx.Node, first: int) -> tuple[Any, ...]:
    """The part of a tensor accessed by `select`, `slice` or their scatters; arguments start at `first`."""
    names = (("dim", 0), ("index", 0)) if "select" in operator_name(node) else SLICE
    values = [argument(node, at, name, default) for at, (name, default) in enumerate(names, first)]
    return tuple(
        [None if at == 1 and start == 0 and names is SLICE else start for at, start in enumerate(values)]
    )


def read_of_write(node: fx.Node) -> bool:
    """`select(select_scatter(x, y, 0, 1), 0, 1) -> y`, and `select(x, 0, j)` for another j; `slice` likewise."""
    name = operator_name(node)
    if name not in ("select", "slice"):
        return False
    read, base = part(node, 1), node.args[0]
    while isinstance(base, fx.Node) and operator_name(base) == f"{name}_scatter":
        written = part(base, 2)
        if written == read:
            node.replace_all_uses_with(base.args[1])  # type: ignore[arg-type]
            node.graph.erase_node(node)
            return True
        if name == "slice" or not are_disjoint(written, read):
            break
        base = base.args[0]
    node.update_arg(0, base)
    return False


def are_disjoint(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Whether two selections of one mode are of different entries."""
    (mode, first), (other, second) = left, right
    is_known = isinstance(first, int) and isinstance(second, int) and (first < 0) == (second < 0)
    return mode == other and is_known and first != second


def write_of_write(node: fx.Node) -> bool:
    """`select_scatter(select_scatter(x, y, 0, 1), z, 0, 1) -> select_scatter(x, z, 0, 1)`; `slice_scatter` likewise."""
    name, base = operator_name(node), node.args[0] if node.args else None
    if name not in ("select_scatter", "slice_scatter") or not isinstance(base, fx.Node):
        return False
    if operator_name(base) == name and part(base, 2) == part(node, 2):
        node.update_arg(0, base.args[0])
    return False


def expand_to_sizes(node: fx.Node) -> bool:
    """`x.expand_as(y) -> x.expand(sizes of y)`: only the shape of y is needed."""
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
    is_identity = (
        name == "slice" and argument(node, 2, "start") in (None, 0) and argument(node, 3, "end") == END
    )
    is_identity = is_identity and argument(node, 4, "step", 1) == 1
    if not (is_identity or name == "alias" or operators.is_inactive_dropout(node)):
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
    nonempty = [p for p, v in zip(parts, values, strict=True) if v is not None and not is_nothing(v)]
    if len(nonempty) != 1 or len(parts) == 1 or is_written(node) or is_written(nonempty[0]):
        return False
    if any(v is not None and v.dtype != node.meta["val"].dtype for v in values):
        return False
    node.replace_all_uses_with(nonempty[0])
    node.graph.erase_node(node)
    return True


def is_written(node: fx.Node) -> bool:
    """Whether an operator writes into a tensor or its view."""
    return any(
        is_writer(user) or (operator_name(user) in operators.VIEWS and is_written(user))
        for user in node.users
    )


def is_nothing(value: torch.Tensor) -> bool:
    """Whether a vector is known to be empty; symbols are not inspected, which would add guards."""
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


def implied_metadata(node: fx.Node) -> bool:
    """`assert y is float32, strided, on the CPU -> nothing`, as the graph makes y so."""
    value = operators.tensor_value(node.args[0]) if operator_name(node) == "_assert_tensor_metadata" else None
    if value is None:
        return False
    names = ("size", "stride", "dtype", "device", "layout")
    conditions = {name: operators.argument(node, position, name) for position, name in enumerate(names, 1)}
    if conditions.pop("size") is not None or conditions.pop("stride") is not None:
        return False
    if any(expected not in (None, getattr(value, name)) for name, expected in conditions.items()):
        return False
    node.graph.erase_node(node)
    return True


def size_through(node: fx.Node) -> bool:
    """`sym_size(y, d) -> sym_size(input, e)`, or an equal number computed earlier."""
    if operator_name(node) not in ("sym_size", "size") or not isinstance(node.args[0], fx.Node):
        return False
    extent = node.meta.get("val")
    if isinstance(extent, int) or str(extent).isdigit():
        node.replace_all_uses_with(int(extent))  # type: ignore[arg-type]
        node.graph.erase_node(node)
        return True
    if node.args[0].op == "placeholder":
        return False
    input_mode = input_of_extent(node.graph, extent)
    if input_mode is not None:
        node.args = input_mode
        return True
    symbol = getattr(extent, "node", None)
    number = None if symbol is None else number_of_expression(node.graph, symbol.expr)
    if number is None or number is node or not number < node:
        return False
    node.replace_all_uses_with(number)
    node.graph.erase_node(node)
    return True


RULES = (
    read_of_write,
    write_of_write,
    no_operation,
    nothing_in_front,
    trivial_assertion,
    implied_metadata,
    size_through,
    constant_factory,  # leaves the copied-from tensor unused
    expand_to_sizes,  # likewise
)


def merge_repetitions(graph: fx.Graph) -> None:
    """Equal pure calls with equal arguments become one; the first stays."""
    first_calls: dict[Any, fx.Node] = {}
    written = operators.overwritten(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or has_effect(node):
            continue
        if written & {node, *node.all_input_nodes}:
            continue
        key = (node.target, frozen(node.args), frozen(node.kwargs))
        first = first_calls.setdefault(key, node)
        if first is not node:
            identify(first.meta.get("val"), node.meta.get("val"))
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def identify(first: Any, second: Any) -> None:
    """Unifies two data-dependent numbers to one symbol, in every extent with the second one.

    Export names two computations of `index.max()` `u0` and `u1`.
    """
    if not isinstance(first, torch.SymInt) or not isinstance(second, torch.SymInt):
        return
    kept_symbol, symbol = first.node.expr, second.node.expr
    if kept_symbol != symbol and symbol.is_Symbol and second.node.hint is None:
        second.node.shape_env._set_replacement(symbol, kept_symbol, "equal calls")


def frozen(value: Any) -> Any:
    """`value` as a hashable that distinguishes 1, 1.0 and True."""
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


def has_effect(node: fx.Node) -> bool:
    """Whether the operator writes, draws random numbers or updates statistics."""
    return is_writer(node) or operators.is_random(node) or operators.updates_statistics(node)


def remove_unused(graph: fx.Graph) -> None:
    """Drops nodes without users, last first, except nodes that write, assert or draw random numbers."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        name = operator_name(node)
        if has_effect(node) or "assert" in name or name.startswith("sym_constrain"):
            continue
        graph.erase_node(node)
