"""Unrolling of loops: code for each iteration, or a loop.

In: `vector i` where `i` has the constant extent 40, in lanes of 8. Out: five copies of the body; for 10,000
coordinates a loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

# A loop over more vectors of a constant extent stays a loop, and nothing is written out more often.
MOST_VECTORS: Final = 64
MOST_COPIES: Final = 4096


def check_copies(index: str, copies: int) -> None:
    """Raises where a loop would be written out too often.

    Raises:
        ScheduleError: so many copies are no code that a compiler takes.
    """
    if copies > MOST_COPIES:
        raise ScheduleError(
            f"the loop over {index} written out is {copies} times its body", f"split {index} first"
        )


def is_long(low: Lowering, loop: notation.Forall, vectors: int) -> bool:
    """Whether so many vectors are a loop: what has a register for each element is written out."""
    read = find(loop.body, Access)
    own = [a for a in read if a.tensor in low.in_registers and loop.index in index_names(a)]
    return vectors > MOST_VECTORS and not own


def is_written_out(low: Lowering, loop: notation.Forall, inner: str) -> bool:
    """Whether the code for `inner` depends on its extent: unrolled, in lanes or in registers.

    Transposed nests in memory run over strips and what is left, whatever the extent.
    """
    nests = find(loop.body, notation.Forall)
    in_strips = [nest for nest in nests if isinstance(nest.kind, notation.Transposed)]
    in_strips = [n for n in in_strips if not low.in_registers & {a.tensor for a in find(n, Access)}]
    free = {id(part) for nest in in_strips for part in (nest, nest.body)}
    return any(
        nest.index == inner and id(nest) not in free and not isinstance(nest.kind, notation.Serial)
        for nest in nests
    )
