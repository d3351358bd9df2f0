"""Iteration counts: a nest described by counts, and the iterations of each of its loops in any order.

In: `sum(j, A[i,j] * B[j,k])`, both compressed by row, 1,000 x 1,000 with 10 entries a row. Out: 1,000 iterations of
`i`, 10,000 of `j` inside it, 100,000 of `k` inside both; 10,000,000 of `j` inside `i` and `k`.

Coordinates count as independent: a product keeps the fraction of coordinates stored in all factors, a sum the fraction
stored in any. Distinct coordinates are taken from the operands if known.

Source: the size estimates of join ordering, Selinger et al., Access Path Selection, 1979; asymptotic costs of
sparse loop nests after Ahrens, Kjolstad and Amarasinghe, Autoscheduling for Sparse Tensor Algebra, 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import expm1, inf, log2, prod
from typing import Final

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.ir.node import find, holds
from sparsify.compiler.loops.lower.declared import DeclaredTensors
from sparsify.compiler.loops.lower.lattice import EVERYWHERE, Point, expression_regions
from sparsify.compiler.schedule.sizes import Sizes

# Defaults for unknown sizes: extents, and entries per coordinate of the longest mode.
UNKNOWN_EXTENT: Final = 1000
UNKNOWN_ENTRIES: Final = 10
# Length ratio above which two lists are searched instead of merged.
GALLOP: Final = 8
# Costs of copying an entry of a dense operand transposed, and of writing an entry of a result transposed; most bytes
# of an operand's tile of lanes that stay in cache.
COPY: Final = 1.0
COPY_BACK: Final = 2.5
COPY_BYTES: Final = 1 << 19
TILE_BYTES: Final = 64
# Costs of transposing an entry of an operand (the pattern once, the values in each call), and of a result of an
# earlier step (pattern and values in each call).
TURN: Final = 2.5
TURN_MADE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Factor:
    """A sparse operand in a nest; variables are bits.

    Attributes:
        access: operand and its index variables.
        order: bit of the variable of each level, outermost first.
        is_dense: whether the level at each depth is dense, in every mode ordering.
        known: known numbers of distinct coordinates for sets of variables.
        stored: entries.
        turn: cost of reading an entry in another mode ordering, infinite if illegal.
        mask: all variables of the operand.
        above: for each variable the variables of the levels above.
        shares: memoized results of `Nest.share`; all nests of an operand have the same extents.
    """

    access: Access
    order: tuple[int, ...]
    is_dense: tuple[bool, ...]
    known: Mapping[int, float]
    stored: float
    turn: float = TURN
    mask: int = field(init=False, compare=False, repr=False)
    above: Mapping[int, int] = field(init=False, compare=False, repr=False)
    shares: dict[int, float] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Precomputed: every step of a search reads these.
        object.__setattr__(self, "mask", sum(set(self.order)))
        above = {bit: sum(set(self.order[: self.order.index(bit)])) for bit in self.order}
        object.__setattr__(self, "above", above)


@dataclass(frozen=True)
class Nest:
    """The loops of one sum, or of one assignment, as counts.

    Attributes:
        variables: names of the loops; the n-th is bit `1 << n`.
        extents: extent of each variable.
        factors: sparse operands.
        points: minimal sets of factors for which the body runs (lattice points); an empty set stands for everywhere.
        target: variables of the written tensor.
        full: all variables with a loop.
        levels: variables of an assembled result's levels in order, empty otherwise.
        reads: for each dense operand its variables and the bit of its last mode; the target is the last entry.
        is_sampled: whether the target is stored at known positions, which sums around their loops do not keep.
        may_copy: whether dense operands strided along the lanes may be copied transposed.
        costs: memoized costs of loops, by outer loops, variable and levels of a workspace.
        bits: variables with a loop.
        sums: summed variables.
        above: for each variable of the assembled result the variables of the levels above.
        having: for each variable the factors with the variable, numbered.
        strides: for each variable the number of dense operands with the variable in another mode than the last.
        copies: costs of transposed copies, for each variable along which lanes run with copies.
    """

    variables: tuple[str, ...]
    extents: tuple[float, ...]
    factors: tuple[Factor, ...]
    points: tuple[tuple[int, ...], ...]
    target: int
    full: int
    levels: tuple[int, ...] = ()
    reads: tuple[tuple[int, int], ...] = ()
    is_sampled: bool = False
    may_copy: bool = False
    bits: tuple[int, ...] = field(init=False, compare=False, repr=False)
    sums: int = field(init=False, compare=False, repr=False)
    above: Mapping[int, int] = field(init=False, compare=False, repr=False)
    having: Mapping[int, Sequence[tuple[int, Factor]]] = field(init=False, compare=False, repr=False)
    strides: Mapping[int, int] = field(init=False, compare=False, repr=False)
    copies: Mapping[int, float] = field(init=False, compare=False, repr=False)
    _meeting: Sequence[int] = field(init=False, compare=False, repr=False)
    costs: dict[tuple[int, int, int], float] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    _counts: dict[int, float] = field(init=False, default_factory=dict, compare=False, repr=False)
    _visits: dict[tuple[int, int], tuple[float, int]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    _coordinates: dict[int, float] = field(default_factory=lambda: {0: 1.0}, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Precomputed: every step of a search reads these.
        bits = tuple(1 << n for n in range(self.full.bit_length()) if self.full >> n & 1)
        numbered = tuple(enumerate(self.factors))
        strides = {b: sum([1 for mask, last in self.reads if mask & b and last != b]) for b in bits}
        for name, value in (
            ("bits", bits),
            ("sums", self.full & ~self.target),
            ("above", {bit: sum(self.levels[:depth]) for depth, bit in enumerate(self.levels)}),
            ("having", {bit: [(n, f) for n, f in numbered if f.mask & bit] for bit in bits}),
            ("strides", strides),
            ("_meeting", [sum([1 << number for number in point]) for point in self.points]),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "copies", self._copies() if self.may_copy else {})

    def bit(self, name: str) -> int:
        """The bit of a variable."""
        return 1 << self.variables.index(name)

    def coordinates(self, mask: int) -> float:
        """The product of the extents of a set of variables."""
        found = self._coordinates.get(mask)
        if found is None:
            first = mask & -mask
            found = self.extents[first.bit_length() - 1] * self.coordinates(mask ^ first)
            self._coordinates[mask] = found
        return found

    def distinct(self, number: int, mask: int) -> float:
        """Distinct coordinates of a factor along its variables in `mask`."""
        factor = self.factors[number]
        mask &= factor.mask
        if mask == factor.mask:
            return factor.stored
        if mask in factor.known:
            return factor.known[mask]
        return spread(factor.stored, self.coordinates(mask))

    def share(self, number: int, mask: int) -> float:
        """The fraction of coordinates along `mask` that a loop over the levels of a factor reaches.

        Dense levels without a compressed level above are traversed completely.
        """
        factor = self.factors[number]
        mask &= factor.mask
        found = factor.shares.get(mask)
        if found is None:
            depth = mask.bit_count()
            possible = self.coordinates(mask)
            whole = all(factor.is_dense[:depth]) or not possible
            found = 1.0 if whole else min(1.0, self.distinct(number, mask) / possible)
            factor.shares[mask] = found
        return found

    def count(self, mask: int) -> float:
        """The number of runs of the body of the outermost loops, over the variables of `mask`."""
        found = self._counts.get(mask)
        if found is None:
            share = 0.0
            for point in self.points:
                met = prod([self.share(number, mask) for number in point])
                share += met * (1.0 - share)
            found = self._counts[mask] = self.coordinates(mask) * share
        return found

    def visits(self, outer: int, bit: int) -> tuple[float, int]:
        """The coordinates visited by one run of the loop over `bit` inside `outer`, and the number of merged lists."""
        found = self._visits.get((outer, bit))
        if found is None:
            found = self._visits[outer, bit] = self._looks(outer, bit)
        return found

    def _looks(self, outer: int, bit: int) -> tuple[float, int]:
        extent = self.extents[bit.bit_length() - 1]
        driving, lengths = 0, []
        for number, factor in self.having[bit]:
            if not factor.is_dense[(factor.mask & outer).bit_count()]:
                driving |= 1 << number
                # The mean length of the list that the loop runs along.
                above = self.share(number, outer)
                lengths.append(extent * self.share(number, outer | bit) / above if above else 0.0)
        if not lengths or not all(point & driving for point in self._meeting):
            return extent, len(lengths)
        if len(lengths) == 1:
            return lengths[0], 1
        if len(self.points) == 1 and max(lengths) > GALLOP * min(lengths):
            least = max(min(lengths), 1.0)
            steps = sum(min(length, 1.0 + log2(max(length, 1.0) / least)) for length in lengths)
            return least * steps, len(lengths)
        return min(sum(lengths), extent * len(lengths)), len(lengths)

    def drivers(self, outer: int, bit: int) -> list[int]:
        """The factors with a list of coordinates of a variable inside the loops over `outer`."""
        found = self.having[bit]
        return [number for number, f in found if not f.is_dense[(f.mask & outer).bit_count()]]

    @cached_property
    def written(self) -> float:
        """The entries of the result that some iteration of all loops reaches."""
        sums = self.full & ~self.target
        reached = self.count(self.full)
        return spread(reached, self.coordinates(self.target)) if sums else reached

    def _copies(self) -> dict[int, float]:
        """Costs of copies by the variable of the lanes: one of the result, or of sums at stored positions."""
        found: dict[int, float] = {}
        if len(self.factors) != 1 or self.points != ((0,),) or self.levels:
            return found
        reads, written = (self.reads, 0) if self.is_sampled else (self.reads[:-1], self.reads[-1][1])
        for bit in self.bits:
            across = [(mask, last) for mask, last in reads if mask & bit and last != bit]
            is_written = written not in (0, bit)
            wanted = self.sums if self.is_sampled else self.target
            if bit & self.factors[0].mask or not bit & wanted or not (across or is_written):
                continue
            if self._is_near(bit, across, is_written):
                cost = COPY * sum([self.coordinates(mask) for mask, _ in across])
                found[bit] = cost + is_written * COPY_BACK * self.coordinates(self.target)
        return found

    def _is_near(self, bit: int, across: Sequence[tuple[int, int]], is_written: bool) -> bool:
        """Whether copies of a tile of lanes stay in cache; at stored positions whole operands are copied."""
        if self.is_sampled:
            return all(mask & bit for mask, _ in self.reads)
        outer = self.target
        for mask, last in (*across, *self.reads[-1:]):
            outer &= mask & ~last
        entries = sum([self.coordinates(mask & ~bit & ~outer) for mask, _ in across])
        entries += is_written * self.coordinates(self.target & ~bit & ~outer)
        return entries * TILE_BYTES <= COPY_BYTES

    @cached_property
    def lane(self) -> int:
        """The variable contiguous in all operands that have it, 0 without one."""
        stored = 0
        for factor in self.factors:
            stored |= factor.mask
        last = {bit for mask, bit in self.reads if bit and not bit & stored}
        whole = [b for b in last if all(bit == b for mask, bit in self.reads if mask & b)]
        best = [b for b in whole if self.target & b]
        return max(best or whole, default=0)


def spread(entries: float, places: float) -> float:
    """Expected number of distinct places of uniformly distributed entries: `n (1 - (1 - 1/n)^m)`."""
    if places <= 0:
        return 0.0
    return min(entries, -places * expm1(-entries / places))


def nest_of(
    program: Program, target: Access, body: Expr, sizes: Sizes, monoid: str | None = "sum"
) -> Nest | None:
    """The nest that reduces `body` into `target`; `None` if its loops are not those of its index variables.

    Blocks, diagonals and computed indices have loops of their own.
    """
    declared = {d.name: d for d in program.declarations}
    accesses = list(dict.fromkeys(find(body, Access)))
    if holds(body, Reduce) or not all(is_plain(a, declared[a.tensor]) for a in accesses):
        return None
    if target.tensor in declared and not is_plain(target, declared[target.tensor]):
        return None
    indices = [n.name for n in find(body, Index)]
    names = tuple(dict.fromkeys(_names(target) + indices))
    bits = {name: 1 << n for n, name in enumerate(names)}
    known = extents_of((*accesses, target), declared, sizes)
    extents = tuple(float(known.get(name, UNKNOWN_EXTENT)) for name in names)
    output = declared.get(target.tensor)
    tensors = DeclaredTensors(declared)
    roots = dict.fromkeys(tensors.root_of(a) for a in accesses)
    if output is not None and output.pattern_of in declared:
        roots[tensors.root_of(target)] = None
    sparse = [a for a in roots if not declared[a.tensor].format.is_dense]
    factors = tuple(
        _factor(a, declared[a.tensor], bits, extents, program, sizes, target.tensor) for a in sparse
    )
    points = _points(body, target, sparse, declared, monoid)
    written = sum(bits[name] for name in _names(target))
    levels: tuple[int, ...] = ()
    if output is not None and not output.format.is_dense and output.pattern_of is None:
        levels = tuple(bits[name] for name in _level_names(target, output))
    dense = [a for a in accesses if declared[a.tensor].format.is_dense and a.indices]
    reads = [_read(_names(a), declared[a.tensor], bits) for a in dense]
    if output is None or output.format.is_dense:
        reads.append(_read(_names(target), output, bits))
    is_sampled = output is not None and not output.format.is_dense and output.pattern_of is not None
    full = sum(bits.values())
    may_copy = monoid == "sum" and all(name in known for name in names) and may_be_copied(body, declared)
    return Nest(names, extents, factors, points, written, full, levels, tuple(reads), is_sampled, may_copy)


def may_be_copied(body: Expr, declared: Mapping[str, Declaration]) -> bool:
    """Whether a product reads each dense operand in a single way, so that a transposed copy can replace it."""
    reads = dense_factors(body, declared)
    return reads is not None and len({access.tensor for access in reads}) == len(set(reads))


def dense_factors(body: Expr, declared: Mapping[str, Declaration]) -> list[Access] | None:
    """The dense operands of a product of sparse operands and functions of dense ones; `None` for other bodies."""
    match body:
        case Call("mul", (left, right)):
            parts = dense_factors(left, declared), dense_factors(right, declared)
            return None if parts[0] is None or parts[1] is None else [*parts[0], *parts[1]]
        case Access() if not declared[body.tensor].format.is_dense:
            return []
    found = find(body, Access)
    is_dense = all(declared[access.tensor].format.is_dense for access in found)
    return found if is_dense and not holds(body, Reduce) else None


def is_plain(access: Access, declared: Declaration) -> bool:
    """Whether the levels of an operand are loops over distinct plain index variables of an access."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    whole = all(
        stored.expression.kind == "whole" and not stored.level.has_bits for stored in declared.format.levels
    )
    return whole and len(set(names)) == len(access.indices)


