"""Helper functions that combine and move lanes: broadcast, horizontal reductions, transposition.

In: `reduce_add` of `float32x8`. Out: the C++ text of `reduce_add_float32x8(value)`, a tree of shuffles.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.helpers.vector_memory import INLINE

REGISTER_BYTES: Final = 16  # the narrowest vector register; narrower vectors are shuffled within one register


def _broadcast(unit: Unit, dtype: str, lanes: int) -> str:
    # Subtracting zero keeps every value, -0.0 included, and both compilers emit one broadcast.
    vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
    return f"{INLINE}{vector} broadcast_{vector}({element} value) {{\n  return value - {vector}{{}};\n}}"


def _shuffle(first: str, second: str, lanes: list[int]) -> str:
    return f"__builtin_shufflevector({first}, {second}, {', '.join(str(lane) for lane in lanes)})"


def reduction(function: str) -> Template:
    """The template of a tree reduction of all lanes by `add`, `mul`, `min`, `max` or `or`."""

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        vector, element = unit.type(dtype, lanes), types.ELEMENTS[dtype]
        head = f"{INLINE}{element} reduce_{function}_{vector}({vector} value) {{\n"
        half = lanes // 2
        if types.BYTES[dtype] * lanes > REGISTER_BYTES:
            low = _shuffle("value", "value", list(range(half)))
            high = _shuffle("value", "value", list(range(half, lanes)))
            inner = unit.use(f"reduce_{function}", dtype, half) if half > 1 else ""
            return f"{head}  return {inner}({combine(unit, function, dtype, half, low, high)});\n}}"
        lines = []
        while half >= 1:
            other = _shuffle("value", "value", [(lane + half) % lanes for lane in range(lanes)])
            lines.append(f"  value = {combine(unit, function, dtype, lanes, 'value', other)};\n")
            half //= 2
        return f"{head}{''.join(lines)}  return value[0];\n}}"

    return template


def combine(unit: Unit, function: str, dtype: str, lanes: int, left: str, right: str) -> str:
    """`left` and `right` combined by a reduction's function, as C++ text."""
    match function:
        case "add":
            return f"{left} + {right}"
        case "mul":
            return f"{left} * {right}"
        case "or":
            return f"{left} | {right}"
    return f"{unit.use(function, dtype, lanes)}({left}, {right})"


def _transpose(unit: Unit, dtype: str, lanes: int) -> str:
    """Blocks of 1, 2, 4, ... lanes swapped between pairs of rows, log2(lanes) steps."""
    vector = unit.type(dtype, lanes)
    arguments = ", ".join(f"{vector} &row_{row}" for row in range(lanes))
    lines = [f"{INLINE}void transpose_{vector}({arguments}) {{"]
    names = [f"row_{row}" for row in range(lanes)]
    distance = 1
    while distance < lanes:
        last = distance * 2 == lanes
        upper = [lane if not lane & distance else lane - distance + lanes for lane in range(lanes)]
        lower = [lane + distance if not lane & distance else lane + lanes for lane in range(lanes)]
        new = [f"{'row' if last else f'step_{distance}'}_{row}" for row in range(lanes)]
        if last:
            lines.append(
                f"  const {vector} {', '.join(f'last_{row} = {name}' for row, name in enumerate(names))};"
            )
            names = [f"last_{row}" for row in range(lanes)]
        define = "" if last else f"const {vector} "
        for row in range(lanes):
            if not row & distance:
                pair = names[row], names[row + distance]
                lines.append(f"  {define}{new[row]} = {_shuffle(*pair, upper)};")
                lines.append(f"  {define}{new[row + distance]} = {_shuffle(*pair, lower)};")
        names = new
        distance *= 2
    return "\n".join([*lines, "}"])


def reduction_of(function: str, count: int) -> Template:
    """The template of the horizontal reductions of `count` vectors into one vector with a lane for each.

    Pairs of vectors exchange lanes until each group of `count` lanes holds a part of every sum; then the halves
    are combined.
    """

    def template(unit: Unit, dtype: str, lanes: int) -> str:
        vector = unit.type(dtype, lanes)
        narrow = max(count, REGISTER_BYTES // types.BYTES[dtype])
        result = unit.type(dtype, min(narrow, lanes))
        names = [f"value_{n}" for n in range(count)]
        arguments = ", ".join(f"{vector} {name}" for name in names)
        lines = [f"{INLINE}{result} reduce_{function}_of_{count}_{vector}({arguments}) {{"]
        distance = 1
        while len(names) > 1:
            groups = range(0, lanes, 2 * distance)
            first = [base + n for g in groups for base in (g, g + lanes) for n in range(distance)]
            second = [lane + distance for lane in first]
            pairs = [(names[n], names[n + 1]) for n in range(0, len(names), 2)]
            new = [f"pair_{distance}_{n}" for n in range(len(pairs))]
            for name, pair in zip(new, pairs, strict=True):
                parts = _shuffle(*pair, first), _shuffle(*pair, second)
                lines.append(f"  const {vector} {name} = {combine(unit, function, dtype, lanes, *parts)};")
            names, distance = new, 2 * distance
        value, width = names[0], lanes
        while width > min(narrow, lanes):
            half = width // 2
            parts = (
                _shuffle(value, value, list(range(half))),
                _shuffle(value, value, list(range(half, width))),
            )
            kind = unit.type(dtype, half)
            lines.append(f"  const {kind} half_{half} = {combine(unit, function, dtype, half, *parts)};")
            value, width = f"half_{half}", half
        step = width // 2
        while step >= count:
            other = _shuffle(value, value, [(lane + step) % width for lane in range(width)])
            lines.append(
                f"  const {result} low_{step} = {combine(unit, function, dtype, width, value, other)};"
            )
            value, step = f"low_{step}", step // 2
        return "\n".join([*lines, f"  return {value};", "}"])

    return template


TEMPLATES: Final[dict[str, Template]] = {
    "broadcast": _broadcast,
    "transpose": _transpose,
    **{f"reduce_{function}": reduction(function) for function in ("add", "mul", "min", "max", "or")},
    **{
        f"reduce_{function}_of_{count}": reduction_of(function, count)
        for function in ("add", "mul", "min", "max")
        for count in (2, 4, 8, 16)
    },
}
