"""Strategies for holding a row of a chain, priced: as a strip, in chunks with rescaled sums, in recomputed chunks.

In:  attention over rows of 16,384 columns in blocks of 64 x 64, a machine whose near caches hold 256 KiB.
Out: `online: 9,100 us beyond the products`, `strip: 16,000 us: 2 MiB of a strip are written and read`, `recomputed: ..`

The price of a strategy is its time beyond the common products, on one thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.cost.machine import Machine, scaled
from sparsify.compiler.schedule.cost.statement import ELEMENTARY
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.block_chunks import StripChunks
from sparsify.compiler.schedule.templates.row_chain.block_cost import TILED
from sparsify.compiler.schedule.templates.row_chain.block_rows import Strips, strip_rows
from sparsify.compiler.schedule.templates.row_chain.chain import RowChain
from sparsify.compiler.schedule.templates.row_chain.entry_chunks import CHUNK_VECTORS, EntryChunks
from sparsify.compiler.schedule.templates.row_chain.entry_heads import EntryModes
from sparsify.compiler.schedule.templates.row_chain.entry_rows import EntryRows
from sparsify.compiler.schedule.templates.row_chain.two_pass import ENTRIES, two_passes

Name = Literal["strip", "online", "recomputed"]

# Vectors' times, fitted to measurements on AVX-512: per row of a chunk (reduction of its lanes); per vector of a sum in
# scratch, for an addition and for a rescaling.
CHUNK: Final = 36.0
ADDED: Final = 1.5
RESCALED: Final = 2.0
# Bytes in the first-level cache, whose traffic is free.
NEAREST_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class RowWay:
    """A strategy for holding the rows of a chain.

    Attributes:
        name: name of the strategy.
        schedule: schedule of the strategy.
        extra_us: time of one thread beyond the products; `None` for unknown sizes.
        why: explanation of the time.
    """

    name: Name
    schedule: d.Schedule
    extra_us: float | None = None
    why: str = ""


def row_ways(chain: RowChain, lanes: int, item_bytes: int, sizes: Sizes) -> tuple[RowWay, ...]:
    """The strategies for holding the rows of a chain, the best first; empty without a fast schedule."""
    found = tuple(_schedules(chain, lanes, item_bytes, sizes))
    known = _Known.of(chain, lanes, item_bytes, sizes)
    if known is None:
        return tuple(RowWay(name, schedule) for name, schedule in found)
    ways = [RowWay(name, schedule, *known.priced(name)) for name, schedule in found]
    return tuple(sorted(ways, key=lambda way: way.extra_us or 0.0))


def _schedules(
    chain: RowChain, lanes: int, item_bytes: int, sizes: Sizes
) -> Iterator[tuple[Name, d.Schedule]]:
    """The schedules of a chain, with their strategies."""
    strips, rows = Strips(chain, lanes, item_bytes, sizes), EntryRows(chain, lanes, sizes)
    together = EntryModes(chain, lanes, item_bytes, sizes)
    is_apart = not together.fits or together.cycles() > together.cycles_apart()
    if not is_apart:
        yield from (("strip", schedule) for schedule in together.schedules())
    passes = two_passes(chain) if is_apart else None
    for schedule in strips.schedules():
        yield "strip", schedule
        yield from () if passes is None else _in_chunks(StripChunks(strips, passes))
    for schedule in rows.schedules():
        yield "strip", schedule
        yield from () if passes is None else _in_chunks(EntryChunks(rows, passes))
    if is_apart:
        yield from (("strip", schedule) for schedule in together.schedules())


def _in_chunks(chunks: StripChunks | EntryChunks) -> Iterator[tuple[Name, d.Schedule]]:
    """The schedules that hold a chunk of a row at a time."""
    if chunks.passes.is_rescaled:
        yield "online", chunks.online()
    yield "recomputed", chunks.recomputed()


@dataclass(frozen=True, slots=True)
class _Known:
    """The inputs of prices.

    Attributes:
        entries: stored entries of all rows.
        length: entries of a row.
        strip_rows, chunk_rows: rows that share gathered operands, held as a strip and in chunks.
        chunk: entries of a row in a chunk.
        scores: summed extents of recomputed entries.
        sums: extents along the sums of rows.
        columns: columns of the pattern.
        widths: extents along gathered rows.
    """

    chain: RowChain
    machine: Machine
    lanes: int
    item_bytes: int
    entries: float
    length: float
    strip_rows: int
    chunk_rows: int
    chunk: float
    scores: float
    sums: tuple[int, ...]
    columns: int
    widths: int

    @classmethod
    def of(cls, chain: RowChain, lanes: int, item_bytes: int, sizes: Sizes) -> "_Known | None":
        """Known sizes of the operands of a chain; `None` if a size is missing."""
        names = {*chain.leading, chain.row, chain.column, *chain.lanes()}
        names |= {nest.inner for nest in chain.nests if nest.inner}
        extents, stored = sizes.extents, sizes.stored.get(chain.mask.name)
        if not names <= extents.keys() or stored is None:
            return None
        passes = two_passes(chain)
        again = () if passes is None else passes.again
        is_masked_per_head = len(chain.mask.extents) > 2
        shared = 1 if is_masked_per_head else prod(extents[name] for name in chain.leading)
        rows = extents[chain.row] * (
            prod(extents[name] for name in chain.leading) if is_masked_per_head else 1
        )
        length = stored / max(1, rows)
        sums = tuple(extents[nest.lane] for nest in chain.nests if nest.kind == "product" and nest.lane)
        scores = [extents[n.inner] if n.inner else 1 for n in chain.nests if n.result in again]
        inner = sum(extents[nest.inner] for nest in chain.nests if nest.inner)
        chunk = chain.width if chain.within_row else CHUNK_VECTORS * lanes
        return cls(
            chain,
            scaled(1, lanes * item_bytes),
            lanes,
            item_bytes,
            float(shared * stored),
            length,
            strip_rows(chain),
            chain.height,
            max(1.0, min(chunk, length)),
            float(sum(scores)),
            sums,
            extents[chain.column],
            inner + sum(sums),
        )

    def priced(self, name: Name) -> tuple[float, str]:
        """The cost of a strategy beyond the products, and the reason."""
        if name == "strip":
            return self._strip()
        chunks = self.entries / self.chunk  # rows of chunks
        vectors = sum(width / self.lanes for width in self.sums)
        streamed = self._streamed(self.chunk_rows)
        if name == "online":
            lanes = self.lanes if self.chain.within_row else 1
            each = CHUNK + ELEMENTARY / lanes + vectors * RESCALED
            rescaled = chunks * each * self.machine.vector_us
            return streamed + rescaled, f"sums of {chunks:,.0f} rows of chunks are rescaled"
        again = self.entries / self.lanes * self.scores * TILED + chunks * (CHUNK + vectors * ADDED)
        return streamed + again * self.machine.vector_us, f"{self.entries:,.0f} scores are computed again"

    def _strip(self) -> tuple[float, str]:
        """The cost of the writes and reads of a strip by consecutive statements."""
        held = [n.result for n in self.chain.nests if n.kind in ENTRIES and n.result in self.chain.held]
        size = self.strip_rows * self.length * self.item_bytes * len(held)
        reads = [n for n in self.chain.nests if n.kind in ("entries", "reduction", "product")]
        moved = self.entries * self.item_bytes * (len(held) + len(reads))
        reading = self.machine.reads
        slower = 1 / reading.at(size) - 1 / reading.at(NEAREST_BYTES)
        return moved * slower + self._streamed(self.strip_rows), f"a strip is {size:,.0f} bytes"

    def _streamed(self, rows: int) -> float:
        """The cost beyond the products of gathered reads, once for each `rows` rows."""
        moved = self.entries / rows * self.widths * self.item_bytes
        products = self.entries * self.widths / self.lanes * TILED * self.machine.vector_us
        table = self.columns * self.widths * self.item_bytes
        return max(0.0, moved / self.machine.reads.at(table) - products)
