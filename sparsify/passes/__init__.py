"""Graph passes: from a model and a recipe to a graph whose sparse regions are kernels.

In: the captured graph of a GCN and `gcn.yaml`. Out: a graph of two calls, `call_region(1, ...)`,
`call_region(2, ...)`.
"""

from sparsify.passes.base import Pass
from sparsify.passes.check import check
from sparsify.passes.emit import emit
from sparsify.passes.fuse import fuse
from sparsify.passes.lift import lift
from sparsify.passes.mark import mark
from sparsify.passes.propagate import propagate

__all__ = ["PASSES"]

PASSES: tuple[Pass, ...] = (
    mark,  # needs the canonical graph of `capture`: rules see one name per operator
    propagate,  # from the marks of inputs and parameters
    lift,  # needs all marks: what is sparse decides what is an einsum operand
    fuse,  # needs all fragments: joins across modules
    emit,  # cuts out what is computed once, puts kernels in
    check,  # last: looks at the graph that will run
)
