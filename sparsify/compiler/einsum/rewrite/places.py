"""Places of extrema as reductions of places.

In: `I[i] = argmax(j, X[i,j])`, X dense. Out, where `extent(j)` is no place:

    m[i] = max(j, X[i,j])
    I[i] = min(j, where(logical_or(X[i,j] == m[i], X[i,j] != X[i,j]), j, extent(j)))

The first of equal entries counts, and the first NaN before all others, as in torch. Entries that are not stored take
part with the fill f: the first of them, u, is at 0 or behind a stored one. With m the extremum of stored entries alone,

    s[i] = min(j, where(stored(X[i,j]), where(logical_or(X[i,j] == m[i], X[i,j] != X[i,j]), j, inf), inf))
    u[i] = min(where(stored(X[i,0]), inf, 0), min(j, where(stored(X[i,j]), where(stored(X[i,j+1]), inf, j + 1), inf)))
    I[i] = int64(where(f > m[i], where(u[i] < extent(j), u[i], s[i]), where(f == m[i], min(s[i], u[i]), s[i])))

with places as float64, which have an identity of min, so that loops visit stored entries alone. What is compared is
stored: sums and products that are computed twice may differ in their last place.
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
    """Whether statements ask for places of extrema."""
    return any(node.monoid in PLACES for s in statements for node in find(s.value, Reduce))


def name_entries(statements: Sequence[Assign], taken: Sequence[str]) -> tuple[Assign, ...]:
    """`argmax(j, f(X[i,j])) -> argmax(j, T[i,j])`, with a statement for T before.

    Args:
        taken: names of tensors.
    """
    rule = _Apart({*taken, *_names(statements)})
    return rule.over(statements, rule.named)


def expand_places(
    statements: Sequence[Assign], declarations: Mapping[str, Declaration]
) -> tuple[Assign, ...]:
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


def _is_best(entries: Access, best: Access) -> Expr:
    """Whether an entry is the extremum, or NaN."""
    return Call("logical_or", (Call("eq", (entries, best)), Call("ne", (entries, entries))))


def _first(index: str, entries: Access, condition: Expr, place: Expr) -> Reduce:
    """`min(j, where(stored(T[i,j]), where(condition, place, inf), inf))`."""
    found = Call("where", (condition, place, NOWHERE))
    return Reduce("min", (index,), Call("where", (Stored(entries), found, NOWHERE)))


def _first_unstored(index: str, entries: Access) -> Expr:
    """The first coordinate where a tensor is not stored, its extent where there is none."""

    def at(other: Expr) -> Stored:
        return Stored(
            Access(entries.tensor, tuple(other if i == Index(index) else i for i in entries.indices))
        )

    begin = Call("where", (at(Const(0)), NOWHERE, Const(0.0)))
    after = Call("add", (Index(index), Const(1)))
    is_last = Call("logical_not", (at(after),))
    return Call("min", (begin, _first(index, entries, is_last, Cast(PLACE, after))))


def _fill_against(best: Expr, declared: Declaration, monoid: str) -> tuple[Expr, Expr]:
    """Whether entries that are not stored are as good as the best stored one, and whether they are better."""
    if isnan(declared.fill):
        return Call("ne", (best, best)), Call("eq", (best, best))
    kind = category(declared.dtype)
    fill = bool(declared.fill) if kind == BOOL else int(declared.fill) if kind == INTEGER else declared.fill
    return Call("eq", (best, Const(fill))), Call("lt" if monoid == "max" else "gt", (best, Const(fill)))


def _is_plain(access: Access) -> bool:
    """Whether every index is an index variable, and each another one."""
    return all(isinstance(i, Index) for i in access.indices) and len(set(access.indices)) == len(
        access.indices
    )
