// order i, j, k
// precompute row_Y = Y at i in thread listed
// prefetch B 2
// parallel i dynamic A
// parallel forall i dynamic by positions of A: let row_Y[k]: float32 in thread listed: (forall j: forall k: row_Y[k] += A[i,j] * B[j,k]); forall k: Y[i,k] = row_Y[k]
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

static inline void fill_int8(int8_t *address, int64_t count, int8_t value) {
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

static void enumerate_int64(int64_t *numbers, const int8_t *flags, int64_t count) {
  int64_t p = 0;
  for (; p + 8 <= count; p += 8) {
    uint64_t word;
    __builtin_memcpy(&word, flags + p, 8);
    for (; word; word &= word - 1) *numbers++ = p + (__builtin_ctzll(word) >> 3);
  }
  for (; p < count; ++p)
    if (flags[p]) *numbers++ = p;
}

static void sort_int64(int64_t *address, int64_t count) {
  int64_t gap = 1;
  while (gap * 9 / 4 + 1 < count) gap = gap * 9 / 4 + 1;
  for (; gap > 0; gap = gap > 1 ? gap * 4 / 9 : 0)
    for (int64_t p = gap; p < count; ++p) {
      const int64_t value = address[p];
      int64_t q = p;
      for (; q >= gap && address[q - gap] > value; q -= gap) address[q] = address[q - gap];
      address[q] = value;
    }
}

static __attribute__((noinline, hot)) int64_t region_1(
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
    int32_t *__restrict Y2_pos) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  const Scratch row_Y_list_scratch(k_extent * 8);
  int64_t *__restrict row_Y_list = (int64_t *)row_Y_list_scratch.memory;
  if (!row_Y_list) return 1;
  const Scratch row_Y_seen_scratch(k_extent * 1);
  int8_t *__restrict row_Y_seen = (int8_t *)row_Y_seen_scratch.memory;
  if (!row_Y_seen) return 1;
  fill_int8(row_Y_seen, k_extent, 0);
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      int64_t Y2_next = 0;
      int64_t row_Y_count = 0;
      for (int64_t pA2 = A2_pos[i], pA2_end = A2_pos[i + 1]; pA2 < pA2_end; ++pA2) {
        const int64_t j = A2_crd[pA2];
        const int64_t j_ahead = A2_crd[min_int64(pA2 + 2, A_nnz - 1)];
        const int64_t B_ahead = B2_pos[j_ahead];
        __builtin_prefetch(&B2_crd[B_ahead]);
        __builtin_prefetch(&B2_crd[B_ahead + 16]);
        for (int64_t pB2 = B2_pos[j], pB2_end = B2_pos[j + 1]; pB2 < pB2_end; ++pB2) {
          const int64_t k = B2_crd[pB2];
          if (row_Y_seen[k] == 0) {
            row_Y_seen[k] = 1;
            row_Y_list[row_Y_count] = k;
            row_Y_count += 1;
          }
        }
      }
      for (int64_t prow_Y = 0, prow_Y_end = row_Y_count; prow_Y < prow_Y_end; ++prow_Y) {
        Y2_next += 1;
      }
      for (int64_t prow_Yv1 = 0, prow_Yv1_end = row_Y_count; prow_Yv1 < prow_Yv1_end; ++prow_Yv1) {
        row_Y_seen[row_Y_list[prow_Yv1]] = 0;
      }
      Y2_pos[i + 1] = (int32_t)Y2_next;
    }
  }
  return 0;
}

