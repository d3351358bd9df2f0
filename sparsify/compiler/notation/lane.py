"""How wide the lanes of vectors are: as wide as the widest value that is computed.

In: `y[i] = A[i,j] * x[j]`, A of int8 and x of float32. Out: 4 bytes.
"""

from collections.abc import Mapping

from sparsify.compiler.dtypes import BYTES, COMPLEX, NUMBER, Kind, category, computing
from sparsify.compiler.einsum.infer_dtype import declared_kind, kind_of
from sparsify.compiler.einsum.nodes import Access, Assign, Call
from sparsify.compiler.node import find
from sparsify.compiler.notation.nodes import Let, Notation


def tensor_kinds(program: Notation) -> dict[str, Kind]:
    """The kinds of all tensors and temporaries."""
    lets = find(program.body, Let)
    found = {t.name: Kind(t.dtype) for let in lets for t in let.temporaries}
    return found | {declared.name: declared_kind(declared) for declared in program.declarations}


def computed_dtypes(program: Notation, kinds: Mapping[str, Kind]) -> set[str]:
    """The dtypes of the values that a program computes; numbers take those of what stands beside them."""
    assigns = find(program.body, Assign)
    found = {kinds[assign.target.tensor] for assign in assigns}
    parts = [node for assign in assigns for node in find(assign.value, Access, Call)]
    found |= {kind_of(part, kinds) for part in parts}
    return {computing(kind.dtype) for kind in found if kind.strength > NUMBER}


def lane_bytes(program: Notation) -> int:
    """The bytes of a lane."""
    return max(BYTES[dtype] for dtype in computed_dtypes(program, tensor_kinds(program)))


def lanes(program: Notation, vector_bytes: int) -> int:
    """How many lanes vectors of `vector_bytes` bytes have; 1 in scalar code, as that of complex numbers is."""
    dtypes = computed_dtypes(program, tensor_kinds(program))
    if any(category(dtype) == COMPLEX for dtype in dtypes):
        return 1
    return max(1, vector_bytes // max(BYTES[dtype] for dtype in dtypes))
