"""Patterns of sparse operands, with the positions of a call's entries: edges, tensors and bags.

In: rows `[1, 0, 1]` and columns `[0, 2, 0]` of edges. Out: `Aligned` with the pattern of (0, 2) and (1, 0) in CSR;
`aligned.values(weights)` are the weights in storage order, with duplicate edges summed.

Bags of rows of a table are a tensor with three modes: in `A[b,p,j]` the entry at position p is in bag b and names row
j. Indices `[4, 2, 2, 9]` and offsets `[0, 3]` for a table of 10 rows give ones at (0, 0, 4), (0, 1, 2), (0, 2, 2) and
(1, 3, 9); the arrays are copies of the offsets and the indices. A bag may name a row twice and in any order, unlike a
matrix row; with positions as a separate mode no call sorts or merges entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch

from sparsify.compiler.arrays.sort_edges import SortedEdges, sort_edges
from sparsify.errors import InvalidTensorError, UnsupportedProgramError
from sparsify.storage import convert
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import wrap


@dataclass(frozen=True)
class Aligned:
    """A pattern and the slot of each edge's value.

    Attributes:
        edges: [slots], the first edge in each slot; edge `e` without.
        slots: [edges], the slot of each edge, for shared slots without `others`.
        others, shared: [edges - slots] each, all edges but the first ones of slots, and their slots.
        with_slots: edges with a slot, None for all.
        joined: [slots], the number of edges in each slot, for shared slots of unknown edges, which have no values.
    """

    pattern: Pattern
    edges: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    others: torch.Tensor | None = None
    shared: torch.Tensor | None = None
    with_slots: torch.Tensor | None = None
    joined: torch.Tensor | None = None

    def values(self, edge_values: torch.Tensor) -> torch.Tensor:
        """The values in storage order on the device of the edges, summed per slot, differentiable."""
        if self.with_slots is not None:
            edge_values = edge_values.index_select(0, self.with_slots.to(edge_values.device))
        if self.edges is not None:
            first = edge_values.index_select(0, self.edges.to(edge_values.device))
            if self.others is None or self.shared is None:
                return first
            rest = edge_values.index_select(0, self.others.to(edge_values.device))
            return first.index_add_(0, self.shared.to(edge_values.device), rest)
        if self.slots is None:
            return edge_values
        return edge_values.new_zeros(self.pattern.nnz).index_add(
            0, self.slots.to(edge_values.device), edge_values
        )

    def ones(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The values of `count` edges of 1."""
        if self.joined is not None:
            return self.joined.to(device, dtype)
        if self.slots is None and self.others is None and self.with_slots is None:
            return torch.ones(self.pattern.nnz, dtype=dtype, device=device)
        return self.values(torch.ones(count, dtype=dtype, device=device))


def align_entries(dense: torch.Tensor, form: Format) -> Aligned:
    """The pattern of the nonzeros; a tensor with more than two modes has one level per mode, in order."""
    coordinates = tuple([column.cpu() for column in torch.nonzero(dense, as_tuple=True)])
    if dense.dim() == 2:
        rows, columns = coordinates
        return align_edges(rows, columns, (dense.shape[0], dense.shape[1]), form)
    pattern, slots = convert.from_sorted(coordinates, dense.shape, form)
    return Aligned(pattern, slots=slots)


def pattern_of_entries(stored: torch.Tensor, form: Format) -> Pattern:
    """The pattern of the true entries of a mask, or of the nonzeros of a tensor.

    The mask of a matrix is laid out in the order of levels, so that its entries need no sorting.
    """
    mask = stored if stored.dtype is torch.bool else stored != 0
    kinds = {one.expression.kind for one in form.levels}
    is_blocked = "block" in kinds and "difference" not in kinds
    if not is_blocked or mask.dim() != 2 or not mask.is_cpu or not mask.numel():
        return align_entries(stored, form).pattern
    laid, extents = in_level_order(mask.numpy(), form)
    left = np.flatnonzero(laid)
    if left.size * convert.MOST_EMPTY < laid.size:
        return align_entries(stored, form).pattern
    columns: list[torch.Tensor] = []
    for extent in reversed(extents):
        left, column = np.divmod(left, extent)
        columns.insert(0, torch.from_numpy(column))
    pattern, places = convert.from_sorted(columns, tuple(mask.shape), form)
    if places is None:
        pattern.cached("coordinates", lambda: mode_coordinates(columns, form))
    return pattern


