// split m mo mi 64 masked
// order b, mo, k, n, mi
// precompute tile_Y = Y at mo in thread
// order Y: b, mo, mi, n
// pack X_copy = X[k, mi] at mo in thread
// transpose k mi in X_copy
// transpose mi n in Y
// vector mi in tile_Y
// parallel b dynamic W
// parallel forall b dynamic by positions of W: forall mo: let X_copy[k,mi]: float32 in thread: (transposed forall k: vector forall mi: X_copy[k,mi] = X[b,m,k]); let tile_Y[n,mi]: float32 in thread: (forall k: forall n: vector forall mi: tile_Y[n,mi] += X_copy[k,mi] * W[b,k,n]); transposed forall mi: vector forall n: Y[b,m,n] = tile_Y[n,mi]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));

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

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static inline __attribute__((always_inline)) void transpose_float32x8(float32x8 &row_0, float32x8 &row_1, float32x8 &row_2, float32x8 &row_3, float32x8 &row_4, float32x8 &row_5, float32x8 &row_6, float32x8 &row_7) {
  const float32x8 step_1_0 = __builtin_shufflevector(row_0, row_1, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_1 = __builtin_shufflevector(row_0, row_1, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_1_2 = __builtin_shufflevector(row_2, row_3, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_3 = __builtin_shufflevector(row_2, row_3, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_1_4 = __builtin_shufflevector(row_4, row_5, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_5 = __builtin_shufflevector(row_4, row_5, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_1_6 = __builtin_shufflevector(row_6, row_7, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_7 = __builtin_shufflevector(row_6, row_7, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_2_0 = __builtin_shufflevector(step_1_0, step_1_2, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_2 = __builtin_shufflevector(step_1_0, step_1_2, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 step_2_1 = __builtin_shufflevector(step_1_1, step_1_3, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_3 = __builtin_shufflevector(step_1_1, step_1_3, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 step_2_4 = __builtin_shufflevector(step_1_4, step_1_6, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_6 = __builtin_shufflevector(step_1_4, step_1_6, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 step_2_5 = __builtin_shufflevector(step_1_5, step_1_7, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_7 = __builtin_shufflevector(step_1_5, step_1_7, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 last_0 = step_2_0, last_1 = step_2_1, last_2 = step_2_2, last_3 = step_2_3, last_4 = step_2_4, last_5 = step_2_5, last_6 = step_2_6, last_7 = step_2_7;
  row_0 = __builtin_shufflevector(last_0, last_4, 0, 1, 2, 3, 8, 9, 10, 11);
  row_4 = __builtin_shufflevector(last_0, last_4, 4, 5, 6, 7, 12, 13, 14, 15);
  row_1 = __builtin_shufflevector(last_1, last_5, 0, 1, 2, 3, 8, 9, 10, 11);
  row_5 = __builtin_shufflevector(last_1, last_5, 4, 5, 6, 7, 12, 13, 14, 15);
  row_2 = __builtin_shufflevector(last_2, last_6, 0, 1, 2, 3, 8, 9, 10, 11);
  row_6 = __builtin_shufflevector(last_2, last_6, 4, 5, 6, 7, 12, 13, 14, 15);
  row_3 = __builtin_shufflevector(last_3, last_7, 0, 1, 2, 3, 8, 9, 10, 11);
  row_7 = __builtin_shufflevector(last_3, last_7, 4, 5, 6, 7, 12, 13, 14, 15);
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
}

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static __attribute__((noinline)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t b_extent,
    const int64_t k_extent,
    const int64_t n_extent,
    const int64_t m_extent,
    const float *__restrict X_vals,
    const int32_t *__restrict W3_pos,
    const int32_t *__restrict W3_crd,
    const float *__restrict W_vals,
    float *__restrict Y_vals) {
  const Scratch X_copy_scratch((k_extent * 64) * 4);
  float *__restrict X_copy = (float *)X_copy_scratch.memory;
  if (!X_copy) return 1;
  const Scratch tile_Y_scratch((n_extent * 64) * 4);
  float *__restrict tile_Y = (float *)tile_Y_scratch.memory;
  if (!tile_Y) return 1;
  const int64_t extent = b_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t b_begin = split_int64(chunk, chunks, extent);
    const int64_t b_end = split_int64(chunk + 1, chunks, extent);
    for (int64_t b = b_begin; b < b_end; ++b) {
      for (int64_t m_0 = 0; m_0 < m_extent; m_0 += 64) {
        const int64_t mi_count = min_int64(64, m_extent - m_0);
        const int64_t k_rest = (k_extent >> 3) * 8;
        for (int64_t k = 0; k < k_rest; k += 8) {
          for (int64_t mi = 0; mi < mi_count; mi += 8) {
            const int64_t mi_left = mi_count - mi;
            float32x8 X_row = load_float32x8(&X_vals[(b * m_extent + m_0 + mi) * k_extent + k]);
            float32x8 X_rowv1 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(1, mi_left - 1)) * k_extent + k]);
            float32x8 X_rowv2 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(2, mi_left - 1)) * k_extent + k]);
            float32x8 X_rowv3 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(3, mi_left - 1)) * k_extent + k]);
            float32x8 X_rowv4 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(4, mi_left - 1)) * k_extent + k]);
            float32x8 X_rowv5 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(5, mi_left - 1)) * k_extent + k]);
            float32x8 X_rowv6 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(6, mi_left - 1)) * k_extent + k]);
            float32x8 X_rowv7 = load_float32x8(&X_vals[(b * m_extent + m_0 + mi + min_int64(7, mi_left - 1)) * k_extent + k]);
            transpose_float32x8(X_row, X_rowv1, X_rowv2, X_rowv3, X_rowv4, X_rowv5, X_rowv6, X_rowv7);
            store_float32x8(&X_copy[k * 64 + mi], X_row);
            store_float32x8(&X_copy[(k + 1) * 64 + mi], X_rowv1);
            store_float32x8(&X_copy[(k + 2) * 64 + mi], X_rowv2);
            store_float32x8(&X_copy[(k + 3) * 64 + mi], X_rowv3);
            store_float32x8(&X_copy[(k + 4) * 64 + mi], X_rowv4);
            store_float32x8(&X_copy[(k + 5) * 64 + mi], X_rowv5);
            store_float32x8(&X_copy[(k + 6) * 64 + mi], X_rowv6);
            store_float32x8(&X_copy[(k + 7) * 64 + mi], X_rowv7);
          }
        }
        for (int64_t kv1 = k_rest; kv1 < k_extent; ++kv1) {
          for (int64_t miv1 = 0; miv1 < mi_count; ++miv1) {
            X_copy[kv1 * 64 + miv1] = X_vals[(b * m_extent + m_0 + miv1) * k_extent + kv1];
          }
        }
        fill_float32(tile_Y, n_extent * 64, 0.0f);
        for (int64_t kv2 = 0; kv2 < k_extent; ++kv2) {
          for (int64_t pW3 = W3_pos[b * k_extent + kv2], pW3_end = W3_pos[b * k_extent + kv2 + 1]; pW3 < pW3_end; ++pW3) {
            const int64_t n = W3_crd[pW3];
            store_float32x8(&tile_Y[n * 64], load_float32x8(&tile_Y[n * 64]) + load_float32x8(&X_copy[kv2 * 64]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 8], load_float32x8(&tile_Y[n * 64 + 8]) + load_float32x8(&X_copy[kv2 * 64 + 8]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 16], load_float32x8(&tile_Y[n * 64 + 16]) + load_float32x8(&X_copy[kv2 * 64 + 16]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 24], load_float32x8(&tile_Y[n * 64 + 24]) + load_float32x8(&X_copy[kv2 * 64 + 24]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 32], load_float32x8(&tile_Y[n * 64 + 32]) + load_float32x8(&X_copy[kv2 * 64 + 32]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 40], load_float32x8(&tile_Y[n * 64 + 40]) + load_float32x8(&X_copy[kv2 * 64 + 40]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 48], load_float32x8(&tile_Y[n * 64 + 48]) + load_float32x8(&X_copy[kv2 * 64 + 48]) * W_vals[pW3]);
            store_float32x8(&tile_Y[n * 64 + 56], load_float32x8(&tile_Y[n * 64 + 56]) + load_float32x8(&X_copy[kv2 * 64 + 56]) * W_vals[pW3]);
          }
        }
        const int64_t n_rest = (n_extent >> 3) * 8;
        for (int64_t miv2 = 0; miv2 < mi_count; miv2 += 8) {
          const int64_t mi_leftv1 = mi_count - miv2;
          for (int64_t nv1 = 0; nv1 < n_rest; nv1 += 8) {
            float32x8 tile_Y_row = load_float32x8(&tile_Y[nv1 * 64 + miv2]);
            float32x8 tile_Y_rowv1 = load_float32x8(&tile_Y[(nv1 + 1) * 64 + miv2]);
            float32x8 tile_Y_rowv2 = load_float32x8(&tile_Y[(nv1 + 2) * 64 + miv2]);
            float32x8 tile_Y_rowv3 = load_float32x8(&tile_Y[(nv1 + 3) * 64 + miv2]);
            float32x8 tile_Y_rowv4 = load_float32x8(&tile_Y[(nv1 + 4) * 64 + miv2]);
            float32x8 tile_Y_rowv5 = load_float32x8(&tile_Y[(nv1 + 5) * 64 + miv2]);
            float32x8 tile_Y_rowv6 = load_float32x8(&tile_Y[(nv1 + 6) * 64 + miv2]);
            float32x8 tile_Y_rowv7 = load_float32x8(&tile_Y[(nv1 + 7) * 64 + miv2]);
            transpose_float32x8(tile_Y_row, tile_Y_rowv1, tile_Y_rowv2, tile_Y_rowv3, tile_Y_rowv4, tile_Y_rowv5, tile_Y_rowv6, tile_Y_rowv7);
            if (0 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2) * n_extent + nv1], tile_Y_row);
            }
            if (1 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 1) * n_extent + nv1], tile_Y_rowv1);
            }
            if (2 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 2) * n_extent + nv1], tile_Y_rowv2);
            }
            if (3 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 3) * n_extent + nv1], tile_Y_rowv3);
            }
            if (4 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 4) * n_extent + nv1], tile_Y_rowv4);
            }
            if (5 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 5) * n_extent + nv1], tile_Y_rowv5);
            }
            if (6 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 6) * n_extent + nv1], tile_Y_rowv6);
            }
            if (7 < mi_leftv1) {
              store_float32x8(&Y_vals[(b * m_extent + m_0 + miv2 + 7) * n_extent + nv1], tile_Y_rowv7);
            }
          }
        }
        for (int64_t miv3 = 0; miv3 < mi_count; ++miv3) {
          for (int64_t nv2 = n_rest; nv2 < n_extent; ++nv2) {
            Y_vals[(b * m_extent + m_0 + miv3) * n_extent + nv2] = tile_Y[nv2 * 64 + miv3];
          }
        }
      }
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t b_extent = sizes[0];
  const int64_t m_extent = sizes[1];
  const int64_t k_extent = sizes[2];
  const int64_t n_extent = sizes[3];
  const int64_t W_nnz = sizes[4];
  const int64_t serial_threshold = sizes[5];
  const float *__restrict X_vals = (const float *)buffers[0];
  const int32_t *__restrict W3_pos = (const int32_t *)buffers[1];
  const int32_t *__restrict W3_crd = (const int32_t *)buffers[2];
  const float *__restrict W_vals = (const float *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  const int64_t work_1 = k_extent * m_extent * b_extent + m_extent * W_nnz + b_extent * m_extent * n_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, &next_1, 1, b_extent, k_extent, n_extent, m_extent, X_vals, W3_pos, W3_crd, W_vals, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, b_extent, k_extent, n_extent, m_extent, X_vals, W3_pos, W3_crd, W_vals, Y_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  return 0;
}
