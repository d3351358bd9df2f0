"""Schedules for row-wise chains over single entries with one more mode, heads: all heads of an entry at a time.

In:  `S[h,i,j] = where(stored(A[i,j]), a[j,h] + b[i,h], -inf); m max= S; P = exp(S - m); d += P;
     Y[i,h,f] += P[h,i,j] * X[j,h,f] / d`, A compressed by row, 8 heads of 8 features.
Out: `order S: i, j, h; ..; order w: i, j, h, f; precompute w at i in register; ..; unroll h in w; vector f in w;
     parallel i dynamic A; prefetch X 16`

A stored coordinate gathers the values of all heads of a node, which are contiguous: they are read once, in whole cache
lines, and each head has accumulators in registers. Scores of one entry are contiguous and computed as a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain

# Most accumulator registers.
MOST_SUMS: Final = 16
# Fewest bytes of a prefetched row, two cache lines, and prefetch distance in bytes.
LEAST_BYTES: Final = 128
EDGES_AHEAD_BYTES: Final = 1 << 13
# Cycles: latency of an fma; per vector of computed or reduced entries; per entry gathered singly; per loop over the
# entries of a row, whose end is mispredicted.
LATENCY: Final = 4.0
ENTRY: Final = 6.0
PICKED: Final = 4.0
LOOP: Final = 20.0
# Default number of entries of a row.
ROW: Final = 16.0


@dataclass(frozen=True, slots=True)
class EntryModes:
    """The chain, and the parameters of its loops.

    Attributes:
        chain: matched chain.
        lanes: lanes of a vector.
        item_bytes: bytes of an entry.
        sizes: sizes of the operands.
    """

    chain: RowChain
    lanes: int
    item_bytes: int
    sizes: Sizes

    def schedules(self) -> Iterator[d.Schedule]:
        """The schedule, for chains whose further mode has few, compile-time coordinates."""
        if self.fits and max(map(self.sums, self.chain.nests)) <= MOST_SUMS:
            yield self.schedule()

    @property
    def fits(self) -> bool:
        """Whether the chain is over single entries with one further mode, all of its extents known."""
        chain = self.chain
        if chain.within_row or self.lanes < 2 or len(chain.leading) != 1 or not chain.is_row_first:
            return False
        return not chain.adds_to_columns and self.is_known

    @property
    def beside(self) -> str:
        """The index variable of the further mode."""
        return self.chain.leading[0]

    @property
    def listed(self) -> str:
        """The loop over the entries of a row, for relations over their positions."""
        return self.chain.fresh("p") if self.chain.is_relation else self.chain.listed

    @property
    def is_known(self) -> bool:
        """Whether all extents that determine the number of accumulators are known."""
        names = {self.beside, *(nest.lane or nest.inner for nest in self.chain.nests)} - {""}
        return all(self.chain.constant(name) for name in names)

    def width(self, nest: Nest) -> int:
        """The vectors along the lanes or the sum of a nest."""
        name = nest.lane or nest.inner
        return -(-(self.chain.constant(name) or 1) // self.lanes) if name else 1

    def count(self) -> int:
        """The extent of the further mode."""
        return self.chain.constant(self.beside) or 1

    def sums(self, nest: Nest) -> int:
        """The accumulator registers of a nest."""
        return self.count() * self.width(nest) if nest.lane or nest.inner else -(-self.count() // self.lanes)

    def cycles(self) -> float:
        """The cost of a stored coordinate: a vector for its contiguous entries, independent accumulators."""
        each = (self.sums(nest) * (1 if nest.lane or nest.inner else ENTRY) for nest in self.chain.nests)
        return sum(each) + self.loops()

    def loops(self) -> float:
        """The share of a stored coordinate in the loops over its row."""
        return LOOP * len(self.chain.nests) / self.mean

    @property
    def mean(self) -> float:
        """The entries of a row."""
        return max(1.0, self.chain.mean(self.sizes) or ROW)

    def cycles_apart(self) -> float:
        """The cost with a pass over the row for each coordinate of the further mode, entries of the row in vectors."""
        vectors = 1 / self.lanes + 1 / self.mean  # the last one of a row is not full
        total = self.loops()
        for nest in self.chain.nests:
            if nest.kind == "product":
                total += max(LATENCY, self.width(nest))
            elif nest.inner:
                total += self.width(nest)
            else:
                total += ENTRY * vectors + PICKED * (nest.kind == "entries")
        return self.count() * total

    def schedule(self) -> d.Schedule:
        """A row at a time, the loop order of each nest over the row's entries, shared temporaries in scratch."""
        chain, name = self.chain, self.chain.fresh
        steps: list[d.Directive] = chain.fused()
        if chain.is_relation:
            steps.append(d.Pos(chain.listed, self.listed, chain.mask.name))
        splits: dict[str, tuple[str, str]] = {}
        for nest in chain.nests:
            along = nest.lane or nest.inner
            if along and along not in splits:
                splits[along] = (name(f"{along}o"), name(f"{along}i"))
                steps.append(d.Split(along, *splits[along], max(2, self.width(nest) * self.lanes)))
        for nest in chain.nests:
            steps += self._ordered(nest, *splits.get(nest.lane or nest.inner, ("", "")))
        for nest in chain.nests:
            if nest.kind == "product":
                source = "" if nest.result in chain.collected else nest.result
                at = splits[nest.lane][0] if nest.lane else chain.outer
                steps.append(d.Precompute(self._sums(nest), "register", at=at, source=source))
        steps += [d.Precompute(held, "thread", at=chain.outer) for held in chain.held]
        for nest in chain.nests:
            steps += self._kinds(nest, *splits.get(nest.lane or nest.inner, ("", "")))
        steps.append(d.Parallel(chain.outer, "dynamic", chain.balance))
        return d.Schedule((*steps, *self._asked()))

    def _ordered(self, nest: Nest, outer: str, inner: str) -> list[d.Directive]:
        """The loop order of a nest, and its accumulators."""
        row, beside = self.chain.outer, self.beside
        entries = (row, self.listed, beside)
        match nest.kind:
            case "scores":
                return [
                    d.Order(entries, nest.result),
                    d.Precompute(nest.summed, "register", at=self.listed),
                    d.Order((outer, beside, inner), nest.summed),
                    d.Precompute(self._apart(nest), "register", source=nest.summed, over=inner),
                ]
            case "entries":
                return [d.Order(entries, nest.result)]
            case "reduction":
                sums = d.Precompute(self._sums(nest), "register", at=row, source=nest.result)
                return [d.Order(entries, nest.result), sums]
            case "product":
                return [d.Order((row, outer, self.listed, beside, inner), nest.result)]
            case "total":
                lanes = d.Precompute(self._apart(nest), "register", source=nest.result, over=inner)
                return [d.Order((row, beside, outer, inner), nest.result), lanes]
        return [d.Order((row, outer, beside, inner) if inner else (row, beside), nest.result)]

    def _kinds(self, nest: Nest, outer: str, inner: str) -> list[d.Directive]:
        """Unrolled and vectorized loops."""
        names: tuple[str, ...]
        match nest.kind:
            case "scores":
                names = (self._apart(nest), nest.summed)
                written = [d.Unroll(self.beside, name) for name in (*names, nest.result)]
                return [*written, *(d.Vector(inner, name) for name in names)]
            case "total":
                lanes = self._apart(nest)
                return [d.Unroll(self.beside, lanes), d.Vector(inner, lanes), d.Vector(inner, nest.result)]
            case "reduction" | "product":
                names = tuple(dict.fromkeys((self._sums(nest), nest.result)))
            case _:
                names = (nest.result,)
        if not inner:
            return [d.Vector(self.beside, name) for name in names]
        return [kind for name in names for kind in (d.Unroll(self.beside, name), d.Vector(inner, name))]

    def _sums(self, nest: Nest) -> str:
        """The register accumulator of a nest."""
        return nest.result if nest.result in self.chain.collected else self.chain.fresh(f"sum_{nest.result}")

    def _apart(self, nest: Nest) -> str:
        """The temporary with a partial sum for each lane."""
        return self.chain.fresh(f"lanes_{nest.summed or nest.result}")

    def _asked(self) -> list[d.Directive]:
        """Prefetches of gathered operands: long rows from distant memory."""
        found: dict[str, d.Directive] = {}
        for nest in self.chain.nests:
            for picked in (nest.panel, nest.turned):
                along = nest.lane or nest.inner
                size = self.count() * (self.chain.constant(along) or 1) * self.item_bytes
                if picked is not None and size >= LEAST_BYTES and self._is_far(along):
                    found[picked.tensor] = d.Prefetch(picked.tensor, max(1, EDGES_AHEAD_BYTES // size))
        return list(found.values())

    def _is_far(self, along: str) -> bool:
        """Whether rows with all coordinates of the further mode exceed the near caches."""
        return self.sizes.is_far(self.chain.column, along, self.count() * self.item_bytes, self.chain.mask)
