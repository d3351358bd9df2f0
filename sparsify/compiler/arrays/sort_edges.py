"""Edge lists as sparse matrices: counting sorts in C++, from coordinates to CSR and from CSR to CSC.

In: rows `[1, 0, 1]` and columns `[0, 2, 0]` of edges. Out: `pos` `[0, 1, 2]`, `crd` `[2, 0]`, the first edge of each
slot, `[1, 0]`, and edge 2 sharing slot 1; the counting pass detects edges already in order.

Without a compiler, torch's operators sort.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final

import torch

from sparsify.compiler.cpp.toolchain.cache import library
from sparsify.errors import CompilerError
from sparsify.options import Options, current
from sparsify.runtime.buffers import CPU, POOL
from sparsify.runtime.threads import count
from sparsify.storage import convert

# Fewer edges are sorted by one thread.
LEAST_PARALLEL: Final = 1 << 15
# Maximum row counters per edge, over all threads.
EACH: Final = 4
# Number of keys readable behind the last one.
LANES: Final = 32
OUTSIDE, ASCENDING, ORDERED, MERGED = -1, 0, 1, 2
# Functions of the C++ text.
SORT, TURN = "sparsify_sort_edges", "sparsify_turn"


@dataclass(frozen=True, slots=True)
class SortedEdges:
    """The arrays of a matrix in CSR, and the positions of the edges.

    Attributes:
        pos, crd: int32 [rows + 1] and [slots].
        edges: int64 [slots], the first edge in each slot, unless every edge had its own slot, in the order of slots.
        others: int64 [edges - slots], all edges except the first of each slot, if some edges share a slot.
        shared: int64 [edges - slots], the slots of `others`.
        joined: int32 [slots], the number of edges in each slot, if some edges share a slot and are not listed.
        longest: number of slots of the longest row.
        outside: an edge outside of the matrix; the arrays are missing then.
    """

    pos: torch.Tensor
    crd: torch.Tensor
    edges: torch.Tensor | None = None
    others: torch.Tensor | None = None
    shared: torch.Tensor | None = None
    joined: torch.Tensor | None = None
    longest: int = 0
    outside: int | None = None


class _Edges(ctypes.Structure):
    """The arguments of `sparsify_sort_edges` in C++."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("rows", "columns")],
        *[(name, ctypes.c_int64) for name in ("count", "height", "width", "threads", "is_numbered")],
        *[(name, ctypes.c_void_p) for name in ("pos", "crd", "places", "keys", "spare", "counts")],
        *[(name, ctypes.c_int64) for name in ("stored", "longest")],
    )


class _Matrix(ctypes.Structure):
    """The arguments of `sparsify_turn` in C++."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("pos", "crd")],
        *[(name, ctypes.c_int64) for name in ("height", "width", "threads")],
        *[(name, ctypes.c_void_p) for name in ("turned_pos", "turned_crd", "places", "counts")],
    )


def sort_edges(
    rows: torch.Tensor,
    columns: torch.Tensor,
    shape: Sequence[int],
    *,
    is_numbered: bool = False,
    are_told: bool = True,
) -> SortedEdges:
    """The edges of a matrix sorted by row and column; edges with equal coordinates share a slot.

    Args:
        rows, columns: int64 [edges] on the CPU.
        shape: rows and columns of the matrix, and as many edges, all below 2**31.
        is_numbered: whether each edge has its own slot, in the order of its row.
        are_told: whether `edges` and `others` are computed, as needed for edges with values.

    >>> found = sort_edges(torch.tensor([1, 0, 1]), torch.tensor([0, 2, 0]), (2, 3))
    >>> found.pos.tolist(), found.crd.tolist(), found.edges.tolist()
    ([0, 1, 2], [2, 0], [1, 0])
    >>> found.others.tolist(), found.shared.tolist()
    ([2], [1])
    """
    rows, columns = rows.contiguous(), columns.contiguous()
    assert rows.shape == columns.shape, "an edge has a row and a column"
    if shape[0] > convert.MOST_EMPTY * len(rows):
        return _sorted_by_torch(rows, columns, shape, is_numbered, are_told)
    function = _function(SORT)
    if function is None:
        return _sorted_by_torch(rows, columns, shape, is_numbered, are_told)
    count = rows.shape[0]
    threads = _threads(count, shape[0])
    pos, crd = _empty(shape[0] + 1, torch.int32), _empty(count, torch.int32)
    places = _empty(count, torch.int64) if are_told else None
    work = POOL.empty((2 * count + LANES + (threads * shape[0] + 1) // 2,), torch.int64)
    keys = work.data_ptr()
    spare = keys + 8 * (count + LANES)
    numbers = (count, *shape, threads, is_numbered)
    told = 0 if places is None else places.data_ptr()
    arrays = (pos.data_ptr(), crd.data_ptr(), told, keys, spare, spare + 8 * count)
    asked = _Edges(rows.data_ptr(), columns.data_ptr(), *numbers, *arrays, 0, 0)
    status = function(ctypes.byref(asked))
    if status == OUTSIDE:
        return SortedEdges(pos, crd, outside=asked.stored)
    if status == MERGED:
        return _merged(pos, crd, places, work[count + LANES :], asked)
    return SortedEdges(pos, crd, edges=places if status == ORDERED else None, longest=asked.longest)


def turn(
    pos: torch.Tensor, crd: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Converts the arrays of a matrix with `width` columns from CSR to CSC; `None` without a compiler.

    Args:
        pos, crd: int32 [rows + 1] and [slots], contiguous.

    Returns:
        `pos` and `crd`, int32 [columns + 1] and [slots], and the CSR position of each entry, int64 [slots].
    """
    function = _function(TURN)
    if function is None:
        return None
    stored = crd.shape[0]
    threads = _threads(stored, width)
    turned = _empty(width + 1, torch.int32), _empty(stored, torch.int32)
    places = _empty(stored, torch.int64)
    counts = POOL.empty((threads * width,), torch.int32)
    asked = _Matrix(pos.data_ptr(), crd.data_ptr(), len(pos) - 1, width, threads)
    asked.turned_pos, asked.turned_crd = turned[0].data_ptr(), turned[1].data_ptr()
    asked.places, asked.counts = places.data_ptr(), counts.data_ptr()
    function(ctypes.byref(asked))
    return *turned, places


