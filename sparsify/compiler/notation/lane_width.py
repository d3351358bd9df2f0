"""Width of vectors: as wide as the widest value that is computed.

In: `y[i] = A[i,j] * x[j]`, A of int8 and x of float32. Out: 4 bytes.
"""

from collections.abc import Mapping
from typing import Final

from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of
from sparsify.compiler.einsum.nodes import Access, Assign, Call
from sparsify.compiler.ir.dtypes import BYTES, COMPLEX, NUMBER, Kind, category, computing
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Split, Vector

# Of the shortest vectors that instruction sets with vectors have.
SHORTEST_BYTES: Final = 16


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
    """The number of lanes of vectors of `vector_bytes` bytes; 1 in scalar code, as that of complex numbers is.

    Where all loops in lanes are those of tiles with fewer iterations, vectors are shorter: of 8 lanes in
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
    """The iterations of the longest loop in lanes; `most` where there is none, or one that is no tile's."""
    sizes = {split.inner: split.size for split in program.relations if isinstance(split, Split)}
    looped = [loop for loop in find(program.body, Forall) if isinstance(loop.kind, Vector)]
    return max((sizes.get(loop.index, most) for loop in looped), default=most)
