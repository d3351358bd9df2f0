"""Pure forms of in-place operators, and of writes through views.

In: `clamp_(%r, max=150)`, `%r = select(%e, 0, 0)`.
Out: `%v = clamp(%r, max=150)`; `select_scatter(%e, %v, 0, 0)`, the value of `%e` after the write.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.errors import CaptureError
from sparsify.passes.graph.canonicalize import sizes_of
from sparsify.passes.graph.insert import call_before
from sparsify.passes.graph.operators import argument, operator_name, raw_name, tensor_value

aten: Final = torch.ops.aten
# Operators that change the memory of a tensor, not its entries.
REPLACING: Final = frozenset({"set_", "resize_", "resize_as_", "set_data"})
FILLS: Final = frozenset({"fill_", "zero_"})


def pure_form(node: fx.Node) -> Any:
    """The operator that computes the written value of `node`; `None` without one.

    A write without a functional form, such as random numbers, goes into a copy.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or raw_name(node) in REPLACING:
        return None
    schema = node.target._schema
    if any(item.name == "out" for item in schema.arguments):
        return overload_like(node.target, schema.name.split("::")[-1], without="out")
    if functional := functional_form(node.target):
        return functional
    first = schema.arguments[0].alias_info
    return node.target if first is not None and first.is_write and len(schema.returns) == 1 else None


def functional_form(target: Any) -> Any:
    """The equivalent overload without writes into its argument, `None` without one."""
    name = target._schema.name.split("::")[-1]
    return overload_like(target, name[:-1]) if name.endswith("_") else None


def overload_like(target: Any, name: str, without: str = "") -> Any:
    """The pure overload of an operator with the argument types of `target`."""
    packet = getattr(getattr(torch.ops, target.namespace), name, None)
    if packet is None:
        return None
    types = argument_types(target, without)
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    pure = (form for form in overloads if not form._schema.is_mutable)
    return next((form for form in pure if argument_types(form) == types), None)


def argument_types(overload: Any, without: str = "") -> list[str]:
    """The types of an overload's arguments, which determine the overload better than its name."""
    return [str(item.type) for item in overload._schema.arguments if item.name != without]


def is_view(form: Any) -> bool:
    """Whether the result of a pure operator is a view of its first argument."""
    returns = form._schema.returns
    return len(returns) == 1 and returns[0].alias_info is not None and not form._schema.is_mutable


def written_value(node: fx.Node, target: fx.Node, form: Any) -> fx.Node:
    """The entries of `target` after the write `node`, by the operator `form`; may convert the node in place."""
    user, name = node.next, raw_name(node)
    value = tensor_value(target)
    assert value is not None, "writes go into tensors"
    if name == "copy_":
        return fitted(argument(node, 1, "src"), target, user)
    if name in FILLS:
        return filled(node, target, user)
    if "out" in node.kwargs:
        node.kwargs = {key: argument for key, argument in node.kwargs.items() if key != "out"}
        node.target = form
        node.meta["val"] = have = form(*values(node.args), **values(node.kwargs))
        if not is_shaped_like(have, value):
            raise CaptureError(f"the model writes a tensor of another shape by {name}(out=..)")
        return fitted(node, target, user)
    if form is node.target:
        node.args = (call_before(node, aten.clone.default, target), *node.args[1:])
        return node
    node.target = form
    node.meta["val"] = form(*values(node.args), **values(node.kwargs))
    return fitted(node, target, user)


def is_list(node: fx.Node) -> bool:
    """Whether `node` computes several tensors."""
    return isinstance(node.meta.get("val"), (list, tuple))


def values(arguments: Any) -> Any:
    """Arguments with the fake values of nodes."""
    return fx.map_arg(arguments, lambda one: one.meta["val"])


def filled(node: fx.Node, target: fx.Node, user: fx.Node) -> fx.Node:
    """`target` with one number for all entries."""
    number = 0 if raw_name(node) == "zero_" else argument(node, 1, "value")
    if isinstance(number, fx.Node) and tensor_value(number) is not None:
        return fitted(number, target, user)
    return call_before(user, aten.full_like.default, target, number)


def fitted(source: fx.Node, target: fx.Node, user: fx.Node) -> fx.Node:
    """`source` in the dtype and shape of `target`, with the semantics of `copy_`."""
    have, want = tensor_value(source), tensor_value(target)
    assert have is not None and want is not None, "writes are of tensors into tensors"
    if have.device != want.device:
        raise CaptureError(f"the model writes a tensor of {have.device} into one of {want.device}")
    if have.dtype != want.dtype:
        source = call_before(user, aten.to.dtype, source, want.dtype)
    if is_shaped_like(have, want):
        return source
    sizes = sizes_of(target, user)
    return call_before(user, aten.expand.default, source, sizes)


def is_shaped_like(left: Tensor | None, right: Tensor | None) -> bool:
    """Whether two tensors have the same extents in every call."""
    if left is None or right is None:
        return False
    return [str(extent) for extent in left.shape] == [str(extent) for extent in right.shape]


