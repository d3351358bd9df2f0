"""Workspaces: dense rows in scratch memory with a list of the entries in use.

In: `let w[k] in thread listed: (forall j: forall k: w[k] += A[i,j] * B[j,k]); forall k: Y[i,k] = w[k]`.
Out: `if w_seen[k]: w[k] += ..; else: w_seen[k] = 1; w_list[w_count++] = k; w[k] = ..`, then a loop over the list in
order, then `w_seen` back to 0, entry by entry: the work follows the entries in use, not the extent.

Source: Gustavson, Two Fast Algorithms for Sparse Matrices, 1978; Kjolstad et al., Tensor Algebra Compilation with
Workspaces, 2019.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, integer, plus, times
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, scalar
from sparsify.compiler.loops.lower.iterate.bind import bind
from sparsify.compiler.loops.lower.iterate.body import lower_body
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.stored import note_skipping
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

FLAG: Final = loops.Type("int8")
UNSEEN: Final = loops.Literal(0, FLAG)
SEEN: Final = loops.Literal(1, FLAG)
# Above one entry in this number, reading all flags in order is cheaper than sorting the list.
SPARSE: Final = 128


def begin(context: Context, temporary: notation.Temporary) -> Lowered:
    """An empty workspace; allocated once a thread, with cleared flags."""
    name = temporary.name
    if name not in context.memory:
        extent = context.bound(temporary.indices[0])
        context.memory[name] = temporary
        context.setups[-1] += [
            loops.Allocate(name, temporary.dtype, extent),
            loops.Allocate(f"{name}_list", "int64", extent),
            loops.Allocate(f"{name}_seen", FLAG.dtype, extent, 0),
        ]
    context.listed[name] = context.fresh_int(f"{name}_count")
    return [loops.Declare(context.listed[name], ZERO, True)]


def end(context: Context, temporary: notation.Temporary) -> Lowered:
    """Clears the flags of the entries in use."""
    name = temporary.name
    place = context.fresh_int(f"p{name}")
    clear = loops.Store(f"{name}_seen", loops.Load(f"{name}_list", place, loops.INT), UNSEEN)
    return [loops.For(place, ZERO, context.listed.pop(name), clear)]


def add(
    context: Context, target: Access, added: loops.Expr, combined: loops.Expr, env: Environment
) -> Lowered:
    """Stores `added` in an entry not in use yet, else `combined`.

    While the entries of a result are counted, values are not stored.
    """
    name = target.tensor
    index = target.indices[0]
    assert isinstance(index, Index)
    coordinate = env.coordinates[index.name]
    if env.lane is not None or not coordinate.is_uniform:
        raise ScheduleError(f"{name} lists its entries one by one", f"no vector loop around {target}")
    k, count = coordinate.start, context.listed[name]
    counting = context.assembly is not None and not context.assembly.filling
    enter: Lowered = [
        loops.Store(f"{name}_seen", k, SEEN),
        loops.Store(f"{name}_list", count, k),
        loops.Set(count, plus(count, ONE)),
    ]
    if not counting:
        enter.append(loops.Store(name, k, added))
    unseen = compare("eq", loops.Load(f"{name}_seen", k, FLAG), UNSEEN)
    again = None if counting else loops.Store(name, k, combined)
    return [loops.If(unseen, loops.Block(tuple(enter)), again)]


def iterate(context: Context, loop: notation.Forall, access: Access, env: Environment) -> Lowered:
    """`for p in 0..w_count: k = w_list[p]; body`, with a sorted list if entries are written."""
    name = access.tensor
    points = statement_points(loop.body, frozenset({access}), context, env.absent)
    if points != frozenset({frozenset({access})}) or not isinstance(loop.kind, notation.Serial):
        raise ScheduleError(
            f"{loop.index} runs over the entries in use of {name}, and its body is about others too",
            f"{name} not listed, or a serial loop of its own",
        )
    note_skipping(context, loop.body, [])
    place = context.fresh_int(f"p{name}")
    coordinate = context.fresh_int(loop.index)
    bound, inner = bind(context, loop.index, scalar(coordinate), loop.body, env)
    body = lower_body(context, loop, inner)
    declared = loops.Declare(coordinate, loops.Load(f"{name}_list", place, loops.INT))
    block = loops.Block((declared, *bound, *body))
    ordered = (
        [] if context.assembly is not None and not context.assembly.filling else _sorted(context, loop, name)
    )
    return [*ordered, loops.For(place, ZERO, context.listed[name], block)]


def _sorted(context: Context, loop: notation.Forall, name: str) -> Lowered:
    """The list in ascending order: sorted, or if long, rewritten from the flags."""
    count, extent = context.listed[name], context.bound(loop.index)
    is_long = compare("gt", times(count, integer(SPARSE)), extent)
    again = loops.Enumerate(f"{name}_list", f"{name}_seen", extent)
    return [loops.If(is_long, again, loops.Sort(f"{name}_list", count))]
