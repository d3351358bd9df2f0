"""Results that store entries under a condition: `csr where abs(Y) >= 0.5`.

In: `Y[i,k] = relu(T[i,k])` and `csr where abs(Y) >= 0.5`. Out: `Y[i,k] = where(abs(relu(T[i,k])) >= 0.5, relu(T[i,k]),
0)`, in the format `csr`, stored by value: entries that equal the fill are not stored.

A condition is index notation over the result by its name, its index variables and operands. `value`, `row` and
`column` stand for the entry and its place, whatever their names are in the statement: `column` is the coordinate of the
last mode, `row` a number of those before it that does not depend on extents.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2: a streaming
sparsifier decides for each value, in one pass, before it is written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr
from sparsify.compiler.einsum.parse import parse_expression
from sparsify.compiler.einsum.rename import all_indices, fresh, substitute_scalars
from sparsify.compiler.ir.node import find

# Behind a format that is asked for: which entries are stored.
STORED: Final = re.compile(r"(?P<format>.*?)\s*(?:\bby value|\bwhere\s+(?P<condition>.+))", re.DOTALL)
# 2**32 over the golden ratio: pairs with extents of up to 2**30 altogether have numbers of their own.
SPREAD: Final = 2654435769


def stored_under(asked: str) -> tuple[str, str | None] | None:
    """A format and the condition of its entries, `None` as condition for `by value`; `None` for other formats.

    >>> stored_under("csr where abs(Y) > 0.5"), stored_under("csr by value"), stored_under("csr")
    (('csr', 'abs(Y) > 0.5'), ('csr', None), None)
    """
    found = STORED.fullmatch(asked)
    return None if found is None else (found["format"], found["condition"])


def restrict(statements: Sequence[Assign], conditions: Mapping[str, str]) -> tuple[Assign, ...]:
    """`Y[i] = e -> Y[i] = where(condition, e, 0)`; `Y[i] += e -> all[i] += e; Y[i] = where(condition, all[i], 0)`.

    Args:
        statements: with explicit sums.
        conditions: by result, as index notation.

    Raises:
        ParseError: a condition that is no index notation.
    """
    made = tuple(statements)
    for name, condition in conditions.items():
        made = _restricted(made, name, condition)
    return made


def _restricted(statements: tuple[Assign, ...], name: str, condition: str) -> tuple[Assign, ...]:
    """The statements with a condition for the entries of one result."""
    own = [number for number, s in enumerate(statements) if s.target.tensor == name]
    if not own:
        return statements
    last = statements[own[-1]]
    if len(own) == 1 and last.monoid is None:
        return (
            *statements[: own[0]],
            replace(last, value=_kept(last.target, last.value, condition)),
            *statements[own[0] + 1 :],
        )
    taken = {access.tensor for s in statements for access in find(s, Access)}
    whole = replace(last.target, tensor=fresh(f"{name}_all", taken))
    renamed = [
        replace(s, target=replace(s.target, tensor=whole.tensor)) if number in own else s
        for number, s in enumerate(statements)
    ]
    renamed.insert(own[-1] + 1, Assign(last.target, None, _kept(last.target, whole, condition)))
    return tuple(renamed)


def _kept(target: Access, value: Expr, condition: str) -> Expr:
    """`where(condition, value, 0)`."""
    row, column = place(target.indices)
    names = {target.tensor: value, "value": value, "row": row, "column": column}
    read = parse_expression(condition, indices=all_indices([target]))
    return Call("where", (substitute_scalars(read, names), value, Const(0)))


def place(indices: Sequence[Expr]) -> tuple[Expr, Expr]:
    """The row and the column of an entry, for random numbers that are a function of both.

    >>> from sparsify.compiler.einsum.nodes import Index
    >>> [str(part) for part in place((Index("i"), Index("j"), Index("k")))]
    ['i * 2654435769 + j', 'k']
    """
    if not indices:
        return Const(0), Const(0)
    *rows, column = indices
    return reduce(_spread, rows) if rows else Const(0), column


def _spread(number: Expr, index: Expr) -> Expr:
    """The number of one more mode."""
    return Call("add", (Call("mul", (number, Const(SPREAD))), index))
