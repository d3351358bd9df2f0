"""Window attention over several images, with scores split into images and windows to add masks.

In: `%s = matmul(%q, %k); %y = add(view(%s, [b, w, h, n, n]), %m); %p = softmax(view(%y, [b * w, h, n, n]), -1); %o =
matmul(%p, %v)`.
Out: `%s = matmul(view(%q, [b, w, ..]), view(%k, [b, w, ..])); %p = softmax(add(%s, %m), -1); %o = flatten(matmul(%p,
view(%v, [b, w, ..])), 0, 1)`: views of leading modes move through products and entrywise operators.

Source: Liu, Lin, Cao, Hu, Wei, Zhang, Lin and Guo, Swin transformer, 2021, section 3.2.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.canonicalize import sizes_of
from sparsify.passes.graph.insert import call, put_behind
from sparsify.passes.graph.operators import COPIES, argument, operator_name, tensor_value

aten = torch.ops.aten
PRODUCTS: Final = ("matmul", "bmm")
# Entrywise operators on scores or weights.
ENTRYWISE: Final = COPIES | {"add", "sub", "mul", "div", "masked_fill", "where", "tanh", "dropout"}


def split_windows(softmax: fx.Node) -> None:
    """Splits images and windows at the operands of attention, if its scores are split temporarily."""
    (scores,) = softmax.all_input_nodes
    if (
        operator_name(scores) != "view"
        or not is_split(scores.all_input_nodes[0], scores)
        or len(scores.users) > 1
    ):
        return
    base = scores.all_input_nodes[0]
    above = chain(base, is_view_of_parts)
    below = None if above is None else chain(above[-1].args[0], is_product)
    path = weighted(softmax)
    if above is None or below is None or not path:
        return
    if not all(is_same_for_all(node, below) for node in below[:-1]):
        return
    split, product, mean = above[-1], below[-1], path[-1]
    with split.graph.inserting_before(split):
        product_in_parts = call(aten.matmul.default, *[in_parts(operand, split) for operand in product.args])
        for node, before in zip(below[-2::-1], below[:0:-1], strict=True):
            product_in_parts = call(
                node.target, *[product_in_parts if part is before else part for part in node.args]
            )
    split.replace_all_uses_with(product_in_parts)
    softmax.args = (base, -1, *softmax.args[2:])
    mean.target, mean.args = aten.matmul.default, (mean.args[0], values_in_parts(mean, split))
    for node in (*above[-2::-1], softmax, *path):
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    put_behind(mean, aten.flatten.using_ints, 0, 1)
    for node in (scores, split, *below):
        softmax.graph.erase_node(node)


def values_in_parts(mean: fx.Node, split: fx.Node) -> fx.Node:
    """The values of a weighted mean, in parts."""
    with mean.graph.inserting_before(mean):
        values = mean.args[1]
        assert isinstance(values, fx.Node), "a product of two tensors"
        return in_parts(values, split)


def chain(node: Any, is_last: Callable[[fx.Node], bool]) -> list[fx.Node] | None:
    """A chain of entrywise nodes, each with a single reader, down to a last one."""
    if not isinstance(node, fx.Node) or tensor_value(node) is None or len(node.users) != 1:
        return None
    if is_last(node):
        return [node]
    if operator_name(node) not in ENTRYWISE:
        return None
    chains = (chain(part, is_last) for part in node.all_input_nodes if shape(part) == shape(node))
    rest = next((part for part in chains if part is not None), None)
    return None if rest is None else [node, *rest]


def is_view_of_parts(node: fx.Node) -> bool:
    """Whether a node is a view that splits the first mode of its operand in two."""
    return operator_name(node) == "view" and is_split(node, node.args[0])


def is_product(node: fx.Node) -> bool:
    """Whether a node is a product of matrices."""
    return operator_name(node) in PRODUCTS


def is_split(parts: Any, joined: Any) -> bool:
    """Whether one tensor has two modes in place of the first one of another."""
    return len(shape(parts)) == len(shape(joined)) + 1 > 1 and shape(parts)[2:] == shape(joined)[1:]


def is_same_for_all(node: fx.Node, below: list[fx.Node]) -> bool:
    """Whether the other operands of a node are constant along the scores' first mode."""
    others = [part for part in node.all_input_nodes if part not in below]
    return not node.kwargs and all(
        len(shape(part)) < len(shape(node)) or shape(part)[0] == "1" for part in others
    )


def weighted(softmax: fx.Node) -> list[fx.Node]:
    """The nodes from the weights' reader to the product with values; none with other readers in between."""
    node, path = softmax, list[fx.Node]()
    while len(node.users) == 1:
        (user,) = node.users
        path.append(user)
        if is_product(user):
            return path if user.args[0] is node else []
        if operator_name(user) not in ENTRYWISE:
            return []
        node = user
    return []


def in_parts(node: Any, split: fx.Node) -> fx.Node:
    """A tensor with its first mode split as in a view; a matrix transposition stays the last view."""
    modes = (argument(node, 1, "dim0"), argument(node, 2, "dim1"))
    if operator_name(node) in ("transpose", "mT") and set(modes) <= {
        -1,
        -2,
        len(shape(node)) - 1,
        len(shape(node)) - 2,
        None,
    }:
        return call(aten.transpose.int, in_parts(node.args[0], split), -1, -2)
    sizes = sizes_of(node, split)
    assert sizes is not None, "queries, keys and values are tensors"
    leading = argument(split, 1, "size")[:2]
    view: fx.Node = node.graph.call_function(aten.reshape.default, (node, [*leading, *sizes[1:]]))
    value, split_value = tensor_value(node), tensor_value(split)
    assert value is not None and split_value is not None, "scores are of tensors"
    view.meta["val"] = value.new_empty((*split_value.shape[:2], *value.shape[1:]))
    return view


def shape(node: Any) -> list[str]:
    """The extents of a tensor as texts; none of other nodes."""
    value = tensor_value(node)
    return [] if value is None else list(map(str, value.shape))
