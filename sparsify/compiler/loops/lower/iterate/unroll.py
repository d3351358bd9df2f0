"""Unrolling of loops: code for each iteration, or a loop.

In: `vector i` with the constant extent 40 of `i`, in lanes of 8. Out: five copies of the body; for 10,000
coordinates a loop.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError

# Maximum vectors of an unrolled loop of constant extent, and maximum copies of any unrolled body.
MOST_VECTORS: Final = 64
MOST_COPIES: Final = 4096


def check_copies(index: str, copies: int) -> None:
    """Raises if a loop would be unrolled too often.

    Raises:
        ScheduleError: too many copies for a C++ compiler.
    """
    if copies > MOST_COPIES:
        raise ScheduleError(
            f"the loop over {index} written out is {copies} times its body", f"split {index} first"
        )


def is_long(facts: ProgramFacts, loop: notation.Forall, vectors: int) -> bool:
    """Whether so many vectors become a loop; loops over temporaries in registers are always unrolled."""
    read = find(loop.body, Access)
    own = [a for a in read if a.tensor in facts.in_registers and loop.index in index_names(a)]
    return vectors > MOST_VECTORS and not own


def is_written_out(facts: ProgramFacts, loop: notation.Forall, inner: str) -> bool:
    """Whether the code for `inner` depends on the extent: unrolled, in lanes or in registers.

    Transposed nests in memory run over strips and a remainder, whatever the extent.
    """
    nests = find(loop.body, notation.Forall)
    in_strips = [nest for nest in nests if isinstance(nest.kind, notation.Transposed)]
    in_strips = [n for n in in_strips if not facts.in_registers & {a.tensor for a in find(n, Access)}]
    free = {id(part) for nest in in_strips for part in (nest, nest.body)}
    return any(
        nest.index == inner and id(nest) not in free and not isinstance(nest.kind, notation.Serial)
        for nest in nests
    )
