"""Inference of formats, fills, patterns and dtypes of the results of a program.

In: `S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])` with A in CSR, Q and K dense.
Out: S in CSR, on the pattern of A.

The levels of each index variable combine by Scorch's rule: a product is compressed if an annihilating factor is, a sum
is dense if a term is. A result is also dense if its unstored entries have no constant value, or if it has a dense
operand and fewer than two modes from sparse operands: SpMM, SpMV and MTTKRP give dense results, SDDMM, SpGEMM and TTM
sparse ones. If the rule leaves two or more modes of sparse operands without a compressed level (`A[i,j] * B[k,j]`, both
compressed by row), the inner one is compressed, unless one operand has a position for each entry of the result anyway.

Source: Yan et al., Scorch, 2024, Algorithm 4.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.density import expected_density
from sparsify.compiler.einsum.infer.dtype import infer_dtype
from sparsify.compiler.einsum.infer.extents import mode_extents
from sparsify.compiler.einsum.infer.shared_pattern import shared_format
from sparsify.compiler.einsum.infer.sparsity import Sparsity, infer_sparsity, of_call, of_reduction
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Declaration,
    Expr,
    Index,
    Program,
    Reduce,
)
from sparsify.compiler.ir.node import find
from sparsify.storage.format import Format

# Largest expected density of a sparse result of unknown pattern: above, entries with coordinates take longer to write
# and to read than a dense tensor.
DENSE_ABOVE: Final = 0.3


def infer_format(
    program: Program,
    densities: Mapping[str, float] | None = None,
    extents: Mapping[str, int] | None = None,
) -> Program:
    """`program` with an inferred declaration for each undeclared result; existing declarations are kept.

    Args:
        densities: expected densities of sparse operands, by name; a result of unknown pattern expected to store more
            than `DENSE_ABOVE` of its coordinates is dense then.
        extents: extents of index variables, besides the fixed ones of the program.
    """
    statements = program.statements
    known = {declared.name: declared for declared in program.declarations}
    ranks = {name: len(declared.extents) for name, declared in known.items()}
    ranks |= {statement.target.tensor: len(statement.target.indices) for statement in statements}
    modes_of = mode_extents(statements, ranks)
    names = _declared_names(program.declarations, modes_of)
    sizes = {**(extents or {}), **dict(program.extents)}
    expected = None if densities is None else dict(densities)
    empty = {name for name, size in program.extents if size == 0}
    for name in dict.fromkeys(statement.target.tensor for statement in statements):
        if name not in known:
            group = [statement for statement in statements if statement.target.tensor == name]
            modes = tuple(names.get(extent, extent) for extent in modes_of[name])
            found = None if expected is None else _group_density(group, known, expected, sizes)
            known[name] = declare_result(group, modes, known, empty, found)
            if expected is not None and found is not None and known[name].pattern_of is None:
                expected[name] = found
    return replace(program, declarations=tuple(known.values()))


@cache
def dense_format(rank: int) -> Format:
    """The format of a dense tensor."""
    return Format(", ".join(["dense"] * rank) or "scalar")


def hangs_on_extents(program: Program) -> tuple[str, ...]:
    """The index variables of reductions whose value over an empty extent differs from their fill."""
    declarations = {declared.name: declared for declared in program.declarations}
    found: list[tuple[str, tuple[str, ...], Expr]] = [
        (node.monoid, node.indices, node.body)
        for s in program.statements
        for node in find(s.value, Reduce)
        if node.monoid in MONOIDS
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
    density: float | None = None,
) -> Declaration:
    """The declaration of a result assigned by the statements of `group`.

    Args:
        modes: index variables whose extents the modes have.
        known: declarations of the tensors read.
        empty: index variables known to have extent 0.
        density: expected density.
    """
    target = group[0].target
    parts = []
    for statement in group:
        part = infer_sparsity(statement.value, known, empty)
        order = free_indices(statement.target)
        if statement.monoid is not None:
            reduced = tuple(name for name in free_indices(statement.value) if name not in order)
            part = of_reduction(statement.monoid, reduced, part, empty) if reduced else part
        parts.append(part)
    if len(parts) == 1:
        total = parts[0]
    else:
        monoid = next(s.monoid for s in reversed(group) if s.monoid is not None)
        total = of_call(MONOIDS[monoid].combine, parts[:2])
        for part in parts[2:]:
            total = of_call(MONOIDS[monoid].combine, [total, part])
    dtype = infer_dtype(group, known)
    if dtype == "bool" and total.fill is not None:
        total = replace(total, fill=bool(total.fill))
    base = Declaration(target.tensor, modes, dense_format(len(modes)), dtype)
    is_full = density is not None and density > DENSE_ABOVE and total.pattern is None
    if is_full or _is_dense(total, group, known):
        return base
    return _declare_sparse(base, target, total, group, known)


def _group_density(
    group: Sequence[Assign],
    known: Mapping[str, Declaration],
    densities: Mapping[str, float],
    extents: Mapping[str, int],
) -> float:
    """The expected density of a result: the sum over its statements, at most 1."""
    total = 0.0
    for statement in group:
        value, free = statement.value, free_indices(statement.target)
        if statement.monoid is not None:
            reduced = tuple(name for name in free_indices(value) if name not in free)
            value = Reduce(statement.monoid, reduced, value) if reduced else value
        total += expected_density(value, known, densities, extents)
    return min(1.0, total)


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
        return sparse_modes < 2 or any(_has_places(a, stored, known) for a in read)
    return sparse_modes < 2 and any(known[access.tensor].format.is_dense for access in read)


def _has_places(access: Access, names: Sequence[str], known: Mapping[str, Declaration]) -> bool:
    """Whether an operand has a position for every coordinate of these modes: the result may then be dense in them."""
    compressed = infer_sparsity(access, known).compressed
    return set(names) <= {name for name, is_compressed in compressed if not is_compressed}


def _declare_sparse(
    base: Declaration,
    target: Access,
    sparsity: Sparsity,
    group: Sequence[Assign],
    known: Mapping[str, Declaration],
) -> Declaration:
    """The declaration of a sparse result: on a known pattern, or with inferred levels."""
    assert sparsity.fill is not None
    if sparsity.pattern is not None and sparsity.pattern[1] == target.indices:
        return _on_pattern(base, known[sparsity.pattern[0]], sparsity.fill)
    names = [index.name for index in target.indices if isinstance(index, Index)]
    order = _level_order(names, group, known)
    compressed = dict(sparsity.compressed)
    wanted = ["compressed" if compressed.get(names[mode]) else "dense" for mode in order]
    kinds = _assembled(wanted)
    if sparsity.pattern is not None and kinds != wanted:
        root = known[sparsity.pattern[0]]
        if (shared := shared_format(root, sparsity.pattern[1], target.indices)) is not None:
            return _on_pattern(replace(base, format=shared), root, sparsity.fill)
    ordering = tuple(order) if order != sorted(order) else None
    wide = _widest_index(group, known)
    dtypes = tuple((wide, wide) if kind == "compressed" else ("", "") for kind in kinds)
    return replace(
        base, format=Format(", ".join(kinds), ordering=ordering), fill=sparsity.fill, index_dtypes=dtypes
    )


def _on_pattern(base: Declaration, root: Declaration, fill: float) -> Declaration:
    """The declaration of a result on the pattern of `root`, with dense levels below for further modes."""
    further = len(base.extents) - len(root.extents)
    format = base.format if further else root.format
    dtypes = (*root.index_dtypes, *[("", "")] * further)
    return replace(base, format=format, fill=fill, index_dtypes=dtypes, pattern_of=root.name)


def _assembled(kinds: list[str]) -> list[str]:
    """The levels of a result of unknown pattern: one compressed below dense ones, or all compressed.

    Dense levels below compressed ones would store all their fill values, and dense levels alone every fill value.
    """
    if "compressed" not in kinds:
        kinds = [kinds[0], *["compressed"] * (len(kinds) - 1)]
    return kinds if "compressed" not in kinds[:-1] else ["compressed"] * len(kinds)


def _level_order(names: list[str], group: Iterable[Assign], known: Mapping[str, Declaration]) -> list[int]:
    """The modes of a result in an order concordant with all sparse operands, else in their given order.

    An operand that stores k above j and one that stores i above k require i above j.
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
    """The widest coordinate dtype among the operands, int64 without any."""
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
    """The declared name of each extent implied by accesses."""
    names: dict[str, str] = {}
    for declared in declarations:
        for implied, own in zip(extents[declared.name], declared.extents, strict=True):
            names.setdefault(implied, own)
    return names
