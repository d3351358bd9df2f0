"""Results that store entries under a condition: `csr where abs(Y) >= 0.5`.

In: `Y[i,k] = relu(T[i,k])` and `csr where abs(Y) >= 0.5`. Out: `Y[i,k] = where(abs(relu(T[i,k])) >= 0.5, relu(T[i,k]),
0)`, in the format `csr`, stored by value: entries equal to the fill are not stored.

A condition is index notation over the name of the result, its index variables and operands. `value`, `row` and `column`
denote the entry and its coordinates, for any names in the statement: `column` is the coordinate of the last mode, `row`
a hash of the coordinates before it, independent of extents.

`csr largest 2 of 4` stores the two entries of largest magnitude of every four neighbours of a row, `csr largest 10` ten
entries of each row, and `csr largest signed 10` compares values instead of magnitudes.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2: a streaming
sparsifier decides for each value, in one pass, before the value is written.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Selection
from sparsify.compiler.einsum.rename import all_indices, fresh, substitute_scalars
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.node import find
from sparsify.errors import FormatError

# Suffix of a requested format: the condition of stored entries.
STORED: Final = re.compile(r"(?P<format>.*?)\s*(?:\bby value|\bwhere\s+(?P<condition>.+))", re.DOTALL)
# Suffix of a requested format: the number of stored entries in each block of a row.
LARGEST: Final = re.compile(
    r"(?P<format>.*?)\s*\blargest\s+(?P<signed>signed\s+)?(?P<kept>\d+)(?:\s+of\s+(?P<size>\d+))?\s*",
    re.DOTALL,
)
# 2**32 over the golden ratio: distinct numbers for pairs of coordinates with extents of up to 2**30 altogether.
SPREAD: Final = 2654435769


def stored_under(asked: str) -> tuple[str, str | None] | None:
    """A format and the condition of its entries, `None` as condition for other rules; `None` for unconditional formats.

    >>> stored_under("csr where abs(Y) > 0.5"), stored_under("csr by value"), stored_under("csr")
    (('csr', 'abs(Y) > 0.5'), ('csr', None), None)
    """
    if (chosen := LARGEST.fullmatch(asked)) is not None:
        return chosen["format"], None
    found = STORED.fullmatch(asked)
    return None if found is None else (found["format"], found["condition"])


def selection_of(asked: str) -> Selection | None:
    """The requested selection of row entries, `None` for rules on single values.

    Raises:
        FormatError: no format, blocks of no entries, or more entries than a block has.

    >>> selection_of("csr largest 2 of 4"), selection_of("csr by value")
    (Selection(kept=2, size=4, is_signed=False), None)
    """
    found = LARGEST.fullmatch(asked)
    if found is None:
        return None
    if not found["format"].strip():
        raise FormatError(repr(asked), "a format in front of it: `csr largest 2 of 4`")
    kept, size = int(found["kept"]), found["size"]
    if size is not None and not kept <= int(size) > 0:
        raise FormatError(repr(asked), "n of every m stay, n at most m: `csr largest 2 of 4`")
    return Selection(kept, int(size or 0), found["signed"] is not None)


def selected(statements: Sequence[Assign], names: Collection[str]) -> tuple[Assign, ...]:
    """`Y[i] += e -> all[i] += e; Y[i] = all[i]` for results with a selection of entries."""
    made = tuple(statements)
    for name in names:
        own = [s for s in made if s.target.tensor == name]
        if len(own) > 1 or any(s.monoid is not None for s in own):
            made = _whole_first(made, name, lambda whole: whole)
    return made


def restrict(statements: Sequence[Assign], conditions: Mapping[str, str]) -> tuple[Assign, ...]:
    """`Y[i] = e -> Y[i] = where(condition, e, 0)`; `Y[i] += e -> all[i] += e; Y[i] = where(condition, all[i], 0)`.

    Args:
        statements: statements with explicit sums.
        conditions: conditions by result, as index notation.

    Raises:
        ParseError: a condition outside of index notation.
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
    return _whole_first(statements, name, lambda whole: _kept(last.target, whole, condition))


def _whole_first(
    statements: tuple[Assign, ...], name: str, kept: Callable[[Access], Expr]
) -> tuple[Assign, ...]:
    """The statements with one result renamed, followed by a statement that restricts it to the result."""
    own = [number for number, s in enumerate(statements) if s.target.tensor == name]
    last = statements[own[-1]]
    taken = {access.tensor for s in statements for access in find(s, Access)}
    whole = replace(last.target, tensor=fresh(f"{name}_all", taken))
    renamed = [
        replace(s, target=replace(s.target, tensor=whole.tensor)) if number in own else s
        for number, s in enumerate(statements)
    ]
    renamed.insert(own[-1] + 1, Assign(last.target, None, kept(whole)))
    return tuple(renamed)


def _kept(target: Access, value: Expr, condition: str) -> Expr:
    """`where(condition, value, 0)`."""
    row, column = place(target.indices)
    names = {target.tensor: value, "value": value, "row": row, "column": column}
    read = parse_expression(condition, indices=all_indices([target]))
    return Call("where", (substitute_scalars(read, names), value, Const(0)))


def place(indices: Sequence[Expr]) -> tuple[Expr, Expr]:
    """The row and the column of an entry, for random numbers as a function of both.

    >>> from sparsify.compiler.einsum.nodes import Index
    >>> [str(part) for part in place((Index("i"), Index("j"), Index("k")))]
    ['i * 2654435769 + j', 'k']
    """
    if not indices:
        return Const(0), Const(0)
    *rows, column = indices
    return reduce(_spread, rows) if rows else Const(0), column


def _spread(number: Expr, index: Expr) -> Expr:
    """The hash extended by one more mode."""
    return Call("add", (Call("mul", (number, Const(SPREAD))), index))
