"""Layers over rows with several modes become layers over one: a batch of sentences is one matrix of tokens.

In:  `%y = linear(%x, %w, %b); %g = gelu(%y)`, x [batch, tokens, features], w declared sparse.
Out: `%r = reshape(%x, [-1, features]); %y = linear(%r, %w, %b); %g = gelu(%y); %v = view(%g, [batch, tokens, n])`.

Kernels then see all rows in one loop, whatever the batch is made of. The view goes behind pointwise operators, which
can be fused then, and behind `layer_norm`, and meets the `reshape` of the next layer: both vanish.
"""

from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph import canonicalize
from sparsify.passes.graph.operators import is_mutating, operator_name, tensor_value
from sparsify.passes.region.fragment import BINARY, UNARY
from sparsify.passes.region.sparse_operand import declared_sparse

PRODUCTS: Final = ("linear", "matmul")
POINTWISE: Final = frozenset((*UNARY, *BINARY, "gelu"))
RESHAPES: Final = (torch.ops.aten.view.default, torch.ops.aten.reshape.default)


def flatten(draft: Draft) -> Draft:
    """The draft with one mode for the rows of every product with a matrix that a rule makes sparse."""
    stacked = [node for node in draft.graph.nodes if is_stacked(node)]
    for node in stacked:
        sink(over_rows(node))  # before the next layer, which reads what is behind the view
    if stacked:
        for target in RESHAPES:
            for node in draft.graph.find_nodes(op="call_function", target=target):
                view_once(node)
        canonicalize.merge_repetitions(draft.graph)
        canonicalize.remove_unused(draft.graph)
    return draft


def is_stacked(node: fx.Node) -> bool:
    """Whether a node multiplies a tensor with three or more modes by a sparse matrix."""
    if node.op != "call_function" or operator_name(node) not in PRODUCTS:
        return False
    rows, value = tensor_value(node.args[0]), tensor_value(node)
    if rows is None or value is None or rows.dim() < 3 or declared_sparse(node.args[1]) is None:
        return False
    return str(rows.shape[-1]).isdigit() and str(value.shape[-1]).isdigit()


def over_rows(node: fx.Node) -> fx.Node:
    """`y = linear(x, w, b) -> view(linear(reshape(x, [-1, k]), w, b), sizes of y)`; returns the view."""
    x = node.args[0]
    assert isinstance(x, fx.Node), "products are of nodes"
    node.args = (as_matrix(x, node), *node.args[1:])
    return stacked_again(node, x)


def as_matrix(x: fx.Node, user: fx.Node) -> fx.Node:
    """`x` with all modes but the last as one; the matrix itself where `x` is a view of it."""
    value = tensor_value(x)
    assert value is not None, "rows are tensors"
    inner = viewed_matrix(x)
    if inner is not None:
        return inner
    while x.target in RESHAPES and isinstance(x.args[0], fx.Node):
        x = x.args[0]
    with x.graph.inserting_before(user):
        made = x.graph.call_function(torch.ops.aten.reshape.default, (x, [-1, int(value.shape[-1])]))
    made.meta["val"] = value.reshape(-1, value.shape[-1])
    return made


def viewed_matrix(x: fx.Node) -> fx.Node | None:
    """The matrix whose rows `x` has in several modes, `None` when it is no such view."""
    inner = x.args[0] if operator_name(x) == "view" else None
    value, matrix = tensor_value(x), tensor_value(inner)
    if not isinstance(inner, fx.Node) or value is None or matrix is None or matrix.dim() != 2:
        return None
    return inner if value.dim() > 2 and str(matrix.shape[1]) == str(value.shape[-1]) else None


def stacked_again(node: fx.Node, like: fx.Node) -> fx.Node:
    """A view of `node` [rows, n], now a matrix, with the leading modes of `like`, in the place of all its uses."""
    whole, rows = tensor_value(node), tensor_value(like)
    assert whole is not None and rows is not None, "pointwise operators and products make tensors"
    following = node.next
    with node.graph.inserting_before(following):
        view = node.graph.call_function(torch.ops.aten.view.default)
    node.replace_all_uses_with(view)
    leading = canonicalize.sizes_of(like, view)
    assert leading is not None, "rows have sizes"
    view.args = (node, [*leading[:-1], int(whole.shape[-1])])
    view.meta.update(node.meta)
    node.meta = {**node.meta, "val": whole.reshape(-1, whole.shape[-1])}
    return view


def sink(view: fx.Node) -> None:
    """`f(view(y), z) -> view(f(y, reshape(z)))` as long as one operator on rows or entries reads the view."""
    while len(view.users) == 1:
        reader = next(iter(view.users))
        matrix, shape = view.args[0], tensor_value(view)
        assert isinstance(matrix, fx.Node) and shape is not None, "views are of nodes"
        if not may_flatten(reader, view):
            return
        arguments = [flat_argument(argument, view, reader) for argument in reader.args]
        reader.args = tuple(arguments)
        view = stacked_again(reader, view)


def may_flatten(reader: fx.Node, view: fx.Node) -> bool:
    """Whether an operator can work on the matrix behind `view`: nothing is broadcast over some of its modes alone."""
    shape = tensor_value(view)
    if reader.op != "call_function" or is_mutating(reader):
        return False
    if operator_name(reader) not in POINTWISE and not is_layer_norm(reader):
        return False
    if shape is None or not same_shape(tensor_value(reader), shape):
        return False
    others = [tensor_value(node) for node in reader.all_input_nodes if node is not view]
    return all(
        other is not None and (same_shape(other, shape) or is_row(other, shape)) for other in others
    ) and not any(isinstance(value, fx.Node) for value in reader.kwargs.values())


def is_layer_norm(node: fx.Node) -> bool:
    """Whether a node normalizes each row by itself."""
    return operator_name(node) == "layer_norm" and len(node.args[1]) == 1  # type: ignore[arg-type]


def flat_argument(argument: Any, view: fx.Node, reader: fx.Node) -> Any:
    """An argument of a pointwise operator for its rows in one mode."""
    if argument is view:
        return view.args[0]
    value = tensor_value(argument)
    return as_matrix(argument, reader) if value is not None and value.dim() > 1 else argument


def same_shape(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Whether two tensors have the same extents, symbols included."""
    return one is not None and [str(extent) for extent in one.shape] == [
        str(extent) for extent in other.shape
    ]


def is_row(value: torch.Tensor, shape: torch.Tensor) -> bool:
    """Whether a vector is added, or multiplied, to each row."""
    return value.dim() == 1 and str(value.shape[0]) == str(shape.shape[-1])


def view_once(node: fx.Node) -> None:
    """`reshape(view(x, a), [-1, k]) -> x` and `view(view(x, a), b) -> view(x, b)`, where the first was made here."""
    inner, value = node.args[0], tensor_value(node)
    matrix = viewed_matrix(inner) if isinstance(inner, fx.Node) else None
    known = tensor_value(matrix)
    if matrix is None or value is None or known is None:
        return
    if value.dim() == 2 and str(value.shape[1]) == str(known.shape[1]):
        node.replace_all_uses_with(matrix)
    else:
        node.args = (matrix, *node.args[1:])
