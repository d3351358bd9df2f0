"""Formats, fills, patterns and dtypes of the results of a program.

In: `S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])` with A in CSR, Q and K dense.
Out: S in CSR, on the pattern of A.

Per index variable the levels combine by Scorch's rule: a product is compressed where a factor that
annihilates is, a sum is dense where a term is. A result is dense, too, when no constant stands in its
unstored entries, and when it has a dense operand and fewer than two modes from sparse operands: SpMM, SpMV
and MTTKRP give dense results, SDDMM, SpGEMM and TTM sparse ones. Where the rule leaves two or more modes of sparse
operands without a compressed level (`A[i,j] * B[k,j]`, both compressed by row), the inner one is compressed, unless
one operand has a place for each entry of the result anyway.

Source: Yan et al., Scorch, 2024, Algorithm 4.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, isnan

import numpy as np

from sparsify.compiler.einsum.extents import mode_extents
from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer_dtype import infer_dtype
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Declaration,
    Expr,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.sums import free_indices
from sparsify.compiler.einsum.values import Grid, annihilated, apply, choose
from sparsify.compiler.node import find
from sparsify.storage.fill import is_kept
from sparsify.storage.format import Format


@dataclass(frozen=True, slots=True)
class Sparsity:
    """Where an expression is its fill.

    Attributes:
        fill: the value where it is not stored, `None` when it is dense.
        is_number: whether it is made of numbers alone.
        compressed: per index variable of a sparse operand whether its level is compressed.
        pattern: the tensor whose pattern it has and the index variables at its modes.
    """

    fill: float | int | bool | None = None
    is_number: bool = False
    compressed: tuple[tuple[str, bool], ...] = ()
    pattern: tuple[str, tuple[Expr, ...]] | None = None

    def grid(self) -> Grid:
        """A single entry where nothing is stored, for the rules of fill entries."""
        value = 0.5 if self.fill is None else self.fill
        return Grid(
            np.asarray(value), np.asarray(self.fill is not None and not self.is_number), self.is_number
        )


DENSE = Sparsity()


def infer_format(program: Program) -> Program:
    """`program` with a declaration for each result that has none; those that exist are kept."""
    statements = program.statements
    known = {declared.name: declared for declared in program.declarations}
    ranks = {name: len(declared.extents) for name, declared in known.items()}
    ranks |= {statement.target.tensor: len(statement.target.indices) for statement in statements}
    extents = mode_extents(statements, ranks)
    names = _declared_names(program.declarations, extents)
    empty = {name for name, size in program.extents if size == 0}
    for name in dict.fromkeys(statement.target.tensor for statement in statements):
        if name not in known:
            group = [statement for statement in statements if statement.target.tensor == name]
            modes = tuple(names.get(extent, extent) for extent in extents[name])
            known[name] = declare_result(group, modes, known, empty)
    return replace(program, declarations=tuple(known.values()))


def dense_format(rank: int) -> Format:
    """The format of a dense tensor."""
    return Format(", ".join(["dense"] * rank) or "scalar")


def infer_sparsity(
    expr: Expr, declarations: Mapping[str, Declaration], empty: Collection[str] = ()
) -> Sparsity:
    """Where an expression is its fill, and in which levels.

    Args:
        empty: the index variables that are known to have the extent 0.
    """
    match expr:
        case Const(value):
            return Sparsity(value, is_number=True)
        case Access(tensor, indices):
            return _of_tensor(declarations[tensor], indices)
        case Stored(access):
            sparsity = _of_tensor(declarations[access.tensor], access.indices)
            return sparsity if sparsity.fill is None else replace(sparsity, fill=False)
        case Reduce(monoid, indices, body):
            return _reduced(monoid, indices, infer_sparsity(body, declarations, empty), empty)
        case Cast(_, value):
            return infer_sparsity(value, declarations, empty)
        case Call(function, args):
            return _of_call(function, [infer_sparsity(arg, declarations, empty) for arg in args])
    return DENSE


def _of_tensor(declared: Declaration, indices: Sequence[Expr]) -> Sparsity:
    """The sparsity of an access."""
    if declared.format.is_dense:
        return DENSE
    compressed: dict[str, bool] = {}
    for stored in declared.format.levels:
        for name in free_indices(indices[stored.expression.mode]):
            compressed[name] = compressed.get(name, False) or not stored.level.is_full
    root = declared.pattern_of or declared.name
    return Sparsity(declared.fill, False, tuple(compressed.items()), (root, tuple(indices)))


def _of_call(function: str, args: list[Sparsity]) -> Sparsity:
    """The sparsity of a call: of its annihilating arguments together, or of all where none annihilates."""
    if FUNCTIONS[function].of_integers:
        return DENSE
    grids = [arg.grid() for arg in args]
    with np.errstate(all="ignore"):
        result = choose(*grids) if function == "where" else apply(function, grids)
    fill = result.values.item()
    if result.is_number:
        return Sparsity(fill, is_number=True)
    if not result.is_fill or isnan(fill):
        return DENSE
    sparse = [arg for arg in args if arg.fill is not None and not arg.is_number]
    if function == "where":
        if args[0] in sparse or args[0].is_number:
            chosen = args[1] if args[0].fill else args[2]
            deciding = [arg for arg in (args[0], chosen) if arg in sparse]
        else:
            deciding = [arg for arg in args[1:] if arg in sparse]
        union = True
    else:
        hits = [arg for n, arg in enumerate(args) if bool(annihilated(function, n, arg.grid())[0])]
        deciding, union = (hits, False) if hits else (sparse, True)
    return Sparsity(fill, False, _combine(deciding, union), _common_pattern(deciding))


def _combine(parts: Sequence[Sparsity], union: bool) -> tuple[tuple[str, bool], ...]:
    """Per index variable whether the level is compressed: in all terms of a union, in one factor else."""
    result: dict[str, bool] = {}
    for part in parts:
        for name, compressed in part.compressed:
            before = result.get(name, union)
            result[name] = (before and compressed) if union else (before or compressed)
    return tuple(result.items())


def _common_pattern(parts: Sequence[Sparsity]) -> tuple[str, tuple[Expr, ...]] | None:
    """The pattern that all parts have, if there is one."""
    patterns = {part.pattern for part in parts}
    return patterns.pop() if len(patterns) == 1 else None


def _reduced(monoid: str, indices: Sequence[str], body: Sparsity, empty: Collection[str]) -> Sparsity:
    """The sparsity of a reduction: dense when the number of unstored entries changes the value.

    Over nothing it is its identity: `max(m, A[i] * B[m])` of an empty B is -inf for each i, of integers their least.
    """
    if body.is_number or body.fill is None:
        return DENSE
    fill = body.fill if set(indices).isdisjoint(empty) else MONOIDS[monoid].neutral
    if not is_kept(monoid, body.fill) or (fill != body.fill and isinf(fill)):
        return DENSE
    compressed = tuple(item for item in body.compressed if item[0] not in indices)
    # A sum over other indices than those of the pattern leaves the pattern as it is.
    pattern = body.pattern
    if pattern is not None and any(name in indices for index in pattern[1] for name in free_indices(index)):
        pattern = None
    return Sparsity(fill, False, compressed, pattern)


def hangs_on_extents(program: Program) -> tuple[str, ...]:
    """The index variables of reductions that give another value than their fill where nothing is reduced."""
    declarations = {declared.name: declared for declared in program.declarations}
    found: list[tuple[str, tuple[str, ...], Expr]] = [
        (node.monoid, node.indices, node.body) for s in program.statements for node in find(s.value, Reduce)
    ]
    for s in program.statements:
        free = free_indices(s.target)
        reduced = tuple(name for name in free_indices(s.value) if name not in free)
        found += [(s.monoid, reduced, s.value)] if s.monoid is not None and reduced else []
    names = [
        indices
        for monoid, indices, body in found
        if infer_sparsity(body, declarations).fill not in (None, MONOIDS[monoid].neutral)
    ]
    return tuple(dict.fromkeys(name for indices in names for name in indices))


def declare_result(
    group: list[Assign],
    modes: tuple[str, ...],
    known: Mapping[str, Declaration],
    empty: Collection[str] = (),
) -> Declaration:
    """The declaration of a result that the statements of `group` assign.

    Args:
        modes: the index variables whose extents its modes have.
        known: the declarations of the tensors that are read.
        empty: the index variables that are known to have the extent 0.
    """
    target = group[0].target
    parts = []
    for statement in group:
        part = infer_sparsity(statement.value, known, empty)
        order = free_indices(statement.target)
        if statement.monoid is not None:
            reduced = tuple(name for name in free_indices(statement.value) if name not in order)
            part = _reduced(statement.monoid, reduced, part, empty) if reduced else part
        parts.append(part)
    if len(parts) == 1:
        total = parts[0]
    else:
        monoid = next(s.monoid for s in reversed(group) if s.monoid is not None)
        total = _of_call(MONOIDS[monoid].combine, parts[:2])
        for part in parts[2:]:
            total = _of_call(MONOIDS[monoid].combine, [total, part])
    dtype = infer_dtype(group, known)
    if dtype == "bool" and total.fill is not None:
        total = replace(total, fill=bool(total.fill))
    base = Declaration(target.tensor, modes, dense_format(len(modes)), dtype)
    return base if _is_dense(total, group, known) else _declare_sparse(base, target, total, group, known)


def _is_dense(sparsity: Sparsity, group: Iterable[Assign], known: Mapping[str, Declaration]) -> bool:
    """Whether a result of this sparsity is stored dense."""
    targets = free_indices(next(iter(group)).target)
    compressed = dict(sparsity.compressed)
    if sparsity.fill is None or sparsity.is_number:
        return True
    stored = [name for name in targets if name in compressed]
    sparse_modes = len(stored)
    read = [node for s in group for node in find(s.value, Access) if node.indices]
    if not any(compressed.get(name) for name in targets):
        return sparse_modes < 2 or any(_has_places(known[a.tensor], a.indices, stored) for a in read)
    return sparse_modes < 2 and any(known[access.tensor].format.is_dense for access in read)


def _has_places(declared: Declaration, indices: Sequence[Expr], names: Sequence[str]) -> bool:
    """Whether an operand has a place for every coordinate of these modes: then the result may have them too."""
    full = {name for name, is_compressed in _of_tensor(declared, indices).compressed if not is_compressed}
    return set(names) <= full


def _declare_sparse(
    base: Declaration,
    target: Access,
    sparsity: Sparsity,
    group: Sequence[Assign],
    known: Mapping[str, Declaration],
) -> Declaration:
    """The declaration of a sparse result: on a known pattern, or with levels of its own."""
    assert sparsity.fill is not None
    if sparsity.pattern is not None and sparsity.pattern[1] == target.indices:
        root = known[sparsity.pattern[0]]
        return replace(
            base, format=root.format, fill=sparsity.fill, index_dtypes=root.index_dtypes, pattern_of=root.name
        )
    names = [index.name for index in target.indices if isinstance(index, Index)]
    order = _level_order(names, group, known)
    compressed = dict(sparsity.compressed)
    kinds = _assembled(["compressed" if compressed.get(names[mode]) else "dense" for mode in order])
    ordering = tuple(order) if order != sorted(order) else None
    wide = _widest_index(group, known)
    dtypes = tuple((wide, wide) if kind == "compressed" else ("", "") for kind in kinds)
    return replace(
        base, format=Format(", ".join(kinds), ordering=ordering), fill=sparsity.fill, index_dtypes=dtypes
    )


def _assembled(kinds: list[str]) -> list[str]:
    """The levels that a result of unknown pattern gets: one compressed below dense ones, or all compressed.

    Dense levels below compressed ones would store each fill of theirs, and dense levels alone each fill there is.
    """
    if "compressed" not in kinds:
        kinds = [kinds[0], *["compressed"] * (len(kinds) - 1)]
    return kinds if "compressed" not in kinds[:-1] else ["compressed"] * len(kinds)


def _level_order(names: list[str], group: Iterable[Assign], known: Mapping[str, Declaration]) -> list[int]:
    """The modes of a result in an order that no sparse operand contradicts, else as they stand.

    An operand that stores k above j and one that stores i above k ask for i above j.
    """
    above: dict[str, set[str]] = {}
    for access in (n for s in group for n in find(s.value, Access)):
        declared = known[access.tensor]
        if declared.format.is_dense:
            continue
        seen: list[str] = []
        for stored in declared.format.levels:
            for name in free_indices(access.indices[stored.expression.mode]):
                above.setdefault(name, set()).update(n for n in seen if n != name)
                seen.append(name)
    for _ in above:
        for upper in above.values():
            upper |= {n for u in tuple(upper) for n in above.get(u, ())}
    order: list[int] = []
    while len(order) < len(names):
        left = [mode for mode in range(len(names)) if mode not in order]
        free = [m for m in left if not any(names[o] in above.get(names[m], ()) for o in left if o != m)]
        if not free:
            return list(range(len(names)))
        order.append(free[0])
    return order


def _widest_index(group: Iterable[Assign], known: Mapping[str, Declaration]) -> str:
    """The widest coordinate dtype among the operands, int64 when none says."""
    dtypes = {
        dtype
        for s in group
        for node in find(s.value, Access)
        for pair in known[node.tensor].index_dtypes
        for dtype in pair
    }
    return "int32" if "int32" in dtypes and "int64" not in dtypes else "int64"


def _declared_names(
    declarations: Iterable[Declaration], extents: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """For each extent that the accesses imply the name that a declaration gives it."""
    names: dict[str, str] = {}
    for declared in declarations:
        for implied, own in zip(extents[declared.name], declared.extents, strict=True):
            names.setdefault(implied, own)
    return names
