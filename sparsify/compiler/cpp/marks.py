"""Helper functions of marks: numbers that are flagged in any order and taken in ascending order.

In: `mark_int8(marks, extent, k)` for many k. Out: `next = take_marks_int32(numbers, next, marks, extent)`, the k in
order behind `numbers[next]`.

A number has a flag of a byte, and each block of 32 numbers has one: setting both takes two stores and no branch, and
only blocks with marks are looked at.
"""

from typing import Final

from sparsify.compiler.cpp import types
from sparsify.compiler.cpp.unit import Template, Unit
from sparsify.compiler.loops.marks import BLOCKS, MARKS, WIDTH

PADDED: Final = f"(extent + {WIDTH - 1}) / {WIDTH} * {WIDTH}"
WALK: Final = f"""\
  int8_t *blocks = marks + {PADDED};
  const int64_t count = (extent + {MARKS - 1}) / {MARKS};
  for (int64_t block = 0; block < count; block += {BLOCKS}) {{
    uint64_t word;
    __builtin_memcpy(&word, blocks + block, {BLOCKS});
    if (!word) continue;
    __builtin_memset(blocks + block, 0, {BLOCKS});
    for (; word; word &= word - 1) {{
      const int64_t first = (block + (__builtin_ctzll(word) >> 3)) * {MARKS};
      uint32_t found = mask_marks_int8(marks + first);
      __builtin_memset(marks + first, 0, {MARKS});
"""
MASK: Final = f"""\
static inline uint32_t mask_marks_int8(const int8_t *flags) {{
#if defined(__AVX2__)
  typedef char bytes __attribute__((vector_size({MARKS}), aligned(1), may_alias));
  return (uint32_t)__builtin_ia32_pmovmskb256(*(const bytes *)flags != 0);
#else
  uint32_t mask = 0;
  for (int part = 0; part < {MARKS // 8}; ++part) {{
    uint64_t word;
    __builtin_memcpy(&word, flags + 8 * part, 8);
    mask |= (uint32_t)((word * 0x0102040810204080ull) >> 56) << (8 * part);
  }}
  return mask;
#endif
}}"""


def _mask(unit: Unit, dtype: str, lanes: int) -> str:
    """Bit `n` tells whether flag `n` of a block is set."""
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
    """How many numbers are marked; no mark is left."""
    unit.use("mask_marks", "int8", 1)
    return (
        "static inline int64_t count_marks_int8(int8_t *marks, int64_t extent) {\n"
        f"  int64_t total = 0;\n{WALK}"
        "      total += __builtin_popcount(found);\n    }\n  }\n  return total;\n}"
    )


def _take_marks(unit: Unit, dtype: str, lanes: int) -> str:
    """The marked numbers in order from `next` on; no mark is left."""
    unit.use("mask_marks", "int8", 1)
    element = types.ELEMENTS[dtype]
    return (
        f"static inline int64_t take_marks_{dtype}(\n"
        f"    {element} *numbers, int64_t next, int8_t *marks, int64_t extent) {{\n{WALK}"
        "      for (; found; found &= found - 1)\n"
        f"        numbers[next++] = ({element})(first + __builtin_ctz(found));\n"
        "    }\n  }\n  return next;\n}"
    )


TEMPLATES: Final[dict[str, Template]] = {
    "mask_marks": _mask,
    "mark": _mark,
    "count_marks": _count_marks,
    "take_marks": _take_marks,
}
