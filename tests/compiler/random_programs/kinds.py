"""The kinds of random programs: how a seed becomes a case, and what the compiler may say of it before it generates
code; anything else is a mistake.

In: `KINDS["scheduled"].prepare(7)`. Out: a `Prepared` case that all interpreters agree on, `None` when it is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sparsify.compiler.einsum.nodes import Call, Reduce
from sparsify.compiler.einsum.register import register_monoid
from sparsify.compiler.ir.node import walk
from sparsify.errors import (
    DiscordantError,
    DtypeError,
    EinsumError,
    FormatError,
    ScheduleError,
    ShapeError,
    UnsupportedProgramError,
)
from tests.compiler.random_programs.compare import Choose, Prepared, as_chosen, prepare
from tests.compiler.random_programs.data import CUT, HOLLOW, SPECIAL, Case
from tests.compiler.random_programs.generate import draw, draw_adjoint
from tests.compiler.random_programs.layers import draw_layer
from tests.compiler.random_programs.rows import SCATTERED, draw_rows
from tests.compiler.random_programs.schedules import Drawn, Offered, Padded, Shared
from tests.compiler.random_programs.writer import DRAWN, RANKED, REDUCED, SHORT, SPARSE, USERS

REFUSALS = (UnsupportedProgramError, FormatError)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of programs.

    Attributes:
        draw: the case of a seed.
        refusals: what the compiler may raise.
        schedules: draws schedules from a seed; `None` for the compiler's choice.
        is_left_out: cases that are not compared.
    """

    draw: Callable[[int], Case]
    refusals: tuple[type[Exception], ...] = REFUSALS
    schedules: Callable[[int], Choose] | None = None
    is_left_out: Callable[[Case], bool] = lambda case: False

    def prepare(self, seed: int, *, interpreted: bool = True) -> Prepared | None:
        """Case of a seed, compared by all interpreters; `None` if refused or left out.

        Args:
            interpreted: whether notation and loops are interpreted, too, not the program alone.
        """
        case = None
        try:
            case = self.draw(seed)
            if self.is_left_out(case):
                return None
            choose = as_chosen if self.schedules is None else self.schedules(seed)
            return prepare(case, choose, interpreted=interpreted)
        except self.refusals:
            return None
        except Exception as error:
            error.add_note(str(case or f"seed {seed}"))
            raise


def has_rounded_ties(case: Case) -> bool:
    """Whether ties of a maximum are found by comparison with recomputed values.

    Another order of sums, or another polynomial, may differ from the operand in the last place.
    """
    return any(
        isinstance(node, Call)
        and node.function == "eq"
        and any(isinstance(n, Call | Reduce) for n in node.args)
        for node in walk(case.program)
    )


def draw_reduced(seed: int) -> Case:
    """A program with all monoids, including user-registered ones."""
    for name, (combine, identity) in USERS.items():
        register_monoid(name, combine, identity)
    return draw(seed, style=REDUCED)


_ADJOINT = (*REFUSALS, EinsumError)
_SCHEDULED = (*REFUSALS, ScheduleError, DiscordantError)
KINDS = {
    "plain": Kind(draw),
    "scheduled": Kind(draw, _SCHEDULED, Drawn),
    "blocked": Kind(partial(draw, style=SHORT, data=CUT, blocked=True), _SCHEDULED, Drawn),
    "offered": Kind(draw, _SCHEDULED, Offered),
    "rows": Kind(draw_rows, (*_SCHEDULED, DtypeError), Shared),
    "padded": Kind(partial(draw_rows, forms=SCATTERED), (*_SCHEDULED, DtypeError), Padded),
    "typed": Kind(partial(draw, typed=True), (*REFUSALS, DtypeError)),
    "adjoint": Kind(draw_adjoint, _ADJOINT, is_left_out=has_rounded_ties),
    "windowed": Kind(partial(draw, windows=True), (*REFUSALS, EinsumError, ShapeError)),
    "windowed adjoint": Kind(
        partial(draw_adjoint, windows=True), (*_ADJOINT, ShapeError), is_left_out=has_rounded_ties
    ),
    "ranked": Kind(partial(draw, style=RANKED)),
    "reduced": Kind(draw_reduced, (*REFUSALS, DtypeError, EinsumError)),
    "special": Kind(partial(draw, data=SPECIAL)),
    "drawn": Kind(partial(draw, style=DRAWN)),
    "packed": Kind(draw_layer),
    "packed offered": Kind(draw_layer, _SCHEDULED, Offered),
    "packed scheduled": Kind(draw_layer, _SCHEDULED, Drawn),
    "assembled": Kind(partial(draw, style=SPARSE, data=HOLLOW, assembled=True), _SCHEDULED, Offered),
}
