"""Lowering: scheduled concrete index notation -> loop IR.

In: `parallel forall i: let w[ki] in register: ...`. Out: the `Function` shown in `nodes.py`.
"""

from sparsify.compiler.loops.lower.lowering import lower

__all__ = ["lower"]
