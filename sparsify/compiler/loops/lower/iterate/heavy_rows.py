"""Hub rows: threads share the sums of a row with a large part of all entries.

In:  `parallel forall i dynamic by positions of A hubs 4096: let w: (forall j: w += A[i,j] * x[j]); y[i] = relu(w)`.
Out: for each row of more than 4096 entries, one after the other, 32 parts or more, each of 128 entries:

    parallel for part in 0..parts: w_1 = 0; for p in part: w_1 += A_vals[p] * x_vals[A2_crd[p]]; w_parts[part] = w_1
    w = 0; for part in 0..parts: w += w_parts[part]
    y_vals[i] = relu(w)

then the parallel loop over the other rows. The length of parts is independent of the number of threads, and parts are
added in order: so the rounding of a sum does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.dtype import OF_BOOL
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.ir.rewrite import bottom_up
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    compare,
    integer,
    minus,
    plus,
    quotient,
    smaller,
    times,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Held, Hub, Lowered, Range, scalar
from sparsify.compiler.loops.lower.iterate.bind import range_of
from sparsify.compiler.loops.lower.iterate.body import bound_body
from sparsify.compiler.loops.lower.iterate.partial_sums import summed_apart
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.places import advance, first_below, is_located, place_of
from sparsify.compiler.loops.lower.levels.stored import drivers, level_range, repeats
from sparsify.compiler.loops.lower.values.registers import register
from sparsify.compiler.loops.lower.values.temporary_places import is_whole
from sparsify.compiler.loops.lower.work import DYNAMIC_CHUNKS, work
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.provenance import Provenance
from sparsify.errors import ScheduleError

# Minimum number of parts of a shared row.
PARTS: Final = 32


# Number of neighbouring rows skipped together if they have too few entries for one hub.
STEP: Final = 64


def others(
    context: Context, loop: notation.Forall, begin: loops.Var, end: loops.Var, env: Environment
) -> tuple[loops.Expr, Lowered]:
    """The number of rows, and the code for the short rows from `begin` to `end`.

    Raises:
        ScheduleError: the rows of the operand are not the iterations of the loop.
    """
    access = _rows(context, loop, env)
    reach = range_of(context, loop.index, loop.body, env)
    row = context.fresh_int(loop.index)
    body = bound_body(context, loop, scalar(row), env)
    is_short = compare("le", _positions(context, access, row, plus(row, ONE)), _limit(loop))
    rows = loops.For(
        row, plus(reach.begin, begin), plus(reach.begin, end), loops.If(is_short, loops.Block(tuple(body)))
    )
    return minus(reach.end, reach.begin), [rows] if body else []


def shared(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """The code for all hub rows, one after the other; other rows are skipped by `STEP` at a time.

    Raises:
        ScheduleError: the loop has no sums over the entries of a row for threads to share.
    """
    assert isinstance(loop.kind, notation.Parallel)
    access = _rows(context, loop, env)
    reach = range_of(context, loop.index, loop.body, env)
    first, row, last = (context.fresh_int(f"{loop.index}{end}") for end in ("_block", "", "_next"))
    hub = Hub(loop.kind.by, loop.index, max(1, loop.kind.hubs // PARTS))
    kept, before = dict(context.memory), context.shared_sums
    context.setups.append([])
    body = bound_body(context, loop, scalar(row), replace(env, hub=hub))
    body = [*context.setups.pop(), *body]
    context.memory = kept
    if context.shared_sums == before:
        raise ScheduleError(
            f"parallel {loop.index} by {hub.tensor} hubs {loop.kind.hubs}: nothing that its rows compute is a sum over "
            f"the entries of {access}, in registers, of what an entry gives alone",
            "no hubs, or precompute the sums in register",
        )
    context.is_parallel = True
    is_long = compare("gt", _positions(context, access, row, plus(row, ONE)), _limit(loop))
    each = loops.For(row, first, last, loops.If(is_long, loops.Block(tuple(body))))
    may_be = compare("gt", _positions(context, access, first, last), _limit(loop))
    block = loops.Block(
        (loops.Declare(last, smaller(plus(first, integer(STEP)), reach.end)), loops.If(may_be, each))
    )
    return [loops.For(first, reach.begin, reach.end, block, STEP)]


def body(
    context: Context, let: notation.Let, variables: dict[str, list[loops.Var]], env: Environment
) -> Lowered:
    """The body of a `let` in a hub: threads share the sums over its entries, all else runs as in other rows.

    Args:
        variables: variables of the temporaries of the `let` in registers.
    """
    assert env.hub is not None, "rows are shared in hubs"
    own = {t.name: Held(let, t, tuple(variables[t.name])) for t in let.temporaries if t.name in variables}
    env = replace(env, hub=replace(env.hub, held={**env.hub.held, **own}))
    statements = let.body.statements if isinstance(let.body, notation.Sequence) else (let.body,)
    lowered: Lowered = []
    for statement in statements:
        found = _sum(context, statement, env)
        lowered += context.statement(statement, env) if found is None else found.lowered(context, env)
    return lowered


def _rows(context: Context, loop: notation.Forall, env: Environment) -> Access:
    """The access to the operand with one row per iteration of the loop.

    Raises:
        ScheduleError: the rows are not consecutive positions, or assemble a result.
    """
    assert isinstance(loop.kind, notation.Parallel)
    name = loop.kind.by
    declared = context.declarations.get(name)
    kept = [t for n in find(loop, notation.Let) for t in n.temporaries if t.listed or t.marked]
    if declared is not None and context.assembly is None and not kept and len(declared.format.levels) > 1:
        outer, level = declared.format.levels[0], declared.format.levels[1].level
        extent = range_of(context, loop.index, loop.body, env)
        for access in (n for n in find(loop, Access) if n.tensor == name):
            is_list = "pos" in level.arrays and level.stride == 1 and not level.has_bits
            if (
                is_list
                and is_located(outer)
                and context.level_variable(access, outer) == loop.index
                and not repeats(context, access, 1)
                and not drivers(context, loop, env)
                and loop.index not in context.split_by_outer
                and extent
                == Range(ZERO, whole := context.level_extent(name, outer), extent.bound, extent.exact)
                and extent.end == whole
            ):
                return access
    raise ScheduleError(
        f"parallel {loop.index} by {name} hubs {loop.kind.hubs}: its iterations are no rows of a dense result that "
        f"{name} lists the entries of",
        "an operand such as CSR, looped over by rows, or no hubs",
    )


def _limit(loop: notation.Forall) -> loops.Expr:
    """The maximum number of entries of a row outside hubs."""
    assert isinstance(loop.kind, notation.Parallel)
    return integer(loop.kind.hubs)


def _positions(context: Context, access: Access, first: loops.Expr, last: loops.Expr) -> loops.Expr:
    """The number of positions of the rows from `first` to `last`."""
    return minus(first_below(context, access, 1, last), first_below(context, access, 1, first))


@dataclass(frozen=True, slots=True)
class _Sum:
    """A statement with sums over the entries of `access` in a row.

    Attributes:
        monoids: by the temporaries in registers that receive sums, from any `let` in the row.
    """

    statement: notation.Statement | Assign
    access: Access
    monoids: dict[str, str]

    def lowered(self, context: Context, env: Environment) -> Lowered:
        """Sums each part of the row in one thread, and adds the parts in order."""
        assert env.hub is not None, "rows are shared in hubs"
        context.shared_sums += 1
        row = level_range(context, self.access, place_of(context, self.access, env))
        name, size = env.hub.tensor, integer(env.hub.size)
        first, last, count = (context.fresh_int(f"{name}_{each}") for each in ("first", "last", "parts"))
        parts = {t: context.fresh(f"{t}_parts") for t in self.monoids}
        rounded = plus(minus(last, first), integer(env.hub.size - 1))
        return [
            loops.Declare(first, row.begin),
            loops.Declare(last, row.end),
            loops.Declare(count, quotient(rounded, size)),
            *(
                loops.Allocate(parts[t], kind.dtype, times(count, integer(len(held) * kind.lanes)))
                for t in self.monoids
                if (kind := (held := env.hub.held[t].variables)[0].type)
            ),
            self._parallel(context, parts, (first, last, count), env),
            self._added(context, parts, env.hub, count),
        ]

    def _parallel(
        self,
        context: Context,
        parts: dict[str, str],
        row: tuple[loops.Var, loops.Var, loops.Var],
        env: Environment,
    ) -> loops.Stmt:
        """The parallel loop over parts: each thread sums in private registers and stores the sums in memory."""
        assert env.hub is not None, "rows are shared in hubs"
        first, last, count = row
        begin, end, number = (context.fresh_int(f"part{each}") for each in ("_begin", "_end", ""))
        start, stop = (context.fresh_int(f"part_{each}") for each in ("first", "last"))
        kept = dict(context.memory)
        context.setups.append([])
        place = replace(place_of(context, self.access, env), part=Range(start, stop))
        here = replace(advance(env, self.access, place), hub=None, in_parallel=True)
        own: Lowered = [
            loops.Declare(start, plus(first, times(number, integer(env.hub.size)))),
            loops.Declare(stop, smaller(plus(start, integer(env.hub.size)), last)),
        ]
        stores: Lowered = []
        for name, monoid in self.monoids.items():
            around = env.hub.held[name]
            identity = MONOIDS[monoid].identity(around.temporary.dtype)
            declared, here = register(context, around.let, around.temporary, identity, here)
            own += declared
            held = [each.var for each in declared]
            stores += [loops.Store(parts[name], _place(number, n, held), var) for n, var in enumerate(held)]
        own += context.statement(self.statement, here)
        body = loops.For(number, begin, end, loops.Block((*own, *stores)))
        setup = loops.Block(tuple(context.setups.pop()))
        context.memory = kept
        chunks = DYNAMIC_CHUNKS
        work = self._work(context, env.hub, minus(last, first))
        return loops.ParallelFor(begin, end, count, setup, body, work, chunks_per_thread=chunks, dynamic=True)

    def _added(self, context: Context, parts: dict[str, str], hub: Hub, count: loops.Var) -> loops.Stmt:
        """The combined value of the parts."""
        number = context.fresh_int("part")
        added: Lowered = []
        for name, monoid in self.monoids.items():
            held = hub.held[name].variables
            for n, var in enumerate(held):
                part = loops.Load(parts[name], _place(number, n, held), var.type)
                added.append(
                    loops.Set(var, loops.Op(_combine(monoid, var.type.dtype), (var, part), var.type))
                )
        return loops.For(number, ZERO, count, loops.Block(tuple(added)))

    def _work(self, context: Context, hub: Hub, entries: loops.Expr) -> loops.Expr:
        """Estimated scalar operations of the row: the total, scaled to the entries of the row."""
        total = work(context, notation.Forall(hub.index, self.statement))
        stored = loops.Var(f"{hub.tensor}_nnz", loops.INT)

        def of_row(node: Node) -> Node | None:
            return entries if node == stored else None

        found = bottom_up(total, of_row)
        assert isinstance(found, loops.Expr), "sizes stand for sizes"
        return found


def _place(part: loops.Expr, number: int, held: Sequence[loops.Var]) -> loops.Expr:
    """The place of a numbered variable in a part."""
    lanes = held[0].type.lanes
    return plus(times(part, integer(len(held) * lanes)), integer(number * lanes))


def _combine(monoid: str, dtype: str) -> str:
    """The monoid's function of two values."""
    combine = MONOIDS[monoid].combine
    return OF_BOOL.get(combine, combine) if dtype == "bool" else combine


