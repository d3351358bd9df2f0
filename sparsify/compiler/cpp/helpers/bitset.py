"""Helper functions of marks: numbers flagged in any order and enumerated in ascending order.

In: `mark_int8(marks, extent, k)` for many k. Out: `next = take_marks_int32(numbers, next, end, marks, extent)`, the k
in order behind `numbers[next]`.

A number has a flag of one byte, and each block of 64 numbers has another: setting both takes two stores and no branch,
and only blocks with marks are scanned. Numbers are written four at a time, so that no hard-to-predict branch depends
on the number of marks in a block.

Source: the decoding of bit sets in Langdale and Lemire, Parsing Gigabytes of JSON per Second, 2019.
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.loops.bitset import BLOCKS, MARKS, WIDTH

# Called once a row: inlined copies gain nothing and take g++ a tenth of a second each.
ONCE: Final = "static __attribute__((noinline, hot))"
PADDED: Final = f"(extent + {WIDTH - 1}) / {WIDTH} * {WIDTH}"
WALK: Final = f"""\
  int8_t *blocks = marks + {PADDED};
  const int64_t count = (extent + {MARKS - 1}) / {MARKS};
  for (int64_t block = 0; block < count; block += {BLOCKS}) {{
    uint64_t some = mask_marks_int8(blocks + block);
    if (!some) continue;
    __builtin_memset(blocks + block, 0, {BLOCKS});
    for (; some; some &= some - 1) {{
      const int64_t first = (block + __builtin_ctzll(some)) * {MARKS};
      uint64_t found = mask_marks_int8(marks + first);
      __builtin_memset(marks + first, 0, {MARKS});
"""
MASK: Final = """\
static inline uint64_t mask_marks_int8(const int8_t *flags) {
#if defined(__AVX2__)
  typedef char bytes __attribute__((vector_size(32), aligned(1), may_alias));
  const uint32_t low = (uint32_t)__builtin_ia32_pmovmskb256(*(const bytes *)flags != 0);
  const uint32_t high = (uint32_t)__builtin_ia32_pmovmskb256(*(const bytes *)(flags + 32) != 0);
  return (uint64_t)high << 32 | low;
#else
  uint64_t mask = 0;
  for (int part = 0; part < 8; ++part) {
    uint64_t word;
    __builtin_memcpy(&word, flags + 8 * part, 8);
    mask |= (word * 0x0102040810204080ull) >> 56 << (8 * part);
  }
  return mask;
#endif
}"""


def _mask(unit: Unit, dtype: str, lanes: int) -> str:
    """A word with bit `n` set for each set flag `n` of 64."""
    unit.unsigned = True
    return MASK


def _mark(unit: Unit, dtype: str, lanes: int) -> str:
    unit.unsigned = True
    return (
        "static inline void mark_int8(int8_t *marks, int64_t extent, int64_t number) {\n"
        "  marks[number] = 1;\n"
        f"  marks[{PADDED} + (int64_t)((uint64_t)number / {MARKS})] = 1;\n}}"
    )


def _count_marks(unit: Unit, dtype: str, lanes: int) -> str:
    """The number of marked numbers; clears the marks."""
    unit.use("mask_marks", "int8", 1)
    return (
        f"{ONCE} int64_t count_marks_int8(int8_t *marks, int64_t extent) {{\n"
        f"  int64_t total = 0;\n{WALK}"
        "      total += __builtin_popcountll(found);\n    }\n  }\n  return total;\n}"
    )


def _take_marks(unit: Unit, dtype: str, lanes: int) -> str:
    """The marked numbers in order from `next` on, below `end`; clears the marks."""
    unit.use("mask_marks", "int8", 1)
    element = types.ELEMENTS[dtype]
    return (
        f"{ONCE} int64_t take_marks_{dtype}(\n"
        f"    {element} *numbers, int64_t next, int64_t end, int8_t *marks, int64_t extent) {{\n{WALK}"
        "      const int64_t after = next + __builtin_popcountll(found);\n"
        # Behind the last mark `found` is 0, and the written elements are overwritten later.
        "      for (; next < after && next + 4 <= end; next += 4)\n"
        "        for (int lane = 0; lane < 4; ++lane, found &= found - 1)\n"
        f"          numbers[next + lane] = ({element})(first + __builtin_ctzll(found | 1ull << 63));\n"
        "      for (; found; found &= found - 1)\n"
        f"        numbers[next++] = ({element})(first + __builtin_ctzll(found));\n"
        "      next = after;\n"
        "    }\n  }\n  return next;\n}"
    )


TEMPLATES: Final[dict[str, Template]] = {
    "mask_marks": _mask,
    "mark": _mark,
    "count_marks": _count_marks,
    "take_marks": _take_marks,
}