convert.turn_by(turn)


def _merged(
    pos: torch.Tensor, crd: torch.Tensor, places: torch.Tensor | None, spare: torch.Tensor, asked: _Edges
) -> SortedEdges:
    """The result for edges with shared slots, from the arrays filled in C++."""
    stored, longest = asked.stored, asked.longest
    # At most an eighth of a pattern's memory may be unused.
    is_tight = 8 * stored >= 7 * len(crd)
    crd = crd[:stored] if is_tight else crd[:stored].clone()
    if places is None:
        return SortedEdges(pos, crd, joined=spare.view(torch.int32)[:stored].clone(), longest=longest)
    begin = (stored + 1) // 2
    shared = spare[begin : begin + len(places) - stored].clone()
    edges = places[:stored] if is_tight else places[:stored].clone()
    return SortedEdges(pos, crd, edges, places[stored:].clone(), shared, longest=longest)


def _empty(length: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector with undefined entries, outside the pool: patterns live long."""
    return torch.empty(length, dtype=dtype, device=CPU)


def _threads(edges: int, rows: int) -> int:
    """The number of threads for a sort, limited by the counters of all rows in each thread."""
    return 1 if edges < LEAST_PARALLEL else max(1, min(count(current()), EACH * edges // max(rows, 1)))


def load() -> Callable[[Any], int] | None:
    """The function of `sort_edges`, compiled now if necessary; `None` without a compiler."""
    return _function(SORT)


def _function(symbol: str) -> Callable[[Any], int] | None:
    """A function of the C++ text, `None` without a compiler."""
    return _loaded(current(), symbol)


@cache
def _loaded(options: Options, symbol: str) -> Callable[[Any], int] | None:
    source = resources.files("sparsify.compiler.cpp").joinpath("sort_edges.cpp").read_text(encoding="utf-8")
    try:
        # The user's flags are for kernels.
        made = library(source, {}, replace(options, compiler_flags=()), symbol=symbol)
    except CompilerError:
        return None
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(made.address)


def _sorted_by_torch(
    rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int], is_numbered: bool, are_told: bool
) -> SortedEdges:
    """The edges sorted by torch's operators on the CPU, for any default device."""
    with CPU:
        return _sorted_on_cpu(rows, columns, shape, is_numbered, are_told)


def _sorted_on_cpu(
    rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int], is_numbered: bool, are_told: bool
) -> SortedEdges:
    """The edges sorted by torch's operators on the default device."""
    nothing = torch.empty(0, dtype=torch.int32)
    wrong = (rows < 0) | (rows >= shape[0]) | (columns < 0) | (columns >= shape[1])
    if bool(wrong.any()):
        return SortedEdges(nothing, nothing, outside=int(wrong.nonzero()[0]))
    key = rows if is_numbered else rows * shape[1] + columns
    ordered, edges = torch.sort(key, stable=True)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    if not is_numbered:
        is_new[1:] = ordered[1:] != ordered[:-1]
    kept = edges[is_new]
    lengths = torch.bincount(rows[kept], minlength=shape[0])
    pos = torch.zeros(shape[0] + 1, dtype=torch.int32)
    pos[1:] = lengths.cumsum(0)
    arrays = (pos, columns[kept].int())
    longest = int(lengths.max()) if len(lengths) else 0
    if len(kept) < len(rows):
        slots = is_new.cumsum(0) - 1
        if not are_told:
            return SortedEdges(*arrays, joined=torch.bincount(slots).int(), longest=longest)
        return SortedEdges(*arrays, kept, edges[~is_new], slots[~is_new], longest=longest)
    is_ascending = bool((edges[1:] > edges[:-1]).all())
    return SortedEdges(*arrays, edges=None if is_ascending else edges, longest=longest)
