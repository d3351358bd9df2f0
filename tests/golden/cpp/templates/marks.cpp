// order i, j, k
// precompute row_Y = Y at i in thread marked
// prefetch B 2
// parallel i dynamic A
// parallel forall i dynamic by positions of A: let row_Y[k]: float32 in thread marked: (forall j: forall k: row_Y[k] += A[i,j] * B[j,k]); forall k: Y[i,k] = row_Y[k]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));
typedef int32_t int32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

extern "C" int omp_get_thread_num() noexcept;
extern "C" int omp_get_num_threads() noexcept;

extern "C" void *aligned_alloc(__SIZE_TYPE__ alignment, __SIZE_TYPE__ bytes) noexcept;
extern "C" void free(void *memory) noexcept;

struct Scratch {
  void *memory;
  __attribute__((noinline)) explicit Scratch(int64_t bytes) noexcept
      : memory(aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  __attribute__((noinline)) ~Scratch() noexcept { free(memory); }
};

static inline void fill_int32(int32_t *address, int64_t count, int32_t value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline void fill_int64(int64_t *address, int64_t count, int64_t value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

// Where part `chunk` of `chunks` parts of the rows 0..extent begins, each with equal positions + row_cost * rows.
static __attribute__((noinline)) int64_t split_positions_int32(
    int64_t chunk, int64_t chunks, int64_t extent, const int32_t *positions, int64_t row_cost) {
  if (chunk >= chunks) return extent;
  const int64_t total = (int64_t)positions[extent] - positions[0] + row_cost * extent;
  const int64_t target = total / chunks * chunk + total % chunks * chunk / chunks;
  int64_t low = 0, high = extent;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if ((int64_t)positions[middle] - positions[0] + row_cost * middle < target) low = middle + 1;
    else high = middle;
  }
  return low;
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) int64_t floordiv_int64(int64_t x, int64_t y) {
  const int64_t quotient = x / y;
  return quotient - (quotient * y != x && (x ^ y) < 0);
}

static inline void fill_int8(int8_t *address, int64_t count, int8_t value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline void mark_int8(int8_t *marks, int64_t extent, int64_t number) {
  marks[number] = 1;
  marks[(extent + 4095) / 4096 * 4096 + (int64_t)((uint64_t)number / 64)] = 1;
}

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
}

static __attribute__((noinline, hot)) int64_t count_marks_int8(int8_t *marks, int64_t extent) {
  int64_t total = 0;
  int8_t *blocks = marks + (extent + 4095) / 4096 * 4096;
  const int64_t count = (extent + 63) / 64;
  for (int64_t block = 0; block < count; block += 64) {
    uint64_t some = mask_marks_int8(blocks + block);
    if (!some) continue;
    __builtin_memset(blocks + block, 0, 64);
    for (; some; some &= some - 1) {
      const int64_t first = (block + __builtin_ctzll(some)) * 64;
      uint64_t found = mask_marks_int8(marks + first);
      __builtin_memset(marks + first, 0, 64);
      total += __builtin_popcountll(found);
    }
  }
  return total;
}

static __attribute__((noinline, hot)) int64_t take_marks_int32(
    int32_t *numbers, int64_t next, int64_t end, int8_t *marks, int64_t extent) {
  int8_t *blocks = marks + (extent + 4095) / 4096 * 4096;
  const int64_t count = (extent + 63) / 64;
  for (int64_t block = 0; block < count; block += 64) {
    uint64_t some = mask_marks_int8(blocks + block);
    if (!some) continue;
    __builtin_memset(blocks + block, 0, 64);
    for (; some; some &= some - 1) {
      const int64_t first = (block + __builtin_ctzll(some)) * 64;
      uint64_t found = mask_marks_int8(marks + first);
      __builtin_memset(marks + first, 0, 64);
      const int64_t after = next + __builtin_popcountll(found);
      for (; next < after && next + 4 <= end; next += 4)
        for (int lane = 0; lane < 4; ++lane, found &= found - 1)
          numbers[next + lane] = (int32_t)(first + __builtin_ctzll(found | 1ull << 63));
      for (; found; found &= found - 1)
        numbers[next++] = (int32_t)(first + __builtin_ctzll(found));
      next = after;
    }
  }
  return next;
}

static inline __attribute__((always_inline)) int32x8 load_int32x8(const int32_t *address) {
  return *(const int32x8_memory *)address;
}

static inline __attribute__((always_inline)) void store_int32x8(int32_t *address, int32x8 value) {
  *(int32x8_memory *)address = value;
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
}

static __attribute__((noinline, hot)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int32_t *__restrict A2_crd,
    const int64_t A_nnz,
    const int32_t *__restrict B2_pos,
    const int32_t *__restrict B2_crd,
    int64_t *__restrict Y_room) {
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      int64_t Y2_nextv1 = 0;
      for (int64_t pA2 = A2_pos[i], pA2_end = A2_pos[i + 1]; pA2 < pA2_end; ++pA2) {
        const int64_t j = A2_crd[pA2];
        const int64_t j_ahead = A2_crd[min_int64(pA2 + 2, A_nnz - 1)];
        const int64_t B_ahead = B2_pos[j_ahead];
        __builtin_prefetch(&B2_crd[B_ahead]);
        __builtin_prefetch(&B2_crd[B_ahead + 16]);
        for (int64_t pB2 = B2_pos[j], pB2_end = B2_pos[j + 1]; pB2 < pB2_end; ++pB2) {
          Y2_nextv1 += 1;
        }
      }
      Y_room[i + 1] = Y2_nextv1;
    }
  }
}

