"""Hash levels: loops over the slots of a table, and the position of a known coordinate by probing.

In: `forall j: y[i] += A[i,j] * H[i,j]`, A compressed and H hashed by row. Out: a loop over the entries of A, with
`p = home of j in H2_pos[i] .. H2_pos[i + 1]; while H2_crd[p] is neither j nor empty: the next slot`.
In: `forall j: y[i] += H[i,j] * x[j]`. Out: `for p in H2_pos[i]..H2_pos[i + 1]: j = H2_crd[p]; if j >= 0: ...`.

Tables have no order, so an intersection iterates the other operands; unions read lists (`expand_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, both, compare, minus, plus
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Range, scalar
from sparsify.compiler.loops.lower.levels.functions import Number
from sparsify.compiler.loops.lower.levels.places import numbers_of, place_of
from sparsify.storage.level.hash_table import home


def is_hashed(context: Context, access: Access, env: Environment) -> bool:
    """Whether the next level of an access is a hash table."""
    levels, place = context.levels(access.tensor), place_of(context, access, env)
    return place.levels < len(levels) and levels[place.levels].level.has_empty_slots


def iterated(context: Context, found: list[Access], read: Iterable[Access], env: Environment) -> list[Access]:
    """The accesses that a loop iterates: of tables beside others, those that no value reads.

    The body looks up the position of each table left out; among tables alone, the first one is iterated.
    """
    values = {context.root_of(access) for access in read}
    tables = [access for access in found if access in values and is_hashed(context, access, env)]
    others = [access for access in found if access not in tables]
    return others or tables[:1]


def slot(context: Context, access: Access, level: int, position: loops.Expr) -> loops.Expr:
    """The coordinate in a slot, -1 in an empty one."""
    stored: loops.Expr = numbers_of(context, access, level).crd(Number(scalar(position))).value.start
    return stored


def if_used(coordinate: loops.Expr, body: Lowered) -> Lowered:
    """`if coordinate >= 0: body`: nothing in an empty slot."""
    return [loops.If(compare("ge", coordinate, ZERO), loops.Block(tuple(body)))]


def lookup(
    context: Context, access: Access, level: int, reach: Range, wanted: loops.Expr
) -> tuple[loops.Var, Lowered]:
    """The slot of a coordinate in the table at `reach`, else an empty slot; the end of a table without slots."""
    name = f"p{access.tensor}{level + 1}"
    begin, end = context.fresh_int(f"{name}_begin"), context.fresh_int(f"{name}_end")
    found = context.fresh_int(name)
    first = home(Number(scalar(wanted)), Number(scalar(minus(end, begin)))).value.start
    here = slot(context, access, level, found)
    other = both(compare("ne", here, wanted), compare("ge", here, ZERO))
    step = loops.Block(
        (
            loops.Set(found, plus(found, ONE)),
            loops.If(compare("eq", found, end), loops.Block((loops.Set(found, begin),))),
        )
    )
    probe = loops.Block((loops.Set(found, plus(begin, first)), loops.While(other, step)))
    return found, [
        loops.Declare(begin, reach.begin),
        loops.Declare(end, reach.end),
        loops.Declare(found, end, True),
        loops.If(compare("lt", begin, end), probe),
    ]
