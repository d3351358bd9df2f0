"""Loop order by cost: the cheapest order, by dynamic programming over sets of loops.

In: the nest of `sum(j, A[i,j] * B[j,k])`, all compressed by row. Out: `i, j, k`: 1,000 rows, their 10,000 entries,
100,000 products; the inner product `i, k, j` would look at 10,000,000 pairs.

The cost of a loop depends on the set of loops around it and not on their order, so that the best order of a set starts
with the best order of a subset: 2^n steps instead of n!. Operands stored in another order are transposed once.

Source: dynamic programming over subsets, Held and Karp, 1962; the filters that should come first are those of
Yan et al., Scorch, 2024, Algorithm 1, which ranks loops without sizes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Final

from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Assign, Program
from sparsify.compiler.schedule.cost.iterations import Factor, Nest, body_of, nest_of
from sparsify.compiler.schedule.sizes import Sizes

# Costs in units of one multiplication and addition in a register.
VISIT: Final = 1.0  # a stored coordinate in a loop over one list, or a step of a loop over all coordinates
MERGE: Final = 3.0  # a step of co-iterated lists: mispredicted comparisons
SCATTER: Final = 1.0  # an addition to memory instead of a register
STRIDE: Final = 2.0  # an entry of a dense operand not contiguous with the previous one
SERIAL: Final = 0.5  # an iteration that threads cannot share
INSERT: Final = 8.0  # an entry of a result that is assembled from a workspace
APPEND: Final = 2.0  # an entry of a result that is assembled in order
HASH: Final = 50.0  # an addition to an entry of a hash table
SORT: Final = 50.0  # a sorted entry of a hash table
TABLE: Final = 1e4  # a hash table, independent of its size
LANES: Final = 8.0
# Most hash keys expected by the plan: keys have 62 bits, also for larger operands than those of the plan.
MOST_KEYS: Final = 2.0**40
# Most loops of nests for which orders with a hash table are searched.
MOST_HASHED: Final = 4
MOST_VARIABLES: Final = 12


@dataclass(frozen=True, slots=True)
class Order:
    """A loop order, outermost first, and its cost.

    Attributes:
        names: index variables.
        cost: cost in multiplications and additions, estimated from counts.
        iterations: iterations of all loops together.
        turned: operands with a discordant mode ordering, to be transposed.
        workspace: number of last levels of the result held in a workspace, 0 without one; more than one form a hash
            table.
        copied: variable along which lanes run due to transposed copies of dense operands, if any.
    """

    names: tuple[str, ...]
    cost: float
    iterations: float
    turned: tuple[str, ...] = ()
    workspace: int = 0
    copied: str = ""

    def __str__(self) -> str:
        return ", ".join(self.names)


def statement_order(program: Program, statement: Assign, sizes: Sizes) -> Order | None:
    """The cheapest loop order of a statement; `None` unless the statement is one plain nest."""
    found = body_of(statement)
    if found is None:
        return None
    nest = nest_of(program, statement.target, found[1], sizes, found[0])
    # Stored entries scatter into a workspace only if the unstored value is the identity of the reduction.
    value = infer_sparsity(found[1], {declared.name: declared for declared in program.declarations})
    may_scatter = found[0] is None or value.fill == MONOIDS[found[0]].neutral
    order = None if nest is None else best_order(nest, may_scatter)
    return order if order is not None and order.cost < inf else None


def best_order(nest: Nest, may_scatter: bool = True, limit: float = inf) -> Order | None:
    """The cheapest loop order of a nest; `None` without a legal order, or for too many loops.

    Args:
        nest: loops.
        may_scatter: whether a workspace may take scattered sums.
        limit: cost limit of the search.
    """
    if not nest.bits:
        return Order((), 0.0, 1.0)
    search = searched(nest, may_scatter)
    return described(nest, *search.found) if search.look(limit) and search.found is not None else None


def searched(nest: Nest, may_scatter: bool = True) -> "Search":
    """The memoized search for the loop order of a nest."""
    return searched_before(_Key(nest), may_scatter)


class _Key:
    """Cache key of a loop-order search: equal nests share one search."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        factors = [(f.order, f.is_dense, tuple(f.known.items()), f.stored, f.turn) for f in nest.factors]
        rest = (nest.points, nest.target, nest.levels, nest.reads, nest.is_sampled, nest.may_copy)
        self._all = (nest.extents, tuple(factors), rest)

    def __hash__(self) -> int:
        return hash(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._all == other._all


class Search:
    """The state of the search for the cheapest order of a nest.

    Attributes:
        nest: loops.
        may_scatter: whether a workspace may take scattered sums.
        found: cheapest order of bits, and the number of levels in its workspace.
        cost: cost of the order.
        limit: proven lower bound on the cost of every other order.
    """

    def __init__(self, nest: Nest, may_scatter: bool = True) -> None:
        self.nest, self.may_scatter = nest, may_scatter
        self.found: tuple[tuple[int, ...], int] | None = None
        self.cost, self.limit = inf, -inf

    def look(self, limit: float = inf) -> bool:
        """Whether the cheapest order costs no more than a limit; stores the order if so."""
        limit *= 1.0 + 1e-9
        if self.found is None and limit > self.limit and len(self.nest.bits) <= MOST_VARIABLES:
            self.limit = limit
            for workspace in _ways(self.nest):
                made = _cheapest(self.nest, workspace, limit) if self.may_scatter or not workspace else None
                if made is not None and made[0] < self.cost:
                    limit = self.cost = made[0]
                    self.found = made[1], workspace
        return self.found is not None and self.cost <= limit


@lru_cache(maxsize=16)
def searched_before(key: _Key, may_scatter: bool) -> Search:
    """The search for the order of a nest, memoized by key and resumable under a higher limit."""
    return Search(key.nest, may_scatter)


def _ways(nest: Nest) -> tuple[int, ...]:
    """The legal numbers of result levels in a workspace of scattered sums."""
    if not nest.levels or nest.full == nest.target:
        return (0,)
    hashed = range(2, len(nest.levels) + 1) if may_hash(nest) else ()
    return (1, 0, *(n for n in hashed if nest.coordinates(held_levels(nest, n)) <= MOST_KEYS))


def may_hash(nest: Nest) -> bool:
    """Whether a hash table may cost less than transposing all operands; for few loops only."""
    if len(nest.bits) > MOST_HASHED:
        return False
    turned = sum([factor.turn * max(factor.stored, 1.0) for factor in nest.factors])
    return turned > TABLE + HASH * nest.count(nest.full) + SORT * nest.written


def held_levels(nest: Nest, workspace: int) -> int:
    """The variables of the last levels of the result, held in a workspace."""
    return sum(nest.levels[len(nest.levels) - workspace :]) if workspace else 0


def _cheapest(nest: Nest, workspace: int, limit: float) -> tuple[float, tuple[int, ...]] | None:
    """The cheapest order with `workspace` levels in a workspace, by dynamic programming; `None` above the limit."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    # A lower bound of the cost of the innermost loop.
    last = min((loop_cost(nest, nest.full ^ b, b, workspace) for b in _free(nest, workspace)), default=inf)
    if last == inf or last > limit:
        return None
    limit = _greedy(nest, workspace, limit, last)
    for outer in range(nest.full):
        if outer not in best:
            continue
        cost, order = best[outer]
        for bit in nest.bits:
            if outer & bit or not may_follow(nest, outer, bit, workspace):
                continue
            inner = outer | bit
            total = cost + loop_cost(nest, outer, bit, workspace)
            if (total if inner == nest.full else total + last) > limit:
                continue
            if inner not in best or (total, (*order, bit)) < best[inner]:
                best[inner] = (total, (*order, bit))
    return best.get(nest.full)


def _free(nest: Nest, workspace: int) -> list[int]:
    """The legal innermost loops."""
    return [bit for bit in nest.bits if may_follow(nest, nest.full ^ bit, bit, workspace)]


def _greedy(nest: Nest, workspace: int, limit: float, last: float) -> float:
    """The cost of the order that always takes the cheapest next loop; the limit if higher.

    The result bounds the search: more expensive sets of loops are pruned.
    """
    cost, outer = 0.0, 0
    while outer != nest.full:
        free = [bit for bit in nest.bits if not outer & bit and may_follow(nest, outer, bit, workspace)]
        if not free:
            return limit
        added, bit = min([(loop_cost(nest, outer, bit, workspace), bit) for bit in free])
        cost, outer = cost + added, outer | bit
        if (cost if outer == nest.full else cost + last) > limit:
            return limit
    return min(limit, cost * (1.0 + 1e-9))


def described(nest: Nest, order: tuple[int, ...], workspace: int) -> Order:
    """A loop order with its cost."""
    cost, iterations, outer = 0.0, 0.0, 0
    for bit in order:
        cost += loop_cost(nest, outer, bit, workspace)
        visits, _ = nest.visits(outer, bit)
        iterations += nest.count(outer) * visits
        outer |= bit
    turned = [f.access.tensor for f in nest.factors if not is_concordant(f.order, order)]
    names = tuple(nest.variables[bit.bit_length() - 1] for bit in order)
    copied = ""
    if order and order[-1] in nest.copies:
        around = nest.full ^ order[-1]
        if loop_cost(nest, around, order[-1], workspace) == _copied_cost(nest, around, order[-1], workspace):
            copied = names[-1]
    return Order(names, cost, iterations, tuple(dict.fromkeys(turned)), workspace, copied)


def is_concordant(levels: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether a loop order visits the levels of an operand top down."""
    places = [order.index(bit) for bit in levels]
    return places == sorted(places)


def orders(nest: Nest) -> Iterator[Order]:
    """All loop orders that can be lowered, the cheapest first; for few loops."""

    def extend(outer: int, order: tuple[int, ...], workspace: int) -> Iterator[Order]:
        if outer == nest.full:
            yield described(nest, order, workspace)
        for bit in nest.bits:
            if not outer & bit and may_follow(nest, outer, bit, workspace):
                yield from extend(outer | bit, (*order, bit), workspace)

    found = [order for workspace in _ways(nest) for order in extend(0, (), workspace)]
    yield from sorted(found, key=lambda order: order.cost)


def may_follow(nest: Nest, outer: int, bit: int, workspace: int) -> bool:
    """Whether the loop over `bit` may be the next one inside those of `outer`.

    An assembled result is written level by level; a workspace has its last level, a hash table its last levels in any
    order.
    """
    sums = nest.sums
    if not nest.levels:
        # Sums around the loops over stored positions would need memory for all coordinates.
        return not (nest.is_sampled and bit & nest.target and outer & sums)
    last, held = nest.levels[-1], held_levels(nest, workspace)
    if not bit & nest.target or (workspace > 1 and bit & held):
        return not nest.target & ~held & ~outer
    if nest.above[bit] & ~outer:
        return False
    if bit == last and workspace:
        return not sums & ~outer
    if sums & outer:
        return False
    # Without a workspace every coordinate visited by the loop over the last level is stored.
    return workspace > 0 or bit != last or not sums or bool(nest.drivers(outer, bit))


def least_cost(nest: Nest) -> float:
    """A lower bound on the cost of every loop order: the body, and the entries of an assembled result."""
    body = nest.count(nest.full)
    each = [_body_cost(nest, bit) for bit in nest.bits]
    cost = body * min([*each, *(1.0 / LANES for _ in nest.copies)], default=1.0)
    if nest.levels:
        appended = APPEND * nest.count(nest.target)
        cost += min(appended, INSERT * nest.written + SCATTER * body) if nest.sums else appended
    return cost


def loop_cost(nest: Nest, outer: int, bit: int, workspace: int) -> float:
    """The cost added by the loop over `bit` inside `outer`, including the body for the innermost loop."""
    found = nest.costs.get((outer, bit, workspace))
    if found is None:
        found = nest.costs[outer, bit, workspace] = _loop_cost(nest, outer, bit, workspace)
    return found


def _loop_cost(nest: Nest, outer: int, bit: int, workspace: int) -> float:
    inner = outer | bit
    is_last = inner == nest.full
    # A contiguous loop runs innermost in the end: its variable is moved there for free.
    cost = _run_cost(nest, outer, bit, workspace, LANES if is_last and bit == nest.lane else 1.0)
    if is_last:
        cost += nest.count(inner) * _body_cost(nest, bit)
        if bit in nest.copies:
            cost = min(cost, _copied_cost(nest, outer, bit, workspace))
    return cost


def _copied_cost(nest: Nest, outer: int, bit: int, workspace: int) -> float:
    """The cost of the innermost loop with transposed copies of the operands strided along its lanes."""
    lanes = min(LANES, nest.extents[bit.bit_length() - 1])
    copied = nest.copies[bit] + nest.count(nest.full) / max(1.0, lanes)
    return copied + _run_cost(nest, outer, bit, workspace, max(1.0, lanes))


def _run_cost(nest: Nest, outer: int, bit: int, workspace: int, lanes: float) -> float:
    """The cost of a loop without its body, with `lanes` iterations at a time."""
    count, inner = nest.count(outer), outer | bit
    visits, lists = nest.visits(outer, bit)
    cost = count * visits * (MERGE if lists > 1 else VISIT) / lanes
    for _, factor in nest.having[bit]:
        if factor.above[bit] & ~outer:
            cost += factor.turn * max(factor.stored, 1.0)
        cost += _positions(nest, factor, outer | bit)
    sums = nest.sums
    if nest.levels:
        if bit == nest.levels[-1]:
            inserted = (SORT if workspace > 1 else INSERT) * nest.written
            cost += inserted if workspace else APPEND * nest.count(inner)
        if inner == nest.full and workspace:
            cost += (HASH if workspace > 1 else SCATTER) * nest.count(inner)
    elif bit & nest.target and outer & sums:
        cost += SCATTER * nest.count(inner) / lanes
    if outer == 0 and bit & sums and nest.target:
        cost += SERIAL * nest.count(nest.full) / (LANES if nest.lane else 1.0)
    return cost


def _body_cost(nest: Nest, bit: int) -> float:
    """The cost of one run of the body, if the loop over `bit` is innermost."""
    return STRIDE * nest.strides[bit] + 1.0 / (LANES if bit == nest.lane else 1.0)


def _positions(nest: Nest, factor: Factor, inner: int) -> float:
    """The positions of dense levels over other modes than the operand's own: `j, i` for an operand stored `h, i, j`."""
    leading = factor.is_dense.index(False) if False in factor.is_dense else 0
    modes = factor.mask & inner
    if leading < 2 or modes.bit_count() != leading or modes == sum(set(factor.order[:leading])):
        return 0.0
    return nest.coordinates(modes)
