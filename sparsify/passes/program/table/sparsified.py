"""Entries kept by a sparsifier: streaming conditions are fused into the kernel of the tensor.

In: `%k = kept_entries(%h, '["ScalarThreshold", {"threshold": 0.1}]')`. Out: `k[i,j] = logical_not(abs(h[i,j]) < 0.1)`.
"""

from sparsify.passes.graph.kept_entries import read
from sparsify.passes.program.model import Refusal
from sparsify.passes.program.operator_view import OperatorView
from sparsify.passes.program.table.row import row


@row()
def kept_entries(view: OperatorView) -> str:
    """`condition(tensor, row, column)` of a streaming sparsifier, `logical_not(abs(tensor) < threshold)`."""
    sparsifier = read(view["sparsifier"])
    condition = sparsifier.condition()
    if condition is None:
        raise Refusal(f"{sparsifier} reads other entries of the tensor")
    at = [index if view.program.extents[index] != 1 else "0" for index in view.out]
    return condition.with_numbers().placed(view.at(view["tensor"]), at)