static __attribute__((noinline, hot)) int64_t region_2(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t k_extent,
    const int32_t *__restrict A2_crd,
    int64_t *__restrict Y_room,
    const int64_t A_nnz,
    const int32_t *__restrict B2_pos,
    const int32_t *__restrict B2_crd,
    int8_t *__restrict B_again) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  fill_float32(row_Y, k_extent, 0.0f);
  const Scratch row_Y_marks_scratch(((k_extent + 4095 >> 12) * 4160) * 1);
  int8_t *__restrict row_Y_marks = (int8_t *)row_Y_marks_scratch.memory;
  if (!row_Y_marks) return 1;
  fill_int8(row_Y_marks, (k_extent + 4095 >> 12) * 4160, 0);
  int64_t A_row_before = 0;
  int64_t A_begin_before = 0;
  int64_t A_end_before = -1;
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_beginv1 = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_endv1 = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t iv1 = i_beginv1; iv1 < i_endv1; ++iv1) {
      int64_t Y2_nextv1v1 = 0;
      const int64_t A_begin = A2_pos[iv1];
      const int64_t A_end = A2_pos[iv1 + 1];
      int64_t A_same = A_begin;
      while (A_end - A_begin == A_end_before - A_begin_before && A_same < A_end && A2_crd[A_same] == A2_crd[A_same + A_begin_before - A_begin]) {
        A_same += 1;
      }
      if (A_end - A_begin == A_end_before - A_begin_before && A_same == A_end) {
        Y2_nextv1v1 = Y_room[A_row_before + 1];
      } else {
        for (int64_t pA2v1 = A2_pos[iv1], pA2v1_end = A2_pos[iv1 + 1]; pA2v1 < pA2v1_end; ++pA2v1) {
          const int64_t jv1 = A2_crd[pA2v1];
          const int64_t j_aheadv1 = A2_crd[min_int64(pA2v1 + 2, A_nnz - 1)];
          const int64_t B_aheadv1 = B2_pos[j_aheadv1];
          __builtin_prefetch(&B2_crd[B_aheadv1]);
          __builtin_prefetch(&B2_crd[B_aheadv1 + 16]);
          if (!(B_again[jv1] != 0 && pA2v1 > (int64_t)A2_pos[iv1] && (int64_t)A2_crd[pA2v1 - 1] == jv1 - 1)) {
            for (int64_t pB2v1 = B2_pos[jv1], pB2v1_end = B2_pos[jv1 + 1]; pB2v1 < pB2v1_end; ++pB2v1) {
              const int64_t kv1 = B2_crd[pB2v1];
              mark_int8(row_Y_marks, k_extent, kv1);
            }
          }
        }
        Y2_nextv1v1 += count_marks_int8(row_Y_marks, k_extent);
      }
      A_row_before = iv1;
      A_begin_before = A_begin;
      A_end_before = A_end;
      Y_room[iv1 + 1] = Y2_nextv1v1;
    }
  }
  return 0;
}

