"""Sparse matrices read in panels of columns, so that the rows multiplied with a panel stay in cache.

In: `Y[t,n] = sum(k, X[t,k] * W[n,k])`, W compressed by row with 768 columns, a tenth of them stored.
Out: the same with `W_panels`, in `k/192: dense, n: dense, k%192: compressed`.

Matrices with n:m, `n: dense, k/4: dense, k%4: grouped(2)`, and STen's n:m:g, `n/4: dense, k: dense, n%4: grouped(2)`,
are read in panels by products of any size with at least a vector of rows. Sampled products, the gradients of such
weights, are computed on the panels, and a permutation brings the values back into the order of rows.

A stored entry reads 64 elements of a column of X. All columns of a tile of 64 rows fit the second-level cache only,
which delivers half the bandwidth that multiplication needs; the columns of a panel fit the first level. The panels are
found once a pattern, and each call permutes the values.
"""

from collections.abc import Mapping
from typing import Final

from sparsify.compiler.einsum.infer.shared_pattern import shared_access
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index, Program, Reduce
from sparsify.compiler.einsum.products import product_factors
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.plan.prepare.expand_blocks import Unblocked
from sparsify.compiler.plan.prepare.transpose_operands import Twin
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Compressed, Dense, Grouped

# Columns of a panel, the fastest of 48, 96 and 192 with vectors of eight and 32 KB of L1: 96 at 50 and 80 % zeros, 192
# at 90 and 95 %; FULL entries of a row justify a narrow panel.
NARROW, WIDTH, FULL = 96, 192, 16
WHY: Final = "panels of columns keep the rows that they are multiplied with near"
# Fewest panels, and fewest entries of a row in each: each panel costs a load and a store of the sums.
FEWEST_PANELS: Final = 3
FEWEST_ENTRIES: Final = 8
# Fewest rows of the dense operand that amortize the permutation of values.
FEWEST_ROWS: Final = 256
# The same for a fixed number of entries in each block.
FEWEST_GROUPED: Final = 16
MATRIX: Final = 2


def panelled(
    program: Program, statement: Assign, found: Mapping[Access, Twin], sizes: Sizes
) -> dict[Access, Twin]:
    """The operands read in another format, with the matrix of a large product in panels of columns."""
    access = _matrix(program, statement)
    if access is None:
        return dict(found)
    declared = program.declaration(access.tensor)
    format = found[access].format if access in found else declared.format
    if not _is_worth_panels(program, statement, access, format, sizes):
        return dict(found)
    rows, columns = _modes(statement, access)
    panels = _panels(rows, columns, _panel_width(declared, rows, columns, sizes))
    name = found[access].name if access in found else f"{access.tensor}_panels"
    taken = {known.name for known in program.declarations}
    while name in taken:
        name += "_"
    why = f"{found[access].why} and {WHY}" if access in found else WHY
    return {**found, access: Twin(name, access.tensor, panels, why)}


def sampled_in_panels(program: Program, statement: Assign, sizes: Sizes) -> Unblocked:
    """The pattern of a large sampled product in panels of columns, in which the product is computed.

    In: `D[n,k] = sum(t, G[t,n] * X[t,k])` on the pattern of W, W compressed by row. Out: the format of `W_panels`.
    """
    output = program.declaration(statement.target.tensor)
    if output.pattern_of is None:
        return Unblocked()
    access = shared_access(program, statement.target)
    declared = program.declaration(access.tensor)
    tokens = _summed_of_dense(program, statement, access)
    if tokens is None or access.tensor not in program.inputs or output.format != declared.format:
        return Unblocked()
    if not _is_by_row(declared) or sizes.extents.get(tokens, 0) < FEWEST_ROWS:
        return Unblocked()
    rows, columns = declared.format.ordering
    width = _panel_width(declared, rows, columns, sizes)
    if not _has_full_panels(declared, rows, columns, sizes):
        return Unblocked()
    return Unblocked({access: _panels(rows, columns, width)}, WHY)


def _summed_of_dense(program: Program, statement: Assign, mask: Access) -> str | None:
    """The extent of t in `sum(t, G[t,n] * X[t,k])` on the pattern of a matrix; `None` for other statements."""
    sums, reads = find(statement.value, Reduce), find(statement.value, Access)
    if len(sums) != 1 or sums[0].monoid != "sum" or len(sums[0].indices) != 1:
        return None
    factors = product_factors(sums[0].body) or []
    dense = [factor for factor in factors if isinstance(factor, Access)]
    if len(factors) != MATRIX or len(dense) != MATRIX or any(read not in (*dense, mask) for read in reads):
        return None
    named = {frozenset(index_names(read)) for read in dense}
    summed = sums[0].indices[0]
    if len(mask.indices) != MATRIX or named != {frozenset((summed, name)) for name in index_names(mask)}:
        return None
    declared = program.declaration(dense[0].tensor)
    is_dense = declared.format.is_dense and program.declaration(dense[1].tensor).format.is_dense
    return declared.extents[index_names(dense[0]).index(summed)] if is_dense else None


