"""Helper functions that store the largest entries of each block of a row; ties go to the first entry.

In: `next = select_int64_float32(numbers, values, next, end, row, first, count, 2, 4)`. Out: of every four entries of
`row[0..count]` the two of the largest magnitude in `values` from `next` on, and `first + k` for each in `numbers`.

Entries are compared by keys, unsigned integers in the order of the numbers: the bits of a magnitude, or the bits with
a flipped sign bit for signed comparisons. NaN has the key of infinity. Entries of a short block
are each compared with all others; in a longer block the key of the last kept entry is found byte by byte.

Source: selection by radix, Knuth, The Art of Computer Programming, volume 3, section 5.2.5.
"""

from functools import partial
from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.ir.dtypes import BYTES, STORED_HALVES

# Called once a row.
ONCE: Final = "static __attribute__((noinline, hot))"
# Maximum entries of a block for comparing all pairs.
SHORT: Final = 32
UNSIGNED: Final = {
    2: "unsigned short",
    4: "__UINT32_TYPE__",
    8: "__UINT64_TYPE__",
}
# The bits of infinity.
INFINITY: Final = {
    "float16": "0x7c00",
    "bfloat16": "0x7f80",
    "float32": "0x7f800000u",
    "float64": "0x7ff0000000000000ull",
}


def _count_selected(unit: Unit, dtype: str, lanes: int) -> str:
    """The number of kept entries of a row, with a possibly shorter last block."""
    return (
        f"{ONCE} int64_t count_selected_int64(int64_t count, int64_t kept, int64_t size) {{\n"
        "  const int64_t rest = count % size;\n"
        "  return count / size * (kept < size ? kept : size) + (kept < rest ? kept : rest);\n}"
    )


def _key(unit: Unit, dtype: str, lanes: int, *, is_signed: bool) -> str:
    """The key of an entry."""
    bits, size = UNSIGNED[BYTES[dtype]], 8 * BYTES[dtype]
    top = f"(({bits})1 << {size - 1})"
    name = f"key_{'signed_' if is_signed else ''}{dtype}"
    lines = [f"{bits} u;", "__builtin_memcpy(&u, &x, sizeof(u));"]
    if dtype in INFINITY:
        infinity = f"({bits}){INFINITY[dtype]}"
        magnitude = f"({bits})(u & ~{top})"
        lines.append(f"const {bits} size = {magnitude} > {infinity} ? {infinity} : {magnitude};")
        if not is_signed:
            lines.append("return size;")
        else:
            lines.append(f"const bool is_negative = (u & {top}) && size && {magnitude} <= {infinity};")
            lines.append(f"return is_negative ? ({bits})~({bits})(size | {top}) : ({bits})(size | {top});")
    elif is_signed:
        lines.append(f"return ({bits})(u ^ {top});")
    else:
        # The least number of a dtype has no positive counterpart; for 64 bits the next number is used.
        lines.append(f"const {bits} size = (u & {top}) ? ({bits})(0 - u) : u;")
        lines.append(f"return size == {top} ? {top} - 1 : size;" if size == 64 else "return size;")
    body = "".join(f"  {line}\n" for line in lines)
    return (
        f"static inline __attribute__((always_inline)) {bits} {name}({types.ELEMENTS[dtype]} x) {{\n{body}}}"
    )


def _select(numbers: str, unit: Unit, dtype: str, lanes: int, *, is_signed: bool = False) -> str:
    """Stores the largest entries of each block of a row, and their numbers, from `next` on."""
    element, crd, sign = types.ELEMENTS[dtype], types.ELEMENTS[numbers], "signed_" if is_signed else ""
    is_rounded = dtype in STORED_HALVES
    row = types.ELEMENTS["float32"] if is_rounded else element
    entry = f"{unit.use('narrow', dtype, 1)}(from[begin + k])" if is_rounded else "from[begin + k]"
    key = unit.use(f"key_{sign}".rstrip("_"), dtype, 1)
    bits, size = UNSIGNED[BYTES[dtype]], 8 * BYTES[dtype]
    put = f"numbers[next] = ({crd})(first + begin + k); values[next] = {entry};"
    return f"""{ONCE} int64_t select_{sign}{numbers}_{dtype}(
    {crd} *numbers, {element} *values, int64_t next, int64_t end, const {row} *from, int64_t first,
    int64_t count, int64_t kept, int64_t size) {{
  for (int64_t begin = 0; begin < count; begin += size) {{
    const int64_t n = count - begin < size ? count - begin : size;
    if (n <= {SHORT}) {{
      {bits} keys[{SHORT}];
      for (int64_t k = 0; k < n; ++k) keys[k] = {key}({entry});
      for (int64_t k = 0; k < n && next < end; ++k) {{
        int64_t before = 0;
        for (int64_t q = 0; q < k; ++q) before += keys[q] >= keys[k];
        for (int64_t q = k + 1; q < n; ++q) before += keys[q] > keys[k];
        {put}
        next += before < kept;
      }}
      continue;
    }}
    {bits} least = 0;
    int64_t left = kept < n ? kept : n;
    for (int shift = {size - 8}; shift >= 0; shift -= 8) {{
      int64_t counts[256] = {{}};
      const {bits} above = shift == {size - 8} ? ({bits})0 : ({bits})(({bits})~({bits})0 << (shift + 8));
      for (int64_t k = 0; k < n; ++k) {{
        const {bits} found = {key}({entry});
        counts[(found >> shift) & 255] += ((found ^ least) & above) == 0;
      }}
      int byte = 255;
      while (byte > 0 && counts[byte] < left) left -= counts[byte--];
      least = ({bits})(least | (({bits})byte << shift));
    }}
    for (int64_t k = 0; k < n && next < end; ++k) {{
      const {bits} found = {key}({entry});
      const bool is_equal = found == least && left > 0;
      left -= is_equal;
      {put}
      next += found > least || is_equal;
    }}
  }}
  return next;
}}"""


TEMPLATES: Final[dict[str, Template]] = {
    "count_selected": _count_selected,
    "key": partial(_key, is_signed=False),
    "key_signed": partial(_key, is_signed=True),
    **{
        f"select_{'signed_' if is_signed else ''}{numbers}": partial(_select, numbers, is_signed=is_signed)
        for numbers in ("int8", "int16", "int32", "int64")
        for is_signed in (False, True)
    },
}
