"""Contraction paths: products of several operands, two or three at a time, by cost.

In: the nest of `sum(j, k, A[i,j] * B[j,k] * C[k,l])`, C dense and narrow. Out: `A * (B * C)`, B and C first.

The cost of a product is that of its loops in their best order, with the expected entries of its result. One nest over
all operands is a candidate too, so that sampled products and MTTKRP stay whole if cheaper.

Source: Pfeifer, Haegeman and Verstraete, Faster identification of optimal contraction sequences, 2014 (subsets);
beyond seven operands the greedy path of opt_einsum, Smith and Gray, 2018.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations
from math import inf, prod
from typing import Final, cast

import opt_einsum

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.schedule.cost.iterations import TURN_MADE, Factor, Nest
from sparsify.compiler.schedule.cost.loop_order import Search, least_cost, searched

# Most operands for which all paths are compared.
MOST_FACTORS: Final = 7
# Cost factor of a product of two dense operands, which a library computes.
LIBRARY: Final = 0.25
# Least share of nonempty rows of a product stored dense.
FULL: Final = 0.5
# Overhead of a further statement: a kernel call, and the write and read of a temporary.
STATEMENT: Final = 20_000.0


@dataclass(frozen=True, slots=True)
class Part:
    """An operand or the product of several, described by counts; variables are bits.

    Attributes:
        factors: bit mask of the multiplied operands.
        modes: variables, in the order of the modes.
        entries: stored entries, all coordinates for a dense part.
        is_sparse: whether unstored coordinates contribute nothing.
        rows: for a dense product, the variable with unreached coordinates; 0 if all are reached.
        whole: factor of a nest, for a sparse part: an operand as stored, a product with all levels compressed.
        cost: cost of computing the part.
        parts: factors of the product.
        mask: bit mask of the variables.
    """

    factors: int
    modes: tuple[int, ...]
    entries: float
    is_sparse: bool
    whole: Factor | None = None
    cost: float = 0.0
    parts: tuple["Part", ...] = ()
    rows: int = 0

    mask: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", sum(self.modes))


class Paths:
    """The contraction paths of the product of a nest's operands."""

    def __init__(self, nest: Nest, accesses: list[Access]) -> None:
        self.nest, self.accesses = nest, accesses
        self.leaves = [self.leaf(number, access) for number, access in enumerate(accesses)]
        self.all = (1 << len(accesses)) - 1
        self.searches: dict[tuple[tuple[int, float], ...], Search] = {}
        # Rows of the result, sums, columns: the loop order that fills a workspace a row.
        bits = [1 << n for n in range(len(nest.variables))]
        kept = [bit for bit in bits if nest.target & bit]
        self.natural = (*kept[:-1], *(bit for bit in bits if not nest.target & bit), *kept[-1:])

    def leaf(self, number: int, access: Access) -> Part:
        """The part of one operand; an operand with a fill other than 0 counts as dense."""
        modes = tuple(self.nest.bit(cast(Index, index).name) for index in access.indices)
        found = next((n for n, f in enumerate(self.nest.factors) if f.access == access), None)
        if found is None or not any(found in point for point in self.nest.points):
            return Part(1 << number, modes, self.nest.coordinates(sum(modes)), False)
        factor = self.nest.factors[found]
        return Part(1 << number, modes, factor.stored, True, factor)

    def best(self) -> Part:
        """The cheapest product of all operands; one nest if its parts are leaves."""
        if len(self.leaves) > MOST_FACTORS:
            return self.greedy()
        one = self.descent()
        whole = self.product(tuple(self.leaves), searched(self.nest), 0.0, inf if one is None else one.cost)
        one = whole if one is None else min(whole, one, key=_cost)
        found: dict[int, Part] = {leaf.factors: leaf for leaf in self.leaves}
        for size in range(2, len(self.leaves)):
            for chosen in combinations(range(len(self.leaves)), size):
                subset = sum(1 << n for n in chosen)
                best: Part | None = None
                for parts in sorted(self.splits(subset, found), key=self.iterations):
                    way = self.join(parts, one.cost if best is None else min(one.cost, best.cost))
                    if way is not None and (best is None or way.cost < best.cost):
                        best = way
                if best is not None:
                    found[subset] = best
        last = [*self.splits(self.all, found), *self.triples(found)]
        for parts in sorted(last, key=self.iterations):
            one = min(one, self.finish(parts, one.cost), key=_cost)
        return one

    def descent(self) -> Part | None:
        """The path that always takes the product with the fewest iterations: its cost bounds the search."""
        parts = tuple(self.leaves)
        ends: list[tuple[Part, ...]] = []
        while len(parts) > 2:
            pairs = [pair for pair in combinations(parts, 2) if pair[0].mask & pair[1].mask]
            first, second = min(pairs, key=self.iterations, default=parts[:2])
            made = self.join((first, second))
            if made is None:
                break
            parts = (*(part for part in parts if part is not first and part is not second), made)
            ends += [parts] if len(parts) < 4 else []
        best: Part | None = None
        for parts in reversed(ends):
            last = self.finish(parts, inf if best is None else best.cost)
            best = last if best is None else min(best, last, key=_cost)
        return best

    def iterations(self, parts: tuple[Part, ...]) -> float:
        """The iterations of the innermost loop of a product with a dense result."""
        found = self.nest.coordinates(reduce(lambda a, b: a | b, (part.mask for part in parts)))
        for part in parts:
            if part.is_sparse:
                found *= min(1.0, part.entries / max(1.0, self.nest.coordinates(part.mask)))
        return found

    def splits(self, subset: int, found: Mapping[int, Part]) -> Iterator[tuple[Part, ...]]:
        """The pairs of parts with a common variable that make up a subset."""
        half = (subset - 1) & subset
        while half:
            other = subset ^ half
            if half > other and half in found and other in found and found[half].mask & found[other].mask:
                yield found[half], found[other]
            half = (half - 1) & subset

    def triples(self, found: Mapping[int, Part]) -> Iterator[tuple[Part, ...]]:
        """Two operands and the product of all others."""
        if len(self.leaves) < 4:
            return
        for first, second in combinations(self.leaves, 2):
            rest = self.all ^ first.factors ^ second.factors
            if rest in found:
                yield first, second, found[rest]

    def join(self, parts: tuple[Part, ...], limit: float = inf) -> Part | None:
        """The temporary for a product of parts, `None` for a scalar or above the cost limit."""
        factors = sum(part.factors for part in parts)
        needed = self.nest.target
        for leaf in self.leaves:
            if not leaf.factors & factors:
                needed |= leaf.mask
        mask = reduce(lambda a, b: a | b, (part.mask for part in parts)) & needed
        if not mask:
            return None
        rows = self.rows(parts, mask)
        if not rows and any(part.rows for part in parts):
            return None
        is_sparse = any(part.is_sparse for part in parts) and not rows
        search = self.search(parts, mask, is_sparse)
        entries = min(search.nest.written, self.most_entries(search.nest))
        more = STATEMENT + entries
        if rows:
            entries = self.nest.coordinates(mask)
            more = STATEMENT + entries
            if any(part.is_sparse for part in parts):  # the reached rows are computed by a separate statement
                more += STATEMENT + sum(part.entries for part in parts if part.is_sparse)
        made = self.product(parts, search, more, limit)
        if made.cost > limit:
            return None
        modes = tuple(bit for bit in self.natural if mask & bit)
        stored: Factor | None = None
        if is_sparse:
            compressed = (False,) * len(modes)
            stored = Factor(Access(f"T{made.factors}"), modes, compressed, {}, entries, TURN_MADE)
        return replace(made, modes=modes, entries=entries, is_sparse=is_sparse, whole=stored, rows=rows)

    def rows(self, parts: tuple[Part, ...], mask: int) -> int:
        """The variable that indexes the reached rows of a dense product; 0 if the product should be sparse.

        The variable is the only one left by sparse parts, a sparse operand outside drives the loop over it, and most of
        its coordinates are reached. `sum(k, A[j,k] * x[k,c])` has rows `j`, if `A[i,j]` follows.
        """
        left = 0
        for part in parts:
            left |= part.mask if part.is_sparse else part.rows
        left &= mask
        if left.bit_count() != 1 or self.nest.levels:
            return 0
        inside = sum(part.factors for part in parts)
        if not any(leaf.is_sparse and leaf.mask & left for leaf in self.leaves if not leaf.factors & inside):
            return 0
        reached = self.nest_over(parts, mask, False).written
        return left if reached >= FULL * self.nest.coordinates(mask) else 0

    def search(self, parts: tuple[Part, ...], target: int, is_sparse: bool, last: bool = False) -> Search:
        """The memoized search for the loop order of a product, shared by both kinds of path."""
        key = tuple((part.factors, part.cost) for part in parts)
        found = self.searches.get(key)
        if found is None:
            found = self.searches[key] = Search(self.nest_over(parts, target, is_sparse, last))
        return found

    def most_entries(self, nest: Nest) -> float:
        """Upper bound on the entries of a product: any coordinates of its parts may meet."""
        found = prod(nest.distinct(number, nest.target) for number in range(len(nest.factors)))
        stored = 0
        for factor in nest.factors:
            stored |= factor.mask
        return found * nest.coordinates(nest.target & ~stored)

    def finish(self, parts: tuple[Part, ...], limit: float = inf) -> Part:
        """The result as the product of parts."""
        search = self.search(parts, self.nest.target, bool(self.nest.levels), last=True)
        return self.product(parts, search, 0.0, limit)

    def product(self, parts: tuple[Part, ...], search: Search, more: float, limit: float = inf) -> Part:
        """Parts multiplied in one nest; infinite cost if no loop order is cheaper than the limit."""
        nest = search.nest
        share = 1.0 if nest.factors else LIBRARY
        before = more + sum(part.cost for part in parts)
        room = (limit - before) / share
        is_found = least_cost(nest) <= room and search.look(room)
        factors = sum(part.factors for part in parts)
        parts = tuple(sorted(parts, key=lambda part: part.factors & -part.factors))
        return Part(
            factors, (), 0.0, False, cost=before + search.cost * share if is_found else inf, parts=parts
        )

    def nest_over(self, parts: tuple[Part, ...], target: int, is_sparse: bool, last: bool = False) -> Nest:
        """The nest of a product, over the variables of the whole sum that occur in its parts."""
        whole = self.nest
        factors = [part.whole for part in parts if part.whole is not None]
        written = [bit for bit in self.natural if target & bit]
        levels: tuple[int, ...] = ()
        if last:
            # The owner of the result's pattern keeps the mode ordering of the result.
            own = [leaf.whole for leaf in self.leaves]
            beside = [
                f for n, f in enumerate(whole.factors) if f not in own and all(n in p for p in whole.points)
            ]
            factors += beside
            levels = whole.levels
            written = sorted(written)
        elif is_sparse:
            levels = tuple(written)
        reads = [(part.mask, part.modes[-1]) for part in parts if not part.is_sparse and part.modes]
        if not levels:
            reads.append((target, written[-1] if written else 0))
        return replace(
            whole,
            factors=tuple(factors),
            points=(tuple(range(len(factors))),),
            target=target,
            full=reduce(lambda mask, part: mask | part.mask, parts, target),
            levels=levels,
            reads=tuple(reads),
            is_sampled=False,
        )

    def greedy(self) -> Part:
        """The greedy path of opt_einsum, by dense sizes, for too many operands to compare all paths."""
        names = [tuple(cast(Index, index).name for index in access.indices) for access in self.accesses]
        letters = {name: opt_einsum.get_symbol(n) for n, name in enumerate(self.nest.variables)}
        text = ",".join("".join(letters[n] for n in each) for each in names)
        kept = [n for n in self.nest.variables if self.nest.target & self.nest.bit(n)]
        sizes = dict(zip(self.nest.variables, map(int, self.nest.extents), strict=True))
        shapes = [tuple(max(1, sizes[n]) for n in each) for each in names]
        text += "->" + "".join(letters[n] for n in kept)
        pairs, _ = opt_einsum.contract_path(text, *shapes, shapes=True, optimize="greedy")
        parts = list(self.leaves)
        for places in pairs:
            chosen = tuple(parts[place] for place in places)
            rest = [part for place, part in enumerate(parts) if place not in places]
            if not rest:
                return self.finish(chosen)
            made = self.join(chosen)
            if made is None:
                return self.finish(tuple(parts))
            parts = [*rest, made]
        return self.finish(tuple(parts))


def _cost(part: Part) -> float:
    return part.cost
