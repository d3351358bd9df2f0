"""Provenance of loops: the derived index variables of an index variable.

In: relations such as `split k ko ki 64`. Out: `leaves("k") == ["ko", "ki"]`.
"""

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation


class Provenance:
    """The loops derived from an index variable."""

    def __init__(self, relations: tuple[notation.Relation, ...]) -> None:
        self.relations = relations

    def leaves(self, index: str) -> list[str]:
        """The loop variables from which `index` is recovered; `index` itself if a loop variable."""
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
        """The index variables of accesses derived from a loop variable; the variable itself if not derived."""
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
    """The declared extent of each index variable: the extent of an accessed mode."""
    # A temporary has the extents of its declared index variables: fewer than the modes of the tensor, or others, inside
    # loops.
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
