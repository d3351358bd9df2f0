"""The graph of torch's operators is kept beside the kernels, for calls whose edges come for the first time.

In:  regions that read adjacency made of the edges of a call, `Y[i,k] = sum(j, A[i,j] * X[j,k])`.
Out: `draft.operators`, the graph as it is without these regions.

To sort the edges of a small graph takes longer than kernels save. What is quicker at which size is timed with the
variant (`module/operator_graph`).
"""

from torch import fx

from sparsify.passes.call.bind import is_as_it_is, leaves_of
from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph.operators import is_mutating, tensor_value
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import PatternOperand


def keep_operators(draft: Draft) -> Draft:
    """The draft with a copy of its graph, where all that its regions read sparse is made of edges."""
    asked = draft.recipe.compile
    is_choice = asked.memory != "compact" and asked.allows("torch") and not draft.is_strict
    if not is_choice or draft.masked is not None or draft.options.tune_seconds <= 0:
        return draft
    if not all(map(reads_edges_alone, draft.regions)) or any(map(is_mutating, draft.graph.nodes)):
        return draft
    edges = {leaf for region in draft.regions for leaf in edge_tensors(region)}
    if edges:
        inputs = draft.graph.find_nodes(op="placeholder")
        draft.edges = tuple([at for at, node in enumerate(inputs) if node in edges])
        draft.operators = fx.Graph()
        draft.operators.output(draft.operators.graph_copy(draft.graph, {}))
    return draft


def reads_edges_alone(region: Region) -> bool:
    """Whether each sparse operand of a region is made of edges, which a rule does not call static."""
    if region.backend or region.layout is not None:
        return False
    if any(isinstance(operand, PatternOperand) for operand in region.operands.values()):
        return False
    return all(
        is_as_it_is(matrix) or (matrix.rows is not None and not matrix.mark.static)
        for matrix in region.matrices
    )


def edge_tensors(region: Region) -> list[fx.Node]:
    """The inputs of the model that say where the entries of a region's sparse operands are."""
    needed = [
        node
        for matrix in region.matrices
        for node in (matrix.rows, *matrix.between, matrix.columns)
        if node is not None
    ]
    return [leaf for leaf in leaves_of(needed) if leaf.op == "placeholder" and tensor_value(leaf) is not None]
