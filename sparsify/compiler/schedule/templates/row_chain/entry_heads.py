"""Schedules for row-wise chains over single entries with a mode beside them, heads: all of an entry's at a time.

In:  `S[h,i,j] = where(stored(A[i,j]), a[j,h] + b[i,h], -inf); m max= S; P = exp(S - m); d += P;
     Y[i,h,f] += P[h,i,j] * X[j,h,f] / d`, A compressed by row, 8 heads of 8 features.
Out: `order S: i, j, h; ..; order w: i, j, h, f; precompute w at i in register; ..; unroll h in w; vector f in w;
     parallel i dynamic A; prefetch X 16`

A stored coordinate picks what all heads have of a node, which lies together: it is read once, in whole cache lines, and
each head has sums of its own in registers. Scores of one entry lie side by side and are computed as a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain

# Registers that hold sums at a time at most.
MOST_SUMS: Final = 16
# Rows of two cache lines or more are asked for, so many bytes ahead.
LEAST_BYTES: Final = 128
EDGES_AHEAD_BYTES: Final = 1 << 13
# Cycles: what an fma waits for the one before it; of a vector of entries that is computed or reduced; of each entry of
# a vector that is picked alone; of a loop over the entries of a row, which ends where nobody expects it.
LATENCY: Final = 4.0
ENTRY: Final = 6.0
PICKED: Final = 4.0
LOOP: Final = 20.0
# Entries of a row where nothing is known.
ROW: Final = 16.0


@dataclass(frozen=True, slots=True)
class EntryModes:
    """The chain and what decides its loops.

    Attributes:
        chain: what is computed.
        lanes: of a vector.
        item_bytes: of an entry.
        sizes: of the operands.
    """

    chain: RowChain
    lanes: int
    item_bytes: int
    sizes: Sizes

    def schedules(self) -> Iterator[d.Schedule]:
        """The one there is, for chains whose modes beside the pattern have few coordinates, known when compiled."""
        if self.fits and max(map(self.sums, self.chain.nests)) <= MOST_SUMS:
            yield self.schedule()

    @property
    def fits(self) -> bool:
        """Whether the chain is one over single entries with one mode beside them, all of its extents known."""
        chain = self.chain
        if chain.within_row or self.lanes < 2 or len(chain.leading) != 1 or not chain.is_row_first:
            return False
        return not chain.adds_to_columns and self.is_known

    @property
    def beside(self) -> str:
        """The index variable of the mode beside the pattern."""
        return self.chain.leading[0]

    @property
    def listed(self) -> str:
        """The loop over the entries of a row, of relations over their positions."""
        return self.chain.fresh("p") if self.chain.is_relation else self.chain.listed

    @property
    def is_known(self) -> bool:
        """Whether all extents are known that decide how many registers hold sums."""
        names = {self.beside, *(nest.lane or nest.inner for nest in self.chain.nests)} - {""}
        return all(self.chain.constant(name) for name in names)

    def width(self, nest: Nest) -> int:
        """The vectors along the lanes or the sum of a nest."""
        name = nest.lane or nest.inner
        return -(-(self.chain.constant(name) or 1) // self.lanes) if name else 1

    def count(self) -> int:
        """The number of coordinates the mode beside the pattern has."""
        return self.chain.constant(self.beside) or 1

    def sums(self, nest: Nest) -> int:
        """The registers that hold the sums of a nest."""
        return self.count() * self.width(nest) if nest.lane or nest.inner else -(-self.count() // self.lanes)

    def cycles(self) -> float:
        """The cost of a stored coordinate: a vector for the entries beside each other, sums side by side."""
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
        """The cost with a pass over the row for each coordinate beside it, entries of the row in vectors."""
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
        """A row at a time, each nest in its order over the row's entries, what they share in scratch."""
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
        """The loops of a nest in their order, and what its sums are collected in."""
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
        """The temporary in registers that collects a nest's sums."""
        return nest.result if nest.result in self.chain.collected else self.chain.fresh(f"sum_{nest.result}")

    def _apart(self, nest: Nest) -> str:
        """The temporary with a sum for each lane."""
        return self.chain.fresh(f"lanes_{nest.summed or nest.result}")

    def _asked(self) -> list[d.Directive]:
        """Prefetched operands that stored coordinates pick: long rows from memory that is not near."""
        found: dict[str, d.Directive] = {}
        for nest in self.chain.nests:
            for picked in (nest.panel, nest.turned):
                along = nest.lane or nest.inner
                size = self.count() * (self.chain.constant(along) or 1) * self.item_bytes
                if picked is not None and size >= LEAST_BYTES and self._is_far(along):
                    found[picked.tensor] = d.Prefetch(picked.tensor, max(1, EDGES_AHEAD_BYTES // size))
        return list(found.values())

    def _is_far(self, along: str) -> bool:
        """Whether rows with all coordinates beside the pattern come from more memory than is near."""
        return self.sizes.is_far(self.chain.column, along, self.count() * self.item_bytes, self.chain.mask)
