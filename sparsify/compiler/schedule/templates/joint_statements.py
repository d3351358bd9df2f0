"""Schedules for programs of several statements in one kernel: nests fused in their common outer loops.

In:  `let S[h,i,j], m[h,i]: (forall h: forall i: forall j: S = ..); forall h: forall i: forall j: m max= S; ..`.
Out: `precompute S at i in thread; precompute m at i in thread; parallel h static`.

Nests over the stored entries of the temporaries' pattern start with the loops over its rows: then
`forall h: forall j: forall k: forall i: D[h,j,k] += P[h,i,j] * Q[h,i,k]` adds to rows of its result, `h, i, j, k`.
"""

from collections.abc import Iterator

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find, walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Split
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import loops_to_assignment


def joined(program: Notation) -> Iterator[d.Schedule]:
    """The common outer loops around all nests, shared by threads; fewer loops in later candidates."""
    body = program.body
    if not isinstance(body, Let) or not isinstance(body.body, Sequence) or len(body.body.statements) < 3:
        return
    chains, orders, targets = [], [], []
    levels, stored = _stored(program, body)
    for statement in body.body.statements:
        target = next(n.target for n in reversed(list(walk(statement))) if isinstance(n, Assign))
        chain = [loop.index for loop in loops_to_assignment(statement, target.tensor) or []]
        rows_first = _rows_first(chain, levels, stored)
        if rows_first != chain:
            orders.append(d.Order(tuple(rows_first), target.tensor))
        chains.append(rows_first)
        targets.append(target)
    shared = [names[0] for names in zip(*chains, strict=False) if len(set(names)) == 1]
    # Iterations of a variable missing from a result add to the same entries.
    is_apart = all(shared[:1] and shared[0] in _loops_of(target, program) for target in targets)
    for count in range(len(shared), 0, -1):
        steps: list[d.Directive] = [
            *orders,
            *(
                d.Precompute(temporary.name, "thread", at=shared[count - 1])
                for temporary in body.temporaries
                if any(n.tensor == temporary.name for n in find(body.body, Access))
            ),
        ]
        yield d.Schedule((*steps, *([d.Parallel(shared[0])] if is_apart else [])))
    if orders:
        yield d.Schedule(tuple(orders))


def _stored(program: Notation, body: Let) -> tuple[list[str], list[str]]:
    """Loops of the temporaries' only pattern down to its listed level, and all its loops row by row."""
    kept = {(t.pattern_of, t.pattern_indices) for t in body.temporaries if t.pattern_of is not None}
    if len(kept) != 1:
        return [], []
    name, indices = kept.pop()
    declared = next((found for found in program.declarations if found.name == name), None)
    if declared is None:
        return [], []
    splits = {relation.index: relation for relation in program.relations if isinstance(relation, Split)}
    levels: list[str] = []
    by_index: dict[str, list[str]] = {}
    for stored in declared.format.levels:
        index, kind = indices[stored.expression.mode], stored.expression.kind
        split = splits.get(index)
        if kind != "whole" and split is None:
            return [], []
        loop = index if split is None or kind == "whole" else split.outer if kind == "block" else split.inner
        levels.append(loop)
        by_index.setdefault(index, []).append(loop)
    listed = max(number for number, stored in enumerate(declared.format.levels) if not stored.level.is_full)
    return levels[: listed + 1], [loop for loops in by_index.values() for loop in loops]


def _rows_first(chain: list[str], levels: list[str], stored: list[str]) -> list[str]:
    """The loops with those over stored entries row by row, if discordant with the pattern."""
    if not levels or not set(stored) <= set(chain):
        return chain
    places = [chain.index(name) for name in levels]
    if places == sorted(places):
        return chain
    first = min(places)
    return [*chain[:first], *stored, *(name for name in chain[first:] if name not in stored)]


def _loops_of(target: Access, program: Notation) -> set[str]:
    """The loops over the modes of a result."""
    names = set(index_names(target)) if all(isinstance(i, Index) for i in target.indices) else set()
    splits = [relation for relation in program.relations if isinstance(relation, Split)]
    return names | {part for split in splits if split.index in names for part in (split.outer, split.inner)}
