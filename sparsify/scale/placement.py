"""Placements of the tensors of a graph on processes: `Placement`.

In: a tensor of a captured model. Out: `Placement("nodes", 0)`, each process has its own rows along mode 0;
`REPLICATED`, each process has the whole tensor.

A tensor of local row numbers has a kind: `own` rows, from 0, or `column`s, rows in `[own | halo]`. Row numbers
are no values: they differ from the numbers in one process, so only comparisons of row numbers, gathers and scatters
accept them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

Numbers = Literal["own", "column"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of the rows of a tensor.

    Attributes:
        space: set of the rows, divided among the processes: `nodes`, `edges`, some of them,
            `nodes[mask]`, or several behind each other, `edges & nodes`; `ANY` for equal rows; None for a tensor
            replicated in each process.
        mode: mode along the rows.
        numbers: kinds of local row numbers: one kind, or one for each entry of mode 0.
    """

    space: str | None = None
    mode: int = 0
    numbers: tuple[Numbers, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether the rows are divided among the processes."""
        return self.space is not None

    def at(self, mode: int) -> "Placement":
        """The placement with the same rows along another mode."""
        return replace(self, mode=mode, numbers=())

    def __str__(self) -> str:
        if self.space is None:
            return "all of it in each process"
        what = f", local numbers of {' and '.join(self.numbers)} rows" if self.numbers else ""
        return f"{self.space} along mode {self.mode}{what}"


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic integer counting local rows."""

    space: str


NODES: Final = "nodes"
EDGES: Final = "edges"
ANY: Final = "any"
REPLICATED: Final = Placement()


def common(first: str | None, second: str | None) -> str | None:
    """The common set of the rows of two tensors, if row-wise combination is allowed; None if not.

    >>> common("edges", "any"), common("edges & nodes", "nodes & edges")
    ('edges', None)
    """
    if ANY in (first, second):
        return second if first == ANY else first
    return first if first == second else None


def joined(kinds: Iterable[Numbers]) -> Numbers:
    """The common kind of row numbers of several kinds: own rows are columns, too.

    >>> joined(["own", "column"])
    'column'
    """
    return "column" if "column" in tuple(kinds) else "own"
