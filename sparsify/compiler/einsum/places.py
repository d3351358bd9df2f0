"""Places of extrema as reductions of places.

In: `I[i] = argmax(j, X[i,j])`, X dense. Out, where `extent(j)` is no place:

    m[i] = max(j, X[i,j])
    I[i] = min(j, where(logical_or(X[i,j] == m[i], X[i,j] != X[i,j]), j, extent(j)))

The first of equal entries counts, and the first NaN before all others, as in torch. Entries that are not stored take
part with the fill f: the first of them is at 0, or behind a stored one,

    s[i] = min(j, where(stored(X[i,j]), where(logical_or(X[i,j] == m[i], X[i,j] != X[i,j]), j, inf), inf))
    u[i] = min(where(stored(X[i,0]), inf, 0), min(j, where(stored(X[i,j]), where(stored(X[i,j+1]), inf, j + 1), inf)))
    I[i] = int64(min(s[i], where(m[i] == f, u[i], inf)))

with places as float64, which have an identity of min, so that loops visit stored entries alone. What is compared is
stored: sums and products that are computed twice may differ in their last place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Final, cast

from sparsify.compiler.dtypes import BOOL, INTEGER, category
from sparsify.compiler.einsum.monoids import PLACES
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Declaration,
    Expr,
    Extent,
    Index,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.einsum.sums import free_indices
from sparsify.compiler.node import Node, find, map_children

PLACE: Final = "float64"
NOWHERE: Final = Const(inf)
Change = Callable[[Reduce], Expr]


def has_places(statements: Sequence[Assign]) -> bool:
    """Whether statements ask for places of extrema."""
    return any(node.monoid in PLACES for s in statements for node in find(s.value, Reduce))


def name_entries(statements: Sequence[Assign], taken: Sequence[str]) -> tuple[Assign, ...]:
    """`argmax(j, f(X[i,j])) -> argmax(j, T[i,j])`, with a statement for T before.

    Args:
        taken: names of tensors.
    """
    rule = _Apart({*taken, *_names(statements)})
    return rule.over(statements, rule.named)


def expand_places(statements: Sequence[Assign], declarations: Mapping[str, Declaration]) -> tuple[Assign, ...]:
    """`argmax(j, T[i,j])` as a reduction of places, with a statement for the extremum before.

    Args:
        statements: those of `name_entries`.
        declarations: of all tensors; those that store their fill nowhere are dense.
    """
    rule = _Apart({*declarations, *_names(statements)}, declarations)
    return rule.over(statements, rule.expanded)


def _names(statements: Sequence[Assign]) -> set[str]:
    """The names of results and index variables."""
    return {s.target.tensor for s in statements} | set(all_indices(statements))


@dataclass(slots=True)
class _Apart:
    """Statements with others before them, as they are found.

    Attributes:
        taken: names of tensors and index variables.
    """

    taken: set[str]
    declarations: Mapping[str, Declaration] = field(default_factory=dict)
    before: list[Assign] = field(default_factory=list)

    def over(self, statements: Sequence[Assign], change: Change) -> tuple[Assign, ...]:
        """All statements, with `change` applied to the places in them, the innermost first."""

        def visit(node: Node) -> Node:
            node = map_children(node, visit)
            return change(node) if isinstance(node, Reduce) and node.monoid in PLACES else node

        for statement in statements:
            self.before.append(cast(Assign, visit(statement)))
        return tuple(self.before)

    def named(self, node: Reduce) -> Reduce:
        """`argmax(j, T[i,j])` of entries that have a name."""
        if isinstance(node.body, Access) and _is_plain(node.body):
            return node
        return Reduce(node.monoid, node.indices, self.assign("v", node.body))

    def assign(self, name: str, value: Expr) -> Access:
        """A statement of its own; the access to it."""
        name = fresh(name, self.taken)
        self.taken.add(name)
        target = Access(name, tuple(map(Index, free_indices(value))))
        self.before.append(Assign(target, None, value))
        return target

    def expanded(self, node: Reduce) -> Expr:
        """The place as a reduction."""
        entries, (index,) = cast(Access, node.body), node.indices
        declared = self.declarations[entries.tensor]
        best = self.extremum(Reduce(PLACES[node.monoid], node.indices, entries))
        is_best = Call("logical_or", (Call("eq", (entries, best)), Call("ne", (entries, entries))))
        end = Extent(declared.extents[entries.indices.index(Index(index))])
        if declared.format.is_dense:
            place = Reduce("min", (index,), Call("where", (is_best, Index(index), end)))
            return Call("min", (place, end))
        stored = _first(index, entries, is_best, Cast(PLACE, Index(index)))
        unstored = Call("where", (_is_fill(best, declared), _first_unstored(index, entries), NOWHERE))
        first = Call("min", (Call("min", (stored, unstored)), Cast(PLACE, end)))
        return Cast("int64", first)

    def extremum(self, value: Reduce) -> Access:
        """The extremum, of the statement before that computes it if there is one."""
        free = free_indices(value)
        for statement in self.before:
            names = [index.name for index in statement.target.indices if isinstance(index, Index)]
            found = statement.value
            if statement.monoid is None and isinstance(found, Reduce) and found.monoid == value.monoid:
                known = dict(zip((*names, *found.indices), (*free, *value.indices), strict=False))
                same = len(names) == len(free) and rename_indices(found, known) == value
                if same:
                    return Access(statement.target.tensor, tuple(map(Index, free)))
        return self.assign("m", value)


def _first(index: str, entries: Access, condition: Expr, place: Expr) -> Reduce:
    """`min(j, where(stored(T[i,j]), where(condition, place, inf), inf))`."""
    found = Call("where", (condition, place, NOWHERE))
    return Reduce("min", (index,), Call("where", (Stored(entries), found, NOWHERE)))


def _first_unstored(index: str, entries: Access) -> Expr:
    """The first coordinate where a tensor is not stored, its extent where there is none."""

    def at(other: Expr) -> Stored:
        return Stored(Access(entries.tensor, tuple(other if i == Index(index) else i for i in entries.indices)))

    begin = Call("where", (at(Const(0)), NOWHERE, Const(0.0)))
    after = Call("add", (Index(index), Const(1)))
    is_last = Call("logical_not", (at(after),))
    return Call("min", (begin, _first(index, entries, is_last, Cast(PLACE, after))))


def _is_fill(best: Expr, declared: Declaration) -> Expr:
    """Whether an entry that is not stored has the best value."""
    if isnan(declared.fill):
        return Const(True)
    kind = category(declared.dtype)
    fill = bool(declared.fill) if kind == BOOL else int(declared.fill) if kind == INTEGER else declared.fill
    return Call("eq", (best, Const(fill)))


def _is_plain(access: Access) -> bool:
    """Whether every index is an index variable, and each another one."""
    return all(isinstance(i, Index) for i in access.indices) and len(set(access.indices)) == len(access.indices)
