"""Positions of extrema as reductions of coordinates.

In: `I[i] = argmax(j, X[i,j])`, X dense. Out, with `extent(j)` for no position:

    m[i] = max(j, X[i,j])
    I[i] = min(j, where(logical_or(X[i,j] == m[i], X[i,j] != X[i,j]), j, extent(j)))

Ties keep the first entry, and the first NaN precedes all others, as in torch. Unstored entries take part with the fill
f: the first of them, u, is at 0 or follows a stored one. With m the extremum of stored entries only,

    s[i] = min(j, where(stored(X[i,j]), where(logical_or(X[i,j] == m[i], X[i,j] != X[i,j]), j, inf), inf))
    u[i] = min(where(stored(X[i,0]), inf, 0), min(j, where(stored(X[i,j]), where(stored(X[i,j+1]), inf, j + 1), inf)))
    I[i] = int64(where(f > m[i], where(u[i] < extent(j), u[i], s[i]), where(f == m[i], min(s[i], u[i]), s[i])))

with positions as float64, which has an identity of min, so that loops visit stored entries only. The compared values
are stored in a temporary: sums and products computed twice may differ in the last digit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Final, cast

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.monoids import MONOIDS, PLACES
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
from sparsify.compiler.ir.dtypes import BOOL, INTEGER, category
from sparsify.compiler.ir.node import Node, find, map_children

PLACE: Final = "float64"
NOWHERE: Final = Const(inf)
Change = Callable[[Reduce], Expr]


def has_places(statements: Sequence[Assign]) -> bool:
    """Whether statements contain an argmax or argmin."""
    return any(node.monoid in PLACES for s in statements for node in find(s.value, Reduce))


def name_entries(statements: Sequence[Assign], taken: Sequence[str]) -> tuple[Assign, ...]:
    """`argmax(j, f(X[i,j])) -> argmax(j, T[i,j])`, preceded by a statement for T.

    Args:
        taken: names of tensors.
    """
    rule = _Apart({*taken, *_names(statements)})
    return rule.over(statements, rule.named)


def expand_places(
    statements: Sequence[Assign], declarations: Mapping[str, Declaration]
) -> tuple[Assign, ...]:
    """`argmax(j, T[i,j])` as a reduction of coordinates, preceded by a statement for the extremum.

    Args:
        statements: result of `name_entries`.
        declarations: declarations of all tensors; a tensor without unstored entries is dense.
    """
    rule = _Apart({*declarations, *_names(statements)}, declarations)
    return rule.over(statements, rule.expanded)


def _names(statements: Sequence[Assign]) -> set[str]:
    """The names of results and index variables."""
    return {s.target.tensor for s in statements} | set(all_indices(statements))


@dataclass(slots=True)
class _Apart:
    """Statements with preceding new ones, in order of creation.

    Attributes:
        taken: names of tensors and index variables.
    """

    taken: set[str]
    declarations: Mapping[str, Declaration] = field(default_factory=dict)
    before: list[Assign] = field(default_factory=list)

    def over(self, statements: Sequence[Assign], change: Change) -> tuple[Assign, ...]:
        """All statements, with `change` applied to each argmax and argmin, innermost first."""

        def visit(node: Node) -> Node:
            node = map_children(node, visit)
            return change(node) if isinstance(node, Reduce) and node.monoid in PLACES else node

        for statement in statements:
            self.before.append(cast(Assign, visit(statement)))
        return tuple(self.before)

    def named(self, node: Reduce) -> Reduce:
        """`argmax(j, T[i,j])` of a named tensor."""
        if isinstance(node.body, Access) and _is_plain(node.body):
            return node
        return Reduce(node.monoid, node.indices, self.assign("v", node.body))

    def assign(self, name: str, value: Expr) -> Access:
        """Adds a statement; returns the access to its target."""
        name = fresh(name, self.taken)
        self.taken.add(name)
        target = Access(name, tuple(map(Index, free_indices(value))))
        self.before.append(Assign(target, None, value))
        return target

    def expanded(self, node: Reduce) -> Expr:
        """The position as a reduction."""
        entries, (index,) = cast(Access, node.body), node.indices
        declared = self.declarations[entries.tensor]
        end: Expr = Extent(declared.extents[entries.indices.index(Index(index))])
        monoid = PLACES[node.monoid]
        if declared.format.is_dense:
            best = self.extremum(Reduce(monoid, (index,), entries))
            place = Reduce("min", (index,), Call("where", (_is_best(entries, best), Index(index), end)))
            return Call("min", (place, end))
        nothing = Const(MONOIDS[monoid].identity(declared.dtype))
        best = self.assign("m", Reduce(monoid, (index,), Call("where", (Stored(entries), entries, nothing))))
        end = Cast(PLACE, end)
        stored = self.assign("s", _first(index, entries, _is_best(entries, best), Cast(PLACE, Index(index))))
        unstored = self.assign("u", _first_unstored(index, entries))
        is_fill, is_beyond = _fill_against(best, declared, monoid)
        fills = Call("where", (Call("lt", (unstored, end)), unstored, stored))
        ties = Call("where", (is_fill, Call("min", (stored, unstored)), stored))
        return Cast("int64", Call("min", (Call("where", (is_beyond, fills, ties)), end)))

    def extremum(self, value: Reduce) -> Access:
        """The extremum, from an equal earlier statement if any."""
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


def _is_best(entries: Access, best: Access) -> Expr:
    """Whether an entry is the extremum, or NaN."""
    return Call("logical_or", (Call("eq", (entries, best)), Call("ne", (entries, entries))))


def _first(index: str, entries: Access, condition: Expr, place: Expr) -> Reduce:
    """`min(j, where(stored(T[i,j]), where(condition, place, inf), inf))`."""
    found = Call("where", (condition, place, NOWHERE))
    return Reduce("min", (index,), Call("where", (Stored(entries), found, NOWHERE)))


def _first_unstored(index: str, entries: Access) -> Expr:
    """The first unstored coordinate of a tensor; the extent if all are stored."""

    def at(other: Expr) -> Stored:
        return Stored(
            Access(entries.tensor, tuple(other if i == Index(index) else i for i in entries.indices))
        )

    begin = Call("where", (at(Const(0)), NOWHERE, Const(0.0)))
    after = Call("add", (Index(index), Const(1)))
    is_last = Call("logical_not", (at(after),))
    return Call("min", (begin, _first(index, entries, is_last, Cast(PLACE, after))))


def _fill_against(best: Expr, declared: Declaration, monoid: str) -> tuple[Expr, Expr]:
    """Whether unstored entries tie with the best stored one, and whether they beat it."""
    if isnan(declared.fill):
        return Call("ne", (best, best)), Call("eq", (best, best))
    kind = category(declared.dtype)
    fill = bool(declared.fill) if kind == BOOL else int(declared.fill) if kind == INTEGER else declared.fill
    return Call("eq", (best, Const(fill))), Call("lt" if monoid == "max" else "gt", (best, Const(fill)))


def _is_plain(access: Access) -> bool:
    """Whether all indices are distinct index variables."""
    return all(isinstance(i, Index) for i in access.indices) and len(set(access.indices)) == len(
        access.indices
    )
