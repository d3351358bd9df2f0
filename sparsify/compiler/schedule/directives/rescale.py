"""Online rescaling: one pass over a row whose exponentials are relative to its maximum, chunk by chunk.

In:  `forall jo: S = ..; forall jo: m max= S; forall jo: P = exp(S - m); forall jo: d += P; forall jo: w += P * V`
     and `rescale m at jo`.
Out: `m = -inf; d = 0; w = 0; forall jo: S = ..; m_part max= S; m_next = max(m, m_part); m_scale = exp(m - m_next);
     P = exp(S - m_next); d_part += P; d = d * m_scale + d_part; w_part += P * V; w = w * m_scale + w_part;
     m max= m_part`

The rows of a chunk are elements `(m, d, w)` of a monoid:

    (m1, d1, w1) + (m2, d2, w2) = (m, d1 * exp(m1 - m) + d2 * exp(m2 - m), w1 * exp(m1 - m) + w2 * exp(m2 - m))

with `m = max(m1, m2)` and the identity `(-inf, 0, 0)`: the state of a row is a vector, independent of its length.
`exp(S - g)` with `g = where(m == -inf, 0, m)` is exact for rows without entries and for rows of -inf only: sums up to
an `m` of -inf are zeros, and `exp(-inf - g)` is 0.

Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., FlashAttention, 2022.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Final, NoReturn

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index
from sparsify.compiler.ir.dtypes import computing
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Sequence, Serial, Temporary
from sparsify.compiler.notation.provenance import Provenance
from sparsify.compiler.schedule.directives.directive import NAME, Directive
from sparsify.compiler.schedule.nests import (
    Body,
    accesses,
    assigns,
    close_chain,
    let_of,
    loop_chain,
    loop_names,
    replace_accesses,
    replace_body,
    sequence,
)
from sparsify.errors import ScheduleError

# Suffixes of the partial results of a chunk, of the updated maximum, and of the factor of earlier sums.
PART: Final = "_part"
NEXT: Final = "_next"
SCALE: Final = "_scale"


@dataclass(frozen=True, slots=True)
class _Nest:
    """A statement of a chunk: its assignment, inside shared loops and then loops of its own."""

    shared: tuple[Forall, ...]
    own: tuple[Forall, ...]
    body: Body


def is_relative(value: Expr, maximum: str, x: Expr) -> bool:
    """Whether a value is `exp(x - where(m == -inf, 0, m))`."""
    match value:
        case Call("exp", (Call("sub", (left, Call("where", (Call("eq", (m, low)), zero, other)))),)):
            is_guarded = low == Const(-inf) and zero in (Const(0), Const(0.0)) and m == other
            return left == x and is_guarded and isinstance(m, Access) and m.tensor == maximum
    return False


def is_linear(value: Expr, names: set[str], other: set[str]) -> bool:
    """Whether a value is a tensor of `names` times an expression without tensors of `names` and `other`."""
    match value:
        case Access(tensor=tensor):
            return tensor in names
        case Call("mul", (left, right)):
            is_left = is_linear(left, names, other)
            factor, rest = (left, right) if is_left else (right, left)
            return is_linear(factor, names, other) and not reads(rest, names | other)
        case Call("div", (left, right)):
            return is_linear(left, names, other) and not reads(right, names | other)
    return False


def reads(value: Expr, names: set[str]) -> bool:
    """Whether a value reads one of these tensors."""
    return any(access.tensor in names for access in find(value, Access))


@dataclass(frozen=True, slots=True)
class Rescale(Directive):
    """`rescale m at jo`: fuses the nests up to `jo`, with the running maximum in place of `m` (online softmax).

    Sums of `exp(S - m)` are multiplied with `exp(m - n)` when a later chunk of the row raises the maximum from `m` to
    `n`.
    """

    form: ClassVar[str] = "rescale m at jo"
    pattern: ClassVar[str] = rf"rescale\s+(?P<maximum>{NAME})\s+at\s+(?P<at>{NAME})"

    maximum: str
    at: str

    def __str__(self) -> str:
        return f"rescale {self.maximum} at {self.at}"

    def describe(self) -> str:
        """The meaning in words."""
        running = f"each iteration of {self.at} has a {self.maximum} of what came so far"
        return f"{running}, by which earlier sums are rescaled"

    def apply(self, program: Notation) -> Notation:
        """The statements around the maximum's in one nest, a single pass over the chunks of a row.

        Raises:
            ScheduleError: statements without these common loops, or sums that are not multiples of `exp(S - m)`.
        """
        let = let_of(program, self.maximum, self)
        statements = let.body.statements if isinstance(let.body, Sequence) else (let.body,)
        place = next(n for n, statement in enumerate(statements) if assigns(statement, self.maximum))
        first, last = _group(statements, place, self)
        nests = [_nest(statement, self) for statement in statements[first:last]]
        rescaled = _Rescaled(program, self, nests[place - first], nests)
        rescaled.read(nests)
        rescaled.check_others([*statements[:first], *statements[last:]])
        body = sequence([*statements[:first], *rescaled.begun, rescaled.merged(), *statements[last:]])
        return replace(program, body=replace_body(program.body, let, Let(let.temporaries, body)))


def _group(statements: tuple[Body, ...], place: int, directive: Rescale) -> tuple[int, int]:
    """The range of statements with the same loops up to the directive's, around the maximum's statement."""
    wanted = _outer(statements[place], directive.at)
    if not wanted:
        raise ScheduleError(
            f"`{directive}`: there is no loop {directive.at} around {directive.maximum}", "one of its loops"
        )
    first, last = place, place + 1
    while first and _outer(statements[first - 1], directive.at) == wanted:
        first -= 1
    while last < len(statements) and _outer(statements[last], directive.at) == wanted:
        last += 1
    return first, last


def _outer(statement: Body, at: str) -> list[str]:
    """The loops of a statement up to the one over `at`; empty without it."""
    names = [loop.index for loop in loop_chain(statement)[0]]
    return names[: names.index(at) + 1] if at in names else []


def _nest(statement: Body, directive: Rescale) -> _Nest:
    """A statement split at the loop of the directive."""
    chain, body = loop_chain(statement)
    count = len(_outer(statement, directive.at))
    return _Nest(tuple(chain[:count]), tuple(chain[count:]), body)


class _Rescaled:
    """The statements of a chunk after the rewrite.

    Args:
        program: enclosing program.
        directive: rescale directive.
        nest: statement of the maximum.
        nests: all statements of the chunk.

    Attributes:
        begun: statements that initialize each row with the identity of the monoid.
    """

    def __init__(self, program: Notation, directive: Rescale, nest: _Nest, nests: list[_Nest]) -> None:
        self.program, self.directive, self.nest = program, directive, nest
        if not isinstance(nest.body, Assign) or nest.body.monoid != "max":
            self.refuse(f"{directive.maximum} is no maximum of a row there")
        assert isinstance(nest.body, Assign)
        self.maximum, self.value = nest.body.target, nest.body.value
        self.dtypes = {t.name: t.dtype for let in find(program.body, Let) for t in let.temporaries}
        self.dtypes |= {declared.name: computing(declared.dtype) for declared in program.declarations}
        self.taken = set(self.dtypes) | loop_names(program)
        self.temporaries: list[Temporary] = []
        self.rows = self._own(nest, self.maximum)
        self.chunks = [loop for loop in nest.shared if not self._is_of(loop, self.maximum)]
        if not self.chunks:
            self.refuse(f"each iteration of {directive.at} has a whole row")
        self.shared = [replace(loop, kind=Serial()) for loop in nest.shared]
        self.part, self.next, self.scale = (
            self._temporary(directive.maximum, end, self.rows) for end in (PART, NEXT, SCALE)
        )
        self.begun: list[Body] = [self._begun(nest, self.maximum, "max")]
        self.inside: list[Body] = []
        self.relative: set[str] = set()
        self.summed: set[str] = set()

    def refuse(self, found: str) -> NoReturn:
        """Raises, with the supported form."""
        raise ScheduleError(
            f"`{self.directive}`: {found}",
            f"m max= S, P = exp(S - where(m == -inf, 0, m)) and sums of products with P, all up to "
            f"{self.directive.at} in the same loops",
        )

    def read(self, nests: list[_Nest]) -> None:
        """Rewrites the statements of the chunk in order."""
        for nest in nests:
            if nest is self.nest:
                self._maximum()
            elif not isinstance(nest.body, Assign) or not reads(
                nest.body.value, {self.maximum.tensor, *self.relative}
            ):
                self._apart(nest)
            elif nest.body.monoid is None:
                self._entries(nest, nest.body)
            else:
                self._sum(nest, nest.body)

    def check_others(self, statements: list[Body]) -> None:
        """Raises if another statement reads entries relative to the maximum of their chunk."""
        read = {access.tensor for statement in statements for access in find(statement, Access)}
        for name in sorted(self.relative & (read | set(self.program.outputs))):
            self.refuse(f"{name} is wanted relative to the maximum of its row")

    def merged(self) -> Body:
        """The nest of all statements of a chunk, which ends with the update of the running maximum."""
        given = close_chain(self.rows, Assign(self.maximum, "max", self.part))
        return close_chain(self.shared, Let(tuple(self.temporaries), sequence([*self.inside, given])))

    def _maximum(self) -> None:
        """`m max= S -> m_part max= S; m_next = max(m, m_part); m_scale = exp(m - where(m_next == -inf, 0, m_next))`.

        The factor of a chunk without entries is 1: unstored chunks are skipped.
        """
        low = Call("eq", (self.next, Const(-inf)))
        shift = Call("where", (low, Const(0), self.next))
        factor = Call("exp", (Call("sub", (self.maximum, shift)),))
        is_empty = Call("eq", (self.part, Const(-inf)))
        scale = Call("where", (is_empty, Const(1), factor))
        self.inside += [
            close_chain(list(self.nest.own), Assign(self.part, "max", self.value)),
            close_chain(self.rows, Assign(self.next, None, Call("max", (self.maximum, self.part)))),
            close_chain(self.rows, Assign(self.scale, None, scale)),
        ]

    def _entries(self, nest: _Nest, assign: Assign) -> None:
        """`P = exp(S - m) -> P = exp(S - m_next)`, and multiples of P."""
        is_shifted = is_relative(assign.value, self.maximum.tensor, self.value)
        if not is_shifted and not self._is_linear(assign):
            self.refuse(f"{assign} is no multiple of exp({self.value} - {self.maximum.tensor})")
        self.relative.add(assign.target.tensor)
        self._apart(nest)

    def _sum(self, nest: _Nest, assign: Assign) -> None:
        """`d += P -> d_part += P; d = d * m_scale + d_part`."""
        target, name = assign.target, assign.target.tensor
        is_chunked = any(self._is_of(loop, target) for loop in self.chunks)
        if assign.monoid != "sum" or not self._is_linear(assign) or is_chunked:
            self.refuse(f"{assign} is no sum of multiples of exp({self.value} - {self.maximum.tensor})")
        own = self._own(nest, target)
        part = self._temporary(name, PART, own)
        self.begun.append(self._begun(nest, target, "sum"))
        self.summed.add(name)
        before = Call("mul", (target, self.scale))
        self.inside += [
            close_chain(list(nest.own), Assign(part, "sum", assign.value)),
            close_chain(own, Assign(target, None, Call("add", (before, part)))),
        ]

    def _apart(self, nest: _Nest) -> None:
        """A statement local to a chunk, which reads the running maximum."""
        inside = {temporary.name for let in find(nest.body, Let) for temporary in let.temporaries}
        for assign in find(nest.body, Assign):
            is_own = all(self._is_of(loop, assign.target) for loop in self.chunks)
            is_local = assign.target.tensor in inside or is_own
            if not is_local or any(accesses(assign.value, name) for name in self.summed):
                self.refuse(f"{assign} is about other chunks too")
        body = replace_accesses(close_chain(list(nest.own), nest.body), self.maximum.tensor, self.next)
        self.inside.append(body)

    def _is_linear(self, assign: Assign) -> bool:
        """Whether the assigned value is a multiple of relative entries, with a factor independent of chunks."""
        return is_linear(assign.value, self.relative, {self.maximum.tensor, *self.summed})

    def _begun(self, nest: _Nest, target: Access, monoid: str) -> Body:
        """`m = -inf` for all rows, or `d = 0`."""
        loops = [loop for loop in (*nest.shared, *nest.own) if self._is_of(loop, target)]
        identity = MONOIDS[monoid].identity(self.dtypes[target.tensor])
        return close_chain(
            [replace(loop, kind=Serial()) for loop in loops], Assign(target, None, Const(identity))
        )

    def _own(self, nest: _Nest, target: Access) -> list[Forall]:
        """The loops of a statement inside the shared ones that run over its result."""
        return [replace(loop, kind=Serial()) for loop in nest.own if self._is_of(loop, target)]

    def _is_of(self, loop: Forall, target: Access) -> bool:
        """Whether iterations of a loop write disjoint entries of the target."""
        names = set(index_names(target))
        return loop.index in names or Provenance(self.program.relations).roots(loop.index) <= names

    def _temporary(self, source: str, end: str, loops: list[Forall]) -> Access:
        """A temporary of a chunk for `source`, with an entry for each iteration of the loops."""
        name = source + end
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        indices = tuple(loop.index for loop in loops)
        self.temporaries.append(Temporary(name, indices, self.dtypes[source], "thread"))
        return Access(name, tuple(map(Index, indices)))
