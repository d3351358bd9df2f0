"""Lowering: scheduled concrete index notation -> loop IR.

In: `parallel forall i: let w[ki] in register: ...`. Out: the `Function` shown in `nodes.py`.

Imports point downwards. In the order of reading: `program_facts` (read alone), `environment` (extended on the way into
loops), `context` (what has been emitted); `levels/` and `values/`; `rows/` of growing results; `iterate/`, the loops;
`assemble/`, the results with unknown patterns; `forall`, `temporaries` and `assign`, one function for each kind of
statement; `lowering`, which lists these functions. A lower module reaches them by `context.statement`.
"""

from sparsify.compiler.loops.lower.lowering import lower

__all__ = ["lower"]
