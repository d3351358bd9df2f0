"""Schedules as text: a frozen list of directives that prints and parses back.

    order i, k, j; split k ko ki 64 tail 32 16 8; precompute w at ko in register; vector ki; parallel i balanced A

A directive names a transformation of a loop; `apply.py` performs the transformation and checks its legality.
"""

import re
from dataclasses import dataclass

from sparsify.compiler.ir.node import Node
from sparsify.errors import ScheduleError

SCOPES = ("register", "thread", "memory")


@dataclass(frozen=True, slots=True)
class Directive(Node):
    """One scheduling decision."""


@dataclass(frozen=True, slots=True)
class Order(Directive):
    """`order [w:] i, j, k`: the loops of the nest of `w` (of all nests) in this order."""

    indices: tuple[str, ...]
    nest: str = ""

    def __str__(self) -> str:
        return f"order {self.nest + ': ' if self.nest else ''}{', '.join(self.indices)}"


@dataclass(frozen=True, slots=True)
class Split(Directive):
    """`split k ko ki 64 tail 32 8`: `k = ko * 64 + ki`; the last tile runs in pieces of 32 and 8, the rest masked.

    `split k ko ki 64 masked`: all tiles run under masks, with one body for whole tiles and the last.
    """

    index: str
    outer: str
    inner: str
    size: int
    tail: tuple[int, ...] = ()
    masked: bool = False

    def __str__(self) -> str:
        tail = f" tail {' '.join(map(str, self.tail))}" if self.tail else " masked" if self.masked else ""
        return f"split {self.index} {self.outer} {self.inner} {self.size}{tail}"


@dataclass(frozen=True, slots=True)
class Fuse(Directive):
    """`fuse h i hi`: one loop `hi` over all pairs of `h` and `i`."""

    first: str
    second: str
    fused: str

    def __str__(self) -> str:
        return f"fuse {self.first} {self.second} {self.fused}"


@dataclass(frozen=True, slots=True)
class Join(Directive):
    """`join n in Y`: in the nest of `Y` the loops over tiles of `n` and inside a tile become one loop over `n`."""

    index: str
    nest: str

    def __str__(self) -> str:
        return f"join {self.index} in {self.nest}"


@dataclass(frozen=True, slots=True)
class Merge(Directive):
    """`merge j`: fuses neighbouring loops over `j` into one loop with the statements of all."""

    index: str

    def __str__(self) -> str:
        return f"merge {self.index}"


@dataclass(frozen=True, slots=True)
class Pos(Directive):
    """`pos j p A`: the loop over `j` becomes a loop `p` over the stored positions of `A`."""

    index: str
    position: str
    tensor: str

    def __str__(self) -> str:
        return f"pos {self.index} {self.position} {self.tensor}"


@dataclass(frozen=True, slots=True)
class Precompute(Directive):
    """`precompute w at ko in register`: `w` is computed inside loop `ko`, right before its consumer, and shrinks.

    `precompute a = Y at ko in register` introduces `a`, an accumulator of the additions to `Y` inside loop `ko`;
    `precompute a = w over p in register` gives each iteration of `p` a copy of `w`, added up afterwards.

    `listed` temporaries keep a list of their entries in use: the workspaces of sparse results. `marked` ones mark
    entries in use: the marks give the pattern of the whole result first, then values are computed on the pattern.
    """

    temporary: str
    scope: str
    at: str = ""
    source: str = ""
    over: str = ""
    listed: bool = False
    marked: bool = False

    def __str__(self) -> str:
        source = f" = {self.source}" if self.source else ""
        place = f" over {self.over}" if self.over else f" at {self.at or 'root'}"
        kept = " listed" * self.listed + " marked" * self.marked
        return f"precompute {self.temporary}{source}{place} in {self.scope}{kept}"


@dataclass(frozen=True, slots=True)
class Distribute(Directive):
    """`distribute w`: distributes a product over the sum `w`: the terms are multiplied, then summed in the result."""

    temporary: str

    def __str__(self) -> str:
        return f"distribute {self.temporary}"


@dataclass(frozen=True, slots=True)
class Recompute(Directive):
    """`recompute S after m`: consumers after `m` read a copy `S_again`, rematerialized like `S`."""

    temporary: str
    after: str

    def __str__(self) -> str:
        return f"recompute {self.temporary} after {self.after}"


@dataclass(frozen=True, slots=True)
class Rescale(Directive):
    """`rescale m at jo`: fuses the nests up to `jo`, with the running maximum in place of `m` (online softmax).

    Sums of `exp(S - m)` are multiplied with `exp(m - n)` when a later chunk of the row raises the maximum from `m` to
    `n`.
    """

    maximum: str
    at: str

    def __str__(self) -> str:
        return f"rescale {self.maximum} at {self.at}"


