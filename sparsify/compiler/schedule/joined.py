"""Schedules for programs of several statements in one kernel: their nests joined in the loops that all have.

In:  `let S[h,i,j], m[h,i]: (forall h: forall i: forall j: S = ..); forall h: forall i: forall j: m max= S; ..`.
Out: `precompute S at i in thread; precompute m at i in thread; parallel h static`.
"""

from collections.abc import Iterator

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.node import find, walk
from sparsify.compiler.notation.nodes import Let, Notation, Sequence
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.chains import loops_to_assignment


def joined(program: Notation) -> Iterator[d.Schedule]:
    """The loops that all nests begin with around all of them, shared by threads; fewer of them where that fails."""
    body = program.body
    if not isinstance(body, Let) or not isinstance(body.body, Sequence) or len(body.body.statements) < 3:
        return
    chains = []
    for statement in body.body.statements:
        target = next(n.target.tensor for n in reversed(list(walk(statement))) if isinstance(n, Assign))
        chains.append([loop.index for loop in loops_to_assignment(statement, target) or []])
    shared = [names[0] for names in zip(*chains, strict=False) if len(set(names)) == 1]
    for count in range(len(shared), 0, -1):
        if any(len(set(level)) > 1 for level in zip(*(chain[:count] for chain in chains), strict=True)):
            continue
        steps: list[d.Directive] = [
            d.Precompute(temporary.name, "thread", at=shared[count - 1])
            for temporary in body.temporaries
            if any(n.tensor == temporary.name for n in find(body.body, Access))
        ]
        yield d.Schedule((*steps, d.Parallel(shared[0])))
