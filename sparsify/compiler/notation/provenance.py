"""Origin of the loops of a notation: the derived index variables of an index variable.

In: relations such as `split k ko ki 64`. Out: `leaves("k") == ["ko", "ki"]`.
"""

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation


class Provenance:
    """Loops of an index variable."""

    def __init__(self, relations: tuple[notation.Relation, ...]) -> None:
        self.relations = relations

    def leaves(self, index: str) -> list[str]:
        """The loop variables that `index` is recovered from, itself when it is one."""
        for relation in self.relations:
            match relation:
                case notation.Split(index=name, outer=outer, inner=inner) if name == index:
                    return [*self.leaves(outer), *self.leaves(inner)]
                case notation.Position(index=name, position=position) if name == index:
                    return [index, *self.leaves(position)]
                case notation.Fuse(first=first, second=second, fused=fused) if index in (first, second):
                    return self.leaves(fused)
        return [index]

    def roots(self, loop: str) -> set[str]:
        """The index variables that a loop variable is a part of, itself when it is one."""
        for relation in self.relations:
            match relation:
                case notation.Split(index=index, outer=outer, inner=inner) if loop in (outer, inner):
                    return self.roots(index)
                case notation.Position(index=index, position=position) if position == loop:
                    return self.roots(index)
                case notation.Fuse(first=first, second=second, fused=fused) if fused == loop:
                    return self.roots(first) | self.roots(second)
        return {loop}


def extent_names(program: notation.Notation) -> dict[str, str]:
    """For each index variable the declared extent that it has: that of a mode which it reads or writes."""
    # A temporary has the extents of the index variables that it was declared with: fewer than its tensor's modes,
    # or others, inside of loops.
    lets = find(program.body, notation.Let)
    temporaries = {t.name: t.indices for let in lets for t in let.temporaries}
    modes = {d.name: d.extents for d in program.declarations if d.name not in temporaries}
    names: dict[str, str] = {}
    accesses = find(program.body, Access)
    for access in accesses:
        for index, extent in zip(access.indices, modes.get(access.tensor, ()), strict=False):
            if isinstance(index, Index):
                names.setdefault(index.name, extent)
    for access in accesses:
        for index, own in zip(access.indices, temporaries.get(access.tensor, ()), strict=False):
            if isinstance(index, Index) and own in names:
                names.setdefault(index.name, names[own])
    return names
