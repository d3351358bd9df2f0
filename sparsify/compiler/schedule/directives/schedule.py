"""Schedules as text: a frozen list of directives that prints and parses back, applied one after the other.

    order i, k, j; split k ko ki 64 tail 32 16 8; precompute w at ko in register; vector ki; parallel i balanced A

In:  `forall i: forall k: forall j: Y[i,k] += A[i,j] * T[j,k]` and `order i, j, k; vector k; parallel i`
Out: `parallel forall i: forall j: vector forall k: Y[i,k] += A[i,j] * T[j,k]`
"""

import re
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.ir.node import Node
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives.directive import Directive
from sparsify.compiler.schedule.directives.distribute import Distribute
from sparsify.compiler.schedule.directives.fuse import Fuse, Join, Merge
from sparsify.compiler.schedule.directives.lanes import Transpose, Unroll, Vector
from sparsify.compiler.schedule.directives.order import Order
from sparsify.compiler.schedule.directives.pack import Pack
from sparsify.compiler.schedule.directives.parallel import Parallel
from sparsify.compiler.schedule.directives.position import Pos
from sparsify.compiler.schedule.directives.precompute import Precompute
from sparsify.compiler.schedule.directives.prefetch import Prefetch
from sparsify.compiler.schedule.directives.recompute import Recompute
from sparsify.compiler.schedule.directives.rescale import Rescale
from sparsify.compiler.schedule.directives.split import Split
from sparsify.errors import ScheduleError

# All directives, in the order of the page of the schedule language.
DIRECTIVES: Final[tuple[type[Directive], ...]] = (
    *(Order, Split, Fuse, Join, Merge, Pos, Precompute, Distribute, Recompute, Rescale, Pack),
    *(Vector, Unroll, Parallel, Prefetch, Transpose),
)


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
CLASSES: Final[dict[str, type[Node]]] = {
    "Schedule": Schedule,
    **{kind.__name__: kind for kind in DIRECTIVES},
}


def apply(program: Notation, schedule: Schedule) -> Notation:
    """`program` after all directives of `schedule`.

    Raises:
        ScheduleError: a directive with an unknown name, or one that would change the result.
    """
    for directive in schedule.directives:
        before = program
        program = directive.apply(program)
        if program == before and not isinstance(directive, Order):
            raise ScheduleError(
                f"`{directive}` changes nothing in {program.body}", "name a loop or tensor of it"
            )
    return program


def _directive(text: str) -> Directive:
    """The directive parsed from `text`."""
    for kind in DIRECTIVES:
        if match := re.fullmatch(kind.pattern, text):
            groups = {name: value for name, value in match.groupdict().items() if value is not None}
            directive = kind(**{name: _field(name, value) for name, value in groups.items()})
            directive.check(text)
            return directive
    forms = [kind.form for kind in DIRECTIVES]
    word = text.split()[0]
    raise ScheduleError(
        f"`{text}` is no directive", "; ".join([form for form in forms if form.split()[0] == word] or forms)
    )


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
