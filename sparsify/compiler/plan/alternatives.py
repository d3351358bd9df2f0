"""Alternatives that were priced for a kernel: loop orders and contraction paths, with their costs.

In: `Y[i,k] = sum(j, A[i,j] * B[j,k])` and the sizes of its operands. Out: a line for each of the best orders,

    i, j, k   109,000 iterations, 310,000 steps: a workspace a row
    j, i, k   109,000 iterations, 330,000 steps: A, B are turned

A step is a multiplication and an addition in a register; all other costs are expressed in such steps (`loop_order.py`).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.rewrite.combine_statements import collect
from sparsify.compiler.plan.products.contract import contract
from sparsify.compiler.schedule.cost.iterations import Nest, body_of, nest_of
from sparsify.compiler.schedule.cost.loop_order import Order, best_order, orders
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes

SHOWN: Final = 3
# Most loops whose orders are all listed; the text for deeper nests shows the best order only.
ENUMERATED: Final = 5


def alternatives(program: Program, sizes: Sizes) -> list[str]:
    """Report lines for the statements with a cost-based loop order; empty for unknown sizes."""
    if sizes is UNKNOWN:
        return []
    whole = name_extents(collect(program))
    split = contract(whole, sizes)
    lines: list[str] = []
    if split.program is not whole:
        lines += [f"one product of all operands: {one}" for one in _orders(whole, sizes, 1)]
    known = sizes.expecting(split.stored)
    for statement in split.program.statements:
        found = list(_orders(split.program, known, SHOWN, statement.target.tensor))
        if found:
            lines += [str(statement), *(f"  {line}" for line in found)]
    return lines


def _orders(program: Program, sizes: Sizes, most: int, result: str = "") -> Iterator[str]:
    """The best loop orders of the statements that compute `result`, of all statements if `result` is empty."""
    for statement in program.statements:
        body = body_of(statement)
        if body is None or result not in ("", statement.target.tensor):
            continue
        nest = nest_of(program, statement.target, body[1], sizes, body[0])
        if nest is not None and len(nest.variables) > 1:
            yield from (said(order) for order in islice(_best(nest), most))


def _best(nest: Nest) -> Iterator[Order]:
    """Loop orders, the cheapest first, each once."""
    first = best_order(nest)
    if first is None:
        return
    yield first
    if len(nest.variables) <= ENUMERATED:
        yield from (order for order in orders(nest) if order.names != first.names)


def said(order: Order) -> str:
    """Text of a loop order and its cost."""
    notes = []
    if order.workspace:
        modes = f"a hash table of {order.workspace} modes"
        notes.append("a workspace a row" if order.workspace == 1 else modes)
    if order.turned:
        notes.append(f"{', '.join(order.turned)} {'is' if len(order.turned) == 1 else 'are'} turned")
    if order.copied:
        notes.append(f"transposed copies of dense operands, so that lanes run along {order.copied}")
    counts = f"{rounded(order.iterations)} iterations, {rounded(order.cost)} steps"
    return f"{order}   {counts}{': ' if notes else ''}{', '.join(notes)}"


def rounded(count: float) -> str:
    """A number rounded to two significant digits.

    >>> rounded(123456.0), rounded(7.2)
    ('120,000', '7')
    """
    if count < 100:
        return f"{count:.0f}"
    return f"{float(f'{count:.1e}'):,.0f}"
