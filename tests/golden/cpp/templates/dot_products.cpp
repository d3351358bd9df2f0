// split t to ti 64 masked
// split n ns np 8
// order ns, to, np, k, ti
// precompute tile_Y = Y at to in thread
// order Y: ns, to, ti, np
// precompute sums = tile_Y at np in register
// pack turned_X = X[k, ti] at to in thread
// transpose k ti in turned_X
// transpose ti np in Y
// vector ti in sums
// vector ti in tile_Y
// parallel ns dynamic chunks 4
// parallel forall ns dynamic chunks 4: forall to: let turned_X[k,ti]: int32 in thread: (transposed forall k: vector forall ti: turned_X[k,ti] = X[t,k]); let tile_Y[np,ti]: float32 in thread: (forall np: let sums[ti]: float32 in register: (forall k: vector forall ti: sums[ti] += dot_bfloat16(turned_X[k,ti], W[n,k])); vector forall ti: tile_Y[np,ti] = sums[ti]); transposed forall ti: vector forall np: Y[t,n] = tile_Y[np,ti]
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
typedef uint32_t uint32x8 __attribute__((vector_size(32)));
typedef uint32_t uint32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));

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

static inline __attribute__((always_inline)) int32x8 load_int32x8(const int32_t *address) {
  return *(const int32x8_memory *)address;
}

static inline __attribute__((always_inline)) void transpose_int32x8(int32x8 &row_0, int32x8 &row_1, int32x8 &row_2, int32x8 &row_3, int32x8 &row_4, int32x8 &row_5, int32x8 &row_6, int32x8 &row_7) {
  const int32x8 step_1_0 = __builtin_shufflevector(row_0, row_1, 0, 8, 2, 10, 4, 12, 6, 14);
  const int32x8 step_1_1 = __builtin_shufflevector(row_0, row_1, 1, 9, 3, 11, 5, 13, 7, 15);
  const int32x8 step_1_2 = __builtin_shufflevector(row_2, row_3, 0, 8, 2, 10, 4, 12, 6, 14);
  const int32x8 step_1_3 = __builtin_shufflevector(row_2, row_3, 1, 9, 3, 11, 5, 13, 7, 15);
  const int32x8 step_1_4 = __builtin_shufflevector(row_4, row_5, 0, 8, 2, 10, 4, 12, 6, 14);
  const int32x8 step_1_5 = __builtin_shufflevector(row_4, row_5, 1, 9, 3, 11, 5, 13, 7, 15);
  const int32x8 step_1_6 = __builtin_shufflevector(row_6, row_7, 0, 8, 2, 10, 4, 12, 6, 14);
  const int32x8 step_1_7 = __builtin_shufflevector(row_6, row_7, 1, 9, 3, 11, 5, 13, 7, 15);
  const int32x8 step_2_0 = __builtin_shufflevector(step_1_0, step_1_2, 0, 1, 8, 9, 4, 5, 12, 13);
  const int32x8 step_2_2 = __builtin_shufflevector(step_1_0, step_1_2, 2, 3, 10, 11, 6, 7, 14, 15);
  const int32x8 step_2_1 = __builtin_shufflevector(step_1_1, step_1_3, 0, 1, 8, 9, 4, 5, 12, 13);
  const int32x8 step_2_3 = __builtin_shufflevector(step_1_1, step_1_3, 2, 3, 10, 11, 6, 7, 14, 15);
  const int32x8 step_2_4 = __builtin_shufflevector(step_1_4, step_1_6, 0, 1, 8, 9, 4, 5, 12, 13);
  const int32x8 step_2_6 = __builtin_shufflevector(step_1_4, step_1_6, 2, 3, 10, 11, 6, 7, 14, 15);
  const int32x8 step_2_5 = __builtin_shufflevector(step_1_5, step_1_7, 0, 1, 8, 9, 4, 5, 12, 13);
  const int32x8 step_2_7 = __builtin_shufflevector(step_1_5, step_1_7, 2, 3, 10, 11, 6, 7, 14, 15);
  const int32x8 last_0 = step_2_0, last_1 = step_2_1, last_2 = step_2_2, last_3 = step_2_3, last_4 = step_2_4, last_5 = step_2_5, last_6 = step_2_6, last_7 = step_2_7;
  row_0 = __builtin_shufflevector(last_0, last_4, 0, 1, 2, 3, 8, 9, 10, 11);
  row_4 = __builtin_shufflevector(last_0, last_4, 4, 5, 6, 7, 12, 13, 14, 15);
  row_1 = __builtin_shufflevector(last_1, last_5, 0, 1, 2, 3, 8, 9, 10, 11);
  row_5 = __builtin_shufflevector(last_1, last_5, 4, 5, 6, 7, 12, 13, 14, 15);
  row_2 = __builtin_shufflevector(last_2, last_6, 0, 1, 2, 3, 8, 9, 10, 11);
  row_6 = __builtin_shufflevector(last_2, last_6, 4, 5, 6, 7, 12, 13, 14, 15);
  row_3 = __builtin_shufflevector(last_3, last_7, 0, 1, 2, 3, 8, 9, 10, 11);
  row_7 = __builtin_shufflevector(last_3, last_7, 4, 5, 6, 7, 12, 13, 14, 15);
}

