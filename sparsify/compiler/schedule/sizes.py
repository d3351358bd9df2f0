"""Sizes of the operands when a schedule is chosen: extents, stored entries, where they lie.

In: `Sizes({"i": 2708, "j": 2708, "k": 16}, {"A": 13264})`. Out: answers for the choice, `None` where unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from torch import SymInt, Tensor

from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.schedule.size_class import octave
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

# Tables of rows up to these bytes are near; of narrow rows, which cost few misses, larger ones too.
NEAR_BYTES: Final = 1 << 20
FAR_BYTES: Final = 8 << 20
NARROW_BYTES: Final = 256
SizeClass = tuple[tuple[str, int | None], ...]
# The median distance of two places anywhere in a range, as a part of it: `1 - (1 - d)^2 = 1/2`.
APART: Final = 1 - 0.5**0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the operands that a kernel is compiled for; it is right for all others too.

    Attributes:
        extents: of index variables.
        stored: entries of sparse operands.
        patterns: of sparse operands that are at hand and stored as they are read.
        reaches: of operands that are not at hand any more.
        crowdings: of those, the part of entries beside one that was just read.
        counts: distinct coordinates of those.
        rows: the most entries of a row of those.
        turned: patterns of matrices that are at hand and read in the other order of their modes.
    """

    extents: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, int] = field(default_factory=dict)
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    reaches: Mapping[str, int] = field(default_factory=dict)
    crowdings: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, Mapping[tuple[int, ...], int]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    turned: Mapping[str, Pattern] = field(default_factory=dict)

    def mean_below(self, declared: Declaration) -> float | None:
        """The mean number of entries in the last level of an operand below each of its parents, at least."""
        stored = self.stored.get(declared.name)
        above = declared.format.levels[:-1]
        if stored is None or any(name not in self.extents for name in declared.extents):
            return None
        shape = [self.extents[name] for name in declared.extents]
        return stored / max(1, prod(level.expression.extent(shape) for level in above))

    def distinct(self, name: str) -> Mapping[tuple[int, ...], int]:
        """Distinct coordinates of an operand along some sets of its modes, as `Pattern.distinct` says."""
        pattern = self.patterns.get(name)
        return self.counts.get(name, {}) if pattern is None else pattern.distinct()

    def longest_row(self, name: str) -> int | None:
        """The most entries of a row of an operand, as it is read, 0 for few; `None` where that is not known."""
        if (pattern := self.patterns.get(name)) is not None:
            return pattern.longest(0)
        pattern = self.turned.get(name)
        return self.rows.get(name) if pattern is None else pattern.longest(1)

    def key(self, program: Program) -> tuple[SizeClass, SizeClass, SizeClass]:
        """Known sizes of the operands of a program, to compare with."""
        names = {name: self.extents.get(name) for d in program.declarations for name in d.extents}
        stored = tuple((name, self.stored.get(name)) for name in program.inputs)
        rows = tuple((f"rows of {name}", self.longest_row(name)) for name in program.inputs)
        return tuple(names.items()), stored, rows

    def rounded(self, program: Program) -> SizeClass:
        """The same in powers of two where numbers are large: operands of one class share what was measured."""
        return tuple(
            (name, None if size is None else octave(size)[1])
            for known in self.key(program)
            for name, size in known
        )

    def also(self, sources: Mapping[str, str]) -> "Sizes":
        """These sizes, with the numbers of stored entries under more names, each with the one that it turns."""
        more = {name: self.stored[source] for name, source in sources.items() if source in self.stored}
        if not more:
            return self
        known = {name: self.patterns[source] for name, source in sources.items() if source in self.patterns}
        turned = {name: found for name, found in known.items() if _turns(found, found.format.ordering[::-1])}
        return replace(self, stored={**more, **self.stored}, turned={**turned, **self.turned})

    def shared(self, program: Program) -> "Sizes":
        """These sizes, with what is known of the operands whose patterns other tensors of the program share."""
        stored, patterns = dict(self.stored), dict(self.patterns)
        for declared in program.declarations:
            root = declared.pattern_of
            if root is None or declared.format != program.declaration(root).format:
                continue
            if root in stored:
                stored.setdefault(declared.name, stored[root])
            if root in patterns:
                patterns.setdefault(declared.name, patterns[root])
        return replace(self, stored=stored, patterns=patterns)

    def expecting(self, stored: Mapping[str, int]) -> "Sizes":
        """These sizes, with the numbers of entries that temporaries are expected to store."""
        return replace(self, stored={**self.stored, **stored}) if stored else self

    def reach(self, name: str) -> int | None:
        """Distance of what neighbouring rows of an operand read, as `Pattern.reach` says."""
        pattern = self.patterns.get(name)
        return self.reaches.get(name) if pattern is None else pattern.reach()

    def crowding(self, name: str) -> float | None:
        """The part of an operand's entries beside one that was just read, as `Pattern.crowding` says."""
        pattern = self.patterns.get(name)
        return self.crowdings.get(name) if pattern is None else pattern.crowding()

    def without_operands(self) -> "Sizes":
        """The same knowledge in numbers alone, for what outlives the operands."""
        reaches = {name: found.reach() for name, found in self.patterns.items()}
        crowdings = {name: found.crowding() for name, found in self.patterns.items()}
        counts = {name: found.distinct() for name, found in self.patterns.items()}
        rows = {name: self.longest_row(name) or 0 for name in (*self.patterns, *self.turned)}
        return replace(
            self,
            patterns={},
            turned={},
            reaches={**self.reaches, **reaches},
            crowdings={**self.crowdings, **crowdings},
            counts={**self.counts, **counts},
            rows={**self.rows, **rows},
        )

    def is_far(self, row: str, column: str, item_bytes: int, driver: Declaration | None) -> bool:
        """Whether rows that stored coordinates pick come from more memory than the near caches hold.

        Args:
            row: the index variable over the rows, which `driver` stores.
            column: the index variable along a row.
            item_bytes: of an element.
            driver: the operand whose coordinates pick the rows; `None` when there are several.

        What is not known counts as large.
        """
        rows, columns = self.extents.get(row), self.extents.get(column)
        if rows is None or columns is None:
            return True
        limit = NEAR_BYTES if columns * item_bytes > NARROW_BYTES else FAR_BYTES
        if rows * columns * item_bytes <= limit:
            return False
        reach = None if driver is None else self.reach(driver.name)
        return reach is None or reach / APART * columns * item_bytes > limit


