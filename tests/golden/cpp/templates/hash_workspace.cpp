// order k, i, j
// precompute w = Y at root in memory listed
// let w[i,j]: float32 in memory listed: (forall k: forall i: forall j: w[i,j] += A[k,i] * B[k,j]); forall i: forall j: Y[i,j] = w[i,j]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

extern "C" void *aligned_alloc(__SIZE_TYPE__ alignment, __SIZE_TYPE__ bytes) noexcept;
extern "C" void free(void *memory) noexcept;

struct Scratch {
  void *memory;
  __attribute__((noinline)) explicit Scratch(int64_t bytes) noexcept
      : memory(aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  __attribute__((noinline)) ~Scratch() noexcept { free(memory); }
};

struct table_float32 {
  float *values = 0;
  int64_t *keys = 0, *slots = 0;
  int64_t count = 0, room = 0, shift = 0, stamp = 1;
  ~table_float32() noexcept { free(values); free(keys); free(slots); }
};

// Room for twice as many entries; false without memory, and then the table is as it was.
static __attribute__((noinline, cold)) bool grow_float32(table_float32 &table) {
  const int64_t room = table.room ? 2 * table.room : 64;
  float *values = (float *)aligned_alloc(64, (room * 4 + 63) / 64 * 64);
  int64_t *keys = (int64_t *)aligned_alloc(64, room * 8);
  int64_t *slots = (int64_t *)aligned_alloc(64, room * 32);
  if (!values || !keys || !slots) { free(values); free(keys); free(slots); return false; }
  int64_t bits = 0;
  while (((int64_t)1 << bits) < 2 * room) ++bits;
  table.shift = 64 - bits;
  __builtin_memset(slots, 0, room * 32);
  if (table.room) {
    __builtin_memcpy(values, table.values, table.count * 4);
    __builtin_memcpy(keys, table.keys, table.count * 8);
  }
  table.stamp = 1;
  for (int64_t place = 0; place < table.count; ++place) {
    int64_t slot = (int64_t)((uint64_t)keys[place] * 0x9E3779B97F4A7C15ull >> table.shift);
    while (slots[2 * slot + 1]) slot = (slot + 1) & (2 * room - 1);
    slots[2 * slot] = keys[place];
    slots[2 * slot + 1] = (int64_t)1 << 40 | place;
  }
  free(table.values);
  free(table.keys);
  free(table.slots);
  table.values = values;
  table.keys = keys;
  table.slots = slots;
  table.room = room;
  return true;
}

static inline int64_t enter_float32(table_float32 &table, int64_t key) {
  if (table.count == table.room && !grow_float32(table)) return -1;
  const int64_t mask = 2 * table.room - 1;
  int64_t slot = (int64_t)((uint64_t)key * 0x9E3779B97F4A7C15ull >> table.shift);
  for (;; slot = (slot + 1) & mask) {
    const int64_t mark = table.slots[2 * slot + 1];
    if (mark >> 40 != table.stamp) break;
    if (table.slots[2 * slot] == key) return mark & (((int64_t)1 << 40) - 1);
  }
  table.slots[2 * slot] = key;
  table.slots[2 * slot + 1] = table.stamp << 40 | table.count;
  table.keys[table.count] = key;
  return table.count++;
}

static __attribute__((noinline, hot)) bool sort_table_float32(table_float32 &table) {
  const int64_t count = table.count;
  int64_t all = 0, place = 1;
  while (place < count && table.keys[place - 1] < table.keys[place]) ++place;
  if (place >= count) return true;
  for (place = 0; place < count; ++place) all |= table.keys[place];
  const Scratch memory(count * (16 + 4));
  int64_t *keys = (int64_t *)memory.memory;
  if (!keys) return false;
  float *values = (float *)(keys + count);
  for (int64_t shift = 0; shift < 64 && all >> shift; shift += 8) {
    if (!(all >> shift & 255)) continue;
    int64_t first[257] = {0};
    for (place = 0; place < count; ++place) ++first[(table.keys[place] >> shift & 255) + 1];
    for (int digit = 0; digit < 256; ++digit) first[digit + 1] += first[digit];
    for (place = 0; place < count; ++place) {
      const int64_t into = first[table.keys[place] >> shift & 255]++;
      keys[into] = table.keys[place];
      values[into] = table.values[place];
    }
    __builtin_memcpy(table.keys, keys, count * 8);
    __builtin_memcpy(table.values, values, count * 4);
  }
  return true;
}

static inline void clear_table_float32(table_float32 &table) {
  table.count = 0;
  if (++table.stamp < (int64_t)1 << 22) return;
  table.stamp = 1;
  if (table.room) __builtin_memset(table.slots, 0, table.room * 32);
}

static inline void fill_int32(int32_t *address, int64_t count, int32_t value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline __attribute__((always_inline)) int64_t floordiv_int64(int64_t x, int64_t y) {
  const int64_t quotient = x / y;
  return quotient - (quotient * y != x && (x ^ y) < 0);
}

static inline __attribute__((always_inline)) int64_t mod_int64(int64_t x, int64_t y) {
  const int64_t rest = x % ((y == 0) | (y == -1) ? 1 : y);
  return (rest != 0) & ((rest ^ y) < 0) ? rest + y : rest;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t k_extent = sizes[0];
  const int64_t i_extent = sizes[1];
  const int64_t j_extent = sizes[2];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const int32_t *__restrict B2_pos = (const int32_t *)buffers[3];
  const int32_t *__restrict B2_crd = (const int32_t *)buffers[4];
  const float *__restrict B_vals = (const float *)buffers[5];
  int32_t *__restrict Y2_pos = (int32_t *)buffers[6];
  int32_t *__restrict Y2_crd = (int32_t *)buffers[7];
  float *__restrict Y_vals = (float *)buffers[8];
  if (1.0 * (double)i_extent * (double)j_extent > 4.611686018427388e+18) {
    return 5;
  }
  table_float32 w_table;
  float *&w = w_table.values;
  int64_t *&w_keys = w_table.keys;
  int64_t w_count = 0;
  int64_t w_place = 0;
  for (int64_t k = 0; k < k_extent; ++k) {
    for (int64_t pA2 = A2_pos[k], pA2_end = A2_pos[k + 1]; pA2 < pA2_end; ++pA2) {
      const int64_t i = A2_crd[pA2];
      for (int64_t pB2 = B2_pos[k], pB2_end = B2_pos[k + 1]; pB2 < pB2_end; ++pB2) {
        const int64_t j = B2_crd[pB2];
        w_place = enter_float32(w_table, i * j_extent + j);
        if (w_place < 0) return 1;
        if (w_place == w_count) {
          w_count += 1;
          w[w_place] = A_vals[pA2] * B_vals[pB2];
        } else {
          w[w_place] = w[w_place] + A_vals[pA2] * B_vals[pB2];
        }
      }
    }
  }
  // count the entries of each row
  Y2_pos = (int32_t *)context->allocate(context->state, 6, (i_extent + 1) * 4);
  if (!Y2_pos && i_extent + 1 > 0) return 1;
  fill_int32(Y2_pos, i_extent + 1, 0);
  if (!sort_table_float32(w_table)) return 1;
  int64_t pw = 0;
  while (pw < w_count) {
    const int64_t w_i = floordiv_int64(w_keys[pw], j_extent);
    int64_t w_after = pw + 1;
    while (w_after < w_count && floordiv_int64(w_keys[w_after], j_extent) == w_i) {
      w_after += 1;
    }
    const int64_t iv1 = mod_int64(w_i, i_extent);
    int64_t Y2_next = 0;
    for (int64_t pwv1 = pw, pwv1_end = w_after; pwv1 < pwv1_end; ++pwv1) {
      Y2_next += 1;
    }
    Y2_pos[iv1 + 1] = (int32_t)Y2_next;
    pw = w_after;
  }
  // allocate, then fill
  int64_t Y_total = 0;
  for (int64_t Y_row = 0; Y_row < i_extent; ++Y_row) {
    Y_total += (int64_t)Y2_pos[Y_row + 1];
    Y2_pos[Y_row + 1] = (int32_t)Y_total;
    if (Y_total > 2147483647) {
      return 2;
    }
  }
  Y2_crd = (int32_t *)context->allocate(context->state, 7, Y_total * 4);
  if (!Y2_crd && Y_total > 0) return 1;
  Y_vals = (float *)context->allocate(context->state, 8, Y_total * 4);
  if (!Y_vals && Y_total > 0) return 1;
  if (!sort_table_float32(w_table)) return 1;
  int64_t pwv2 = 0;
  while (pwv2 < w_count) {
    const int64_t w_iv1 = floordiv_int64(w_keys[pwv2], j_extent);
    int64_t w_afterv1 = pwv2 + 1;
    while (w_afterv1 < w_count && floordiv_int64(w_keys[w_afterv1], j_extent) == w_iv1) {
      w_afterv1 += 1;
    }
    const int64_t iv2 = mod_int64(w_iv1, i_extent);
    int64_t Y2_nextv1 = Y2_pos[iv2];
    for (int64_t pwv3 = pwv2, pwv3_end = w_afterv1; pwv3 < pwv3_end; ++pwv3) {
      const int64_t jv2 = mod_int64(w_keys[pwv3], j_extent);
      Y2_crd[Y2_nextv1] = (int32_t)jv2;
      Y_vals[Y2_nextv1] = w[pwv3];
      Y2_nextv1 += 1;
    }
    pwv2 = w_afterv1;
  }
  clear_table_float32(w_table);
  return 0;
}
