"""The subscripts of `torch.einsum` as a statement of index notation.

In: `ij,jk->ik` and the operands' shapes. Out: `Y[i,k] = sum(j, A[i,j] * B[j,k])`.
"""

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from string import ascii_letters, ascii_uppercase
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Reduce
from sparsify.errors import EinsumError, ShapeError

# Deeper trees of products exceed the recursion limit.
MOST_OPERANDS: Final = 200


def read_subscripts(
    text: str, shapes: Sequence[Sequence[int]], names: Sequence[str] = (), result: str = ""
) -> Assign:
    """The statement computed by `torch.einsum(text, ...)`.

    As in torch: spaces are ignored, `...` stands for the modes without a letter, aligned at the end; without `->` the
    result has `...` first and then the letters that occur once, capitals before small ones; a repeated letter within an
    operand takes the diagonal; a mode of extent 1 is broadcast to the extent of its letter.

    Args:
        shapes: shapes of the operands, in the order of the subscripts.
        names: names of the operands; by default A, B, C and so on, without letters of `text`.
        result: name of the result; by default Y, or the next free capital.

    Raises:
        EinsumError: `text` is inconsistent, or does not match the number of operands or modes.
        ShapeError: a letter has two extents.

    >>> print(read_subscripts("ij,jk", [(2, 3), (3, 4)]))
    Y[i,k] = sum(j, A[i,j] * B[j,k])
    """
    inputs, output = _split(text, len(shapes))
    widths = [_ellipsis_width(text, n, term, len(shapes[n])) for n, term in enumerate(inputs)]
    longest = max(widths, default=0)
    labels = [_labels(term, longest, width) for term, width in zip(inputs, widths, strict=True)]
    extents = _extents(text, labels, shapes)
    outputs = _output_labels(text, output, inputs, labels, longest)
    taken = set(extents) | set(names) | {result}
    operands = list(names) or _capitals(len(shapes), taken, ascii_uppercase)
    target = result or _capitals(1, taken | set(operands), "YZ" + ascii_uppercase)[0]
    value = reduce(
        lambda left, right: Call("mul", (left, right)),
        (
            _access(name, term, shape, extents)
            for name, term, shape in zip(operands, labels, shapes, strict=True)
        ),
    )
    summed = tuple(label for label in extents if label not in outputs)
    if summed:
        value = Reduce("sum", summed, value)
    return Assign(Access(target, tuple(map(Index, outputs))), None, value)


def _split(text: str, operands: int) -> tuple[list[str], str | None]:
    """The subscripts of the operands and of the result, `None` for an implicit result."""
    left, arrow, right = text.replace(" ", "").partition("->")
    inputs = left.split(",")
    if operands == 0:
        raise EinsumError(f"einsum({text!r}) has no operand; give one tensor for each part between commas")
    if len(inputs) != operands:
        raise EinsumError(f"einsum({text!r}) names {len(inputs)} operands, {operands} were given")
    if operands > MOST_OPERANDS:
        raise EinsumError(f"einsum of {operands} operands; {MOST_OPERANDS} at most, multiply some before")
    for term in [*inputs, right]:
        rest = term.replace("...", "", 1)
        wrong = next((c for c in rest if c not in ascii_letters), None)
        if wrong is not None:
            raise EinsumError(
                f"einsum({text!r}): {wrong!r} in {term!r}; subscripts are letters and one '...'"
            )
    return inputs, right if arrow else None


def _ellipsis_width(text: str, position: int, term: str, rank: int) -> int:
    """The number of modes of `...` in a term."""
    letters = len(term.replace("...", ""))
    if rank < letters or (rank > letters and "..." not in term):
        raise EinsumError(
            f"einsum({text!r}): operand {position} has {rank} modes, its subscripts {term!r} name {letters}"
        )
    return rank - letters


def _labels(term: str, longest: int, width: int) -> list[str]:
    """The index variables of a term; `...` expands to e0, e1 and so on, aligned at the end."""
    before, dots, after = term.partition("...")
    ellipsis = [f"e{n}" for n in range(longest - width, longest)] if dots else []
    return [*before, *ellipsis, *after]


def _extents(text: str, labels: list[list[str]], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The extent of each index variable, in order of appearance; 1 yields to any other."""
    extents: dict[str, int] = {}
    first: dict[str, int] = {}
    for position, (term, shape) in enumerate(zip(labels, shapes, strict=True)):
        for label, size in zip(term, shape, strict=True):
            if extents.setdefault(label, size) not in (size, 1) and size != 1:
                raise ShapeError(
                    f"einsum({text!r}): {label} has extent {extents[label]} in operand {first[label]} "
                    f"and {size} in operand {position}"
                )
            if extents[label] == 1:
                extents[label] = size
            if extents[label] == size:
                first.setdefault(label, position)
    return extents


def _output_labels(
    text: str, output: str | None, inputs: list[str], labels: list[list[str]], longest: int
) -> list[str]:
    """The index variables of the result."""
    ellipsis = [f"e{n}" for n in range(longest)]
    if output is None:
        counts = Counter(letter for term in inputs for letter in term.replace("...", ""))
        return ellipsis + sorted(letter for letter, count in counts.items() if count == 1)
    if "..." in output and not any("..." in term for term in inputs):
        raise EinsumError(f"einsum({text!r}): the result has '...' and no operand has")
    known = {label for term in labels for label in term}
    letters = output.replace("...", "")
    for letter, count in Counter(letters).items():
        if count > 1:
            raise EinsumError(f"einsum({text!r}): {letter} occurs {count} times in the result; write it once")
        if letter not in known:
            raise EinsumError(f"einsum({text!r}): {letter} of the result is in no operand")
    before, dots, after = output.partition("...")
    return [*before, *(ellipsis if dots else []), *after]


def _access(name: str, term: list[str], shape: Sequence[int], extents: dict[str, int]) -> Expr:
    """The access of an operand; a broadcast mode is read at coordinate 0."""
    return Access(
        name,
        tuple(
            Const(0) if size == 1 != extents[label] else Index(label)
            for label, size in zip(term, shape, strict=True)
        ),
    )


def _capitals(count: int, taken: set[str], letters: str) -> list[str]:
    """`count` unused names, single capitals first."""
    free = [letter for letter in dict.fromkeys(letters) if letter not in taken]
    numbered = (f"A{n}" for n in range(count + len(taken)))
    return (free + [name for name in numbered if name not in taken])[:count]
