"""The operator table: every core ATen operator in index notation, or why it has none.

In: a canonical operator name, `linear`. Out: `ROWS["linear"]`, whose notation is `sum(f, input[..,f] * weight[k,f]) +
bias[k]`, or `OPAQUE["sort"]`, the reason why torch's operator computes it. `row` says what a row is; each other file is
a section of the table.
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
