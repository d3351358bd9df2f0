"""Blocks beyond the edge computed whole, because their padding is stored.

In: `forall no: forall ni: w[no,ni,ti] += W[n,k] * T[k,ti]`, blocks of W have 4 rows, all of them stored, and `w` is a
temporary. Out: one loop over whole blocks for all extents: sums of the rows past the last one are never read.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Cast, Const, Index
from sparsify.compiler.ir.node import find, walk
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.provenance import Provenance

# Functions that never fail on the contents of padding.
HARMLESS: Final = frozenset({"add", "sub", "mul", "neg", "min", "max", "relu"})


def stays_in_padding(facts: ProgramFacts, split: notation.Split, body: notation.Statement | Assign) -> bool:
    """Whether `body`, inside the loop over blocks, touches only padding past the last coordinate.

    Every assignment writes entries of a temporary with a mode for the coordinates in a block, so no sum
    joins padding with entries.
    """
    if split not in facts.blocks or any(isinstance(n, notation.If) for n in walk(body)):
        return False
    return all(_is_padded(facts, split, assign) for assign in find(body, Assign))


def _is_padded(facts: ProgramFacts, split: notation.Split, assign: Assign) -> bool:
    """Whether one assignment touches only padding past the last coordinate."""
    if assign.target.tensor in facts.declarations or split.inner not in index_names(assign.target):
        return False
    if assign.monoid not in (None, "sum", "min", "max"):
        return False
    harmless = all(
        isinstance(n, Access | Cast | Const | Index) or (isinstance(n, Call) and n.function in HARMLESS)
        for n in walk(assign.value)
    )
    accesses = [assign.target, *find(assign.value, Access)]
    return harmless and all(_has_padding(facts, split, access) for access in accesses)


def _has_padding(facts: ProgramFacts, split: notation.Split, access: Access) -> bool:
    """Whether a tensor has entries for all coordinates of whole blocks, or no mode for them."""
    provenance = Provenance(facts.program.relations)
    roots = provenance.roots(split.index)
    for mode, index in enumerate(access.indices):
        names = {name.name for name in find(index, Index)}
        if not any(provenance.roots(name) & roots for name in names):
            continue
        if access.tensor in facts.patterns:
            return False
        if access.tensor not in facts.declarations:
            if not names <= {split.outer, *provenance.leaves(split.outer), split.inner}:
                return False
            continue
        levels = [s for s in facts.levels(access.tensor) if s.expression.mode == mode]
        inside = [s for s in levels if s.expression.kind == "within" and s.level.is_padded]
        if index != Index(split.index) or not inside or inside[0].expression.size != split.size:
            return False
    return True
