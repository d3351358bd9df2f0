"""Sparsity inference of expressions: by fills, annihilators and the patterns of operands.

In: `A[i,j] * sum(k, Q[i,k] * K[j,k])`, A in CSR. Out: the fill 0, i dense and j compressed, the pattern of A.

Source: Henry et al., Compilation of Sparse Array Programming Models, 2021 (fills and annihilators).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, isnan

import numpy as np

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.shared_pattern import root_access
from sparsify.compiler.einsum.monoids import MONOIDS, PLACES
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Declaration, Expr, Reduce, Stored
from sparsify.compiler.einsum.values import Grid, annihilated, apply, choose
from sparsify.storage.fill import is_kept


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The sparsity of an expression.

    Attributes:
        fill: value at unstored coordinates, `None` for a dense expression.
        is_number: whether the expression consists of numbers only.
        compressed: for each index variable of a sparse operand whether its level is compressed.
        pattern: owner of the expression's pattern, and the index variables at its modes.
    """

    fill: float | int | bool | None = None
    is_number: bool = False
    compressed: tuple[tuple[str, bool], ...] = ()
    pattern: tuple[str, tuple[Expr, ...]] | None = None

    def grid(self) -> Grid:
        """A single unstored entry, for the rules of fill entries."""
        value = 0.5 if self.fill is None else self.fill
        return Grid(
            np.asarray(value), np.asarray(self.fill is not None and not self.is_number), self.is_number
        )


DENSE = Sparsity()


def infer_sparsity(
    expr: Expr, declarations: Mapping[str, Declaration], empty: Collection[str] = ()
) -> Sparsity:
    """The sparsity of an expression: fill, levels and pattern.

    Args:
        empty: index variables known to have extent 0.
    """
    match expr:
        case Const(value):
            return Sparsity(value, is_number=True)
        case Access(tensor, indices):
            return _of_tensor(declarations[tensor], indices, declarations)
        case Stored(access):
            sparsity = _of_tensor(declarations[access.tensor], access.indices, declarations)
            return sparsity if sparsity.fill is None else replace(sparsity, fill=False)
        case Reduce(monoid, indices, body):
            return of_reduction(monoid, indices, infer_sparsity(body, declarations, empty), empty)
        case Cast(_, value):
            return infer_sparsity(value, declarations, empty)
        case Call(function, args):
            return of_call(function, [infer_sparsity(arg, declarations, empty) for arg in args])
    return DENSE


def _of_tensor(
    declared: Declaration, indices: Sequence[Expr], declarations: Mapping[str, Declaration]
) -> Sparsity:
    """The sparsity of an access."""
    if declared.format.is_dense:
        return DENSE
    compressed: dict[str, bool] = {}
    for stored in declared.format.levels:
        for name in free_indices(indices[stored.expression.mode]):
            compressed[name] = compressed.get(name, False) or not stored.level.is_full
    place = Access(declared.pattern_of or declared.name, tuple(indices))
    if (root := declarations.get(place.tensor)) is not None:
        place = root_access(declared, root, place)
    return Sparsity(declared.fill, False, tuple(compressed.items()), (place.tensor, place.indices))


def of_call(function: str, args: list[Sparsity]) -> Sparsity:
    """The sparsity of a call: the intersection of its annihilating arguments, or the union of all without any."""
    if FUNCTIONS[function].is_random:
        return DENSE
    grids = [arg.grid() for arg in args]
    if FUNCTIONS[function].of_integers:
        grids = [grid.cast(FUNCTIONS[function].operands) for grid in grids]
    with np.errstate(all="ignore"):
        result = choose(*grids) if function == "where" else apply(function, grids)
    fill = result.values.item()
    if result.is_number:
        return Sparsity(fill, is_number=True)
    if not result.is_fill or isnan(fill):
        return DENSE
    places, union = deciding(function, args)
    parts = [args[place] for place in places]
    return Sparsity(fill, False, _combine(parts, union), _common_pattern(parts))


def deciding(function: str, args: Sequence[Sparsity]) -> tuple[list[int], bool]:
    """The indices of the arguments that decide the stored coordinates of a call, and whether they form a union."""
    sparse = [place for place, arg in enumerate(args) if arg.fill is not None and not arg.is_number]
    if function == "where":
        if 0 in sparse or args[0].is_number:
            chosen = 1 if args[0].fill else 2
            return [place for place in (0, chosen) if place in sparse], True
        return [place for place in (1, 2) if place in sparse], True
    hits = [place for place, arg in enumerate(args) if bool(annihilated(function, place, arg.grid())[0])]
    return (hits, False) if hits else (sparse, True)


def _combine(parts: Sequence[Sparsity], union: bool) -> tuple[tuple[str, bool], ...]:
    """For each index variable whether the level is compressed: in all terms of a union, in one factor otherwise."""
    result: dict[str, bool] = {}
    for part in parts:
        for name, compressed in part.compressed:
            before = result.get(name, union)
            result[name] = (before and compressed) if union else (before or compressed)
    return tuple(result.items())


def _common_pattern(parts: Sequence[Sparsity]) -> tuple[str, tuple[Expr, ...]] | None:
    """The common pattern of all parts, if any."""
    patterns = {part.pattern for part in parts}
    return patterns.pop() if len(patterns) == 1 else None


def of_reduction(monoid: str, indices: Sequence[str], body: Sparsity, empty: Collection[str]) -> Sparsity:
    """The sparsity of a reduction: dense if the number of unstored entries changes the value.

    An empty reduction is the identity: `max(m, A[i] * B[m])` of an empty B is -inf for each i, for integers the
    minimum.
    """
    if body.is_number or body.fill is None or monoid in PLACES:
        return DENSE
    fill = body.fill if set(indices).isdisjoint(empty) else MONOIDS[monoid].neutral
    if not is_kept(monoid, body.fill) or (fill != body.fill and isinf(fill)):
        return DENSE
    compressed = tuple(item for item in body.compressed if item[0] not in indices)
    # A sum over index variables outside the pattern keeps the pattern.
    pattern = body.pattern
    if pattern is not None and any(name in indices for index in pattern[1] for name in free_indices(index)):
        pattern = None
    return Sparsity(fill, False, compressed, pattern)
