"""Sizes of the operands at the choice of a schedule: extents, stored entries, locality.

In: `Sizes({"i": 2708, "j": 2708, "k": 16}, {"A": 13264})`. Out: facts for the choice, `None` if unknown.
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

# Most bytes of tables that count as cached; narrow rows cost few misses and have a larger limit.
NEAR_BYTES: Final = 1 << 20
FAR_BYTES: Final = 8 << 20
NARROW_BYTES: Final = 256
SizeClass = tuple[tuple[str, int | None], ...]
# The median distance of two random places in a range, relative to the range: `1 - (1 - d)^2 = 1/2`.
APART: Final = 1 - 0.5**0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the operands for which a kernel is compiled; the kernel is correct for all other sizes too.

    Attributes:
        extents: extents of index variables.
        stored: entries of sparse operands.
        patterns: patterns of available sparse operands stored as read.
        reaches: reaches of operands no longer available.
        crowdings: crowdings of operands no longer available, the fraction of entries close to a recently read one.
        counts: distinct coordinates of operands no longer available.
        rows: most entries of a row of operands no longer available.
        turned: patterns of available matrices read in transposed order.
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
        """Lower bound on the mean number of entries in the last level of an operand below each parent."""
        stored = self.stored.get(declared.name)
        above = declared.format.levels[:-1]
        if stored is None or any(name not in self.extents for name in declared.extents):
            return None
        shape = [self.extents[name] for name in declared.extents]
        return stored / max(1, prod(level.expression.extent(shape) for level in above))

    def distinct(self, name: str) -> Mapping[tuple[int, ...], int]:
        """Distinct coordinates of an operand along some sets of its modes, see `Pattern.distinct`."""
        pattern = self.patterns.get(name)
        return self.counts.get(name, {}) if pattern is None else pattern.distinct()

    def longest_row(self, name: str) -> int | None:
        """The most entries of a row of an operand, as read, 0 for few; `None` if unknown."""
        if (pattern := self.patterns.get(name)) is not None:
            return pattern.longest(0)
        pattern = self.turned.get(name)
        return self.rows.get(name) if pattern is None else pattern.longest(1)

    def key(self, program: Program) -> tuple[SizeClass, SizeClass, SizeClass]:
        """Known sizes of the operands of a program, as a comparable key."""
        names = {name: self.extents.get(name) for d in program.declarations for name in d.extents}
        stored = tuple((name, self.stored.get(name)) for name in program.inputs)
        rows = tuple((f"rows of {name}", self.longest_row(name)) for name in program.inputs)
        return tuple(names.items()), stored, rows

    def rounded(self, program: Program) -> SizeClass:
        """The key with large numbers rounded to powers of two: operands of one class share measurements."""
        return tuple(
            (name, None if size is None else octave(size)[1])
            for known in self.key(program)
            for name, size in known
        )

    def also(self, sources: Mapping[str, str]) -> "Sizes":
        """The sizes extended by names of transposed copies, each with the entries of its source."""
        more = {name: self.stored[source] for name, source in sources.items() if source in self.stored}
        if not more:
            return self
        known = {name: self.patterns[source] for name, source in sources.items() if source in self.patterns}
        turned = {name: found for name, found in known.items() if _turns(found, found.format.ordering[::-1])}
        return replace(self, stored={**more, **self.stored}, turned={**turned, **self.turned})

    def shared(self, program: Program) -> "Sizes":
        """The sizes extended by tensors of the program that share patterns of operands."""
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
        """The sizes with expected numbers of entries of temporaries."""
        return replace(self, stored={**self.stored, **stored}) if stored else self

    def reach(self, name: str) -> int | None:
        """Distance of the entries that neighbouring rows of an operand read, see `Pattern.reach`."""
        pattern = self.patterns.get(name)
        return self.reaches.get(name) if pattern is None else pattern.reach()

    def crowding(self, name: str) -> float | None:
        """The fraction of an operand's entries close to a recently read one, see `Pattern.crowding`."""
        pattern = self.patterns.get(name)
        return self.crowdings.get(name) if pattern is None else pattern.crowding()

    def without_operands(self) -> "Sizes":
        """The same facts as numbers, without references to operands."""
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
        """Whether rows gathered at stored coordinates exceed the caches near a core.

        Args:
            row: index variable over the rows, stored by `driver`.
            column: index variable along a row.
            item_bytes: bytes of an element.
            driver: operand whose coordinates gather the rows; `None` for several.

        Unknown sizes count as large.
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
    """The sizes of operands in the order of `program.inputs`; mismatching operands contribute nothing."""
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
            # Fake tensors of traced graphs have no entries to inspect.
            if type(operand._vals) is Tensor and operand._pattern.format == declared.format:
                patterns[name] = operand._pattern
            elif type(operand._vals) is Tensor and _turns(operand._pattern, declared.format.ordering):
                turned[name] = operand._pattern
    return Sizes(extents, stored, patterns, turned=turned)


def _turns(pattern: Pattern, ordering: tuple[int, ...]) -> bool:
    """Whether a pattern has two levels, of two modes, in the order opposite to its reads."""
    own = pattern.format.ordering
    return len(pattern.format.levels) == 2 and own == ordering[::-1] != ordering


def _numbers(sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes; for a traced graph those of its example, without specializing the graph."""
    if all(type(size) is int for size in sizes.values()):
        return sizes
    hints = {name: size.node.hint if isinstance(size, SymInt) else size for name, size in sizes.items()}
    return {name: int(size) for name, size in hints.items() if size is not None}
