"""The kinds of random programs: how a seed becomes a case, and what the compiler may say of it before it generates
code; anything else is a mistake.

In: `KINDS["scheduled"].prepare(7)`. Out: a `Prepared` case that all interpreters agree on, `None` when it is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Call, Reduce
from sparsify.compiler.node import walk
from sparsify.errors import (
    DiscordantError,
    DtypeError,
    EinsumError,
    FormatError,
    ScheduleError,
    ShapeError,
    UnsupportedProgramError,
)

from .compare import Prepared, prepare
from .generate import Case, draw, draw_adjoint, draw_typed, draw_windowed
from .schedules import Drawn

REFUSALS = (UnsupportedProgramError, FormatError)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of programs.

    Attributes:
        draw: the case of a seed.
        refusals: what the compiler may raise.
        scheduled: whether schedules are drawn, too.
        is_left_out: cases that are not compared.
    """

    draw: Callable[[int], Case]
    refusals: tuple[type[Exception], ...] = REFUSALS
    scheduled: bool = False
    is_left_out: Callable[[Case], bool] = lambda case: False

    def prepare(self, seed: int) -> Prepared | None:
        """The case of a seed, compared by all interpreters; `None` for one that is refused."""
        case = None
        try:
            case = self.draw(seed)
            if self.is_left_out(case):
                return None
            return prepare(case, Drawn(seed)) if self.scheduled else prepare(case)
        except self.refusals:
            return None
        except Exception as error:
            error.add_note(str(case or f"seed {seed}"))
            raise


def has_rounded_ties(case: Case) -> bool:
    """Whether the ties of a maximum are found by comparing it with values that are computed again.

    Another order of sums, or another polynomial, may differ from the operand in the last place.
    """
    return any(
        isinstance(node, Call)
        and node.function == "eq"
        and any(isinstance(n, Call | Reduce) for n in node.args)
        for node in walk(case.program)
    )


def draw_windowed_adjoint(seed: int) -> Case:
    """The gradients of a program with affine indices."""
    return draw_adjoint(seed, windows=True)


_ADJOINT = (*REFUSALS, EinsumError)
KINDS = {
    "plain": Kind(draw),
    "scheduled": Kind(draw, (*REFUSALS, ScheduleError, DiscordantError), scheduled=True),
    "typed": Kind(draw_typed, (*REFUSALS, DtypeError)),
    "adjoint": Kind(draw_adjoint, _ADJOINT, is_left_out=has_rounded_ties),
    "windowed": Kind(draw_windowed, (*REFUSALS, EinsumError, ShapeError)),
    "windowed adjoint": Kind(draw_windowed_adjoint, (*_ADJOINT, ShapeError), is_left_out=has_rounded_ties),
}
