"""The base class of directives: text form, pattern, checks, meaning in words, and rewriting of loops.

In: `Split("k", "ko", "ki", 64)`. Out: prints as `split k ko ki 64`; `apply` splits the loops over `k`; `describe` says
`k = 64 ko + ki; the last tile masked`.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn

from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.notation.nodes import Forall, Notation
from sparsify.compiler.schedule.nests import loop_names
from sparsify.errors import ScheduleError

# Parts of patterns: a name, a list of names, and the nest of a directive.
NAME: Final = r"[A-Za-z_]\w*"
NAMES: Final = rf"{NAME}(?:\s*,\s*{NAME})*"
IN_NEST: Final = rf"(?:\s+in\s+(?P<nest>{NAME}))?"
# Scopes of temporaries, in words.
SCOPES: Final = {
    "register": "in registers",
    "thread": "in memory of its own for each thread",
    "memory": "in memory",
}


@dataclass(frozen=True, slots=True)
class Directive(Node):
    """One scheduling decision. A subclass defines the whole directive.

    Attributes:
        form: the text form, for error messages.
        pattern: regular expression of the text, with a group for each field.
    """

    form: ClassVar[str] = ""
    pattern: ClassVar[str] = ""

    def check(self, text: str) -> None:
        """Raises a `ScheduleError` if the directive is invalid for all programs; `text` is its source."""

    def apply(self, program: Notation) -> Notation:
        """The program after the directive; unchanged if no loop or tensor has the directive's names.

        Raises:
            ScheduleError: an unknown name, or a change of the result.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """The meaning in words."""
        raise NotImplementedError


def of_nest(nest: str) -> str:
    """The words that restrict a sentence to the nest of one tensor: " of w", or "" for all nests."""
    return f" of {nest}" if nest else ""


def in_nest(nest: str) -> str:
    """The end of a directive that names the nest of one tensor: " in w", or "" for all nests."""
    return f" in {nest}" if nest else ""


def refuse(directive: Directive, found: str, program: Notation) -> NoReturn:
    """Raises, with the existing loops."""
    loops = dict.fromkeys(n.index for n in find(program.body, Forall))
    raise ScheduleError(f"`{directive}`: {found} in {program.body}", f"the loops are {', '.join(loops)}")


def require_new(program: Notation, directive: Directive, *names: str) -> None:
    """Raises if a new loop name is taken by a loop or by the origin of a derived loop."""
    taken = loop_names(program)
    for name in names:
        if name in taken:
            raise ScheduleError(f"`{directive}`: a loop {name} exists", "another name")
        taken.add(name)
