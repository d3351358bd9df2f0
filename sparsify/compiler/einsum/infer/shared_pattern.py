"""Formats on the pattern of another tensor: its levels, and dense ones below for further modes.

In:  `S[i,j,h]` at the stored entries of `A[i,j]`, A in `dense, compressed`.
Out: `dense(i), compressed(j), dense(h)` with the coordinates of A: the entry `h` at position `p` of A is `p * H + h`.

`S[h,i,j]` is stored `i: dense, j: compressed, h: dense`, too: further modes are always innermost.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsify.compiler.einsum.nodes import Access, Declaration, Expr, Index, Program
from sparsify.storage.format import Format, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Compressed, Dense, Singleton


def shared_format(root: Declaration, places: Sequence[Expr], indices: Sequence[Expr]) -> Format | None:
    """The format of a tensor at `indices` on the pattern of `root` at `places`; `None` if none exists.

    >>> A = Declaration("A", ("i", "j"), Format("csr"), "float32")
    >>> shared_format(A, (Index("i"), Index("j")), (Index("h"), Index("i"), Index("j"))).letters
    'd1s2d0'
    """
    if tuple(places) == tuple(indices):
        return root.format
    plain = all(isinstance(index, Index) for index in (*places, *indices))
    distinct = len(set(places)) == len(places) and len(set(indices)) == len(indices)
    if not plain or not distinct or not set(places) < set(indices) or not _is_listed(root.format):
        return None
    levels = [
        StoredLevel(LevelExpression(indices.index(places[stored.expression.mode])), stored.level)
        for stored in root.format.levels
    ]
    further = [mode for mode, index in enumerate(indices) if index not in places]
    return Format([*levels, *(StoredLevel(LevelExpression(mode), Dense()) for mode in further)])


def root_access(declared: Declaration, root: Declaration, access: Access) -> Access:
    """The access to the owner of the pattern of `declared`: `S[h,i,j] -> A[i,j]`."""
    if len(declared.extents) == len(root.extents):
        return Access(root.name, access.indices)
    return Access(root.name, tuple(access.indices[mode] for mode in _modes(declared, root)))


def shared_access(program: Program, access: Access) -> Access:
    """The access to the declared owner of the pattern of `access`, itself without one."""
    declared = program.declaration(access.tensor)
    if declared.pattern_of is None:
        return access
    return root_access(declared, program.declaration(declared.pattern_of), access)


def further_extents(declared: Declaration, root: Declaration) -> tuple[str, ...]:
    """The extents of a tensor's modes below the levels of the owner of its pattern."""
    levels = declared.format.levels[len(root.format.levels) :]
    return tuple(declared.extents[stored.expression.mode] for stored in levels)


def over_modes(
    declared: Declaration, root: Declaration, stored: NDArray[np.bool_], shape: Sequence[int]
) -> NDArray[np.bool_]:
    """The mask of stored entries of a tensor of `shape`, from the mask of the owner of its pattern."""
    if len(declared.extents) == len(root.extents):
        return stored
    modes = _modes(declared, root)
    view = [extent if mode in modes else 1 for mode, extent in enumerate(shape)]
    return np.broadcast_to(stored.transpose(np.argsort(modes)).reshape(view), tuple(shape))


def _modes(declared: Declaration, root: Declaration) -> tuple[int, ...]:
    """For each mode of `root` the corresponding mode of the tensor on its pattern."""
    levels = zip(declared.format.levels, root.format.levels, strict=False)
    modes = {theirs.expression.mode: own.expression.mode for own, theirs in levels}
    return tuple(modes[mode] for mode in range(len(modes)))


def _is_listed(format: Format) -> bool:
    """Whether each level stores a whole mode, all coordinates or a list of them: positions are entries."""
    kinds = (Dense, Compressed, Singleton)
    return format.is_short and all(isinstance(stored.level, kinds) for stored in format.levels)
