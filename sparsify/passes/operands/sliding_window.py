"""Convolutions as products of a sparse matrix with shifted parts of flat images.

In:  x [n, c, 56, 56], a weight [o, c, 3, 3] with zeros, padding 1.
Out: F [n, c * 58 * 58], the padded images; W [o, c * 58 * 58] with the entry (o, c, r, s) at (o, (c * 58 + r) * 58 +
s); and so `Y[n,o,y,x] = sum(k, W[o,k] * F[n,k+58*y+x])`.

Columns of W are offsets in the image, so each entry is one number times contiguous memory. Where rows are much shorter
than vectors, results run over the padding between rows too, `p = 58 y + x`, and the padding is dropped afterwards. With
a stride, rows at that distance are stored side by side: the reads of one entry are contiguous again.

Source: Park and others, Faster CNNs with Direct Sparse Convolutions and Guided Pruning, 2017, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Final

import torch
from torch import Tensor

from sparsify.errors import UnsupportedProgramError
from sparsify.passes.operands.alignment import align_edges
from sparsify.runtime.buffers import POOL, row_major
from sparsify.runtime.padded_memory import PADDED, Interior, View
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

CSR: Final = Format("csr")
# Bytes of a place in an image, and of `pos`.
PLACE_BYTES: Final = 4
# Entries behind the last one that windows read, so that vectors of any CPU are read whole: lanes less one.
BEYOND: Final = 15
# Largest ratio of the lanes of rows read one by one to those of one run over rows and padding.
ROW_LANES: Final = 1.2
# Bytes of a coordinate of a packed weight, with the exclusive upper bound of the extent.
COORDINATES: Final = ((1, 1 << 7), (2, 1 << 15), (4, 1 << 31))


@dataclass(frozen=True, slots=True)
class Window:
    """The reads of a result along one mode: `size` entries, `dilation` apart; the next one begins `stride` further.

    Attributes:
        padding: zeros before the first entry, and after the last.
    """

    size: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Distance of the last entry from the first."""
        return self.dilation * (self.size - 1)

    @property
    def phases(self) -> int:
        """The number of kept remainders modulo the stride: the remainders of entry offsets, starting at 0.

        >>> Window(3, stride=2).phases, Window(1, stride=2).phases
        (2, 1)
        """
        return 1 + max(self.dilation * entry % self.stride for entry in range(self.size))

    def results(self, extent: int) -> int:
        """The number of results along a mode of a given extent.

        >>> Window(3, stride=2, padding=1).results(56)
        28
        """
        return (extent + 2 * self.padding - self.reach - 1) // self.stride + 1

    def width(self, extent: int) -> int:
        """The number of places of one phase results read."""
        return self.results(extent) + self.reach // self.stride


