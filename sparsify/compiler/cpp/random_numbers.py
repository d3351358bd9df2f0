"""Random numbers as functions of a seed and a place: Threefry-2x32 on scalars and on vectors.

In: `uniform(seed, i, j0 + lane)` with 16 lanes. Out: the C++ text of `uniform_int64x16(..)`, with 32-bit words as
arguments, and a call with the words of the operands: 32-bit lanes suffice for sums and products of integers.

The rounds and constants come from `einsum.threefry`, with the source: scalars and vectors of any length yield the same
bits as the interpreter.
"""

from collections.abc import Callable
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit, indent
from sparsify.compiler.cpp.helpers.vector_memory import INLINE
from sparsify.compiler.einsum.counter_random import GROUP, KEPT_BITS, PARITY, ROTATIONS, ROUNDS, WORD_BITS
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.nodes import type_of

# Operations with low bits determined by the low bits of the operands.
MODULAR: Final = {"add": "+", "sub": "-", "mul": "*"}


def call(unit: Unit, text: Callable[[nodes.Expr], str], expr: nodes.Op) -> str:
    """The call of the generator with the words of a seed, a row and a column; `text` writes an operand."""
    seed, row, column = expr.args
    helper = unit.use("uniform", "int64", expr.type.lanes)
    words = (_word(unit, text, *part) for part in ((seed,), (seed, WORD_BITS), (row,), (column,)))
    return f"{helper}({', '.join(words)})"


def _word(unit: Unit, text: Callable[[nodes.Expr], str], expr: nodes.Expr, first: int = 0) -> str:
    """32 bits of a 64-bit integer in each lane: the lowest ones, or the bits from `first` on."""
    lanes = type_of(expr).lanes
    words = unit.type("uint32", lanes)
    shift = f" >> {first}" if first else ""
    if lanes == 1:
        return f"(uint32_t)(({text(expr)}){shift})"
    match expr:
        case nodes.Broadcast(value, _):
            return f"{unit.use('broadcast', 'uint32', lanes)}({_word(unit, text, value, first)})"
        case nodes.Lanes(start, _) if not first:
            numbers = ", ".join(map(str, range(lanes)))
            return f"({_word(unit, text, start)} + {words}{{{numbers}}})"
        case nodes.Op(name, (left, right), _) if name in MODULAR and not first:
            return f"({_word(unit, text, left)} {MODULAR[name]} {_word(unit, text, right)})"
        case nodes.Convert(value, _) if type_of(value).dtype == "int32" and not first:
            return f"({words})({text(value)})"
    return f"__builtin_convertvector(({text(expr)}){shift}, {words})"


def _uniform(unit: Unit, dtype: str, lanes: int) -> str:
    """A number of [0, 1) for each lane, from both words of the key and of the counter."""
    words, signed, value = (unit.type(kind, lanes) for kind in ("uint32", "int32", "float32"))
    lines = [
        f"const {words} third = seed ^ rest ^ {PARITY:#x}u;",
        f"{words} first = row + seed, second = column + rest;",
    ]
    keys = ("seed", "rest", "third")
    for number in range(ROUNDS):
        turn = ROTATIONS[number % len(ROTATIONS)]
        lines.append("first += second;")
        lines.append(f"second = (second << {turn} | second >> {WORD_BITS - turn}) ^ first;")
        group, left = divmod(number + 1, GROUP)
        if left == 0:
            lines.append(f"first += {keys[group % 3]};")
            lines.append(f"second += {keys[(group + 1) % 3]} + {group}u;")
    kept = f"({signed})(first >> {WORD_BITS - KEPT_BITS})"
    found = f"({value}){kept}" if lanes == 1 else f"__builtin_convertvector({kept}, {value})"
    lines.append(f"return {found} * 0x1p-{KEPT_BITS}f;")
    arguments = ", ".join(f"{words} {name}" for name in ("seed", "rest", "row", "column"))
    head = f"{INLINE}{value} uniform_{types.suffix(dtype, lanes)}({arguments}) {{"
    return "\n".join([head, *indent(lines), "}"])


TEMPLATES: Final[dict[str, Template]] = {"uniform": _uniform}
