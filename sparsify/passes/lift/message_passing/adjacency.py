"""The adjacency behind message passing as a sparse operand.

In: the parts of message passing. Out: `Matrix(name="A_index_add", rows=%r, columns=%c, values=%w)`.
"""

import torch
from torch import fx

from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph.canonicalize import size_node
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.lift.message_passing.gather_scatter import GatherScatter
from sparsify.passes.region.sparse_operand import Matrix


def of_message_passing(match: GatherScatter, mark: Mark) -> Matrix | None:
    """The adjacency behind message passing; its values are joined to one node in front of the scatter."""
    features = tensor_value(match.features)
    if features is None:
        return None
    senders = features.shape[0]
    extent = (
        int(str(senders)) if str(senders).isdigit() else size_node(match.features, 0, senders, match.node)
    )
    return Matrix(
        name=f"A_{match.node.name}",
        extents=(match.extent, extent),
        rows=match.rows,
        columns=match.columns,
        values=joined_values(match),
        dense=None,
        transposed=False,
        dtype=features.dtype,
        mark=mark,
    )


def joined_values(match: GatherScatter) -> fx.Node | None:
    """One node [edges] for the product of all weights of the messages."""
    weights = [factor_of(weight, match) for weight in match.weights]
    divisors = [factor_of(divisor, match) for divisor in match.divisors]
    graph = match.node.graph
    result: fx.Node | None = weights[0] if weights else None
    with graph.inserting_before(match.node):
        for factor in weights[1:]:
            result = value_like(graph.call_function(torch.ops.aten.mul.Tensor, (result, factor)), factor)
        for divisor in divisors:
            if result is None:
                result = value_like(
                    graph.call_function(torch.ops.aten.reciprocal.default, (divisor,)), divisor
                )
            else:
                result = value_like(
                    graph.call_function(torch.ops.aten.div.Tensor, (result, divisor)), divisor
                )
    return result


def factor_of(column: fx.Node, match: GatherScatter) -> fx.Node:
    """A factor of the messages as a vector [edges] in their dtype, to which torch promotes it."""
    vector, wanted = flat(column, match.node), tensor_value(match.node)
    value = tensor_value(vector)
    assert value is not None and wanted is not None, "factors and messages are tensors"
    if value.dtype == wanted.dtype:
        return vector
    with vector.graph.inserting_before(match.node):
        promoted = vector.graph.call_function(torch.ops.aten.to.dtype, (vector, wanted.dtype))
    promoted.meta["val"] = value.to(wanted.dtype)
    return promoted


def flat(column: fx.Node, user: fx.Node) -> fx.Node:
    """A column [edges, 1] as a vector [edges]."""
    value = tensor_value(column)
    assert value is not None, "weights are tensors"
    if value.dim() == 1:
        return column
    with column.graph.inserting_before(user):
        vector = column.graph.call_function(torch.ops.aten.select.int, (column, 1, 0))
    vector.meta["val"] = value.select(1, 0)
    return vector


def value_like(node: fx.Node, other: fx.Node) -> fx.Node:
    """`node` with the shape, dtype and scope of `other`."""
    node.meta.update({key: other.meta[key] for key in ("val", "nn_module_stack") if key in other.meta})
    return node
