"""Width of vectors: determined by the widest computed value.

In: `y[i] = A[i,j] * x[j]`, A of int8 and x of float32. Out: 4 bytes.
"""

from collections.abc import Mapping
from typing import Final

from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of
from sparsify.compiler.einsum.nodes import Access, Assign, Call
from sparsify.compiler.ir.dtypes import BYTES, COMPLEX, NUMBER, Kind, category, computing
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Split, Vector

# Bytes of the shortest vectors in instruction sets with vectors.
SHORTEST_BYTES: Final = 16


def tensor_kinds(program: Notation) -> dict[str, Kind]:
    """The kinds of all tensors and temporaries."""
    lets = find(program.body, Let)
    found = {t.name: Kind(t.dtype) for let in lets for t in let.temporaries}
    return found | {declared.name: declared_kind(declared) for declared in program.declarations}


def computed_dtypes(program: Notation, kinds: Mapping[str, Kind]) -> set[str]:
    """The dtypes of all values computed by a program; numbers take the dtype of the other operand."""
    assigns = find(program.body, Assign)
    found = {kinds[assign.target.tensor] for assign in assigns}
    parts = [node for assign in assigns for node in find(assign.value, Access, Call)]
    found |= {kind_of(part, kinds) for part in parts}
    return {computing(kind.dtype) for kind in found if kind.strength > NUMBER}


def lane_bytes(program: Notation) -> int:
    """The bytes of a lane."""
    return max(BYTES[dtype] for dtype in computed_dtypes(program, tensor_kinds(program)))


def lanes(program: Notation, vector_bytes: int) -> int:
    """The number of lanes of vectors of `vector_bytes` bytes; 1 in scalar code, including complex numbers.

    If all vector loops are tiles with fewer iterations, vectors are shorter: of 8 lanes in
    `split p po pi 8; vector pi`.
    """
    dtypes = computed_dtypes(program, tensor_kinds(program))
    if any(category(dtype) == COMPLEX for dtype in dtypes):
        return 1
    item_bytes = max(BYTES[dtype] for dtype in dtypes)
    most = max(1, vector_bytes // item_bytes)
    least = max(1, SHORTEST_BYTES // item_bytes)
    return min(most, max(least, 1 << (_longest_tile(program, most) - 1).bit_length()))


def _longest_tile(program: Notation, most: int) -> int:
    """The iterations of the longest vector loop; `most` without vector loops, or for a vector loop outside tiles."""
    sizes = {split.inner: split.size for split in program.relations if isinstance(split, Split)}
    looped = [loop for loop in find(program.body, Forall) if isinstance(loop.kind, Vector)]
    return max((sizes.get(loop.index, most) for loop in looped), default=most)