def in_level_order(mask: np.ndarray[Any, Any], form: Format) -> tuple[np.ndarray[Any, Any], list[int]]:
    """A matrix with one mode per level of a format, padded to whole blocks, and the extents of the levels.

    >>> laid, extents = in_level_order(np.eye(2, 3) != 0, Format("j/2: dense, i: dense, j%2: compressed"))
    >>> extents, laid.astype(int).tolist()
    ([2, 2, 2], [[[1, 0], [0, 1]], [[0, 0], [0, 0]]])
    """
    expressions = [one.expression for one in form.levels]
    sizes = [
        next((e.size for e in expressions if e.mode == mode and e.kind == "block"), 0) for mode in (0, 1)
    ]
    padded = [-extent % size if size else 0 for extent, size in zip(mask.shape, sizes, strict=True)]
    if any(padded):
        mask = np.pad(mask, [(0, more) for more in padded])
    shape: list[int] = []
    axes: dict[tuple[int, str], int] = {}
    for mode, size in enumerate(sizes):
        extent = mask.shape[mode]
        for kind, part in (("block", extent // size), ("within", size)) if size else (("whole", extent),):
            axes[mode, kind] = len(shape)
            shape.append(part)
    order = [axes[e.mode, e.kind] for e in expressions]
    return mask.reshape(shape).transpose(order), [shape[axis] for axis in order]


def mode_coordinates(columns: Sequence[torch.Tensor], form: Format) -> torch.Tensor:
    """The coordinates of entries by mode, int64 [modes, entries], from the coordinates by level."""
    result = torch.zeros((form.rank, len(columns[0])), dtype=torch.int64)
    for column, stored in zip(columns, form.levels, strict=True):
        expression = stored.expression
        scale = expression.size if expression.kind == "block" else 1
        result[expression.mode].add_(column, alpha=scale)
    return result


def align_edges(
    rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int], form: Format, has_values: bool = True
) -> Aligned:
    """The pattern of edges (row, column) of a matrix, and the slot of each edge; duplicates share a slot.

    Args:
        rows, columns: [edges], any order, duplicates allowed.
        shape: shape of the matrix; coordinates outside are an error.
        form: storage format.
        has_values: whether edges have values, which need slots.
    """
    rows, columns = (
        rows.cpu().long(),
        columns.cpu().long(),
    )  # patterns are in main memory, wherever the values are
    if max(*shape, len(rows)) >= 2**31:
        raise UnsupportedProgramError(
            f"a matrix {list(shape)} with {len(rows)} entries needs wider coordinates"
        )
    are_told = has_values or form != CSR
    edges = sort_edges(rows, columns, shape, are_told=are_told)
    require_edges(edges, rows, columns, shape)
    # int32 halves the memory traffic, and is the index dtype declared in the regions' programs.
    arrays = (None, edges.pos), (None, edges.crd)
    pattern = Pattern.of_arrays(CSR, (shape[0], shape[1]), *arrays, len(edges.crd))
    pattern.note_longest(edges.longest)
    if not are_told:
        return Aligned(pattern, joined=edges.joined)
    return stored_as(Aligned(pattern, edges.edges, others=edges.others, shared=edges.shared), form)


def stored_as(aligned: Aligned, form: Format) -> Aligned:
    """A pattern with one slot per coordinate, converted to another format."""
    if form == aligned.pattern.format:
        return aligned
    pattern, moved = aligned.pattern.converted(form)
    is_padded = bool((moved < 0).any())  # the padding of blocks comes from no entry
    if aligned.slots is None and aligned.others is None and not is_padded:
        return Aligned(pattern, moved if aligned.edges is None else aligned.edges[moved])
    count = aligned.pattern.nnz
    filled = torch.nonzero(moved >= 0).squeeze(1)
    target = torch.empty(count, dtype=torch.int64).index_copy_(0, moved[filled], filled)
    slots = _slots(aligned)
    return Aligned(pattern, slots=target if slots is None else target[slots])


def _slots(aligned: Aligned) -> torch.Tensor | None:
    """The slot of each edge; `None` where edge `e` has slot `e`."""
    if aligned.edges is None:
        return aligned.slots
    first = torch.arange(len(aligned.edges))
    if aligned.others is None or aligned.shared is None:
        return torch.empty_like(first).index_copy_(0, aligned.edges, first)
    slots = first.new_empty(len(aligned.edges) + len(aligned.others))
    slots.index_copy_(0, aligned.edges, first)
    return slots.index_copy_(0, aligned.others, aligned.shared)


def align_coordinates(coordinates: Sequence[torch.Tensor], shape: Sequence[int], form: Format) -> Aligned:
    """The pattern of entries at some coordinates, and the slot of each entry; duplicates share a slot.

    Args:
        coordinates: [entries] per mode, any order, duplicates allowed.
        shape: shape of the tensor; coordinates outside are an error.
    """
    if prod(shape) >= 2**63 or max(*shape, len(coordinates[0])) >= 2**31:
        raise UnsupportedProgramError(f"a tensor {list(shape)} needs wider coordinates")
    key = torch.zeros(len(coordinates[0]), dtype=torch.int64)
    for mode, (column, extent) in enumerate(zip(coordinates, shape, strict=True)):
        require_inside(column.cpu(), extent, f"coordinate {mode}")
        key = key * extent + column.cpu()
    slots: torch.Tensor | None = None
    if not bool((key[1:] > key[:-1]).all()):
        key, slots = unique_slots(key)
    columns: list[torch.Tensor] = []
    rest = key
    for extent in reversed(shape):
        columns.insert(0, rest % max(extent, 1))
        rest = rest // max(extent, 1)
    pattern, _ = convert.from_sorted(columns, shape, Format("csf", rank=len(shape)), torch.int32)
    return stored_as(Aligned(pattern, slots=slots), form)


def align_numbered(rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int], form: Format) -> Aligned:
    """The pattern of entries (row, e, column) of edges with their numbers e, and the slot of each edge.

    Args:
        rows, columns: [edges], any order, duplicates allowed.
        shape: rows, edges and columns; coordinates outside are an error.
    """
    if max(shape) >= 2**31:
        raise UnsupportedProgramError(f"a relation {list(shape)} needs wider coordinates")
    rows, columns = rows.cpu().long(), columns.cpu().long()
    edges = sort_edges(rows, columns, (shape[0], shape[2]), is_numbered=True)
    require_edges(edges, rows, columns, (shape[0], shape[2]))
    numbers = torch.arange(len(rows), dtype=torch.int32) if edges.edges is None else edges.edges.int()
    arrays = (None, edges.pos, None), (None, numbers, edges.crd)
    return Aligned(Pattern(form, tuple(shape), *arrays, is_private=True).trusted(), edges.edges)