@dataclass(frozen=True)
class Grid:
    """Windows over images of known extents, one window per mode; derived quantities are memoized.

    >>> grid = Grid((Window(3, padding=1), Window(3, padding=1)), (56, 56))
    >>> grid.widths, grid.steps, grid.count
    ((58, 58), (58, 1), 3246)
    """

    windows: tuple[Window, ...]
    extents: tuple[int, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.windows, self.extents))

    @cached_property
    def results(self) -> tuple[int, ...]:
        """The extents of the result."""
        return tuple([w.results(extent) for w, extent in zip(self.windows, self.extents, strict=True)])

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The extents of one phase of an image."""
        return tuple([w.width(extent) for w, extent in zip(self.windows, self.extents, strict=True)])

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Distance of neighbours along each mode in a phase."""
        return tuple([prod(self.widths[mode + 1 :]) for mode in range(len(self.widths))])

    @cached_property
    def places(self) -> int:
        """The entries of one channel of an image."""
        return prod(self.widths) * prod(window.phases for window in self.windows)

    @cached_property
    def count(self) -> int:
        """The number of positions from the first to the last result, gaps between rows included."""
        return 1 + sum((n - 1) * step for n, step in zip(self.results, self.steps, strict=True))

    @cached_property
    def has_results(self) -> bool:
        """Whether a window fits into an image."""
        return min(self.results) >= 1

    def columns(self, channels: int) -> int:
        """The columns of a weight's matrix: one more than the largest offset."""
        return int(self.offsets(channels).max()) + 1

    def length(self, channels: int) -> int:
        """The entries of one image: at least those that any window and vector reads."""
        if self.is_plain:
            return channels * self.places
        return max(channels * self.places, self.columns(channels) + self.count + BEYOND - 1)

    def is_by_rows(self, lanes: int) -> bool:
        """Whether rows of results are computed one by one, without the padding between rows.

        >>> grid = Grid((Window(3, padding=1), Window(3, padding=1)), (7, 7))
        >>> grid.is_by_rows(8), grid.is_by_rows(16)
        (True, False)
        """
        if self.is_whole or not self.has_results:
            return False
        *outer, row = self.results
        return prod(outer) * _vectors(row, lanes) <= ROW_LANES * _vectors(self.count, lanes)

    def has_whole_vectors(self, lanes: int) -> bool:
        """Whether rows of results fill vectors."""
        return self.results[-1] % lanes == 0

    @cached_property
    def is_single_phase(self) -> bool:
        """Whether padded images hold images as one part: a single phase, with padding."""
        return not self.is_plain and all(window.stride == 1 for window in self.windows)

    @cached_property
    def is_whole(self) -> bool:
        """Whether nothing lies between rows."""
        return self.results[1:] == self.widths[1:]

    @cached_property
    def is_plain(self) -> bool:
        """Whether images need no conversion: a single phase, without padding."""
        return all(window.stride == 1 and window.padding == 0 for window in self.windows)

    @cached_property
    def is_ordered(self) -> bool:
        """Whether offsets ascend in the order of a window's entries; not with several phases."""
        return bool((self.offsets(1).diff() > 0).all())

    def offsets(self, channels: int) -> Tensor:
        """The place in an image of each entry of a kernel [channels, ...], in order."""
        sizes = [window.size for window in self.windows]
        entry_offsets = [self._offset(at) for at in product(*map(range, sizes))]
        return (torch.arange(channels).unsqueeze(1) * self.places + torch.tensor(entry_offsets)).flatten()

    def _offset(self, at: Sequence[int]) -> int:
        """The offset of one entry in its channel."""
        phase, within = 0, 0
        for entry, window, step in zip(at, self.windows, self.steps, strict=True):
            step_count, rest = divmod(entry * window.dilation, window.stride)
            phase = phase * window.phases + rest
            within += step_count * step
        return phase * prod(self.widths) + within

    def matrix(self, weight: SparseTensor) -> SparseTensor:
        """A packed weight [o, c, ...] as a matrix [o, offsets of all channels] in CSR.

        Shares the values of the weight if offsets ascend with the entries, otherwise copies them.
        """
        stored = weight._pattern
        entries = torch.zeros(stored.nnz, dtype=torch.int64)
        for extent, coordinates in zip(stored.shape[1:], stored._crd[1:], strict=True):
            entries *= extent
            if coordinates is not None:  # else the extent is 1
                entries += coordinates
        columns, starts = self.offsets(stored.shape[1])[entries], stored._pos[1]
        assert starts is not None, "the entries of each output follow one another"
        shape = (stored.shape[0], self.columns(stored.shape[1]))
        if max(*shape, stored.nnz) >= 2**31:
            raise UnsupportedProgramError(
                f"a weight for images of {self.length(stored.shape[1])} places needs wider coordinates"
            )
        if self.is_ordered:
            pattern = Pattern(CSR, shape, (None, starts), (None, columns.to(torch.int32)), is_private=True)
            return SparseTensor(pattern.trusted(), weight._vals)
        rows = torch.arange(shape[0]).repeat_interleave(starts.diff())
        aligned = align_edges(rows, columns, shape, CSR)
        return SparseTensor(aligned.pattern, aligned.values(weight._vals))

    def extra_bytes(self, weight: SparseTensor) -> int:
        """The bytes of `matrix` of a packed weight, in addition to the weight."""
        return self.bytes_of_places(weight.nnz, len(weight), weight.itemsize)

    def bytes_of_places(self, stored: int, outputs: int, value_bytes: int) -> int:
        """The further bytes for a number of stored entries and outputs."""
        if self.is_ordered:
            return stored * PLACE_BYTES
        return stored * (PLACE_BYTES + value_bytes) + (outputs + 1) * PLACE_BYTES

    def parts(self, memory: Tensor, channels: int) -> list[View]:
        """The part of padded images in each phase that holds entries of images, and those entries of `x[n, c, ...]`.

        Args:
            memory: zeros [n, length].
        """
        phases = [window.phases for window in self.windows]
        shape = (len(memory), channels, *phases, *self.widths)
        images = memory.as_strided(shape, (memory.stride(0), *row_major(shape)[1:]))
        found = []
        for phase in product(*map(range, phases)):
            part, read = images, [slice(None)] * 2
            for number in phase:
                part = part.select(2, number)
            for mode, (window, extent, width) in enumerate(
                zip(self.windows, self.extents, self.widths, strict=True), 2
            ):
                rest = phase[mode - 2] - window.padding
                first = min(-(-max(0, -rest) // window.stride), width)
                end = max(first, min(-(-(extent - rest) // window.stride), width))
                begin = first * window.stride + rest
                read.append(slice(begin, begin + (end - first) * window.stride, window.stride))
                part = part.narrow(mode, first, end - first)
            found.append((part, tuple(read)))
        return found

    def interior(self, channels: int) -> Interior | None:
        """The place of images in padded images; None for several phases, and for images without padding.

        >>> print(Grid((Window(3, padding=1), Window(3, padding=1)), (32, 32)).interior(16))
        in rows of 18511 from 35 by 1156, 34, 1
        """
        if not self.is_single_phase:
            return None
        if channels not in self._interiors:
            first = sum(w.padding * step for w, step in zip(self.windows, self.steps, strict=True))
            self._interiors[channels] = known_interior(
                self.length(channels), first, (self.places, *self.steps)
            )
        return self._interiors[channels]

    @cached_property
    def _interiors(self) -> dict[int, Interior]:
        """The places of images by number of channels."""
        return {}

    def padded(self, images: Tensor) -> Tensor:
        """Images x[n, c, ...] as rows with a border of zeros; without a copy where a kernel wrote them inside rows."""
        if self.is_plain:
            return images.flatten(1)
        channels = images.shape[1]
        interior = self.interior(channels)
        if interior is None:
            return PADDED.copied(images, Phases(self))
        rows = PADDED.rows_of(images, interior)
        return PADDED.copied(images, interior) if rows is None else rows

    def flat(self, result: Tensor) -> Tensor:
        """A tensor of the result's shape, [n, o, ...], as [n, o, count]; only without gaps between rows."""
        assert self.is_whole, "padding between rows has no values"
        return result.reshape(*result.shape[:2], self.count)

    def shown(self, flat: Tensor) -> Tensor:
        """The result [n, o, ...] without the gaps between rows, from [n, o, count]."""
        images, outputs, _ = flat.shape
        if self.is_whole:
            return flat.view(images, outputs, *self.results)
        strides = (outputs * self.count, self.count, *self.steps)
        shown = flat.as_strided((images, outputs, *self.results), strides)
        return recycled(tuple(shown.shape), shown).copy_(shown)


@cache
def known_interior(length: int, first: int, strides: tuple[int, ...]) -> Interior:
    """One object for equal places, which is compared by identity first."""
    return Interior(length, first, strides)


@dataclass(frozen=True, slots=True)
class Phases:
    """The places of images in padded images with a phase for each remainder of a stride."""

    grid: Grid

    def row_length(self, shape: tuple[int, ...]) -> int:
        """The entries of a padded image."""
        return self.grid.length(shape[1])

    def views(self, rows: Tensor, shape: tuple[int, ...]) -> list[View]:
        """The parts of padded images with entries of images."""
        return self.grid.parts(rows, shape[1])


def _vectors(count: int, lanes: int) -> int:
    """The lanes of the vectors that hold `count` entries."""
    return -(-count // lanes) * lanes


def recycled(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uninitialised memory like a tensor's, from the pool on the CPU."""
    return POOL.empty(shape, like.dtype) if like.is_cpu else like.new_empty(shape)


def packed_format(shape: Sequence[int]) -> Format:
    """The packed format of a weight [o, c, ...]: by output, with the narrowest coordinates.

    >>> str(packed_format((64, 256, 1, 1)))
    'dense, compressed(crd=int16), dense, dense'
    """
    sizes = [coordinate_bytes(extent) for extent in shape[1:]]
    if max(shape[2:]) == 1:
        return Format(", ".join(["dense", f"compressed(crd=int{8 * sizes[0]})", *["dense"] * len(shape[2:])]))
    return Format(", ".join(["dense", *(f"coordinate(crd=int{8 * size})" for size in sizes)]))


def packed_bytes(shape: Sequence[int], stored: int, value_bytes: int) -> int:
    """The bytes of a weight with `stored` entries in the packed format."""
    listed = shape[1:2] if max(shape[2:]) == 1 else shape[1:]
    each = value_bytes + sum(coordinate_bytes(extent) for extent in listed)
    return stored * each + (shape[0] + 1) * PLACE_BYTES


def coordinate_bytes(extent: int) -> int:
    """The bytes of a coordinate of a mode."""
    return next(size for size, most in COORDINATES if extent <= most)
