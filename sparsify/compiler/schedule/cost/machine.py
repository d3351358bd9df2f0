"""Machine model: the rates that determine costs of loops.

In: `Machine()`, the assumed rates of any processor, or the machine measured by `calibrate`. Out: `machine.fma`,
`machine.reads.at(1 << 20)`: arithmetic and bytes a microsecond.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import log
from typing import Any, Final

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A rate as a function of size, known at some sizes.

    >>> Curve(((100, 8.0), (10_000, 4.0))).at(1000)
    6.0
    """

    points: tuple[Point, ...]

    def at(self, size: float) -> float:
        """The rate at a size: interpolated in the logarithm of the size, constant outside."""
        (before, rate), *others = self.points
        if size <= before:
            return rate
        for after, other in others:
            if size <= after:
                return rate + (other - rate) * log(size / before) / log(after / before)
            before, rate = after, other
        return rate


@dataclass(frozen=True, slots=True)
class Machine:
    """Figures of one machine; figures of all threads are totals.

    Attributes:
        threads: most threads of a kernel.
        vector_bytes: bytes of a vector register, 0 for scalar code.
        fma, fma_all: float32 operations a microsecond of a product in registers, of one thread and of all.
        reads, reads_all: bytes a microsecond of sequential reads, by the bytes read repeatedly.
        gathers: bytes a microsecond of one thread, for random rows of 512 bytes, by the bytes of the table.
        dense: operations a microsecond of torch's dense product of all threads, by its rows; the other extents are 256.
        dense_small: the same for products of 64 x 64 x 64.
        dense_tall: the same for 4096 x 64 x 16.
        onednn: the same for oneDNN's product with a packed weight, at 256 x 256 x 256; 0 without oneDNN.
        call_us: time of a kernel call without work.
        torch_us: time of torch's product without work.
        fork_us: time to start and join all threads.
        is_measured: whether the figures were measured.
        is_agreed: whether repeated measurements agreed.
        tries: number of measurements.
    """

    threads: int = 1
    vector_bytes: int = 32
    fma: float = 80_000.0
    fma_all: float = 80_000.0
    reads: Curve = Curve(
        ((1 << 14, 180_000.0), (1 << 18, 95_000.0), (1 << 22, 50_000.0), (1 << 26, 12_000.0))
    )
    reads_all: Curve = Curve(
        ((1 << 14, 180_000.0), (1 << 18, 95_000.0), (1 << 22, 50_000.0), (1 << 26, 12_000.0))
    )
    gathers: Curve = Curve(
        ((1 << 14, 80_000.0), (1 << 18, 60_000.0), (1 << 22, 32_000.0), (1 << 26, 9_000.0))
    )
    dense: Curve = Curve(((1, 14_000.0), (16, 53_000.0), (256, 70_000.0)))
    dense_small: float = 55_000.0
    dense_tall: float = 50_000.0
    onednn: float = 70_000.0
    call_us: float = 2.0
    torch_us: float = 2.5
    fork_us: float = 4.0
    is_measured: bool = False
    is_agreed: bool = True
    tries: int = 1

    @property
    def spread(self) -> float:
        """Speed-up of all threads over one."""
        return max(1.0, self.fma_all / self.fma)

    @property
    def vector_us(self) -> float:
        """The time of one thread for a multiply and add of a register, or of a number in scalar code."""
        return 2 * max(1, self.vector_bytes // 4) / self.fma

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `from_dict`."""
        return asdict(self)


def scaled(threads: int, vector_bytes: int) -> Machine:
    """Assumed rates of an unmeasured machine.

    >>> scaled(2, 32).fma_all
    160000.0
    """
    plain = Machine()
    share = max(4, vector_bytes) / plain.vector_bytes
    cores = min(threads, MOST_SPREAD)
    shared = tuple(
        (size, rate * (cores if size < FAR_BYTES else min(cores, FAR_SPREAD)))
        for size, rate in plain.reads.points
    )
    return Machine(
        threads,
        vector_bytes,
        plain.fma * share,
        plain.fma * share * cores,
        reads_all=Curve(shared),
        dense=Curve(tuple((size, rate * cores) for size, rate in plain.dense.points)),
        dense_tall=plain.dense_tall * cores,
        onednn=plain.onednn * cores,
    )


def from_dict(data: dict[str, Any]) -> Machine:
    """The machine from plain data.

    Raises:
        KeyError, TypeError, ValueError: malformed data.
    """
    given: dict[str, Any] = {name: positive(data[name]) for name in FIGURES}
    for name in CURVES:
        given[name] = Curve(tuple((int(size), positive(rate)) for size, rate in data[name]["points"]))
    for name in ("threads", "vector_bytes", "tries"):
        given[name] = int(data[name])
    given["is_agreed"] = bool(data["is_agreed"])
    return Machine(**given, onednn=float(data["onednn"]), is_measured=True)


def joined(first: Machine, second: Machine) -> Machine:
    """Two measurements of one machine: the better of each figure, since disturbances only slow a machine down.

    The time to start threads is a difference of two times and may come out too small: the second measurement counts.
    """
    better: dict[str, Any] = {
        name: (min if name in TIMES else max)(getattr(first, name), getattr(second, name))
        for name in (*FIGURES, "onednn")
        if name != "fork_us"
    }
    for name in CURVES:
        both = zip(getattr(first, name).points, getattr(second, name).points, strict=True)
        better[name] = Curve(tuple((size, max(rate, other)) for (size, rate), (_, other) in both))
    return replace(second, **better, tries=first.tries + second.tries)


def believable(machine: Machine) -> Machine:
    """A measured machine with implausible figures corrected from their neighbours.

    Bandwidth does not grow with size, the rate of products does not fall with more rows, and no rate is far from the
    assumed one.

    >>> slow = Machine(reads=Curve(((1 << 14, 100.0), (1 << 18, 95_000.0))))
    >>> believable(slow).reads.points
    ((16384, 95000.0), (262144, 95000.0))
    """
    assumed = scaled(machine.threads, machine.vector_bytes)
    given: dict[str, Any] = {}
    for name in (*FIGURES, *(("onednn",) if machine.onednn else ())):
        given[name] = bounded(getattr(machine, name), getattr(assumed, name))
    for name in CURVES:
        expected = getattr(assumed, name)
        points = [(size, bounded(rate, expected.at(size))) for size, rate in getattr(machine, name).points]
        given[name] = Curve(tuple(points) if name == "dense" else falling(points))
    rows, rates = zip(*given["dense"].points, strict=True)
    given["dense"] = Curve(tuple(zip(rows, accumulate(rates, max), strict=True)))
    return replace(machine, **given)


def falling(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with rates raised to be nonincreasing in size."""
    sizes, rates = zip(*reversed(points), strict=True)
    return tuple(reversed(list(zip(sizes, accumulate(rates, max), strict=True))))


def bounded(measured: float, assumed: float) -> float:
    """A figure clamped to a plausible range around the assumed one."""
    return min(max(measured, assumed / BELIEVED), assumed * BELIEVED)


def positive(value: Any) -> float:
    """A rate or a time, checked to be positive and finite."""
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{value} is no rate")
    return number


CURVES: Final = ("reads", "reads_all", "gathers", "dense")
TIMES: Final = ("call_us", "torch_us", "fork_us")
# Largest plausible ratio between measured and assumed figures.
BELIEVED: Final = 50
FIGURES: Final = ("fma", "fma_all", "dense_small", "dense_tall", "call_us", "torch_us", "fork_us")
# Most threads with an assumed speed-up; bytes beyond which memory bandwidth limits, and threads served at full speed.
MOST_SPREAD: Final = 64
FAR_BYTES: Final = 1 << 25
FAR_SPREAD: Final = 2
