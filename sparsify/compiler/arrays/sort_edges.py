"""Edges become a matrix: counting sorts in C++, from coordinates to CSR and from CSR to CSC.

In: rows `[1, 0, 1]` and columns `[0, 2, 0]` of edges. Out: `pos` `[0, 1, 2]`, `crd` `[2, 0]`, and the slot of each
edge, `[1, 0, 1]`; edges that come in order are told by the pass that counts them.

Where nothing can be compiled, torch's operators sort.
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
# All threads together count at most so many rows for each edge.
EACH: Final = 4
# As many keys may be read behind the last one.
LANES: Final = 32
OUTSIDE, ASCENDING, ORDERED, MERGED = -1, 0, 1, 2
# Functions of the C++ text.
SORT, TURN = "sparsify_sort_edges", "sparsify_turn"


@dataclass(frozen=True, slots=True)
class SortedEdges:
    """The arrays of a matrix in CSR, and where its edges are.

    Attributes:
        pos, crd: int32 [rows + 1] and [slots].
        edges: int64 [slots], the edge in each slot, where each has its own and they came in another order.
        slots: int64 [edges], the slot of each edge, where some share one.
        joined: int32 [slots], how many edges each slot has, where some share one.
        longest: how many slots the longest row has.
        outside: an edge that lies outside of the matrix; there are no arrays then.
    """

    pos: torch.Tensor
    crd: torch.Tensor
    edges: torch.Tensor | None = None
    slots: torch.Tensor | None = None
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
    """The edges of a matrix by row, those of a row by column; those at the same place share a slot.

    Args:
        rows, columns: int64 [edges] on the CPU.
        shape: rows and columns of the matrix, and as many edges, all below 2**31.
        is_numbered: whether each edge has a slot of its own, in the order of its row.
        are_told: whether `edges` or `slots` is wanted, as it is where edges have values.

    >>> found = sort_edges(torch.tensor([1, 0, 1]), torch.tensor([0, 2, 0]), (2, 3))
    >>> found.pos.tolist(), found.crd.tolist(), found.slots.tolist(), found.joined.tolist()
    ([0, 1, 2], [2, 0], [1, 0, 1], [1, 2])
    """
    rows, columns = rows.contiguous(), columns.contiguous()
    assert rows.shape == columns.shape, "an edge has a row and a column"
    if shape[0] > convert.MOST_EMPTY * len(rows):
        return _sorted_by_torch(rows, columns, shape, is_numbered)
    function = _function(SORT)
    if function is None:
        return _sorted_by_torch(rows, columns, shape, is_numbered)
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
        # Copies: the pattern keeps no memory that nothing is stored in.
        begin = 2 * (count + LANES)
        joined = work.view(torch.int32)[begin : begin + asked.stored].clone()
        return SortedEdges(pos, crd[: asked.stored].clone(), None, places, joined, longest=asked.longest)
    return SortedEdges(pos, crd, edges=places if status == ORDERED else None, longest=asked.longest)


def turn(
    pos: torch.Tensor, crd: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The arrays in CSC of a matrix in CSR with so many columns; `None` where nothing can be compiled.

    Args:
        pos, crd: int32 [rows + 1] and [slots], contiguous.

    Returns:
        `pos` and `crd`, int32 [columns + 1] and [slots], and where each entry lies in CSR, int64 [slots].
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


def _empty(length: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector with undefined entries; patterns live long, so its memory is no other tensor's before or after."""
    return torch.empty(length, dtype=dtype, device=CPU)


def _threads(edges: int, rows: int) -> int:
    """The number of threads for so many edges by so many rows, of which each thread has a count of its own."""
    return 1 if edges < LEAST_PARALLEL else max(1, min(count(current()), EACH * edges // max(rows, 1)))


def _function(symbol: str) -> Callable[[Any], int] | None:
    """A function of the C++ text, `None` where nothing can be compiled."""
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
    rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int], is_numbered: bool
) -> SortedEdges:
    """The same by torch's operators, whatever device is that of new tensors."""
    with CPU:
        return _sorted_on_cpu(rows, columns, shape, is_numbered)


def _sorted_on_cpu(
    rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int], is_numbered: bool
) -> SortedEdges:
    """The same with new tensors on the CPU."""
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
        slots = torch.empty_like(edges).index_copy_(0, edges, is_new.cumsum(0) - 1)
        joined = torch.bincount(slots, minlength=len(kept)).int()
        return SortedEdges(*arrays, slots=slots, joined=joined, longest=longest)
    is_ascending = bool((edges[1:] > edges[:-1]).all())
    return SortedEdges(*arrays, edges=None if is_ascending else edges, longest=longest)
