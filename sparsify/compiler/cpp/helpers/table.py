"""Helper functions of hash tables: values by int64 keys, in the order of their entry, and sorted by key.

In: `place = enter_float32(w_table, key)`, then `sort_table_float32(w_table, count)`. Out: `w_table.values[place]`, a
negative place if memory is exhausted.

Slots are probed linearly. Each slot has a key, and in one number the stamp of the table's present use and the place of
the entry: a new stamp clears all slots. Entries are sorted by digits of a byte, from the lowest one.

Source: Knuth, The Art of Computer Programming, volume 3, 1998, sections 6.4 (linear probing) and 5.2.5 (radix sort).
"""

from typing import Final

from sparsify.compiler.cpp.helpers import types
from sparsify.compiler.cpp.helpers.unit import Template, Unit
from sparsify.compiler.cpp.scratch import SCRATCH

TABLE: Final = """\
struct {struct} {{
  {element} *values = 0;
  int64_t *keys = 0, *slots = 0;
  int64_t count = 0, room = 0, shift = 0, stamp = 1;
  ~{struct}() noexcept {{ free(values); free(keys); free(slots); }}
}};

// Room for twice as many entries; false without memory, and then the table is as it was.
static __attribute__((noinline, cold)) bool grow_{suffix}({struct} &table) {{
  const int64_t room = table.room ? 2 * table.room : 64;
  {element} *values = ({element} *)aligned_alloc(64, (room * {bytes} + 63) / 64 * 64);
  int64_t *keys = (int64_t *)aligned_alloc(64, room * 8);
  int64_t *slots = (int64_t *)aligned_alloc(64, room * 32);
  if (!values || !keys || !slots) {{ free(values); free(keys); free(slots); return false; }}
  int64_t bits = 0;
  while (((int64_t)1 << bits) < 2 * room) ++bits;
  table.shift = 64 - bits;
  __builtin_memset(slots, 0, room * 32);
  if (table.room) {{
    __builtin_memcpy(values, table.values, table.count * {bytes});
    __builtin_memcpy(keys, table.keys, table.count * 8);
  }}
  table.stamp = 1;
  for (int64_t place = 0; place < table.count; ++place) {{
    int64_t slot = (int64_t)((uint64_t)keys[place] * 0x9E3779B97F4A7C15ull >> table.shift);
    while (slots[2 * slot + 1]) slot = (slot + 1) & (2 * room - 1);
    slots[2 * slot] = keys[place];
    slots[2 * slot + 1] = (int64_t)1 << 40 | place;
  }}
  free(table.values);
  free(table.keys);
  free(table.slots);
  table.values = values;
  table.keys = keys;
  table.slots = slots;
  table.room = room;
  return true;
}}

static inline int64_t enter_{suffix}({struct} &table, int64_t key) {{
  if (table.count == table.room && !grow_{suffix}(table)) return -1;
  const int64_t mask = 2 * table.room - 1;
  int64_t slot = (int64_t)((uint64_t)key * 0x9E3779B97F4A7C15ull >> table.shift);
  for (;; slot = (slot + 1) & mask) {{
    const int64_t mark = table.slots[2 * slot + 1];
    if (mark >> 40 != table.stamp) break;
    if (table.slots[2 * slot] == key) return mark & (((int64_t)1 << 40) - 1);
  }}
  table.slots[2 * slot] = key;
  table.slots[2 * slot + 1] = table.stamp << 40 | table.count;
  table.keys[table.count] = key;
  return table.count++;
}}

static __attribute__((noinline, hot)) bool sort_table_{suffix}({struct} &table) {{
  const int64_t count = table.count;
  int64_t all = 0, place = 1;
  while (place < count && table.keys[place - 1] < table.keys[place]) ++place;
  if (place >= count) return true;
  for (place = 0; place < count; ++place) all |= table.keys[place];
  const Scratch memory(count * (16 + {bytes}));
  int64_t *keys = (int64_t *)memory.memory;
  if (!keys) return false;
  {element} *values = ({element} *)(keys + count);
  for (int64_t shift = 0; shift < 64 && all >> shift; shift += 8) {{
    if (!(all >> shift & 255)) continue;
    int64_t first[257] = {{0}};
    for (place = 0; place < count; ++place) ++first[(table.keys[place] >> shift & 255) + 1];
    for (int digit = 0; digit < 256; ++digit) first[digit + 1] += first[digit];
    for (place = 0; place < count; ++place) {{
      const int64_t into = first[table.keys[place] >> shift & 255]++;
      keys[into] = table.keys[place];
      values[into] = table.values[place];
    }}
    __builtin_memcpy(table.keys, keys, count * 8);
    __builtin_memcpy(table.values, values, count * {bytes});
  }}
  return true;
}}

static inline void clear_table_{suffix}({struct} &table) {{
  table.count = 0;
  if (++table.stamp < (int64_t)1 << 22) return;
  table.stamp = 1;
  if (table.room) __builtin_memset(table.slots, 0, table.room * 32);
}}"""


def _table(unit: Unit, dtype: str, lanes: int) -> str:
    """The structure of tables of a dtype, with the functions to enter, sort and clear."""
    unit.unsigned = True
    unit.declare("scratch", SCRATCH)
    suffix = types.suffix(dtype, 1)
    return TABLE.format(
        struct=f"table_{suffix}", suffix=suffix, element=types.ELEMENTS[dtype], bytes=types.BYTES[dtype]
    )


TEMPLATES: Final[dict[str, Template]] = {"table": _table}
