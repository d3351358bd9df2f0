"""Workspaces of several modes: hash tables with a list of the entries in use, sorted before reads.

In: `let w[i,j] in memory listed: (forall k: forall i: forall j: w[i,j] += A[k,i] * B[k,j]); forall i: forall j: ..`.
Out: `w_place = place of i * j_extent + j in w_table`, a new entry or a sum there; then the keys in order, and
`while p < w_count: i = w_keys[p] / j_extent; q = end of the keys with i; for p in p..q: j = w_keys[p] % j_extent`.

The memory follows the entries in use, not the extents, so sums may be scattered into any modes of a result.

Source: Zhang, Hsu and Kjolstad, Compilation of Modular and General Sparse Workspaces, 2024; Scorch, appendix B.3.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.ir.status import KEY_OVERFLOW
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    both,
    compare,
    constant,
    plus,
    product,
    quotient,
    remainder,
    times,
)
from sparsify.compiler.loops.lower.context import Context, Table
from sparsify.compiler.loops.lower.environment import Environment, Lowered, scalar
from sparsify.compiler.loops.lower.iterate.bind import bind
from sparsify.compiler.loops.lower.iterate.body import lower_body
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.stored import note_skipping
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError

LARGEST_KEY: Final = 2**62
FRACTION: Final = loops.Type("float64")


def around_all(
    node: notation.Statement | Assign,
) -> tuple[notation.Let, notation.Statement | Assign, notation.Statement | Assign] | None:
    """The single hash table of a whole kernel, with its producer and its consumer; `None` without one."""
    match node:
        case notation.Let((temporary,), notation.Sequence((made, read))) if temporary.listed:
            is_read = all(n.target.tensor != temporary.name for n in find(read, Assign))
            is_made = all(n.target.tensor == temporary.name for n in find(made, Assign))
            return (node, made, read) if len(temporary.indices) > 1 and is_made and is_read else None
    return None


def begin(context: Context, node: notation.Let, temporary: notation.Temporary) -> Lowered:
    """An empty workspace; memory is allocated once a thread."""
    name = temporary.name
    if name not in context.memory:
        context.memory[name] = temporary
        context.setups[0] += _checked(context, temporary)
        context.setups[-1].append(loops.Table(f"{name}_table", name, f"{name}_keys", temporary.dtype))
    count, place = (context.fresh_int(f"{name}_{word}") for word in ("count", "place"))
    context.tables[name] = Table(f"{name}_table", f"{name}_keys", _order(node, temporary), count, place)
    return [loops.Declare(count, ZERO, True), loops.Declare(place, ZERO, True)]


def end(context: Context, temporary: notation.Temporary) -> Lowered:
    """Clears the table."""
    return [loops.ClearTable(context.tables.pop(temporary.name).name)]


def _order(node: notation.Let, temporary: notation.Temporary) -> tuple[str, ...]:
    """The index variables in the order of the loops reading the workspace."""
    for loop in find(node.body, notation.Forall):
        chain = [n.index for n in find(loop, notation.Forall)]
        written = {n.target.tensor for n in find(loop, Assign)}
        if temporary.name not in written and {*temporary.indices} <= {*chain}:
            return tuple(index for index in chain if index in temporary.indices)
    raise ScheduleError(
        f"{temporary} lists its entries, and no loops run over all of its modes", "not listed"
    )


def _checked(context: Context, temporary: notation.Temporary) -> Lowered:
    """Ends the kernel if coordinates exceed a key of 63 bits; constant extents are checked at compile time."""
    bounds = [context.bound(index) for index in temporary.indices]
    known = [constant(bound) for bound in bounds]
    if None not in known and prod(n for n in known if n is not None) <= LARGEST_KEY:
        return []
    whole: loops.Expr = loops.Literal(1.0, FRACTION)
    for bound in bounds:
        whole = loops.Op("mul", (whole, loops.Convert(bound, FRACTION)), FRACTION)
    limit = loops.Literal(float(LARGEST_KEY), FRACTION)
    return [loops.If(loops.Op("gt", (whole, limit), loops.BOOL), loops.Return(KEY_OVERFLOW))]


def add(
    context: Context, target: Access, added: loops.Expr, combined: loops.Expr, env: Environment
) -> Lowered:
    """Stores `added` in a new entry, else `combined`.

    While the entries of a result are counted, values are not stored.
    """
    table = context.tables[target.tensor]
    is_counting = (
        context.assembly is not None and not context.assembly.filling and not context.assembly.keeps_workspace
    )
    enter: Lowered = [loops.Set(table.count, plus(table.count, ONE))]
    if not is_counting:
        enter.append(loops.Store(target.tensor, table.place, added))
    again = None if is_counting else loops.Store(target.tensor, table.place, combined)
    is_new = compare("eq", table.place, table.count)
    return [*_find_place(context, target, env), loops.If(is_new, loops.Block(tuple(enter)), again)]


def _find_place(context: Context, target: Access, env: Environment) -> Lowered:
    """The place of the entry at the current coordinates; a new entry is inserted."""
    table = context.tables[target.tensor]
    for index in target.indices:
        is_plain = isinstance(index, Index) and env.coordinates[index.name].is_uniform
        if env.lane is not None or not is_plain:
            raise ScheduleError(
                f"{target.tensor} lists its entries one by one", f"no vector loop around {target}"
            )
    key: loops.Expr = ZERO
    for name in table.order:
        key = plus(times(key, context.bound(name)), env.coordinates[name].start)
    assert isinstance(table.place, loops.Var), "places that are written are variables"
    return [loops.Enter(table.place, table.name, key)]


def iterate(context: Context, loop: notation.Forall, access: Access, env: Environment) -> Lowered:
    """The loop over one mode of a workspace, within the entries selected by the outer loops."""
    name = access.tensor
    table = context.tables[name]
    depth = table.order.index(loop.index)
    points = statement_points(loop.body, frozenset({access}), context, env.absent)
    is_whole = index_names(access) == context.memory[name].indices
    is_next = (depth == 0) == (table.span is None)
    if (
        points != frozenset({frozenset({access})})
        or not (is_whole and is_next)
        or not isinstance(loop.kind, notation.Serial)
    ):
        raise ScheduleError(
            f"{loop.index} runs over the entries in use of {name}, and its body is about others too",
            f"{name} not listed, or serial loops of its own over its modes",
        )
    note_skipping(context, loop.body, [])
    first, after = table.span or (ZERO, table.count)
    sort: Lowered = [loops.SortTable(table.name, table.count)] if depth == 0 else []
    is_last = depth == len(table.order) - 1
    return sort + (_entries if is_last else _segments)(context, loop, name, (first, after), env)


def _entries(
    context: Context, loop: notation.Forall, name: str, span: tuple[loops.Expr, loops.Expr], env: Environment
) -> Lowered:
    """`for p in first..after: j = keys[p] % extent; body`."""
    table = context.tables[name]
    place, coordinate = (context.fresh_int(n) for n in (f"p{name}", loop.index))
    context.tables[name] = replace(table, place=place, span=span)
    bound, inner = bind(context, loop.index, scalar(coordinate), loop.body, env)
    body = lower_body(context, loop, inner)
    context.tables[name] = table
    key = loops.Load(table.keys, place, loops.INT)
    declared = loops.Declare(coordinate, remainder(key, context.bound(loop.index)))
    return [loops.For(place, *span, loops.Block((declared, *bound, *body)))]


def _segments(
    context: Context, loop: notation.Forall, name: str, span: tuple[loops.Expr, loops.Expr], env: Environment
) -> Lowered:
    """`while p < after: row = keys[p] / step; q = end of the keys with row; i = row % extent; body; p = q`."""
    table = context.tables[name]
    words = (f"p{name}", f"{name}_{loop.index}", f"{name}_after", loop.index)
    place, row, after, coordinate = (context.fresh_int(word) for word in words)
    depth = table.order.index(loop.index)
    step = product([context.bound(index) for index in table.order[depth + 1 :]])
    context.tables[name] = replace(table, span=(place, after))
    bound, inner = bind(context, loop.index, scalar(coordinate), loop.body, env)
    body = lower_body(context, loop, inner)
    context.tables[name] = table

    def row_at(at: loops.Expr) -> loops.Expr:
        return quotient(loops.Load(table.keys, at, loops.INT), step)

    is_same = both(compare("lt", after, span[1]), compare("eq", row_at(after), row))
    block = (
        loops.Declare(row, row_at(place)),
        loops.Declare(after, plus(place, ONE), True),
        loops.While(is_same, loops.Set(after, plus(after, ONE))),
        loops.Declare(coordinate, remainder(row, context.bound(loop.index))),
        *bound,
        *body,
        loops.Set(place, after),
    )
    return [
        loops.Declare(place, span[0], True),
        loops.While(compare("lt", place, span[1]), loops.Block(block)),
    ]
