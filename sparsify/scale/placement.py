"""Placements of the tensors of a graph on processes: `Placement`.

In: a tensor of a captured model. Out: `Placement("nodes", 0)`, each process has its own rows along mode 0;
`REPLICATED`, each has all of it.

A tensor of local numbers says what they number: `own` rows, from 0, or `column`s, rows in `[own | halo]`. Such numbers
are no values: they differ from those of one process, so that comparisons with each other, gathers and scatters alone
take them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

Numbers = Literal["own", "column"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of a tensor are.

    Attributes:
        space: the set that the rows belong to, of which each process has its part: `nodes`, `edges`, some of them,
            `nodes[mask]`, or several behind each other, `edges & nodes`; `ANY` of equal rows; None where each process
            has the whole tensor.
        mode: along which the rows lie.
        numbers: of local numbers what they are: one kind, or one for each entry of mode 0.
    """

    space: str | None = None
    mode: int = 0
    numbers: tuple[Numbers, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether each process has some rows alone."""
        return self.space is not None

    def at(self, mode: int) -> "Placement":
        """The same rows along another mode, as values."""
        return replace(self, mode=mode, numbers=())

    def __str__(self) -> str:
        if self.space is None:
            return "all of it in each process"
        what = f", local numbers of {' and '.join(self.numbers)} rows" if self.numbers else ""
        return f"{self.space} along mode {self.mode}{what}"


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic integer that counts local rows."""

    space: str


NODES: Final = "nodes"
EDGES: Final = "edges"
ANY: Final = "any"
REPLICATED: Final = Placement()


def common(first: str | None, second: str | None) -> str | None:
    """The set that rows of two tensors belong to, where they may be combined row by row; None where not.

    >>> common("edges", "any"), common("edges & nodes", "nodes & edges")
    ('edges', None)
    """
    if ANY in (first, second):
        return second if first == ANY else first
    return first if first == second else None


def joined(kinds: Iterable[Numbers]) -> Numbers:
    """What numbers of several kinds are together: own rows are columns, too.

    >>> joined(["own", "column"])
    'column'
    """
    return "column" if "column" in tuple(kinds) else "own"
