"""Covers: sets of stored entries outside which an expression equals its fill.

In: `A[i,j] * B[j,k] + C[i,k]`, A, B and C sparse. Out: the sets `{A, B}` and `{C}`, and the fill 0.

A cover is conservative: it may contain points with a fill entry, but contains all points without one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from sparsify.compiler.einsum.infer.dtype import kind_of
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Reduce, Stored
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.reference.grid import Grid, apply, in_dtype, number
from sparsify.storage.fill import decided

Leaf = Access | Reduce
# A union of intersections: the points at which all leaves of some set are stored.
Sets = tuple[frozenset[Leaf], ...]
# Most sets of a cover: intersections of unions multiply.
MOST_SETS: Final = 8


@dataclass(frozen=True, slots=True)
class Cover:
    """The cover of an expression, and the value of the expression elsewhere.

    Attributes:
        sets: union of intersections of leaves; `None`: all points.
        grid: value elsewhere, a fill entry without axes; for a number the number; `None`: unknown.
    """

    sets: Sets | None
    grid: Grid | None

    @property
    def is_number(self) -> bool:
        """Whether the expression is a number."""
        return self.grid is not None and self.grid.is_number


EVERYTHING: Final = Cover(None, None)


def cover(expr: Expr, of_leaf: Callable[[Leaf], Grid | None], kinds: Mapping[str, Kind]) -> Cover:
    """The cover of an expression.

    Args:
        of_leaf: function from a sparse access or a reduction to its fill; `None` for a dense leaf.
        kinds: kinds of the tensors by name.
    """
    match expr:
        case Const(value):
            return Cover((), number(value, kind_of(expr, {})))
        case Access() | Reduce():
            fill = of_leaf(expr)
            return EVERYTHING if fill is None else Cover((frozenset([expr]),), fill)
        case Stored(access):
            is_sparse = of_leaf(access) is not None
            return (
                _filled((frozenset([access]),), torch.tensor(False), expr, kinds) if is_sparse else EVERYTHING
            )
        case Cast(_, value):
            found = cover(value, of_leaf, kinds)
            return EVERYTHING if found.grid is None else _filled(found.sets, found.grid.values, expr, kinds)
        case Call(function, args):
            covers = [cover(arg, of_leaf, kinds) for arg in args]
            if all(arg.is_number for arg in covers) and function != "where":
                return Cover((), apply(function, [arg.grid for arg in covers if arg.grid is not None]))
            sets, fixed = _of_choice(*covers) if function == "where" else _of_call(function, covers)
            return EVERYTHING if fixed is None else _filled(sets, fixed, expr, kinds)
    return EVERYTHING


def _filled(sets: Sets | None, value: torch.Tensor, expr: Expr, kinds: Mapping[str, Kind]) -> Cover:
    kind = kind_of(expr, kinds)
    return Cover(sets, Grid(in_dtype(value, kind), torch.tensor(True), kind))


def _of_call(function: str, args: list[Cover]) -> tuple[Sets | None, torch.Tensor | None]:
    """The cover of a call, and its value elsewhere: arguments whose fill decides the result, otherwise all."""
    deciding = []
    for place, arg in enumerate(args):
        if arg.grid is None or arg.is_number:
            continue
        hit, value = decided(function, place, arg.grid.values)
        if bool(hit):
            deciding.append((arg.sets, torch.as_tensor(value)))
    agree = bool(deciding) and all(bool(value == deciding[0][1]) for _, value in deciding)
    if agree:
        return _intersection([sets for sets, _ in deciding]), deciding[0][1]
    if any(arg.grid is None for arg in args):
        return None, None
    result = apply(function, [arg.grid for arg in args if arg.grid is not None])
    return _union([arg.sets for arg in args]), result.values


def _of_choice(condition: Cover, yes: Cover, no: Cover) -> tuple[Sets | None, torch.Tensor | None]:
    """The cover of `where`: the condition and the branch selected by its fill, or both branches for equal fills."""
    if condition.grid is not None:
        chosen = yes if bool(condition.grid.values != 0) else no
        if chosen.grid is not None:
            return _union([condition.sets, chosen.sets]), chosen.grid.values
    if yes.grid is None or no.grid is None or (yes.is_number and no.is_number):
        return None, None
    if bool(yes.grid.values != no.grid.values):
        return None, None
    return _union([yes.sets, no.sets]), yes.grid.values


def _union(parts: list[Sets | None]) -> Sets | None:
    """The union of covers."""
    found: list[frozenset[Leaf]] = []
    for sets in parts:
        if sets is None:
            return None
        found += sets
    return _smallest(found)


def _intersection(parts: list[Sets | None]) -> Sets | None:
    """The intersection of covers, distributed over their sets; skips covers with too many sets."""
    found: list[frozenset[Leaf]] | None = None
    for sets in sorted((sets for sets in parts if sets is not None), key=len):
        if found is None:
            found = list(sets)
        elif len(found) * len(sets) <= MOST_SETS:
            found = [one | other for one in found for other in sets]
    return None if found is None else _smallest(found)


def _smallest(sets: list[frozenset[Leaf]]) -> Sets | None:
    """Distinct sets without proper supersets of other sets; `None` for too many."""
    distinct = list(dict.fromkeys(sets))
    kept = tuple(s for s in distinct if not any(other < s for other in distinct))
    return kept if len(kept) <= MOST_SETS else None