def extents_of(
    accesses: Sequence[Access], declared: Mapping[str, Declaration], sizes: Sizes
) -> dict[str, int]:
    """The known extents of index variables."""
    found: dict[str, int] = {}
    for access in accesses:
        if access.tensor not in declared:
            continue
        for index, extent in zip(access.indices, declared[access.tensor].extents, strict=True):
            size = sizes.extents.get(extent)
            # Symbolic extents of traced graphs are skipped: reading one would specialize the graph.
            if isinstance(index, Index) and type(size) is int:
                found[index.name] = size
    return found


def _names(access: Access) -> list[str]:
    """The index variables of a plain access."""
    return [index.name for index in access.indices if isinstance(index, Index)]


def _level_names(access: Access, declared: Declaration) -> list[str]:
    """The index variable of each level."""
    names = _names(access)
    return [names[stored.expression.mode] for stored in declared.format.levels]


def _read(names: list[str], declared: Declaration | None, bits: Mapping[str, int]) -> tuple[int, int]:
    """The variables of a dense operand, and its contiguous variable, 0 for a number."""
    if not names:
        return 0, 0
    last = names[-1] if declared is None else names[declared.format.ordering[-1]]
    return sum(bits[name] for name in names), bits[last]


def _factor(
    access: Access,
    declared: Declaration,
    bits: Mapping[str, int],
    extents: Sequence[float],
    program: Program,
    sizes: Sizes,
    written: str,
) -> Factor:
    """A sparse operand as counts; unknown operands count ten entries a coordinate of their longest mode."""
    order = tuple(bits[name] for name in _level_names(access, declared))
    is_dense = tuple(stored.level.is_full for stored in declared.format.levels)
    own = [extents[bit.bit_length() - 1] for bit in order]
    entries = sizes.stored.get(declared.name)
    stored = float(entries) if type(entries) is int else min(prod(own), UNKNOWN_ENTRIES * max(own))
    known: dict[int, float] = {}
    for mask, count in sizes.distinct(declared.name).items():
        known[sum(bits[_names(access)[mode]] for mode in mask)] = float(count)
    turn = TURN if declared.name in program.inputs else TURN_MADE
    if any(d.pattern_of == declared.name for d in program.declarations if d.name == written):
        turn = inf  # co-iterated entry by entry with the result on its pattern
    return Factor(access, order, is_dense, known, stored, turn)