static __attribute__((noinline, hot)) int64_t region_3(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t k_extent,
    int64_t *__restrict Y_room,
    const int32_t *__restrict A2_crd,
    int32_t *__restrict Y2_pos,
    int32_t *__restrict Y2_crd,
    int64_t *__restrict Y_first,
    const int64_t A_nnz,
    const int32_t *__restrict B2_pos,
    const int32_t *__restrict B2_crd,
    const float *__restrict B_vals,
    const float *__restrict A_vals,
    float *__restrict Y_vals,
    int8_t *__restrict B_again) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  fill_float32(row_Y, k_extent, 0.0f);
  const Scratch row_Y_marks_scratch(((k_extent + 4095 >> 12) * 4160) * 1);
  int8_t *__restrict row_Y_marks = (int8_t *)row_Y_marks_scratch.memory;
  if (!row_Y_marks) return 1;
  fill_int8(row_Y_marks, (k_extent + 4095 >> 12) * 4160, 0);
  int64_t A_row_beforev1 = 0;
  int64_t A_begin_beforev1 = 0;
  int64_t A_end_beforev1 = -1;
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_beginv2 = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_endv2 = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    int64_t Y2_nextv1v1v1 = -1;
    for (int64_t iv2 = i_beginv2; iv2 < i_endv2; ++iv2) {
      if (Y2_nextv1v1v1 < 0) {
        Y2_nextv1v1v1 = Y_room[iv2];
      }
      const int64_t Y_beginv1v1v1 = Y2_nextv1v1v1;
      const int64_t A_beginv1 = A2_pos[iv2];
      const int64_t A_endv1 = A2_pos[iv2 + 1];
      int64_t A_samev1 = A_beginv1;
      while (A_endv1 - A_beginv1 == A_end_beforev1 - A_begin_beforev1 && A_samev1 < A_endv1 && A2_crd[A_samev1] == A2_crd[A_samev1 + A_begin_beforev1 - A_beginv1]) {
        A_samev1 += 1;
      }
      if (A_endv1 - A_beginv1 == A_end_beforev1 - A_begin_beforev1 && A_samev1 == A_endv1) {
        for (int64_t pYv1 = 0, pYv1_end = Y2_pos[A_row_beforev1 + 1]; pYv1 < pYv1_end; ++pYv1) {
          Y2_crd[Y_beginv1v1v1 + pYv1] = (int32_t)(int64_t)Y2_crd[Y_first[A_row_beforev1] + pYv1];
        }
        Y2_nextv1v1v1 += (int64_t)Y2_pos[A_row_beforev1 + 1];
        for (int64_t pA2v3 = A2_pos[iv2], pA2v3_end = A2_pos[iv2 + 1]; pA2v3 < pA2v3_end; ++pA2v3) {
          const int64_t jv3 = A2_crd[pA2v3];
          const int64_t j_aheadv3 = A2_crd[min_int64(pA2v3 + 2, A_nnz - 1)];
          const int64_t B_aheadv3 = B2_pos[j_aheadv3];
          __builtin_prefetch(&B2_crd[B_aheadv3]);
          __builtin_prefetch(&B2_crd[B_aheadv3 + 16]);
          __builtin_prefetch(&B_vals[B_aheadv3]);
          __builtin_prefetch(&B_vals[B_aheadv3 + 16]);
          for (int64_t pB2v4 = B2_pos[jv3], pB2v4_end = B2_pos[jv3 + 1]; pB2v4 < pB2v4_end; ++pB2v4) {
            const int64_t kv5 = B2_crd[pB2v4];
            row_Y[kv5] = row_Y[kv5] + A_vals[pA2v3] * B_vals[pB2v4];
          }
        }
        for (int64_t pYv2 = Y_beginv1v1v1, pYv2_end = Y2_nextv1v1v1; pYv2 < pYv2_end; ++pYv2) {
          const int64_t kv6 = Y2_crd[pYv2];
          Y_vals[pYv2] = row_Y[kv6];
          row_Y[kv6] = 0.0f;
        }
      } else {
        for (int64_t pA2v2 = A2_pos[iv2], pA2v2_end = A2_pos[iv2 + 1]; pA2v2 < pA2v2_end; ++pA2v2) {
          const int64_t jv2 = A2_crd[pA2v2];
          const int64_t j_aheadv2 = A2_crd[min_int64(pA2v2 + 2, A_nnz - 1)];
          const int64_t B_aheadv2 = B2_pos[j_aheadv2];
          __builtin_prefetch(&B2_crd[B_aheadv2]);
          __builtin_prefetch(&B2_crd[B_aheadv2 + 16]);
          __builtin_prefetch(&B_vals[B_aheadv2]);
          __builtin_prefetch(&B_vals[B_aheadv2 + 16]);
          if (B_again[jv2] != 0 && pA2v2 > (int64_t)A2_pos[iv2] && (int64_t)A2_crd[pA2v2 - 1] == jv2 - 1) {
            for (int64_t pB2v3 = B2_pos[jv2], pB2v3_end = B2_pos[jv2 + 1]; pB2v3 < pB2v3_end; ++pB2v3) {
              const int64_t kv3 = B2_crd[pB2v3];
              row_Y[kv3] = row_Y[kv3] + A_vals[pA2v2] * B_vals[pB2v3];
            }
          } else {
            for (int64_t pB2v2 = B2_pos[jv2], pB2v2_end = B2_pos[jv2 + 1]; pB2v2 < pB2v2_end; ++pB2v2) {
              const int64_t kv2 = B2_crd[pB2v2];
              row_Y[kv2] = row_Y[kv2] + A_vals[pA2v2] * B_vals[pB2v2];
              mark_int8(row_Y_marks, k_extent, kv2);
            }
          }
        }
        Y2_nextv1v1v1 = take_marks_int32(Y2_crd, Y2_nextv1v1v1, Y_beginv1v1v1 + Y_room[iv2 + 1] - Y_room[iv2], row_Y_marks, k_extent);
        for (int64_t pY = Y_beginv1v1v1, pY_end = Y2_nextv1v1v1; pY < pY_end; ++pY) {
          const int64_t kv4 = Y2_crd[pY];
          Y_vals[pY] = row_Y[kv4];
          row_Y[kv4] = 0.0f;
        }
      }
      A_row_beforev1 = iv2;
      A_begin_beforev1 = A_beginv1;
      A_end_beforev1 = A_endv1;
      Y_first[iv2] = Y_beginv1v1v1;
      Y2_pos[iv2 + 1] = (int32_t)(Y2_nextv1v1v1 - Y_beginv1v1v1);
    }
  }
  return 0;
}

