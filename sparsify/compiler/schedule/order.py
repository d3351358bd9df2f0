"""The order of loops by cost: the cheapest of all, found set by set.

In: the nest of `sum(j, A[i,j] * B[j,k])`, all compressed by row. Out: `i, j, k`: 1,000 rows, their 10,000 entries,
100,000 products; the inner product `i, k, j` would look at 10,000,000 pairs.

What a loop costs depends on which loops are around it and not on their order, so that the best order of a set of
loops begins with the best order of a smaller set: 2^n steps instead of n!. Operands that are stored in another order
are turned once.

Source: dynamic programming over subsets, Held and Karp, 1962; the filters that should come first are those of
Yan et al., Scorch, 2024, Algorithm 1, which ranks loops without sizes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Final

from sparsify.compiler.einsum.infer_format import infer_sparsity
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Assign, Program
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.work import Nest, body_of, nest_of

# Costs in units of one multiplication and addition in a register.
VISIT: Final = 1.0  # a stored coordinate in a loop over one list, or a step of a loop over all coordinates
MERGE: Final = 3.0  # a step in merged lists: comparisons that the processor cannot foresee
SCATTER: Final = 1.0  # an addition to memory instead of a register
STRIDE: Final = 2.0  # an entry of a dense operand that is no neighbour of the one before
SERIAL: Final = 0.5  # an iteration that threads cannot share
INSERT: Final = 8.0  # an entry of a result that is assembled from a workspace
APPEND: Final = 2.0  # an entry of a result that is assembled in order
LANES: Final = 8.0
MOST_VARIABLES: Final = 12


@dataclass(frozen=True, slots=True)
class Order:
    """Loops, outermost first, and what they cost.

    Attributes:
        names: the index variables.
        cost: in multiplications and additions, as far as counts tell.
        iterations: of all loops together.
        turned: the operands that are not stored so.
        workspace: whether the result is assembled from a workspace a row.
    """

    names: tuple[str, ...]
    cost: float
    iterations: float
    turned: tuple[str, ...] = ()
    workspace: bool = False

    def __str__(self) -> str:
        return ", ".join(self.names)


def statement_order(program: Program, statement: Assign, sizes: Sizes) -> Order | None:
    """The cheapest order of the loops of a statement; `None` where its loops are not those of one plain nest."""
    found = body_of(statement)
    if found is None:
        return None
    nest = nest_of(program, statement.target, found[1], sizes, found[0])
    # What is stored adds to a workspace only where nothing stored is what the reduction starts with.
    value = infer_sparsity(found[1], {declared.name: declared for declared in program.declarations})
    may_scatter = found[0] is None or value.fill == MONOIDS[found[0]].neutral
    order = None if nest is None else best_order(nest, may_scatter)
    return order if order is not None and order.cost < inf else None


def best_order(nest: Nest, may_scatter: bool = True, limit: float = inf) -> Order | None:
    """The cheapest order of the loops of a nest; `None` where there is none, or there are too many loops.

    Args:
        nest: the loops.
        may_scatter: whether a workspace may take what is summed.
        limit: orders that cost more are not looked for.
    """
    if not nest.variables:
        return Order((), 0.0, 1.0)
    if len(nest.variables) > MOST_VARIABLES:
        return None
    found = _best(_Key(nest), may_scatter, limit * (1.0 + 1e-9))
    return None if found is None else described(nest, *found)


class _Key:
    """A nest by what it holds, so that a statement which stays as it is has its loops ordered once."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        factors = [(f.order, f.is_dense, tuple(f.known.items()), f.stored, f.turn) for f in nest.factors]
        rest = (nest.points, nest.target, nest.levels, nest.reads, nest.is_sampled)
        self._all = (nest.extents, tuple(factors), rest)

    def __hash__(self) -> int:
        return hash(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._all == other._all


@lru_cache(maxsize=16)
def _best(key: _Key, may_scatter: bool, limit: float) -> tuple[tuple[int, ...], bool] | None:
    """The cheapest order of bits, and whether a workspace takes what is summed."""
    found = None
    for workspace in _ways(key.nest):
        made = _cheapest(key.nest, workspace, limit) if may_scatter or not workspace else None
        if made is not None and (found is None or made[0] < limit):
            limit, found = made[0], (made[1], workspace)
    return found


def _ways(nest: Nest) -> tuple[bool, ...]:
    """Whether a workspace takes what is summed: always, never or either, by what is written."""
    if not nest.levels:
        return (False,)
    return (True, False) if nest.full != nest.target else (False,)


def _cheapest(nest: Nest, workspace: bool, limit: float) -> tuple[float, tuple[int, ...]] | None:
    """The cheapest order with or without a workspace, by the sets of loops around each loop; none above a limit."""
    bits = [1 << n for n in range(len(nest.variables))]
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    # Whatever the last loop is, it costs at least so much.
    last = min((loop_cost(nest, nest.full ^ b, b, workspace) for b in _free(nest, workspace)), default=inf)
    if last == inf:
        return None
    limit = min(limit, _greedy(nest, bits, workspace))
    for outer in range(nest.full):
        if outer not in best:
            continue
        cost, order = best[outer]
        for bit in bits:
            if outer & bit or not may_follow(nest, outer, bit, workspace):
                continue
            inner = outer | bit
            total = cost + loop_cost(nest, outer, bit, workspace)
            if (total if inner == nest.full else total + last) > limit:
                continue
            if inner not in best or (total, (*order, bit)) < best[inner]:
                best[inner] = (total, (*order, bit))
    return best.get(nest.full)


def _free(nest: Nest, workspace: bool) -> list[int]:
    """The loops that may be the innermost one."""
    bits = (1 << n for n in range(len(nest.variables)))
    return [bit for bit in bits if may_follow(nest, nest.full ^ bit, bit, workspace)]


def _greedy(nest: Nest, bits: list[int], workspace: bool) -> float:
    """The cost of the order that always takes the cheapest next loop: no set of loops that costs more is looked at."""
    cost, outer = 0.0, 0
    while outer != nest.full:
        free = [bit for bit in bits if not outer & bit and may_follow(nest, outer, bit, workspace)]
        if not free:
            return inf
        added, bit = min((loop_cost(nest, outer, bit, workspace), bit) for bit in free)
        cost, outer = cost + added, outer | bit
    return cost * (1.0 + 1e-9)


def described(nest: Nest, order: tuple[int, ...], workspace: bool) -> Order:
    """An order of the loops with its cost."""
    cost, iterations, outer = 0.0, 0.0, 0
    for bit in order:
        cost += loop_cost(nest, outer, bit, workspace)
        visits, _ = nest.visits(outer, bit)
        iterations += nest.count(outer) * visits
        outer |= bit
    turned = [f.access.tensor for f in nest.factors if not is_concordant(f.order, order)]
    names = tuple(nest.variables[bit.bit_length() - 1] for bit in order)
    return Order(names, cost, iterations, tuple(dict.fromkeys(turned)), workspace)


def is_concordant(levels: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether loops in this order go down the levels of an operand."""
    places = [order.index(bit) for bit in levels]
    return places == sorted(places)


def orders(nest: Nest) -> Iterator[Order]:
    """All orders of the loops that have code, the cheapest first; for few loops."""

    def extend(outer: int, order: tuple[int, ...], workspace: bool) -> Iterator[Order]:
        if outer == nest.full:
            yield described(nest, order, workspace)
        for n in range(len(nest.variables)):
            if not outer >> n & 1 and may_follow(nest, outer, 1 << n, workspace):
                yield from extend(outer | 1 << n, (*order, 1 << n), workspace)

    found = [order for workspace in _ways(nest) for order in extend(0, (), workspace)]
    yield from sorted(found, key=lambda order: order.cost)


def may_follow(nest: Nest, outer: int, bit: int, workspace: bool) -> bool:
    """Whether the loop over `bit` may be the next one inside those of `outer`.

    A result that is assembled is written level by level; a workspace holds its last level only.
    """
    sums = nest.sums
    if not nest.levels:
        # What is summed around the loops over stored positions would need memory for all coordinates.
        return not (nest.is_sampled and bit & nest.target and outer & sums)
    if not bit & nest.target:
        ready = sum(nest.levels[:-1]) if workspace else nest.target
        return ready & ~outer == 0
    above = sum(nest.levels[: nest.levels.index(bit)])
    if above & ~outer:
        return False
    if bit == nest.levels[-1] and workspace:
        return sums & ~outer == 0
    if sums & outer:
        return False
    # Without a workspace every coordinate that the loop over the last level visits is stored.
    return workspace or bit != nest.levels[-1] or not sums or bool(nest.drivers(outer, bit))


def loop_cost(nest: Nest, outer: int, bit: int, workspace: bool) -> float:
    """What the loop over `bit` inside the loops of `outer` adds, with the body where it is the last one."""
    count, inner = nest.count(outer), outer | bit
    visits, lists = nest.visits(outer, bit)
    is_vector = inner == nest.full and bit == nest.lane
    lanes = LANES if is_vector else 1.0
    # A loop over neighbours in memory runs inside all others: its variable costs nothing to move there.
    cost = count * visits * (MERGE if lists > 1 else VISIT) / lanes
    for factor in nest.factors:
        if factor.mask & bit and factor.above[bit] & ~outer:
            cost += factor.turn * max(factor.stored, 1.0)
    body, sums = nest.count(inner), nest.sums
    if nest.levels:
        if bit == nest.levels[-1]:
            cost += INSERT * nest.written if workspace else APPEND * nest.count(inner)
        if inner == nest.full:
            cost += body * (SCATTER if workspace else 0.0)
    elif bit & nest.target and outer & sums:
        cost += SCATTER * body / lanes
    if inner == nest.full:
        cost += STRIDE * body * sum(1 for mask, last in nest.reads if mask & bit and last != bit)
    if outer == 0 and bit & sums and nest.target:
        cost += SERIAL * nest.count(nest.full) / (LANES if nest.lane else 1.0)
    return cost + (body / lanes if inner == nest.full else 0.0)