def unique_slots(key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct values of `key` in order, and the slot of each entry's value."""
    ordered, order = torch.sort(key, stable=True)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    slots = is_new.cumsum(0) - 1
    return ordered[is_new], torch.empty_like(slots).index_copy_(0, order, slots)


def outside(coordinates: torch.Tensor, extent: int) -> int | None:
    """A coordinate outside of a mode's extent, `None` if all are inside."""
    if coordinates.numel() == 0:
        return None
    low, high = (int(bound) for bound in torch.aminmax(coordinates))
    return low if low < 0 else high if high >= extent else None


def require_inside(coordinates: torch.Tensor, extent: int, mode: str) -> None:
    """Raises for a coordinate outside of its mode."""
    if (wrong := outside(coordinates, extent)) is not None:
        raise outside_error(int((coordinates == wrong).nonzero()[0]), mode, wrong, extent)


def require_edges(
    edges: SortedEdges, rows: torch.Tensor, columns: torch.Tensor, shape: Sequence[int]
) -> None:
    """Raises for an edge outside of its matrix.

    Raises:
        InvalidTensorError: names the edge and its row or column.
    """
    if (edge := edges.outside) is None:
        return
    row, column = int(rows[edge]), int(columns[edge])
    if not 0 <= row < shape[0]:
        raise outside_error(edge, "row", row, shape[0])
    raise outside_error(edge, "column", column, shape[1])


def outside_error(edge: int, mode: str, coordinate: int, extent: int) -> InvalidTensorError:
    """The error for an edge outside of its matrix."""
    return InvalidTensorError(
        f"edge {edge} has {mode} {coordinate}, the matrix has {extent}", "coordinates from 0"
    )


CSR: Final = Format("csr")
BAGS: Final = Format("dense, compressed, singleton")


@dataclass(frozen=True)
class BagsOutput:
    """Bags among the outputs of a structure module.

    Attributes:
        indices, offsets: positions of the named rows, and of the bag starts.
        rows: number of rows of the table.
        has_last: whether the last offset is the end of the last bag.
        dtype: dtype of the values.
        is_weighted: whether the caller passes the values; otherwise 1.
    """

    indices: int
    offsets: int
    rows: int
    has_last: bool
    dtype: torch.dtype
    is_weighted: bool

    def align(self, raw: Sequence[Any]) -> Aligned:
        """The pattern of the bags, with a slot for each index.

        Raises:
            InvalidTensorError: an index outside of the table, or offsets that do not ascend from 0 within the indices.
        """
        # Copies: later writes by the caller do not reach the kernels' operands.
        indices = raw[self.indices].cpu().clone(memory_format=torch.contiguous_format)
        if (wrong := outside(indices, self.rows)) is not None:
            raise InvalidTensorError(
                f"an index of a bag is {wrong}, the table has {self.rows} rows",
                f"numbers from 0 to {self.rows - 1}",
            )
        starts = starts_of(
            raw[self.offsets].cpu().clone(memory_format=torch.contiguous_format), len(indices), self.has_last
        )
        places = torch.arange(len(indices), dtype=indices.dtype)
        shape = (len(starts) - 1, len(indices), self.rows)
        pattern = Pattern(
            BAGS, shape, (None, starts, None), (None, places, indices), is_private=True
        ).trusted()
        return Aligned(pattern)

    def build(self, aligned: Aligned, raw: Sequence[Any]) -> Any:
        """The bags, on the device of their indices, or their pattern if the caller passes the values."""
        if self.is_weighted:
            return aligned
        return wrap(aligned.pattern, raw[self.indices].new_ones(aligned.pattern.nnz, dtype=self.dtype))


def starts_of(offsets: torch.Tensor, count: int, has_last: bool) -> torch.Tensor:
    """Start of each bag among `count` indices, and the end of the last one.

    Raises:
        InvalidTensorError: offsets that do not ascend from 0, or with a last end other than `count`.
    """
    numbers = offsets.numpy()  # faster than torch for few bags, possibly new in every call
    starts = numbers if has_last else np.empty(len(numbers) + 1, numbers.dtype)
    if len(starts) < 2:
        return offsets.new_zeros(1)
    if not has_last:
        starts[:-1], starts[-1] = numbers, count
    first, last = int(numbers[0]), int(numbers[-1])
    if first == 0 and starts[-1] == count and (starts[1:] >= starts[:-1]).all():
        return offsets.contiguous() if has_last else torch.from_numpy(starts)
    if first != 0:
        complaint = f"begin with {first}"
    elif last > count or has_last:
        complaint = f"end with {last}, there are {count} indices"
    else:
        complaint = "do not ascend"
    last_end = "the number of indices" if has_last else "at most the number of indices"
    raise InvalidTensorError(f"the offsets of bags {complaint}", f"they ascend from 0 to {last_end}")