def _panels(rows: int, columns: int, width: int) -> Format:
    """Panels of `width` columns, in each of them a matrix compressed by row."""
    levels = [
        StoredLevel(LevelExpression(columns, "block", width), Dense()),
        StoredLevel(LevelExpression(rows), Dense()),
        StoredLevel(LevelExpression(columns, "within", width), Compressed()),
    ]
    return Format(levels)


def _matrix(program: Program, statement: Assign) -> Access | None:
    """The access to `W` in `Y[.., t, n] = sum(k, X[.., t, k] * W[n, k])` or `W[k, n]`, or in a function of the sum."""
    declared = {known.name: known for known in program.declarations}
    sums = find(statement.value, Reduce)
    output = declared[statement.target.tensor]
    if len(sums) != 1 or sums[0].monoid != "sum" or len(sums[0].indices) != 1 or not output.format.is_dense:
        return None
    factors = product_factors(sums[0].body) or []
    reads = [factor for factor in factors if isinstance(factor, Access)]
    sparse = [a for a in reads if not declared[a.tensor].format.is_dense]
    if len(factors) != 2 or len(reads) != 2 or len(sparse) != 1 or len(sparse[0].indices) != MATRIX:
        return None
    matrix, dense = sparse[0], next(a for a in reads if a is not sparse[0])
    if not all(isinstance(i, Index) for a in (matrix, dense, statement.target) for i in a.indices):
        return None
    names, wanted = index_names(dense), index_names(statement.target)
    if len(names) < 2 or names[-1] != sums[0].indices[0] or find(statement.value, Access).count(matrix) != 1:
        return None
    if names[:-1] != wanted[:-1] or set(index_names(matrix)) != {names[-1], wanted[-1]}:
        return None
    if matrix.tensor not in program.inputs or len(set(names) | {*wanted}) != len(names) + 1:
        return None
    matched = declared[matrix.tensor]
    return matrix if _is_by_row(matched) or _is_grouped(matched) else None


def _panel_width(declared: Declaration, rows: int, columns: int, sizes: Sizes) -> int:
    """The columns of a panel: narrow for rows with many entries."""
    height, extent = (sizes.extents.get(declared.extents[mode], 0) for mode in (rows, columns))
    stored = sizes.stored.get(declared.name, 0)
    return NARROW if stored >= FULL * height * -(-extent // NARROW) > 0 else WIDTH


def _modes(statement: Assign, matrix: Access) -> tuple[int, int]:
    """The mode of a matrix that the result has, and the summed mode."""
    rows = index_names(matrix).index(index_names(statement.target)[-1])
    return rows, 1 - rows


def _is_by_row(declared: Declaration) -> bool:
    """Whether a tensor is an unblocked matrix, compressed along one mode, with unique entries."""
    levels = declared.format.levels
    return (
        len(levels) == 2
        and declared.format.is_short
        and isinstance(levels[0].level, Dense)
        and levels[1].level == Compressed()
    )


def _is_grouped(declared: Declaration) -> bool:
    """Whether a matrix stores a fixed number of entries in each block: n:m, or n:m:g with shared coordinates."""
    levels = [type(stored.level) for stored in declared.format.levels]
    return not declared.format.is_short and set(levels) == {Dense, Grouped} and levels.count(Grouped) == 1


def _is_worth_panels(
    program: Program, statement: Assign, matrix: Access, format: Format, sizes: Sizes
) -> bool:
    """Whether the loops run over the rows of the matrix, and panels, entries and rows of X suffice."""
    output, declared = program.declaration(statement.target.tensor), program.declaration(matrix.tensor)
    rows, columns = _modes(statement, matrix)
    tokens = sizes.extents.get(output.extents[-2], 0)
    if _is_grouped(declared):
        return tokens >= FEWEST_GROUPED
    is_by_row = format.ordering == (rows, columns) and isinstance(format.levels[-1].level, Compressed)
    return is_by_row and tokens >= FEWEST_ROWS and _has_full_panels(declared, rows, columns, sizes)


def _has_full_panels(declared: Declaration, rows: int, columns: int, sizes: Sizes) -> bool:
    """Whether there are enough panels, and enough entries of a row in each."""
    height, width = (sizes.extents.get(declared.extents[mode], 0) for mode in (rows, columns))
    stored = sizes.stored.get(declared.name)
    if not stored or not height or width < FEWEST_PANELS * WIDTH:
        return False
    return stored >= FEWEST_ENTRIES * height * -(-width // WIDTH)
