"""Spaces: iteration spaces of expressions, evaluated all at once.

In: `j` of two stored entries, and all `k` of 3. Out: a space of 2 x 3 points whose first axis enumerates the entries:
`Space(2, {"j": tensor([4, 7])}, {"k": Range(1, 0, 3)})`.

Index variables are bound by points, which share the first axis, or range over an axis of their own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import Expr
from sparsify.errors import UnsupportedProgramError

# Most points evaluated at once: some MiB a temporary.
MOST_POINTS: Final = 2**21
# Most entries of a dense temporary.
MOST_DENSE: Final = 2**28


@dataclass(frozen=True, slots=True)
class Range:
    """The coordinates `start` to `stop` along an axis."""

    axis: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Space:
    """Points of some index variables.

    Attributes:
        count: length of the first axis; `None` if no index variable is bound by points.
        points: coordinates [count] of each index variable bound by points; for each access bound to entries, the
            indices of the entries.
        ranges: axis of each other index variable.
        device: device of the coordinates.
    """

    count: int | None
    points: Mapping[str | Expr, Tensor]
    ranges: Mapping[str, Range]
    device: torch.device

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of all axes."""
        first = () if self.count is None else (self.count,)
        return (*first, *(len(r) for r in sorted(self.ranges.values(), key=lambda r: r.axis)))

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(self.shape)

    def along_points(self, name: str | Expr) -> Tensor:
        """A column of the points, reshaped to broadcast over the space."""
        return self.points[name].reshape([-1] + [1] * (len(self.shape) - 1))

    def coordinates(self, name: str) -> Tensor:
        """The coordinates of an index variable, which broadcast over the space."""
        rank = len(self.shape)
        if name in self.points:
            return self.along_points(name)
        found = self.ranges[name]
        shape = [1] * rank
        shape[found.axis] = len(found)
        return torch.arange(found.start, found.stop, device=self.device).reshape(shape)

    def size_of(self, names: Iterable[str]) -> int:
        """The number of points of a subset of the index variables."""
        wanted = set(names)
        first = 1 if self.count is None or wanted.isdisjoint(self.points) else self.count
        return first * prod(len(r) for name, r in self.ranges.items() if name in wanted)

    def extended(self, ranges: Mapping[str, tuple[int, int]]) -> "Space":
        """The product of the space with ranges of more index variables, whose axes come last."""
        rank = len(self.shape)
        more = {n: Range(rank + at, *ends) for at, (n, ends) in enumerate(ranges.items())}
        return Space(self.count, self.points, {**self.ranges, **more}, self.device)


def box(ranges: Mapping[str, tuple[int, int]], device: torch.device) -> Space:
    """All points of some ranges."""
    return Space(None, {}, {n: Range(at, *ends) for at, (n, ends) in enumerate(ranges.items())}, device)


def boxes(extents: Mapping[str, int], most: int = MOST_POINTS) -> Iterator[dict[str, tuple[int, int]]]:
    """The ranges of index variables split into boxes of at most `most` points; the first variables are split first."""
    if not extents:
        yield {}
        return
    (name, extent), *others = extents.items()
    rest = prod(size for _, size in others)
    step = max(1, min(extent, most // max(rest, 1)))
    inner = dict(others)
    for start in range(0, extent, step):
        for found in boxes(inner, most) if rest > most else [{n: (0, size) for n, size in others}]:
            yield {name: (start, min(start + step, extent)), **found}


def sized(names: Sequence[str], extents: Mapping[str, int]) -> int:
    """The number of points of index variables."""
    return prod(extents[name] for name in names)


def check_size(shape: Sequence[int], expr: Expr) -> None:
    """Raises for a dense temporary or result that is not expected to fit memory.

    Raises:
        UnsupportedProgramError: tensor too large.
    """
    if prod(shape) > 8 * MOST_DENSE:
        raise UnsupportedProgramError(
            f"`{str(expr)[:80]}` has {prod(shape)} dense entries, which torch's operators do not compute",
            "install a C++ compiler (`sparsify doctor` says how), and sparsify compiles a kernel for it",
        )
