"""Programs before schedules, for tests of directives."""

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.nodes import Notation
from sparsify.storage.format import Format


def plain(text: str, **formats: str) -> Notation:
    """The notation of a text before any schedule."""
    return concretize(declare(parse(text), {n: Operand(Format(f), "float32") for n, f in formats.items()}))


SPMM = plain("Y[i,k] = A[i,j] * T[j,k]", A="csr", T="dense, dense")
LAYER = plain("Y[i,k] = relu(A[i,j] * T[j,k] + b[k])", A="csr", T="dense, dense", b="dense")
BODY = "Y[i,k] += A[i,j] * T[j,k]"
