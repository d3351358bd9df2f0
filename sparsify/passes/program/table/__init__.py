"""The operator table: every core ATen operator in index notation, or the reason for none.

In: a canonical operator name, `linear`. Out: `ROWS["linear"]`, with the notation `sum(f, input[..,f] * weight[k,f]) +
bias[k]`, or `OPAQUE["sort"]`, the reason why torch computes the operator. `row` defines rows; each other file is a
section of the table.
"""

from sparsify.passes.program.table import (
    attention,
    contract,
    factory,
    loss,
    normalise,
    opaque,
    pointwise,
    reduce,
    relation,
    sparsified,
    view,
    window,
)
from sparsify.passes.program.table.row import OPAQUE, ROWS, Row

SECTIONS = tuple(
    section.__name__.rpartition(".")[2]
    for section in (
        pointwise,
        reduce,
        contract,
        attention,
        normalise,
        view,
        factory,
        relation,
        window,
        sparsified,
        loss,
    )
)
__all__ = ["OPAQUE", "ROWS", "SECTIONS", "Row", "opaque"]