static inline __attribute__((always_inline)) void store_int32x8(int32_t *address, int32x8 value) {
  *(int32x8_memory *)address = value;
}

static inline __attribute__((always_inline)) float32x8 add_dot_bfloat16_int32x8(int32x8 x, int32x8 y, float32x8 sum) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
#else
  const uint32x8 left = (uint32x8)x, right = (uint32x8)y;
  sum += (float32x8)(left & 0xffff0000u) * (float32x8)(right & 0xffff0000u);
  return sum + (float32x8)(left << 16) * (float32x8)(right << 16);
#endif
}

static inline __attribute__((always_inline)) int32x8 broadcast_int32x8(int32_t value) {
  return value - int32x8{};
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
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

static __attribute__((noinline)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t n_extent,
    const int64_t k_extent,
    const int64_t t_extent,
    const int32_t *__restrict X_vals,
    const int32_t *__restrict W2_pos,
    const int32_t *__restrict W2_crd,
    const int32_t *__restrict W_vals,
    float *__restrict Y_vals) {
  const Scratch turned_X_scratch((k_extent * 64) * 4);
  int32_t *__restrict turned_X = (int32_t *)turned_X_scratch.memory;
  if (!turned_X) return 1;
  alignas(64) float tile_Y[512];
  const int64_t extent = n_extent + 7 >> 3;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t ns_begin = split_int64(chunk, chunks, extent);
    const int64_t ns_end = split_int64(chunk + 1, chunks, extent);
    for (int64_t n_0 = ns_begin * 8, n_0_end = min_int64(ns_end * 8, n_extent); n_0 < n_0_end; n_0 += 8) {
      for (int64_t t_0 = 0; t_0 < t_extent; t_0 += 64) {
        const int64_t ti_count = min_int64(64, t_extent - t_0);
        const int64_t k_rest = (k_extent >> 3) * 8;
        for (int64_t k = 0; k < k_rest; k += 8) {
          for (int64_t ti = 0; ti < ti_count; ti += 8) {
            const int64_t ti_left = ti_count - ti;
            int32x8 X_row = load_int32x8(&X_vals[(t_0 + ti) * k_extent + k]);
            int32x8 X_rowv1 = load_int32x8(&X_vals[(t_0 + ti + min_int64(1, ti_left - 1)) * k_extent + k]);
            int32x8 X_rowv2 = load_int32x8(&X_vals[(t_0 + ti + min_int64(2, ti_left - 1)) * k_extent + k]);
            int32x8 X_rowv3 = load_int32x8(&X_vals[(t_0 + ti + min_int64(3, ti_left - 1)) * k_extent + k]);
            int32x8 X_rowv4 = load_int32x8(&X_vals[(t_0 + ti + min_int64(4, ti_left - 1)) * k_extent + k]);
            int32x8 X_rowv5 = load_int32x8(&X_vals[(t_0 + ti + min_int64(5, ti_left - 1)) * k_extent + k]);
            int32x8 X_rowv6 = load_int32x8(&X_vals[(t_0 + ti + min_int64(6, ti_left - 1)) * k_extent + k]);
            int32x8 X_rowv7 = load_int32x8(&X_vals[(t_0 + ti + min_int64(7, ti_left - 1)) * k_extent + k]);
            transpose_int32x8(X_row, X_rowv1, X_rowv2, X_rowv3, X_rowv4, X_rowv5, X_rowv6, X_rowv7);
            store_int32x8(&turned_X[k * 64 + ti], X_row);
            store_int32x8(&turned_X[(k + 1) * 64 + ti], X_rowv1);
            store_int32x8(&turned_X[(k + 2) * 64 + ti], X_rowv2);
            store_int32x8(&turned_X[(k + 3) * 64 + ti], X_rowv3);
            store_int32x8(&turned_X[(k + 4) * 64 + ti], X_rowv4);
            store_int32x8(&turned_X[(k + 5) * 64 + ti], X_rowv5);
            store_int32x8(&turned_X[(k + 6) * 64 + ti], X_rowv6);
            store_int32x8(&turned_X[(k + 7) * 64 + ti], X_rowv7);
          }
        }
        for (int64_t kv1 = k_rest; kv1 < k_extent; ++kv1) {
          for (int64_t tiv1 = 0; tiv1 < ti_count; ++tiv1) {
            turned_X[kv1 * 64 + tiv1] = X_vals[(t_0 + tiv1) * k_extent + kv1];
          }
        }
        for (int64_t np = 0, np_end = min_int64(8, min_int64(ns_end * 8, n_extent) - n_0); np < np_end; ++np) {
          float32x8 sums_0 = float32x8{};
          float32x8 sums_1 = float32x8{};
          float32x8 sums_2 = float32x8{};
          float32x8 sums_3 = float32x8{};
          float32x8 sums_4 = float32x8{};
          float32x8 sums_5 = float32x8{};
          float32x8 sums_6 = float32x8{};
          float32x8 sums_7 = float32x8{};
          for (int64_t pW2 = W2_pos[n_0 + np], pW2_end = W2_pos[n_0 + np + 1]; pW2 < pW2_end; ++pW2) {
            const int64_t kv2 = W2_crd[pW2];
            sums_0 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64]), broadcast_int32x8(W_vals[pW2]), sums_0);
            sums_1 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 8]), broadcast_int32x8(W_vals[pW2]), sums_1);
            sums_2 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 16]), broadcast_int32x8(W_vals[pW2]), sums_2);
            sums_3 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 24]), broadcast_int32x8(W_vals[pW2]), sums_3);
            sums_4 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 32]), broadcast_int32x8(W_vals[pW2]), sums_4);
            sums_5 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 40]), broadcast_int32x8(W_vals[pW2]), sums_5);
            sums_6 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 48]), broadcast_int32x8(W_vals[pW2]), sums_6);
            sums_7 = add_dot_bfloat16_int32x8(load_int32x8(&turned_X[kv2 * 64 + 56]), broadcast_int32x8(W_vals[pW2]), sums_7);
          }
          store_float32x8(&tile_Y[np * 64], sums_0);
          store_float32x8(&tile_Y[np * 64 + 8], sums_1);
          store_float32x8(&tile_Y[np * 64 + 16], sums_2);
          store_float32x8(&tile_Y[np * 64 + 24], sums_3);
          store_float32x8(&tile_Y[np * 64 + 32], sums_4);
          store_float32x8(&tile_Y[np * 64 + 40], sums_5);
          store_float32x8(&tile_Y[np * 64 + 48], sums_6);
          store_float32x8(&tile_Y[np * 64 + 56], sums_7);
        }
        const int64_t np_rest = (min_int64(8, min_int64(ns_end * 8, n_extent) - n_0) >> 3) * 8;
        for (int64_t tiv2 = 0; tiv2 < ti_count; tiv2 += 8) {
          const int64_t ti_leftv1 = ti_count - tiv2;
          for (int64_t npv1 = 0; npv1 < np_rest; npv1 += 8) {
            float32x8 tile_Y_row = load_float32x8(&tile_Y[npv1 * 64 + tiv2]);
            float32x8 tile_Y_rowv1 = load_float32x8(&tile_Y[(npv1 + 1) * 64 + tiv2]);
            float32x8 tile_Y_rowv2 = load_float32x8(&tile_Y[(npv1 + 2) * 64 + tiv2]);
            float32x8 tile_Y_rowv3 = load_float32x8(&tile_Y[(npv1 + 3) * 64 + tiv2]);
            float32x8 tile_Y_rowv4 = load_float32x8(&tile_Y[(npv1 + 4) * 64 + tiv2]);
            float32x8 tile_Y_rowv5 = load_float32x8(&tile_Y[(npv1 + 5) * 64 + tiv2]);
            float32x8 tile_Y_rowv6 = load_float32x8(&tile_Y[(npv1 + 6) * 64 + tiv2]);
            float32x8 tile_Y_rowv7 = load_float32x8(&tile_Y[(npv1 + 7) * 64 + tiv2]);
            transpose_float32x8(tile_Y_row, tile_Y_rowv1, tile_Y_rowv2, tile_Y_rowv3, tile_Y_rowv4, tile_Y_rowv5, tile_Y_rowv6, tile_Y_rowv7);
            if (0 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2) * n_extent + n_0 + npv1], tile_Y_row);
            }
            if (1 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 1) * n_extent + n_0 + npv1], tile_Y_rowv1);
            }
            if (2 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 2) * n_extent + n_0 + npv1], tile_Y_rowv2);
            }
            if (3 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 3) * n_extent + n_0 + npv1], tile_Y_rowv3);
            }
            if (4 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 4) * n_extent + n_0 + npv1], tile_Y_rowv4);
            }
            if (5 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 5) * n_extent + n_0 + npv1], tile_Y_rowv5);
            }
            if (6 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 6) * n_extent + n_0 + npv1], tile_Y_rowv6);
            }
            if (7 < ti_leftv1) {
              store_float32x8(&Y_vals[(t_0 + tiv2 + 7) * n_extent + n_0 + npv1], tile_Y_rowv7);
            }
          }
        }
        for (int64_t tiv3 = 0; tiv3 < ti_count; ++tiv3) {
          for (int64_t npv2 = np_rest, npv2_end = min_int64(8, min_int64(ns_end * 8, n_extent) - n_0); npv2 < npv2_end; ++npv2) {
            Y_vals[(t_0 + tiv3) * n_extent + n_0 + npv2] = tile_Y[npv2 * 64 + tiv3];
          }
        }
      }
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t t_extent = sizes[0];
  const int64_t k_extent = sizes[1];
  const int64_t n_extent = sizes[2];
  const int64_t W_nnz = sizes[3];
  const int64_t serial_threshold = sizes[4];
  const int32_t *__restrict X_vals = (const int32_t *)buffers[0];
  const int32_t *__restrict W2_pos = (const int32_t *)buffers[1];
  const int32_t *__restrict W2_crd = (const int32_t *)buffers[2];
  const int32_t *__restrict W_vals = (const int32_t *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  const int64_t work_1 = k_extent * t_extent + t_extent * W_nnz + n_extent * t_extent + t_extent * n_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 4);
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, &next_1, 1, n_extent, k_extent, t_extent, X_vals, W2_pos, W2_crd, W_vals, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, n_extent, k_extent, t_extent, X_vals, W2_pos, W2_crd, W_vals, Y_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  return 0;
}
