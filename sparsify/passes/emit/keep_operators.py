"""The graph of torch's operators as an alternative to kernels, for calls with new edges.

In:  regions that read adjacency built from the edges of a call, `Y[i,k] = sum(j, A[i,j] * X[j,k])`.
Out: `draft.operators`, the graph without these regions.

Sorting the edges of a small graph takes longer than kernels save. The faster alternative per size is found by timing
the variant (`module/operator_graph`).
"""

from collections.abc import Sequence
from typing import Any

from torch import fx

from sparsify.passes.call.bind import is_as_it_is, leaves_of
from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.operators import overwritten, tensor_value
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand


def keep_operators(draft: Draft) -> Draft:
    """The draft with a copy of its graph, if all sparse operands of its regions are built from edges."""
    options = draft.recipe.compile
    is_choice = options.memory != "compact" and options.allows("torch") and not draft.is_strict
    if not is_choice or draft.masked is not None or draft.options.tune_seconds <= 0:
        return draft
    writes = any(node.op == "placeholder" for node in overwritten(draft.graph))
    if writes or not all(map(reads_edges_alone, draft.regions)):
        return draft
    edges = {leaf for region in draft.regions for leaf in edge_tensors(region)}
    if edges:
        inputs = draft.graph.find_nodes(op="placeholder")
        draft.edges = tuple([at for at, node in enumerate(inputs) if node in edges])
        draft.operators = fx.Graph()
        draft.operators.output(draft.operators.graph_copy(draft.graph, {}))
    return draft


def reads_edges_alone(region: Region) -> bool:
    """Whether each sparse operand of a region is built from edges not declared static by a rule."""
    if region.backend or region.layout is not None:
        return False
    if any(isinstance(operand, PatternOperand) for operand in region.operands.values()):
        return False
    return all(
        is_as_it_is(matrix) or (matrix.rows is not None and not matrix.mark.static)
        for matrix in region.matrices
    )


def edge_tensors(region: Region) -> list[fx.Node]:
    """The model inputs that determine the coordinates of a region's sparse operands."""
    needed = [
        node
        for operand in region.operands.values()
        for node in places_of(operand)
        if isinstance(node, fx.Node)
    ]
    return [leaf for leaf in leaves_of(needed) if leaf.op == "placeholder" and tensor_value(leaf) is not None]


def places_of(operand: Any) -> Sequence[fx.Node | None]:
    """The nodes with the coordinates of an operand: edges, or rows in bags."""
    if isinstance(operand, Matrix):
        return operand.rows, *operand.between, operand.columns
    return (operand.indices, operand.offsets) if isinstance(operand, Bags) else ()