def _sum(context: Context, statement: notation.Statement | Assign, env: Environment) -> _Sum | None:
    """The sums over the entries of the hub in a statement of a `let`; `None` for any other statement."""
    assert env.hub is not None, "rows are shared in hubs"
    if any(_is_strip(context, access) for access in find(statement, Access)):
        return None
    for access in dict.fromkeys(context.root_of(n) for n in find(statement, Access)):
        entry = _entry(context, access, env)
        if entry is None:
            continue
        monoids = summed_apart(statement, {entry, *Provenance(context.program.relations).leaves(entry)})
        if not monoids or not monoids.keys() <= env.hub.held.keys():
            continue
        if any(FUNCTIONS[MONOIDS[monoid].combine].body for monoid in monoids.values()):
            continue
        if statement_points(statement, frozenset({access}), context, env.absent) == {frozenset({access})}:
            return _Sum(statement, access, monoids)
    return None


def _entry(context: Context, access: Access, env: Environment) -> str | None:
    """The loop variable over the entries of an access in the hub; `None` for an access to anything else."""
    assert env.hub is not None, "rows are shared in hubs"
    if access.tensor != env.hub.tensor:
        return None
    outer, inner = context.levels(access.tensor)[:2]
    if context.level_variable(access, outer) != env.hub.index:
        return None
    is_plain = isinstance(access.indices[inner.expression.mode], Index)
    is_reached = place_of(context, access, env).levels == 1
    return context.level_variable(access, inner) if is_plain and is_reached else None


def _is_strip(context: Context, access: Access) -> bool:
    """Whether a temporary has the entries of one row, counted from the start of the row."""
    found = context.patterns.get(access.tensor)
    return found is not None and not is_whole(found)