UNKNOWN: Final = Sizes()


def sizes_of(program: Program, operands: Sequence[object]) -> Sizes:
    """The sizes of operands in the order of `program.inputs`; operands that do not fit say nothing."""
    extents: dict[str, int] = dict(program.extents)
    stored: dict[str, int] = {}
    patterns: dict[str, Pattern] = {}
    turned: dict[str, Pattern] = {}
    for name, operand in zip(program.inputs, operands, strict=False):
        declared = program.declaration(name)
        shape = tuple(getattr(operand, "shape", ()))
        if len(shape) == len(declared.extents):
            extents.update(_numbers(dict(zip(declared.extents, shape, strict=True))))
        if isinstance(operand, SparseTensor):
            stored.update(_numbers({name: operand._pattern.nnz}))
            # In traced graphs tensors stand for others and have no entries to look at.
            if type(operand._vals) is Tensor and operand._pattern.format == declared.format:
                patterns[name] = operand._pattern
            elif type(operand._vals) is Tensor and _turns(operand._pattern, declared.format.ordering):
                turned[name] = operand._pattern
    return Sizes(extents, stored, patterns, turned=turned)


def _turns(pattern: Pattern, ordering: tuple[int, ...]) -> bool:
    """Whether a pattern has two levels, of two modes, in the other order than that in which it is read."""
    own = pattern.format.ordering
    return len(pattern.format.levels) == 2 and own == ordering[::-1] != ordering


def _numbers(sizes: Mapping[str, int]) -> Mapping[str, int]:
    """These sizes; of a traced graph those of its example, without binding the graph to them."""
    if all(type(size) is int for size in sizes.values()):
        return sizes
    hints = {name: size.node.hint if isinstance(size, SymInt) else size for name, size in sizes.items()}
    return {name: int(size) for name, size in hints.items() if size is not None}