def scatter(view: fx.Node, base: fx.Node, value: fx.Node, user: fx.Node) -> fx.Node:
    """The value of `base` after a write to its view.

    Args:
        view: node of the view.
        base: tensor, or list of tensors, before the write.
        value: view's value after the write; the whole tensor's for a list or an element of one.
        user: insertion point of new nodes.

    Raises:
        CaptureError: the view has no inverse.
    """
    if is_list(view):
        return value
    name = operator_name(view)
    have, want = tensor_value(value), tensor_value(base)
    is_alike = have is not None and want is not None and have.dtype == want.dtype
    if is_alike and name in WHOLE | RESHAPES and is_shaped_like(have, want):
        return value
    if name == "narrow":
        dim, start, length = (argument(view, at, key) for at, key in enumerate(("dim", "start", "length"), 1))
        end = call_before(user, operator.add, start, length) if is_computed(start, length) else start + length
        return call_before(user, aten.slice_scatter.default, base, value, dim, start, end)
    if name in SCATTERS:
        target, *arguments = SCATTERS[name](view)
        operands = (base, value) if "scatter" in str(target) else (value,)
        return call_before(user, target, *operands, *arguments)
    if name == "getitem" and operator_name(base) in PARTS:
        return joined(view, base, value, user)
    if is_alike and name in RESHAPES:
        return call_before(user, aten.reshape.default, value, sizes_of(base, user))
    raise CaptureError(f"the model writes in place through {view.target}, which has no inverse")


def is_computed(*numbers: Any) -> bool:
    """Whether one of the numbers is computed by the graph."""
    return any(isinstance(number, fx.Node) for number in numbers)


def joined(view: fx.Node, parts: fx.Node, value: fx.Node, user: fx.Node) -> fx.Node:
    """The tensor that a list of parts splits, with one part replaced."""
    number, count = view.args[1], len(parts.meta["val"])
    others = [
        value if at == number else call_before(user, operator.getitem, parts, at) for at in range(count)
    ]
    form, dim = PARTS[operator_name(parts)](parts)
    return call_before(user, form, others, dim)


def stacked(parts: fx.Node) -> tuple[Any, Any]:
    """A tensor as the stack of its slices."""
    return aten.stack.default, argument(parts, 1, "dim", 0)


def concatenated(parts: fx.Node) -> tuple[Any, Any]:
    """A tensor as the concatenation of its parts along a mode."""
    return aten.cat.default, argument(parts, 2, "dim", 0)


def concatenated_along(mode: int) -> Callable[[fx.Node], tuple[Any, Any]]:
    """A tensor as the concatenation of its parts along a fixed mode, or along its single mode."""
    return lambda parts: (aten.cat.default, min(mode, parts.meta["val"][0].dim() - 1))


def sliced(view: fx.Node) -> tuple[Any, ...]:
    """The write that inverts `slice`."""
    defaults = (("dim", 0), ("start", None), ("end", None), ("step", 1))
    arguments = [
        argument(view, position, name, default) for position, (name, default) in enumerate(defaults, 1)
    ]
    return aten.slice_scatter.default, *arguments


def selected(view: fx.Node) -> tuple[Any, ...]:
    """The write that inverts `select`."""
    return aten.select_scatter.default, argument(view, 1, "dim"), argument(view, 2, "index")


def diagonal(view: fx.Node) -> tuple[Any, ...]:
    """The write of a diagonal."""
    defaults = (("offset", 0), ("dim1", 0), ("dim2", 1))
    arguments = [
        argument(view, position, name, default) for position, (name, default) in enumerate(defaults, 1)
    ]
    return aten.diagonal_scatter.default, *arguments


def transposed(view: fx.Node) -> tuple[Any, ...]:
    """The inverse of an exchange of two modes."""
    return aten.transpose.int, view.args[1], view.args[2]


def permuted(view: fx.Node) -> tuple[Any, ...]:
    """The inverse of a permutation of modes."""
    value = tensor_value(view)
    assert value is not None, "permutations are of tensors"
    order = [mode % value.dim() for mode in argument(view, 1, "dims")]
    return aten.permute.default, [order.index(mode) for mode in range(len(order))]


def reversed_modes(view: fx.Node) -> tuple[Any, ...]:
    """The inverse of a reversal of modes."""
    value = tensor_value(view)
    assert value is not None, "transposes are of tensors"
    return aten.permute.default, list(reversed(range(value.dim())))


def moved(view: fx.Node) -> tuple[Any, ...]:
    """The inverse of a move of modes."""
    return view.target, view.args[2], view.args[1]


# Operators that split a tensor into a list.
PARTS: Final[dict[str, Callable[[fx.Node], tuple[Any, Any]]]] = {
    "unbind": stacked,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), concatenated),
    "vsplit": concatenated_along(0),
    "hsplit": concatenated_along(1),
    "dsplit": concatenated_along(2),
}
# Views with the same entries in the same order.
RESHAPES: Final = frozenset({"view", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as"})
# Operators that return their operand unchanged if its shape and dtype match.
WHOLE: Final = frozenset(
    {
        *("alias", "contiguous", "detach", "dropout", "expand", "expand_as", "lift_fresh", "positive"),
        *("narrow", "slice", "to", "_to_copy", "type_as", "alpha_dropout", "feature_alpha_dropout"),
    }
)
SCATTERS: Final[dict[str, Callable[[fx.Node], tuple[Any, ...]]]] = {
    "select": selected,
    "slice": sliced,
    "diagonal": diagonal,
    "transpose": transposed,
    "swapaxes": transposed,
    "swapdims": transposed,
    "t": reversed_modes,
    "permute": permuted,
    "movedim": moved,
    "moveaxis": moved,
}
