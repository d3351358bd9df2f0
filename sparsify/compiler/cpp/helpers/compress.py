"""Helper functions that compress a row: entries different from a fill are stored consecutively, with their numbers.

In: `next = compress_int64_float32x16(numbers, values, next, end, row, first, count, 0.0f)`. Out: the nonzero entries of
`row[0..count]` in `values` from `next` on, and `first + k` for each entry in `numbers`.

With AVX-512 the kept lanes move to the front of a register, stored whole: the next vector overwrites the slots behind
the last kept lane, as long as a whole vector has room. Elsewhere each entry is written, and the position advances
only for kept entries: no branch depends on values. Masked compress stores to memory are avoided, decoded to
hundreds of steps by some processors.
"""

from functools import partial
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.ir.dtypes import BYTES

# Called once a row.
ONCE: Final = "static __attribute__((noinline, hot))"
NATIVE_BYTES: Final = 64
# By element size: suffixes of the builtins and of the lane mask, and the integer type.
BUILTINS: Final = {4: ("i", "d", "int"), 8: ("i", "q", "long long")}
FLOATS: Final = {"float32": "f", "float64": "f"}
LETTER: Final = {4: "s", 8: "d"}
WITH_MASKS: Final = "#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)"


def _count_kept(unit: Unit, dtype: str, lanes: int) -> str:
    """The number of entries of a row different from the fill."""
    element = types.ELEMENTS[dtype]
    return (
        f"{ONCE} int64_t count_kept_{dtype}(const {element} *from, int64_t count, {element} fill) {{\n"
        "  int64_t total = 0;\n"
        "  for (int64_t k = 0; k < count; ++k) total += from[k] != fill;\n"
        "  return total;\n}"
    )


def _compress(numbers: str, unit: Unit, dtype: str, lanes: int) -> str:
    """Stores the entries of a row different from the fill, and their numbers, from `next` on."""
    element, crd = types.ELEMENTS[dtype], types.ELEMENTS[numbers]
    is_native = lanes * BYTES[dtype] == NATIVE_BYTES and BYTES[numbers] in BUILTINS
    name = f"compress_{numbers}_{types.suffix(dtype, lanes)}"
    vectors = f"{WITH_MASKS}\n{_vectors(numbers, dtype, lanes)}\n#endif\n" if is_native else ""
    return (
        f"{ONCE} int64_t {name}(\n"
        f"    {crd} *numbers, {element} *values, int64_t next, int64_t end, const {element} *from, int64_t first,\n"
        f"    int64_t count, {element} fill) {{\n"
        "  int64_t k = 0;\n"
        f"{vectors}"
        "  for (; k < count && next < end; ++k) {\n"
        f"    numbers[next] = ({crd})(first + k);\n"
        "    values[next] = from[k];\n"
        "    next += from[k] != fill;\n"
        "  }\n  return next;\n}"
    )


def _vectors(numbers: str, dtype: str, lanes: int) -> str:
    """The compression of whole vectors of a row."""
    size, width = BYTES[dtype], BYTES[numbers]
    _, mask, integer = BUILTINS[size]
    element = types.ELEMENTS[dtype]
    # Coordinates as wide as values fill a register, wider ones two, narrower ones half of one.
    count = min(lanes, NATIVE_BYTES // width)
    number = BUILTINS[width][2]
    bits = "unsigned short" if lanes > 8 else "unsigned char"
    own = "unsigned short" if count > 8 else "unsigned char"
    value = f"__builtin_ia32_compress{LETTER[size]}{FLOATS.get(dtype, 'i')}512_mask"
    moved = f"__builtin_ia32_compress{LETTER[width]}i{8 * width * count}_mask"
    native = element if dtype in FLOATS else integer
    lines = [
        f"typedef {native} values_lanes __attribute__((vector_size({NATIVE_BYTES})));",
        f"typedef {element} values_memory __attribute__((vector_size({NATIVE_BYTES}), aligned({size}), may_alias));",
        f"typedef {integer} mask_lanes __attribute__((vector_size({NATIVE_BYTES})));",
        f"typedef {number} number_lanes __attribute__((vector_size({width * count})));",
        f"typedef {types.ELEMENTS[numbers]} number_memory "
        f"__attribute__((vector_size({width * count}), aligned({width}), may_alias));",
        f"number_lanes at = {{{', '.join(map(str, range(count)))}}};",
        f"at += ({number})first;",
        f"for (; k + {lanes} <= count && next + {lanes} <= end; k += {lanes}) {{",
        "  const values_lanes found = (values_lanes)*(const values_memory *)(from + k);",
        f"  const {bits} kept = ({bits})__builtin_ia32_cvt{mask}2mask512((mask_lanes)(found != ({native})fill));",
        f"  *(values_memory *)(values + next) = (values_memory){value}(found, found, kept);",
    ]
    for part in range(lanes // count):
        some = "kept" if lanes == count else f"({own})(kept >> {part * count})"
        lines += [
            f"  *(number_memory *)(numbers + next) = (number_memory){moved}(at, at, {some});",
            f"  next += __builtin_popcount({some});",
            f"  at += {count};",
        ]
    return "\n".join(f"  {line}" for line in (*lines, "}"))


TEMPLATES: Final[dict[str, Template]] = {
    "count_kept": _count_kept,
    **{f"compress_{numbers}": partial(_compress, numbers) for numbers in ("int8", "int16", "int32", "int64")},
}
