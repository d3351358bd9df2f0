"""Random statements in index notation, in a given style.

In: a random generator and a `Style`. Out: one to three statements; tensors are called A, B, ... as they occur.
"""

from dataclasses import dataclass

import numpy as np

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Reduce, Stored
from sparsify.compiler.ir.node import find

SMOOTH = ("neg", "abs", "square", "relu", "exp", "tanh", "sigmoid", "sign", "silu")


@dataclass(frozen=True, slots=True)
class Style:
    """Distribution of random programs.

    Attributes:
        letters: index variables.
        ranks: distribution of the ranks of results.
        most: maximum rank of operands.
        parts: distribution of the number of modes of a factor.
        monoids: monoids of sums inside of expressions.
        assigned: monoids of reducing statements.
        most_statements: maximum number of statements.
        drawn: probability that an expression is dropped, or scaled, by random numbers.
    """

    letters: str = "ijklm"
    ranks: tuple[int, ...] = (0, 1, 1, 2, 2, 2, 3)
    most: int = 4
    parts: tuple[int, ...] = (1, 2, 2, 2, 3)
    monoids: tuple[str, ...] = ("sum", "sum", "sum", "sum", "max", "min")
    assigned: tuple[str, ...] = ("sum", "max", "min")
    most_statements: int = 3
    drawn: float = 0.0


PLAIN = Style()
RANKED = Style("ijklmn", (0, 1, 2, 3, 4, 4, 5, 6), 6, (1, 2, 3, 4, 5, 6))
SPARSE = Style(ranks=(1, 2, 2, 2, 3))
DRAWN = Style("ijkl", (1, 2, 2, 3), 3, drawn=0.4)
SHORT = Style("ijkl", (0, 1, 1, 2, 2), 3, most_statements=1)
# User's monoids: the number of largest or least magnitude, the one of two that is not their identity.
USERS = {
    "farthest": ("where(abs(x) > abs(y), x, where(abs(y) > abs(x), y, max(x, y)))", 0.0),
    "nearest": ("where(abs(x) < abs(y), x, where(abs(y) < abs(x), y, min(x, y)))", float("inf")),
}
REDUCED = Style(
    monoids=("sum", "prod", "min", "max", "or", "and", *USERS), assigned=("prod", "or", "and", *USERS)
)