def _points(
    body: Expr,
    target: Access,
    sparse: Sequence[Access],
    declared: Mapping[str, Declaration],
    monoid: str | None,
) -> tuple[tuple[int, ...], ...]:
    """The minimal sets of sparse operands at whose entries the body has an effect."""
    fills = DeclaredTensors(declared)
    regions = expression_regions(body, frozenset(sparse), fills, frozenset(), {})
    output = declared.get(target.tensor)
    neutral = float(MONOIDS[monoid].neutral) if monoid is not None else None
    wanted = neutral if neutral is not None else (float(output.fill) if output is not None else 0.0)
    points = regions.points
    if regions.background is None or regions.background != wanted:
        points = EVERYWHERE
    if output is not None and output.pattern_of in declared:
        # A result on a pattern has entries only at those of the pattern's owner, possibly a dense tensor.
        root = frozenset({fills.root_of(target)}.intersection(sparse))
        points = frozenset(point | root for point in points)
    return tuple(
        sorted(tuple(sorted(sparse.index(access) for access in point)) for point in _smallest(points))
    )


def _smallest(points: frozenset[Point]) -> list[Point]:
    """The minimal points."""
    return [point for point in points if not any(other < point for other in points)]


def body_of(statement: Assign) -> tuple[str | None, Expr] | None:
    """The monoid and the body of the only reduction in a statement, or the value without a reduction."""
    if statement.monoid is not None:
        return statement.monoid, statement.value
    sums = find(statement.value, Reduce)
    if len(sums) > 1:
        return None
    return (sums[0].monoid, sums[0].body) if sums else (None, statement.value)
