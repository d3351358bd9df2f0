"""The ways to multiply several operands two or three at a time, by what they cost.

In: the nest of `sum(j, k, A[i,j] * B[j,k] * C[k,l])`, C dense and narrow. Out: `A * (B * C)`, B and C first.

The cost of a product is that of its loops in their best order, with the entries that its result is expected to store.
One nest over all operands is a candidate like the others, so that sampled products and MTTKRP stay whole where that
is cheaper.

Source: Pfeifer, Haegeman and Verstraete, Faster identification of optimal contraction sequences, 2014 (subsets);
beyond seven operands the greedy path of opt_einsum, Smith and Gray, 2018.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from math import inf, prod
from typing import Final, cast

import opt_einsum

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.schedule.order import LANES, best_order
from sparsify.compiler.schedule.work import TURN_MADE, Factor, Nest

# All paths are compared for so many operands.
MOST_FACTORS: Final = 7
# A product of two dense operands is one of a library.
LIBRARY: Final = 0.25
# Every statement is a call of a kernel, and a temporary is written and read.
STATEMENT: Final = 20_000.0


@dataclass(frozen=True, slots=True)
class Part:
    """An operand or the product of several, as counts; variables are bits.

    Attributes:
        factors: which of the operands it is the product of, as bits.
        modes: its variables, in the order of its modes.
        entries: that it stores, all of them when it is dense.
        is_sparse: whether what it does not store meets nothing.
        whole: an operand as it is stored.
        cost: of computing it.
        parts: that it is the product of.
    """

    factors: int
    modes: tuple[int, ...]
    entries: float
    is_sparse: bool
    whole: Factor | None = None
    cost: float = 0.0
    parts: tuple["Part", ...] = ()

    @property
    def mask(self) -> int:
        """Its variables."""
        return sum(self.modes)


class Paths:
    """The ways to compute the product of a nest's operands."""

    def __init__(self, nest: Nest, accesses: list[Access]) -> None:
        self.nest, self.accesses = nest, accesses
        self.leaves = [self.leaf(number, access) for number, access in enumerate(accesses)]
        self.all = (1 << len(accesses)) - 1
        # Rows of the result, sums, columns: the order in which a workspace a row is filled.
        bits = [1 << n for n in range(len(nest.variables))]
        kept = [bit for bit in bits if nest.target & bit]
        self.natural = (*kept[:-1], *(bit for bit in bits if not nest.target & bit), *kept[-1:])

    def leaf(self, number: int, access: Access) -> Part:
        """An operand; one with another fill than 0 takes part everywhere."""
        modes = tuple(self.nest.bit(cast(Index, index).name) for index in access.indices)
        found = next((n for n, f in enumerate(self.nest.factors) if f.access == access), None)
        if found is None or not any(found in point for point in self.nest.points):
            return Part(1 << number, modes, self.nest.coordinates(sum(modes)), False)
        factor = self.nest.factors[found]
        return Part(1 << number, modes, factor.stored, True, factor)

    def best(self) -> Part:
        """The cheapest product of all operands; without parts it is one nest."""
        if len(self.leaves) > MOST_FACTORS:
            return self.greedy()
        one = self.product(tuple(self.leaves), self.nest, 0.0)
        found: dict[int, Part] = {leaf.factors: leaf for leaf in self.leaves}
        for size in range(2, len(self.leaves)):
            for chosen in combinations(range(len(self.leaves)), size):
                subset = sum(1 << n for n in chosen)
                best: Part | None = None
                for parts in self.splits(subset, found):
                    way = self.join(parts, one.cost if best is None else best.cost)
                    if way is not None and (best is None or way.cost < best.cost):
                        best = way
                if best is not None:
                    found[subset] = best
        last = [*self.splits(self.all, found), *self.triples(found)]
        for parts in last:
            one = min(one, self.finish(parts, one.cost), key=_cost)
        return one

    def splits(self, subset: int, found: Mapping[int, Part]) -> Iterator[tuple[Part, ...]]:
        """The pairs of parts that make up a subset and share a variable."""
        half = (subset - 1) & subset
        while half:
            other = subset ^ half
            if half > other and half in found and other in found and found[half].mask & found[other].mask:
                yield found[half], found[other]
            half = (half - 1) & subset

    def triples(self, found: Mapping[int, Part]) -> Iterator[tuple[Part, ...]]:
        """Two operands beside a product of all others."""
        if len(self.leaves) < 4:
            return
        for first, second in combinations(self.leaves, 2):
            rest = self.all ^ first.factors ^ second.factors
            if rest in found:
                yield first, second, found[rest]

    def join(self, parts: tuple[Part, ...], limit: float = inf) -> Part | None:
        """The temporary that is the product of parts, `None` when it would be a number or costs too much."""
        factors = sum(part.factors for part in parts)
        needed = self.nest.target
        for leaf in self.leaves:
            if not leaf.factors & factors:
                needed |= leaf.mask
        mask = reduce(lambda a, b: a | b, (part.mask for part in parts)) & needed
        if not mask:
            return None
        is_sparse = any(part.is_sparse for part in parts)
        nest = self.nest_over(parts, mask, is_sparse)
        entries = min(nest.written, self.most_entries(parts, nest))
        made = self.product(parts, nest, STATEMENT + entries, limit)
        if made.cost > limit:
            return None
        modes = tuple(bit for bit in self.natural if mask & bit)
        return replace(made, modes=modes, entries=entries, is_sparse=is_sparse)

    def most_entries(self, parts: tuple[Part, ...], nest: Nest) -> float:
        """The entries that a product has when any coordinates of its parts may meet."""
        found = prod(nest.distinct(number, nest.target) for number in range(len(nest.factors)))
        stored = 0
        for factor in nest.factors:
            stored |= factor.mask
        return found * nest.coordinates(nest.target & ~stored)

    def finish(self, parts: tuple[Part, ...], limit: float = inf) -> Part:
        """The result as the product of parts."""
        nest = self.nest_over(parts, self.nest.target, bool(self.nest.levels), last=True)
        return self.product(parts, nest, 0.0, limit)

    def product(self, parts: tuple[Part, ...], nest: Nest, more: float, limit: float = inf) -> Part:
        """Parts multiplied in one nest; where no order of its loops costs less than a limit, none is looked for."""
        share = 1.0 if nest.factors else LIBRARY
        before = more + sum(part.cost for part in parts)
        room = (limit - before) / share
        order = best_order(nest, limit=room) if nest.count(nest.full) / LANES <= room else None
        cost = before + (inf if order is None else order.cost) * share
        factors = sum(part.factors for part in parts)
        parts = tuple(sorted(parts, key=lambda part: part.factors & -part.factors))
        return Part(factors, (), 0.0, False, cost=cost, parts=parts)

    def nest_over(self, parts: tuple[Part, ...], target: int, is_sparse: bool, last: bool = False) -> Nest:
        """The nest of a product, over the variables of the whole sum that it has."""
        whole = self.nest
        masks = [part.mask for part in parts]
        order = [n for n in range(len(whole.variables)) if any(mask >> n & 1 for mask in (*masks, target))]
        move = _mover(order)
        factors: list[Factor] = []
        points: list[int] = []
        for part in parts:
            if part.is_sparse:
                points.append(len(factors))
                factors.append(_factor(part, move))
        if last:
            # What a result shares its pattern with keeps the same places.
            for number, factor in enumerate(whole.factors):
                is_own = any(factor is leaf.whole for leaf in self.leaves)
                if not is_own and all(number in point for point in whole.points):
                    points.append(len(factors))
                    factors.append(_moved(factor, move))
        levels = tuple(move(bit) for bit in whole.levels) if last else ()
        written = [bit for bit in self.natural if target & bit]
        if last:
            written = sorted(written)
        if is_sparse and not last:
            levels = tuple(move(bit) for bit in written)
        reads = [(move(p.mask), move(p.modes[-1])) for p in parts if not p.is_sparse and p.modes]
        if not levels:
            reads.append((move(target), move(written[-1]) if written else 0))
        return Nest(
            tuple(whole.variables[n] for n in order),
            tuple(whole.extents[n] for n in order),
            tuple(factors),
            (tuple(points),),
            move(target),
            levels,
            tuple(reads),
        )

    def greedy(self) -> Part:
        """The path of opt_einsum, by dense sizes: too many operands to compare all."""
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


def _mover(order: list[int]) -> Callable[[int], int]:
    """What takes sets of variables to the numbers that they have among fewer of them."""

    def move(mask: int) -> int:
        return sum(1 << place for place, n in enumerate(order) if mask >> n & 1)

    return move


def _factor(part: Part, move: Callable[[int], int]) -> Factor:
    """A part as a sparse operand of a nest: as it is stored, or all compressed."""
    if part.whole is not None:
        return _moved(part.whole, move)
    levels = tuple(move(bit) for bit in part.modes)
    return Factor(Access(f"T{part.factors}"), levels, (False,) * len(levels), {}, part.entries, TURN_MADE)


def _moved(factor: Factor, move: Callable[[int], int]) -> Factor:
    known = {move(mask): count for mask, count in factor.known.items()}
    return replace(factor, order=tuple(move(bit) for bit in factor.order), known=known)