class Writer:
    """Writes statements of a style."""

    def __init__(self, rng: np.random.Generator, style: Style) -> None:
        self.rng, self.style = rng, style
        self.ranks: dict[str, int] = {}
        self.results: dict[str, int] = {}

    def statements(self) -> tuple[Assign, ...]:
        """One to three statements; later ones may read earlier ones."""
        count = min(int(self.rng.choice([1, 1, 1, 2, 3])), self.style.most_statements)
        found: list[Assign] = []
        for number in range(count):
            rank = int(self.rng.choice(self.style.ranks))
            target = Access(
                f"Y{number}",
                tuple(Index(name) for name in self.pick(self.style.letters[: max(4, rank)], rank)),
            )
            found += self.statement(target)
            self.results[target.tensor] = rank
        return tuple(found)

    def statement(self, target: Access) -> list[Assign]:
        """One assignment, or one or two that reduce into one tensor."""
        names = tuple(index.name for index in target.indices if isinstance(index, Index))
        kind = self.rng.random()
        if kind < 0.12:
            monoid = str(self.rng.choice(self.style.assigned))
            more = self.pick(
                [name for name in self.style.letters if name not in names], int(self.rng.integers(0, 2))
            )
            return [
                Assign(target, monoid, self.covered((*names, *more), self.expression(1, (*names, *more))))
                for _ in range(int(self.rng.integers(1, 3)))
            ]
        depth = 1 if kind < 0.5 else 2 if kind < 0.9 else 3
        return [Assign(target, None, self.covered(names, self.expression(depth, names)))]

    def covered(self, names: tuple[str, ...], expr: Expr) -> Expr:
        """`expr` with further factors or terms for its missing index variables: each loop needs an extent."""
        read = {name for access in find(expr, Access) for name in free_indices(access)}
        missing = tuple(name for name in names if name not in read)
        if not missing:
            return expr
        more = Call(str(self.rng.choice(["mul", "mul", "add"])), (expr, self.access(missing)))
        return self.covered(names, more)

    def expression(self, depth: int, names: tuple[str, ...]) -> Expr:
        """Any expression over the index variables `names`."""
        if self.style.drawn and names and self.rng.random() < self.style.drawn:
            return self.dropped(names)
        if depth == 0:
            return self.leaf(names)
        match self.rng.random():
            case x if x < 0.35:
                return self.reduction(depth, names)
            case x if x < 0.55:
                return Call("mul", (self.expression(depth - 1, names), self.expression(depth - 1, names)))
            case x if x < 0.75:
                function = str(self.rng.choice(["add", "add", "sub", "max", "min"]))
                return Call(function, (self.expression(depth - 1, names), self.expression(depth - 1, names)))
            case x if x < 0.88:
                return Call(str(self.rng.choice(SMOOTH)), (self.expression(depth - 1, names),))
            case x if x < 0.95 and names:
                guard = self.access(names)
                if guard.tensor not in self.results:
                    no = self.number() if self.rng.random() < 0.5 else self.expression(depth - 1, names)
                    return Call("where", (Stored(guard), self.expression(depth - 1, names), no))
        return self.leaf(names)

    def dropped(self, names: tuple[str, ...]) -> Expr:
        """An entry scaled by a random number of its coordinates, or replaced by 0 at random."""
        row, column = (Index(str(name)) for name in self.rng.choice(names, 2))
        seed = Const(int(self.rng.integers(-(2**53), 2**53)))  # which a float holds, too
        number, entry = Call("uniform", (seed, row, column)), self.access(names)
        if self.rng.random() < 0.5:
            return Call("mul", (entry, number))
        return Call("where", (Call("lt", (number, Const(0.5))), Const(0), entry))

    def reduction(self, depth: int, names: tuple[str, ...]) -> Expr:
        """A product or another expression reduced over one or two more index variables."""
        more = self.pick(
            [name for name in self.style.letters if name not in names], int(self.rng.choice([1, 1, 2]))
        )
        if not more:
            return self.leaf(names)
        inside = (*names, *more)
        if self.rng.random() < 0.6:
            parts = [self.access(self.part(inside)) for _ in range(int(self.rng.integers(1, 4)))]
            body: Expr = parts[0]
            for part in parts[1:]:
                body = Call("mul", (body, part))
        else:
            body = self.expression(depth - 1, inside)
        monoid = str(self.rng.choice(self.style.monoids))
        return Reduce(monoid, more, self.covered(more, body))

    def leaf(self, names: tuple[str, ...]) -> Expr:
        return self.number() if self.rng.random() < 0.08 else self.access(names)

    def number(self) -> Const:
        return Const(float(self.rng.choice([0.0, 0.0, 1.0, 0.5, -2.0])))

    def access(self, names: tuple[str, ...]) -> Access:
        """Access with given index variables in random order, to a new or an existing tensor."""
        order = self.pick(names, len(names))
        order = order[: self.style.most]
        if order and len(order) < self.style.most and self.rng.random() < 0.04:
            # One mode more, that is read along the diagonal.
            order = (*order, str(self.rng.choice(order)))
        known = [name for name, rank in {**self.ranks, **self.results}.items() if rank == len(order)]
        if known and self.rng.random() < 0.3:
            return Access(str(self.rng.choice(known)), tuple(map(Index, order)))
        name = "ABCDEFGHPQRSTUVWX"[len(self.ranks)] if len(self.ranks) < 17 else f"A{len(self.ranks)}"
        self.ranks[name] = len(order)
        return Access(name, tuple(map(Index, order)))

    def part(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Some of the index variables, most of the time two."""
        count = min(len(names), int(self.rng.choice(self.style.parts)))
        return self.pick(names, count)

    def pick(self, names: "tuple[str, ...] | list[str] | str", count: int) -> tuple[str, ...]:
        """`count` of the names in any order."""
        count = min(count, len(names))
        return tuple(str(name) for name in self.rng.permutation(list(names))[:count]) if count else ()