@dataclass(frozen=True, slots=True)
class Pack(Directive):
    """`pack P = B[j, ki] at ko in thread`: inside loop `ko`, `B` is first copied to `P`, stored in the given order.

    `pack P = B[j, ki] at ko in thread for w`: only assignments to `w` read the copy.
    """

    temporary: str
    tensor: str
    indices: tuple[str, ...]
    at: str
    scope: str
    reader: str = ""

    def __str__(self) -> str:
        at = self.at or "root"
        reader = f" for {self.reader}" if self.reader else ""
        indices = ", ".join(self.indices)
        return f"pack {self.temporary} = {self.tensor}[{indices}] at {at} in {self.scope}{reader}"


@dataclass(frozen=True, slots=True)
class Vector(Directive):
    """`vector k [in w]`: the iterations of `k` (in the nest of `w`) run in vector lanes."""

    index: str
    nest: str = ""

    def __str__(self) -> str:
        return f"vector {self.index}{' in ' + self.nest if self.nest else ''}"


@dataclass(frozen=True, slots=True)
class Unroll(Directive):
    """`unroll i [in w]`: the iterations of `i` (in the nest of `w`) are unrolled."""

    index: str
    nest: str = ""

    def __str__(self) -> str:
        return f"unroll {self.index}{' in ' + self.nest if self.nest else ''}"


@dataclass(frozen=True, slots=True)
class Parallel(Directive):
    """`parallel i [in w] [static | balanced A | dynamic A] [chunks 32]`: threads share the iterations of `i`.

    `parallel i dynamic A hubs 65536`: all threads share the sums of a row of `A` with more stored positions.
    """

    index: str
    policy: str = "static"
    by: str = ""
    chunks: int = 1
    nest: str = ""
    hubs: int = 0

    def __str__(self) -> str:
        nest = f" in {self.nest}" if self.nest else ""
        by = f" {self.by}" if self.by else ""
        chunks = f" chunks {self.chunks}" if self.chunks != 1 else ""
        hubs = f" hubs {self.hubs}" if self.hubs else ""
        return f"parallel {self.index}{nest} {self.policy}{by}{chunks}{hubs}"


@dataclass(frozen=True, slots=True)
class Prefetch(Directive):
    """`prefetch T 16`: prefetches the elements of `T` gathered 16 stored positions later."""

    tensor: str
    distance: int

    def __str__(self) -> str:
        return f"prefetch {self.tensor} {self.distance}"


@dataclass(frozen=True, slots=True)
class Transpose(Directive):
    """`transpose i k in w`: the square tiles of `i` and `k` read in the nest of `w` are transposed in registers."""

    rows: str
    lanes: str
    nest: str

    def __str__(self) -> str:
        return f"transpose {self.rows} {self.lanes} in {self.nest}"


@dataclass(frozen=True, slots=True)
class Schedule(Node):
    """Directives in the order of their application; prints as text and parses back.

    >>> str(Schedule.parse("order i,j ;  vector j"))
    'order i, j; vector j'
    """

    directives: tuple[Directive, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.directives))

    @property
    def order(self) -> tuple[str, ...]:
        """The index variables in the requested order; derived loops stand for their original.

        >>> Schedule.parse("split k ko ki 8; order i, ko, j, ki").order
        ('i', 'k', 'j')
        """
        roots: dict[str, str] = {}
        found: dict[str, None] = {}
        for directive in self.directives:
            match directive:
                case Split(index=index, outer=outer, inner=inner):
                    roots[outer] = roots[inner] = roots.get(index, index)
                case Pos(index=index, position=position):
                    roots[position] = roots.get(index, index)
                case Order(indices=indices):
                    found.update((roots.get(name, name), None) for name in indices)
        return tuple(found)

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """The schedule parsed from `text`; directives are separated by `;` or line ends.

        Raises:
            ScheduleError: an unknown directive, with the forms that exist.
        """
        if not isinstance(text, str):
            raise ScheduleError(
                f"a schedule of type {type(text).__name__}", "text as sparsify.explain prints it"
            )
        parts = (part.strip() for part in re.split(r"[;\n]", text))
        return cls(tuple(_directive(part) for part in parts if part))


# Serializable classes of schedules, by name.
CLASSES = {n: k for n, k in [*globals().items()] if isinstance(k, type) and issubclass(k, Node)}

