"""Descriptions of operands for tests.

In: `operand("csr")`. Out: how a matrix of float64, compressed by row, with 32-bit coordinates is declared.
"""

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.storage.format import Format


def operand(form: str, dtype: str = "float64", fill: float = 0.0) -> Operand:
    """Operand in a format; a format name without a rank means one mode."""
    found = Format(form)
    return Operand(found, dtype, fill, () if found.is_dense else result_index_dtypes(found))
