"""Formats: how the modes of a tensor map to levels, outermost first.

In: `dense, compressed` with `ordering=(1, 0)`, or `j: dense, i: compressed`, or `csc`.
Out: `Format` with one `StoredLevel` (level expression and level format) per level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sparsify.errors import FormatError
from sparsify.storage.level.levels import Compressed, Dense, Level, OnePerParent, Singleton, spelled

MODE_NAMES = "ijklmnopqrstuvwxyz"
MOST_IN_BLOCK = 2**31 - 1
Kind = Literal["whole", "block", "within", "difference"]


@dataclass(frozen=True, slots=True)
class LevelExpression:
    """The part of a mode stored in a level: `i`, `i/16` (block), `i%16` (within) or `j-i` (difference).

    Coordinates count from 0: for `j-i` from the lowest difference, 1 less the extent of `i`.
    """

    mode: int
    kind: Kind = "whole"
    size: int = 0
    other: int | None = None

    def __post_init__(self) -> None:
        if self.kind in ("block", "within") and not 1 <= self.size <= MOST_IN_BLOCK:
            raise FormatError(
                f"a block of {self.size} along mode {self.mode}", f"a block size from 1 to {MOST_IN_BLOCK}"
            )

    def extent(self, shape: Sequence[int]) -> int:
        """The number of coordinates of the level in a tensor of `shape`; blocks at the end may be partial."""
        mode_extent = shape[self.mode]
        match self.kind:
            case "block":
                return -(-mode_extent // self.size)
            case "within":
                return self.size
            case "difference":
                assert self.other is not None, "a difference has two modes"
                return max(mode_extent + shape[self.other] - 1, 0)
        return mode_extent

    def lowest(self, shape: Sequence[int]) -> int:
        """The value of coordinate 0: the lowest difference, else 0."""
        return 0 if self.other is None else min(1 - shape[self.other], 0)

    def can_lie_outside(self, shape: Sequence[int]) -> bool:
        """Whether positions may have coordinates of the mode outside a tensor of `shape`."""
        return self.kind == "difference" or (self.kind == "block" and shape[self.mode] % self.size > 0)

    def __str__(self) -> str:
        name = MODE_NAMES[self.mode]
        match self.kind:
            case "block":
                return f"{name}/{self.size}"
            case "within":
                return f"{name}%{self.size}"
            case "difference":
                assert self.other is not None, "a difference has two modes"
                return f"{name}-{MODE_NAMES[self.other]}"
        return name


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """A level of a format: `i/16: dense`."""

    expression: LevelExpression
    level: Level

    def __str__(self) -> str:
        return f"{self.expression}: {self.level}"


@dataclass(frozen=True, slots=True, init=False)
class Format:
    """The storage of a tensor, level by level.

    The long form names modes by letters in alphabetical order: the first letter is mode 0.

    Args:
        form: levels in short form, in long form, the name of a format, or the levels themselves.
        ordering: in short form, the mode of each level; `None` for 0, 1, 2 ...
        rank: number of modes, for names of any rank (`dense`, `coo`, `csf`).

    Raises:
        FormatError: an unknown format, or levels that do not cover every mode once.

    >>> str(Format("csc")), Format("csc").letters
    ('j: dense, i: compressed', 'd1s0')
    """

    levels: tuple[StoredLevel, ...]

    def __init__(
        self,
        form: "str | Format | Sequence[Level | StoredLevel]",
        ordering: Sequence[int] | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        from sparsify.storage.format_text import parse

        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
            raise FormatError(f"rank={rank!r}", "the number of modes")
        if ordering is not None and not isinstance(ordering, list | tuple | range):
            raise FormatError(f"ordering={ordering!r}", "the mode of each level, (1, 0)")
        if isinstance(form, Format):
            levels: Sequence[Level | StoredLevel] = form.levels
        elif not isinstance(form, str | Sequence) or not all(
            isinstance(level, Level | StoredLevel) for level in form if not isinstance(form, str)
        ):
            raise FormatError(f"the format {form!r}", 'a text, "csr" or "dense, compressed", or levels')
        else:
            levels = parse(form, rank) if isinstance(form, str) else form
        stored = _ordered(tuple(levels), ordering)
        object.__setattr__(self, "levels", _checked(stored))
        if rank is not None and self.rank != rank:
            raise FormatError(
                f"the format {self} stores {self.rank} modes, the tensor has {rank}", "another format"
            )

    @property
    def rank(self) -> int:
        """The number of modes of the tensor."""
        return len({stored.expression.mode for stored in self.levels})

    @property
    def ordering(self) -> tuple[int, ...]:
        """The mode stored at each level."""
        return tuple(stored.expression.mode for stored in self.levels)

    @property
    def modes(self) -> tuple[int, ...]:
        """The modes in the order in which coordinates can be computed: for `j-i`, `j` follows `i`."""
        direct = dict.fromkeys(s.expression.mode for s in self.levels if s.expression.other is None)
        return tuple(direct | dict.fromkeys(self.ordering))

    def unfixed(self) -> "Format":
        """The format without fixed dtypes, possibly too narrow for other coordinates.

        >>> str(Format("dense, compressed(crd=int16)").unfixed())
        'i: dense, j: compressed'
        """
        free = [replace(stored, level=stored.level.unfixed()) for stored in self.levels]
        return self if free == list(self.levels) else Format(free)

    @property
    def has_diagonals(self) -> bool:
        """Whether a level stores differences of coordinates."""
        return any(stored.expression.kind == "difference" for stored in self.levels)

    @property
    def is_dense(self) -> bool:
        """Whether every entry is stored."""
        return all(
            isinstance(stored.level, Dense) and stored.expression.kind != "difference"
            for stored in self.levels
        )

    @property
    def has_bits(self) -> bool:
        """Whether a level stores coordinates as bits."""
        return any(stored.level.has_bits for stored in self.levels)

    @property
    def has_empty_slots(self) -> bool:
        """Whether a level stores coordinates in hash tables."""
        return any(stored.level.has_empty_slots for stored in self.levels)

    @property
    def has_slices(self) -> bool:
        """Whether a level interleaves the positions of neighbouring parents."""
        return any(stored.level.stride > 1 for stored in self.levels)

    @property
    def is_short(self) -> bool:
        """Whether each level stores a whole mode."""
        return all(stored.expression.kind == "whole" for stored in self.levels)

    @property
    def letters(self) -> str:
        """The format in the letters of printed IR: `d0s1` for CSR."""
        parts = []
        for number, stored in enumerate(self.levels):
            letter = "o" if _is_coordinate(self.levels, number) else stored.level.letter
            block = str(stored.expression)[1:] if stored.expression.kind != "whole" else ""
            parts.append(f"{letter}{stored.expression.mode}{block}")
        return "".join(parts)

    def permuted(self, modes: Sequence[int]) -> "Format":
        """The format of the transposed tensor: mode `n` is mode `modes[n]` of the original; same arrays.

        >>> str(Format("csr").permuted((1, 0)))
        'j: dense, i: compressed'
        """
        new = {old: number for number, old in enumerate(modes)}
        levels = []
        for stored in self.levels:
            e = stored.expression
            other = None if e.other is None else new[e.other]
            levels.append(StoredLevel(LevelExpression(new[e.mode], e.kind, e.size, other), stored.level))
        return Format(levels)

    def __str__(self) -> str:
        if not self.levels:
            return "scalar"
        texts = [_level_text(self.levels, number) for number in range(len(self.levels))]
        if self.is_short and self.ordering == tuple(range(self.rank)):
            return ", ".join(texts)
        return ", ".join(f"{s.expression}: {text}" for s, text in zip(self.levels, texts, strict=True))

    def __repr__(self) -> str:
        return f"Format({str(self)!r})"


def _ordered(
    levels: tuple[Level | StoredLevel, ...], ordering: Sequence[int] | None
) -> tuple[StoredLevel, ...]:
    """Levels with their modes."""
    modes = tuple(range(len(levels))) if ordering is None else tuple(ordering)
    if not all(isinstance(mode, int) for mode in modes) or sorted(modes) != list(range(len(levels))):
        raise FormatError(f"ordering={modes} for {len(levels)} levels", f"0 to {len(levels) - 1}, each once")
    stored = []
    for mode, level in zip(modes, levels, strict=True):
        if isinstance(level, Level):
            stored.append(StoredLevel(LevelExpression(mode), level))
        elif ordering is None:
            stored.append(level)
        else:
            if level.expression.kind != "whole":
                raise FormatError("an ordering for a format in long form", "the order of its levels says it")
            stored.append(StoredLevel(LevelExpression(mode), level.level))
    return tuple(stored)


def _checked(levels: tuple[StoredLevel, ...]) -> tuple[StoredLevel, ...]:
    """Checks that levels cover every mode once; a compressed level above a singleton becomes non-unique.

    A singleton below a level without listed coordinates has one coordinate for each parent.
    """
    modes = sorted({s.expression.mode for s in levels})
    if modes != list(range(len(modes))) or len(modes) > len(MODE_NAMES):
        raise FormatError(
            f"the levels store the modes {modes}", f"all modes from 0, at most {len(MODE_NAMES)}"
        )
    for mode in modes:
        _check_mode([s.expression for s in levels if s.expression.mode == mode])
    checked = []
    levels = _with_singletons(levels)
    for number, stored in enumerate(levels):
        level = stored.level
        below = levels[number + 1].level if number + 1 < len(levels) else None
        above = levels[number - 1].level if number else None
        if level.is_branchless and not (above is not None and above.can_append):
            raise FormatError(
                f"a {level.name} level without a compressed level above", f"compressed, {level.name}"
            )
        if level.stride > 1:
            _check_slices(levels, number)
        if stored.expression.kind == "within":
            level.check(stored.expression.size)
        if isinstance(level, Compressed) and below is not None and below.is_branchless:
            level = Compressed(False, level.ordered, level.pos, level.crd)
        elif isinstance(level, Compressed) and not level.unique:
            raise FormatError(
                "a nonunique level without a singleton level below", "compressed, or add a singleton"
            )
        checked.append(StoredLevel(stored.expression, level))
    return tuple(checked)


def _with_singletons(levels: tuple[StoredLevel, ...]) -> tuple[StoredLevel, ...]:
    """Each singleton in the variant for the level above: one per listed coordinate, or one per position."""
    result: list[StoredLevel] = []
    for stored in levels:
        level = stored.level
        if isinstance(level, Singleton | OnePerParent):
            lists = bool(result) and result[-1].level.can_append
            level = Singleton(level.crd) if lists else OnePerParent(crd=level.crd)
        result.append(StoredLevel(stored.expression, level))
    return tuple(result)


def _check_slices(levels: tuple[StoredLevel, ...], number: int) -> None:
    """Checks a level of slices: whole slices of parents above, computed positions below."""
    stored, above = levels[number], levels[number - 1] if number else None
    size = above.expression.size if above is not None and above.expression.kind == "within" else 0
    if above is None or not isinstance(above.level, Dense) or not size or size % stored.level.stride:
        raise FormatError(
            f"{stored} without slices of parents above", f"i%{stored.level.stride}: dense right above"
        )
    if not all(isinstance(below.level, Dense) for below in levels[number + 1 :]):
        raise FormatError(f"{stored} above levels that list coordinates", "dense levels below, or none")


def _check_mode(expressions: list[LevelExpression]) -> None:
    """Checks that one level stores the mode, or a block level and a level within blocks of the same size."""
    kinds = sorted(e.kind for e in expressions)
    if kinds in (["whole"], ["difference"]):
        other = expressions[0].other
        if expressions[0].mode == other:
            raise FormatError(f"the difference {expressions[0]}", "two different modes")
        return
    if kinds != ["block", "within"] or expressions[0].size != expressions[1].size:
        listed = ", ".join(map(str, expressions))
        name = MODE_NAMES[expressions[0].mode]
        raise FormatError(
            f"the levels {listed}", f"each mode once: {name}, or {name}/n and {name}%n with the same n"
        )


def _is_coordinate(levels: tuple[StoredLevel, ...], number: int) -> bool:
    """Whether the level is one of consecutive `coordinate` levels."""
    level = levels[number].level
    return level.is_branchless or not level.is_unique


def _level_text(levels: tuple[StoredLevel, ...], number: int) -> str:
    """The level in format syntax."""
    level = levels[number].level
    if not _is_coordinate(levels, number):
        return str(level)
    return spelled("coordinate", tuple(word for word in level.parameters if word != "nonunique"))