static __attribute__((noinline, hot)) int64_t region_4(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t k_extent,
    const int32_t *__restrict A2_crd,
    const int64_t A_nnz,
    const int32_t *__restrict B2_pos,
    const int32_t *__restrict B2_crd,
    const float *__restrict B_vals,
    const float *__restrict A_vals,
    int32_t *__restrict Y2_pos,
    int32_t *__restrict Y2_crd,
    float *__restrict Y_vals) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  fill_float32(row_Y, k_extent, 0.0f);
  const Scratch row_Y_marks_scratch(((k_extent + 4095 >> 12) * 4160) * 1);
  int8_t *__restrict row_Y_marks = (int8_t *)row_Y_marks_scratch.memory;
  if (!row_Y_marks) return 1;
  fill_int8(row_Y_marks, (k_extent + 4095 >> 12) * 4160, 0);
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_beginv3 = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_endv3 = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t iv3 = i_beginv3; iv3 < i_endv3; ++iv3) {
      for (int64_t pA2v4 = A2_pos[iv3], pA2v4_end = A2_pos[iv3 + 1]; pA2v4 < pA2v4_end; ++pA2v4) {
        const int64_t jv4 = A2_crd[pA2v4];
        const int64_t j_aheadv4 = A2_crd[min_int64(pA2v4 + 2, A_nnz - 1)];
        const int64_t B_aheadv4 = B2_pos[j_aheadv4];
        __builtin_prefetch(&B2_crd[B_aheadv4]);
        __builtin_prefetch(&B2_crd[B_aheadv4 + 16]);
        __builtin_prefetch(&B_vals[B_aheadv4]);
        __builtin_prefetch(&B_vals[B_aheadv4 + 16]);
        for (int64_t pB2v5 = B2_pos[jv4], pB2v5_end = B2_pos[jv4 + 1]; pB2v5 < pB2v5_end; ++pB2v5) {
          const int64_t kv7 = B2_crd[pB2v5];
          row_Y[kv7] = row_Y[kv7] + A_vals[pA2v4] * B_vals[pB2v5];
        }
      }
      for (int64_t pYv3 = Y2_pos[iv3], pYv3_end = Y2_pos[iv3 + 1]; pYv3 < pYv3_end; ++pYv3) {
        const int64_t kv8 = Y2_crd[pYv3];
        Y_vals[pYv3] = row_Y[kv8];
        row_Y[kv8] = 0.0f;
      }
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default"), cold))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t j_extent = sizes[1];
  const int64_t k_extent = sizes[2];
  const int64_t A_nnz = sizes[3];
  const int64_t B_nnz = sizes[4];
  const int64_t Y_nnz = sizes[5];
  const int64_t serial_threshold = sizes[6];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const int32_t *__restrict B2_pos = (const int32_t *)buffers[3];
  const int32_t *__restrict B2_crd = (const int32_t *)buffers[4];
  const float *__restrict B_vals = (const float *)buffers[5];
  int32_t *__restrict Y2_pos = (int32_t *)buffers[6];
  int32_t *__restrict Y2_crd = (int32_t *)buffers[7];
  float *__restrict Y_vals = (float *)buffers[8];
  if (Y_nnz < 0) {
    Y2_pos = (int32_t *)context->allocate(context->state, 6, (i_extent + 1) * 4);
    if (!Y2_pos && i_extent + 1 > 0) return 1;
    fill_int32(Y2_pos, i_extent + 1, 0);
    const Scratch Y_room_scratch((i_extent + 1) * 8);
    int64_t *__restrict Y_room = (int64_t *)Y_room_scratch.memory;
    if (!Y_room) return 1;
    fill_int64(Y_room, i_extent + 1, 0);
    // products in each row
    const int64_t work_1 = A_nnz * (floordiv_int64(B_nnz, j_extent + 1) + 1) + i_extent;
    int64_t next_1 = 0;
    const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
    if (work_1 < serial_threshold || context->threads == 1) {
      region_1(0, 1, &next_1, 1, A2_pos, i_extent, A2_crd, A_nnz, B2_pos, B2_crd, Y_room);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A2_pos, i_extent, A2_crd, A_nnz, B2_pos, B2_crd, Y_room);
    }
    int64_t Y_room_total = 0;
    for (int64_t Y_room_row = 0; Y_room_row < i_extent; ++Y_room_row) {
      Y_room_total += Y_room[Y_room_row + 1];
      Y_room[Y_room_row + 1] = Y_room_total;
    }
    // rows of B with the columns of the row before
    const Scratch B_again_scratch(j_extent * 1);
    int8_t *__restrict B_again = (int8_t *)B_again_scratch.memory;
    if (!B_again) return 1;
    fill_int8(B_again, j_extent, 0);
    for (int64_t B_row = 1; B_row < j_extent; ++B_row) {
      int64_t B_at = B2_pos[B_row];
      const int64_t B_after = B2_pos[B_row + 1];
      const int64_t B_shift = B_at - (int64_t)B2_pos[B_row - 1];
      if (B_after - B_at == B_shift) {
        while (B_at < B_after && (int64_t)B2_crd[B_at] == (int64_t)B2_crd[B_at - B_shift]) {
          B_at += 1;
        }
        if (B_at == B_after) {
          B_again[B_row] = 1;
        }
      }
    }
    // entries in each row
    if (Y_room_total > 8388608) {
      fill_int64(Y_room, i_extent + 1, 0);
      const int64_t work_2 = A_nnz * (floordiv_int64(B_nnz, j_extent + 1) + 1) + i_extent;
      int64_t next_2 = 0;
      const int64_t chunks_2 = context->threads * (work_2 < 64 * serial_threshold ? 4 : 32);
      int64_t status_2 = 0;
      if (work_2 < serial_threshold || context->threads == 1) {
        status_2 = region_2(0, 1, &next_2, 1, A2_pos, i_extent, k_extent, A2_crd, Y_room, A_nnz, B2_pos, B2_crd, B_again);
      } else {
#pragma omp parallel num_threads((int)context->threads)
        if (region_2(omp_get_thread_num(), omp_get_num_threads(), &next_2, chunks_2, A2_pos, i_extent, k_extent, A2_crd, Y_room, A_nnz, B2_pos, B2_crd, B_again)) __atomic_store_n(&status_2, 1, __ATOMIC_RELAXED);
      }
      if (status_2) return status_2;
      int64_t Y_room_totalv1 = 0;
      for (int64_t Y_room_rowv1 = 0; Y_room_rowv1 < i_extent; ++Y_room_rowv1) {
        Y_room_totalv1 += Y_room[Y_room_rowv1 + 1];
        Y_room[Y_room_rowv1 + 1] = Y_room_totalv1;
      }
      Y_room_total = Y_room_totalv1;
    }
    // rows
    Y2_crd = (int32_t *)context->allocate(context->state, 7, Y_room_total * 4);
    if (!Y2_crd && Y_room_total > 0) return 1;
    Y_vals = (float *)context->allocate(context->state, 8, Y_room_total * 4);
    if (!Y_vals && Y_room_total > 0) return 1;
    const Scratch Y_first_scratch(i_extent * 8);
    int64_t *__restrict Y_first = (int64_t *)Y_first_scratch.memory;
    if (!Y_first) return 1;
    fill_int64(Y_first, i_extent, 0);
    const int64_t work_3 = A_nnz * (floordiv_int64(B_nnz, j_extent + 1) + 1) + i_extent;
    int64_t next_3 = 0;
    const int64_t chunks_3 = context->threads * (work_3 < 64 * serial_threshold ? 4 : 32);
    int64_t status_3 = 0;
    if (work_3 < serial_threshold || context->threads == 1) {
      status_3 = region_3(0, 1, &next_3, 1, A2_pos, i_extent, k_extent, Y_room, A2_crd, Y2_pos, Y2_crd, Y_first, A_nnz, B2_pos, B2_crd, B_vals, A_vals, Y_vals, B_again);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      if (region_3(omp_get_thread_num(), omp_get_num_threads(), &next_3, chunks_3, A2_pos, i_extent, k_extent, Y_room, A2_crd, Y2_pos, Y2_crd, Y_first, A_nnz, B2_pos, B2_crd, B_vals, A_vals, Y_vals, B_again)) __atomic_store_n(&status_3, 1, __ATOMIC_RELAXED);
    }
    if (status_3) return status_3;
    // close the gaps between rows of Y
    int64_t Y_from = 0;
    int64_t Y_to = 0;
    int64_t Y_run = 0;
    int64_t Y_total = 0;
    for (int64_t Y_row = 0; Y_row < i_extent; ++Y_row) {
      const int64_t Y_count = Y2_pos[Y_row + 1];
      const int64_t Y_found = Y_first[Y_row];
      if (Y_count > 0 && Y_found != Y_from + Y_run) {
        if (Y_to < Y_from) {
          const int64_t Y2_crd_last = (Y_run >> 3) * 8;
          for (int64_t pY2_crd = 0; pY2_crd < Y2_crd_last; pY2_crd += 8) {
            store_int32x8(&Y2_crd[Y_to + pY2_crd], load_int32x8(&Y2_crd[Y_from + pY2_crd]));
          }
          for (int64_t pY2_crd = Y2_crd_last, pY2_crd_end = Y_run; pY2_crd < pY2_crd_end; ++pY2_crd) {
            Y2_crd[Y_to + pY2_crd] = Y2_crd[Y_from + pY2_crd];
          }
          const int64_t Y_vals_last = (Y_run >> 3) * 8;
          for (int64_t pY_vals = 0; pY_vals < Y_vals_last; pY_vals += 8) {
            store_float32x8(&Y_vals[Y_to + pY_vals], load_float32x8(&Y_vals[Y_from + pY_vals]));
          }
          for (int64_t pY_vals = Y_vals_last, pY_vals_end = Y_run; pY_vals < pY_vals_end; ++pY_vals) {
            Y_vals[Y_to + pY_vals] = Y_vals[Y_from + pY_vals];
          }
        }
        Y_from = Y_found;
        Y_to = Y_total;
        Y_run = 0;
      }
      Y_run += Y_count;
      Y_total += Y_count;
      Y2_pos[Y_row + 1] = (int32_t)Y_total;
      if (Y_total > 2147483647) {
        return 2;
      }
    }
    if (Y_to < Y_from) {
      const int64_t Y2_crd_lastv1 = (Y_run >> 3) * 8;
      for (int64_t pY2_crdv1 = 0; pY2_crdv1 < Y2_crd_lastv1; pY2_crdv1 += 8) {
        store_int32x8(&Y2_crd[Y_to + pY2_crdv1], load_int32x8(&Y2_crd[Y_from + pY2_crdv1]));
      }
      for (int64_t pY2_crdv1 = Y2_crd_lastv1, pY2_crdv1_end = Y_run; pY2_crdv1 < pY2_crdv1_end; ++pY2_crdv1) {
        Y2_crd[Y_to + pY2_crdv1] = Y2_crd[Y_from + pY2_crdv1];
      }
      const int64_t Y_vals_lastv1 = (Y_run >> 3) * 8;
      for (int64_t pY_valsv1 = 0; pY_valsv1 < Y_vals_lastv1; pY_valsv1 += 8) {
        store_float32x8(&Y_vals[Y_to + pY_valsv1], load_float32x8(&Y_vals[Y_from + pY_valsv1]));
      }
      for (int64_t pY_valsv1 = Y_vals_lastv1, pY_valsv1_end = Y_run; pY_valsv1 < pY_valsv1_end; ++pY_valsv1) {
        Y_vals[Y_to + pY_valsv1] = Y_vals[Y_from + pY_valsv1];
      }
    }
  } else {
    // values
    Y_vals = (float *)context->allocate(context->state, 8, Y_nnz * 4);
    if (!Y_vals && Y_nnz > 0) return 1;
    const int64_t work_4 = A_nnz * (floordiv_int64(B_nnz, j_extent + 1) + 1) + i_extent;
    int64_t next_4 = 0;
    const int64_t chunks_4 = context->threads * (work_4 < 64 * serial_threshold ? 4 : 32);
    int64_t status_4 = 0;
    if (work_4 < serial_threshold || context->threads == 1) {
      status_4 = region_4(0, 1, &next_4, 1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, B2_pos, B2_crd, B_vals, A_vals, Y2_pos, Y2_crd, Y_vals);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      if (region_4(omp_get_thread_num(), omp_get_num_threads(), &next_4, chunks_4, A2_pos, i_extent, k_extent, A2_crd, A_nnz, B2_pos, B2_crd, B_vals, A_vals, Y2_pos, Y2_crd, Y_vals)) __atomic_store_n(&status_4, 1, __ATOMIC_RELAXED);
    }
    if (status_4) return status_4;
  }
  return 0;
}