_NAME = r"[A-Za-z_]\w*"
_LIST = rf"{_NAME}(?:\s*,\s*{_NAME})*"
_IN = rf"(?:\s+in\s+(?P<nest>{_NAME}))?"
_FORMS: tuple[tuple[str, str, type[Directive]], ...] = (
    ("order [w:] i, j, k", rf"order\s+(?:(?P<nest>{_NAME})\s*:\s*)?(?P<indices>{_LIST})", Order),
    (
        "split k ko ki 64 [tail 32 8|masked]",
        rf"split\s+(?P<index>{_NAME})\s+(?P<outer>{_NAME})\s+(?P<inner>{_NAME})\s+(?P<size>\d+)(?:\s+tail(?P<tail>(?:\s+\d+)+)|\s+(?P<masked>masked))?",
        Split,
    ),
    ("fuse i j f", rf"fuse\s+(?P<first>{_NAME})\s+(?P<second>{_NAME})\s+(?P<fused>{_NAME})", Fuse),
    ("join n in Y", rf"join\s+(?P<index>{_NAME})\s+in\s+(?P<nest>{_NAME})", Join),
    ("merge j", rf"merge\s+(?P<index>{_NAME})", Merge),
    ("pos j p A", rf"pos\s+(?P<index>{_NAME})\s+(?P<position>{_NAME})\s+(?P<tensor>{_NAME})", Pos),
    (
        "precompute a [= Y] at i|over p in register|thread|memory [listed|marked]",
        rf"precompute\s+(?P<temporary>{_NAME})(?:\s*=\s*(?P<source>{_NAME}))?\s+(?:at\s+(?P<at>{_NAME})|over\s+(?P<over>{_NAME}))\s+in\s+(?P<scope>{_NAME})(?:\s+(?P<listed>listed)|\s+(?P<marked>marked))?",
        Precompute,
    ),
    ("distribute w", rf"distribute\s+(?P<temporary>{_NAME})", Distribute),
    (
        "recompute S after m",
        rf"recompute\s+(?P<temporary>{_NAME})\s+after\s+(?P<after>{_NAME})",
        Recompute,
    ),
    ("rescale m at jo", rf"rescale\s+(?P<maximum>{_NAME})\s+at\s+(?P<at>{_NAME})", Rescale),
    (
        "pack P = B[j, ki] at ko in thread [for w]",
        rf"pack\s+(?P<temporary>{_NAME})\s*=\s*(?P<tensor>{_NAME})\s*\[\s*(?P<indices>{_LIST})\s*\]\s+at\s+(?P<at>{_NAME})\s+in\s+(?P<scope>{_NAME})(?:\s+for\s+(?P<reader>{_NAME}))?",
        Pack,
    ),
    ("vector k [in w]", rf"vector\s+(?P<index>{_NAME}){_IN}", Vector),
    ("unroll k [in w]", rf"unroll\s+(?P<index>{_NAME}){_IN}", Unroll),
    (
        "parallel i [in w] [static|balanced A|dynamic [A]] [chunks 32] [hubs 65536]",
        rf"parallel\s+(?P<index>{_NAME}){_IN}(?:\s+(?P<policy>static|balanced|dynamic)(?:\s+(?!(?:chunks|hubs)\b)(?P<by>{_NAME}))?)?(?:\s+chunks\s+(?P<chunks>\d+))?(?:\s+hubs\s+(?P<hubs>\d+))?",
        Parallel,
    ),
    ("prefetch T 16", rf"prefetch\s+(?P<tensor>{_NAME})\s+(?P<distance>\d+)", Prefetch),
    (
        "transpose i k in w",
        rf"transpose\s+(?P<rows>{_NAME})\s+(?P<lanes>{_NAME})\s+in\s+(?P<nest>{_NAME})",
        Transpose,
    ),
)


def _directive(text: str) -> Directive:
    """The directive parsed from `text`."""
    for _, pattern, make in _FORMS:
        if match := re.fullmatch(pattern, text):
            fields = {
                name: _field(name, value) for name, value in match.groupdict().items() if value is not None
            }
            directive = make(**fields)
            _check(directive, text)
            return directive
    word = text.split()[0]
    forms = [form for form, _, _ in _FORMS if form.split()[0] == word] or [form for form, _, _ in _FORMS]
    raise ScheduleError(f"`{text}` is no directive", "; ".join(forms))


def _field(name: str, value: str) -> object:
    """A matched group as a field value."""
    match name:
        case "size" | "chunks" | "distance" | "hubs":
            return int(value)
        case "tail":
            return tuple(int(size) for size in value.split())
        case "masked" | "listed" | "marked":
            return True
        case "indices":
            return tuple(index.strip() for index in value.split(","))
        case "at":
            return "" if value == "root" else value
    return value


def _check(directive: Directive, text: str) -> None:
    """Raises for an invalid directive, independent of a program."""
    match directive:
        case Precompute(scope=scope) | Pack(scope=scope) if scope not in SCOPES:
            raise ScheduleError(f"`{text}`: there is no scope {scope}", f"one of {', '.join(SCOPES)}")
        case Precompute(scope="register", listed=True) | Precompute(scope="register", marked=True):
            raise ScheduleError(f"`{text}`: registers have no list", "in thread or in memory")
        case Split(size=size) if size < 2:
            raise ScheduleError(f"`{text}`: a tile of {size}", "a size of 2 or more")
        case Split(size=size, tail=tail) if list(tail) != sorted(
            {t for t in tail if 0 < t < size}, reverse=True
        ):
            raise ScheduleError(f"`{text}`: the tail {tail}", f"falling sizes below {size}")
        case Precompute(over=over, source=source) if over and not source:
            raise ScheduleError(
                f"`{text}`: what is computed over {over}?", "precompute a = w over p in register"
            )
        case Parallel(chunks=chunks) if chunks < 1:
            raise ScheduleError(f"`{text}`: {chunks} chunks", "one or more")
        case Parallel(by="", hubs=hubs) if hubs:
            raise ScheduleError(
                f"`{text}`: {hubs} positions of which rows?", "parallel i dynamic A hubs 65536"
            )
