"""Graph passes: from a model and a recipe to a graph whose sparse regions are kernels.

In: the captured graph of a GCN and `gcn.yaml`. Out: a graph of two calls, `call_region(1, ...)`,
`call_region(2, ...)`.
"""

from sparsify.passes.attention import attention
from sparsify.passes.base import Pass
from sparsify.passes.check import check
from sparsify.passes.contest import contest
from sparsify.passes.edge_dropout import edge_dropout
from sparsify.passes.emit import emit
from sparsify.passes.flatten import flatten
from sparsify.passes.folded import fold
from sparsify.passes.fuse import fuse
from sparsify.passes.kept_zeros import keep_zeros
from sparsify.passes.left_dense import left_dense
from sparsify.passes.lift import lift
from sparsify.passes.mark import mark
from sparsify.passes.masked import masked
from sparsify.passes.pack import pack
from sparsify.passes.printer import fragments_text, regions_text, whole_graph
from sparsify.passes.propagate import propagate
from sparsify.passes.reorder import reorder
from sparsify.passes.together import together
from sparsify.passes.write_in_place import write_in_place

__all__ = ["PASSES"]

PASSES: tuple[Pass, ...] = (
    Pass("attention", attention, whole_graph),  # first: rules name attention as one operator
    Pass(
        "marked", mark, whole_graph
    ),  # needs the canonical graph of `capture`: rules see one name per operator
    Pass("masked", masked, whole_graph),  # needs the marks; the graph to compare with has its patterns
    Pass("drawn", edge_dropout, whole_graph),  # needs the marks of edges; what it draws is compared with, too
    Pass("propagated", propagate, whole_graph),  # from the marks of inputs and parameters
    Pass("flattened", flatten, whole_graph),  # needs the marks of weights; lifts see matrices alone
    Pass("reordered", reorder, whole_graph),  # needs the marks; lifts see the nodes in their new order
    Pass("lifted", lift, fragments_text),  # needs all marks: what is sparse decides what is an einsum operand
    Pass("together", together, fragments_text),  # needs what was lifted apart, and the fragments behind it
    Pass("fused", fuse, regions_text),  # needs all fragments: joins across modules
    Pass("packed", pack, regions_text),  # needs the products that are left; what would lose stays dense
    Pass(
        "contested", contest, regions_text
    ),  # needs finished programs; what torch does faster stays as it is
    Pass("kept", keep_zeros, whole_graph),  # needs the regions that stay; others mask what they read
    Pass("emitted", emit, whole_graph),  # cuts out what is computed once, puts kernels in
    Pass("folded", fold, whole_graph),  # needs what is left of torch's convolutions
    Pass("written", write_in_place, whole_graph),  # needs the final readers of each tensor
    Pass(
        "left_dense", left_dense, whole_graph
    ),  # needs all regions: whatever else reads sparse tensors is dense
    Pass("checked", check, whole_graph),  # last: looks at the graph that will run
)