static __attribute__((noinline, hot)) int64_t region_2(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t k_extent,
    int32_t *__restrict Y2_pos,
    const int32_t *__restrict A2_crd,
    const int64_t A_nnz,
    const int32_t *__restrict B2_pos,
    const int32_t *__restrict B2_crd,
    const float *__restrict B_vals,
    const float *__restrict A_vals,
    int32_t *__restrict Y2_crd,
    float *__restrict Y_vals) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  const Scratch row_Y_list_scratch(k_extent * 8);
  int64_t *__restrict row_Y_list = (int64_t *)row_Y_list_scratch.memory;
  if (!row_Y_list) return 1;
  const Scratch row_Y_seen_scratch(k_extent * 1);
  int8_t *__restrict row_Y_seen = (int8_t *)row_Y_seen_scratch.memory;
  if (!row_Y_seen) return 1;
  fill_int8(row_Y_seen, k_extent, 0);
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_beginv1 = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_endv1 = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t iv1 = i_beginv1; iv1 < i_endv1; ++iv1) {
      int64_t Y2_nextv1 = Y2_pos[iv1];
      int64_t row_Y_countv1 = 0;
      for (int64_t pA2v1 = A2_pos[iv1], pA2v1_end = A2_pos[iv1 + 1]; pA2v1 < pA2v1_end; ++pA2v1) {
        const int64_t jv1 = A2_crd[pA2v1];
        const int64_t j_aheadv1 = A2_crd[min_int64(pA2v1 + 2, A_nnz - 1)];
        const int64_t B_aheadv1 = B2_pos[j_aheadv1];
        __builtin_prefetch(&B2_crd[B_aheadv1]);
        __builtin_prefetch(&B2_crd[B_aheadv1 + 16]);
        __builtin_prefetch(&B_vals[B_aheadv1]);
        __builtin_prefetch(&B_vals[B_aheadv1 + 16]);
        for (int64_t pB2v1 = B2_pos[jv1], pB2v1_end = B2_pos[jv1 + 1]; pB2v1 < pB2v1_end; ++pB2v1) {
          const int64_t kv2 = B2_crd[pB2v1];
          if (row_Y_seen[kv2] == 0) {
            row_Y_seen[kv2] = 1;
            row_Y_list[row_Y_countv1] = kv2;
            row_Y_countv1 += 1;
            row_Y[kv2] = A_vals[pA2v1] * B_vals[pB2v1];
          } else {
            row_Y[kv2] = row_Y[kv2] + A_vals[pA2v1] * B_vals[pB2v1];
          }
        }
      }
      if (row_Y_countv1 * 128 > k_extent) {
        enumerate_int64(row_Y_list, row_Y_seen, k_extent);
      } else {
        sort_int64(row_Y_list, row_Y_countv1);
      }
      for (int64_t prow_Yv2 = 0, prow_Yv2_end = row_Y_countv1; prow_Yv2 < prow_Yv2_end; ++prow_Yv2) {
        const int64_t kv3 = row_Y_list[prow_Yv2];
        Y2_crd[Y2_nextv1] = (int32_t)kv3;
        Y_vals[Y2_nextv1] = row_Y[kv3];
        Y2_nextv1 += 1;
      }
      for (int64_t prow_Yv3 = 0, prow_Yv3_end = row_Y_countv1; prow_Yv3 < prow_Yv3_end; ++prow_Yv3) {
        row_Y_seen[row_Y_list[prow_Yv3]] = 0;
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
  // count the entries of each row
  Y2_pos = (int32_t *)context->allocate(context->state, 6, (i_extent + 1) * 4);
  if (!Y2_pos && i_extent + 1 > 0) return 1;
  fill_int32(Y2_pos, i_extent + 1, 0);
  const int64_t work_1 = A_nnz * (floordiv_int64(B_nnz, j_extent + 1) + 1) + i_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, &next_1, 1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, B2_pos, B2_crd, Y2_pos);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, B2_pos, B2_crd, Y2_pos)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
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
  const int64_t work_2 = A_nnz * (floordiv_int64(B_nnz, j_extent + 1) + 1) + i_extent;
  int64_t next_2 = 0;
  const int64_t chunks_2 = context->threads * (work_2 < 64 * serial_threshold ? 4 : 32);
  int64_t status_2 = 0;
  if (work_2 < serial_threshold || context->threads == 1) {
    status_2 = region_2(0, 1, &next_2, 1, A2_pos, i_extent, k_extent, Y2_pos, A2_crd, A_nnz, B2_pos, B2_crd, B_vals, A_vals, Y2_crd, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_2(omp_get_thread_num(), omp_get_num_threads(), &next_2, chunks_2, A2_pos, i_extent, k_extent, Y2_pos, A2_crd, A_nnz, B2_pos, B2_crd, B_vals, A_vals, Y2_crd, Y_vals)) __atomic_store_n(&status_2, 1, __ATOMIC_RELAXED);
  }
  if (status_2) return status_2;
  return 0;
}
