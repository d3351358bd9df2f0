"""Renumbered coordinates: a mode of 10^9 coordinates of which 1000 occur becomes a mode of 1000.

In: `Y[i,k] = sum(j, A[i,j] * B[j,k])`, all compressed in all levels, and patterns of A and B.
Out: the same patterns over the occurring coordinates, in ascending order, and tables of the original coordinates.

Workspaces of kernels are then sized by the stored entries and not by the shape. Modes with loops over all coordinates
keep the numbering: dense levels, index variables as values, sums over bodies with a nonzero fill.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Extent, Index, Program, Reduce
from sparsify.compiler.ir.node import Node, find, walk
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.level.levels import Dense
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

# Modes above the extent LARGE are renumbered if the stored entries are fewer by the factor TIMES.
Change = Callable[[str, Tensor], Tensor]
LARGE: Final = 1 << 16
TIMES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Compact:
    """Operands renumbered to the coordinates that occur.

    Attributes:
        patterns: patterns of the sparse operands.
        tables: occurring coordinates in ascending order, by extent.
    """

    patterns: tuple[Pattern, ...]
    tables: Mapping[str, Tensor]

    def spread(self, declared: Declaration, pattern: Pattern, shape: Sequence[int]) -> Pattern:
        """The pattern of a result, computed from `patterns`, with its original coordinates."""
        made: Pattern = pattern.cached(
            (self, "spread"), lambda: _mapped(pattern, declared, shape, self._lead)
        )
        return made

    def _lead(self, extent: str, crd: Tensor) -> Tensor:
        table = self.tables.get(extent)
        return crd if table is None else table[crd.long()].to(crd.dtype)


def compactable(program: Program) -> frozenset[str]:
    """The extents of modes of a reduction that may be renumbered, in programs of one statement."""
    reduces = any(isinstance(node, Reduce) for statement in program.statements for node in walk(statement))
    if (
        len(program.statements) != 1
        or not reduces
        or not all(map(_keeps_fill(program), walk(program.statements[0])))
    ):
        return frozenset()
    statement = program.statements[0]
    fixed = _fixed(program, statement) | {name for name, _ in program.extents}
    found = {extent for declared in program.declarations for extent in declared.extents}
    return frozenset(found - fixed)


def large(
    extents: frozenset[str], declared: Sequence[Declaration], operands: Sequence[Tensor]
) -> frozenset[str]:
    """The `extents` that are large relative to the stored entries, and stored as coordinates in all operands."""
    patterns = [operand._pattern if isinstance(operand, SparseTensor) else None for operand in operands]
    least = max(LARGE, TIMES * sum(pattern.nnz for pattern in patterns if pattern is not None))
    found = {
        extent
        for declaration, operand in zip(declared, operands, strict=True)
        for extent, size in zip(declaration.extents, operand.shape, strict=True)
        if size > least and extent in extents
    }
    for declaration, pattern in zip(declared, patterns, strict=True) if found else ():
        for stored in () if pattern is None else pattern.format.levels:
            level = stored.level
            is_listed = not (isinstance(level, Dense) or level.has_bits or level.has_empty_slots)
            if not is_listed or stored.expression.kind != "whole":
                found.discard(declaration.extents[stored.expression.mode])
    return frozenset(found)


def compact_sizes(extents: frozenset[str], sizes: Sizes) -> Sizes:
    """The sizes of operands after renumbering."""
    most = sum(sizes.stored.values())
    least = max(LARGE, TIMES * most)
    found = {
        name: min(size, most) for name, size in sizes.extents.items() if name in extents and size > least
    }
    return replace(sizes, extents={**sizes.extents, **found}) if found else sizes


def compact(extents: frozenset[str], declared: Sequence[Declaration], patterns: Sequence[Pattern]) -> Compact:
    """The patterns of sparse operands with the modes of `extents` renumbered."""
    met: dict[str, list[Tensor]] = {extent: [] for extent in sorted(extents)}
    for declaration, pattern in zip(declared, patterns, strict=True):
        for stored, crd in zip(pattern.format.levels, pattern.validated()._crd, strict=True):
            extent = declaration.extents[stored.expression.mode]
            if extent in met and crd is not None:
                met[extent].append(crd.long())
    tables = {extent: torch.cat(arrays).unique() for extent, arrays in met.items()}

    def number(extent: str, crd: Tensor) -> Tensor:
        return crd if extent not in tables else torch.searchsorted(tables[extent], crd.long()).to(crd.dtype)

    made = []
    for declaration, pattern in zip(declared, patterns, strict=True):
        sizes = [
            len(tables[extent]) if extent in tables else size
            for extent, size in zip(declaration.extents, pattern.shape, strict=True)
        ]
        made.append(_mapped(pattern, declaration, sizes, number))
    return Compact(tuple(made), tables)


def _mapped(pattern: Pattern, declared: Declaration, shape: Sequence[int], change: Change) -> Pattern:
    """A pattern with other coordinates in the same order."""
    crd = [
        None if array is None else change(declared.extents[stored.expression.mode], array)
        for stored, array in zip(pattern.format.levels, pattern._crd, strict=True)
    ]
    return Pattern(pattern.format, shape, pattern._pos, crd, is_private=True).trusted()


def _fixed(program: Program, statement: Assign) -> set[str]:
    """The extents of coordinates read as numbers, of dense levels, and of blocks."""
    groups = _Groups()
    fixed: set[str] = set()
    plain = 0
    for access in find(statement, Access):
        declared = program.declaration(access.tensor)
        for mode, index in enumerate(access.indices):
            for name in free_indices(index):
                groups.join(f"index {name}", declared.extents[mode])
            if isinstance(index, Index):
                plain += 1
            else:
                fixed.add(declared.extents[mode])
    fixed |= {n.name for n in find(statement, Extent)}
    values = sum(isinstance(n, Index) for n in walk(statement)) - plain
    if values:
        return {extent for declared in program.declarations for extent in declared.extents}
    for declared in program.declarations:
        for stored in declared.format.levels:
            if isinstance(stored.level, Dense) or stored.expression.kind != "whole":
                fixed.add(declared.extents[stored.expression.mode])
    extents = {extent for declared in program.declarations for extent in declared.extents}
    # An index variable at modes of two extents names one coordinate: both modes must be renumbered alike, or neither.
    shared = {extent for extent in extents if groups.others(extent, extents)}
    return fixed | shared


class _Groups:
    """Disjoint sets of names for the same coordinates."""

    def __init__(self) -> None:
        self._group: dict[str, set[str]] = {}

    def join(self, first: str, second: str) -> None:
        """Merges the sets of two names."""
        merged = self._group.get(first, {first}) | self._group.get(second, {second})
        for name in merged:
            self._group[name] = merged

    def others(self, name: str, among: set[str]) -> set[str]:
        """The other names among `among` in the set of a name."""
        return (self._group.get(name, set()) & among) - {name}


def _keeps_fill(program: Program) -> "_Check":
    return _Check({declared.name: declared for declared in program.declarations})


@dataclass(frozen=True, slots=True)
class _Check:
    """Whether a sum may skip unstored coordinates: its body's fill is the neutral element of the reduction."""

    declarations: Mapping[str, Declaration]

    def __call__(self, node: Node) -> bool:
        from sparsify.compiler.einsum.infer.sparsity import infer_sparsity

        match node:
            case Reduce(monoid, _, body):
                fill = infer_sparsity(body, self.declarations).fill
                return fill is not None and float(fill) == float(MONOIDS[monoid].neutral)
            case Assign(monoid=str()):
                return False
        return True
