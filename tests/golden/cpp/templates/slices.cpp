// split no nos nop 1
// order nos, t, nop, ko, ni, ki
// order Y: nos, t, nop, ni
// precompute sums = Y at nop in register
// precompute part = sums at ko in register
// pack table_X = X[ki] at ko in register
// vector ni in sums
// vector ni in part
// vector ni in Y
// vector ki in table_X
// parallel nos dynamic chunks 4
// parallel forall nos dynamic chunks 4: forall t: forall nop: let sums[ni]: float32 in register: (forall ko: let table_X[ki]: float32 in register: (vector forall ki: table_X[ki] = X[t,k]); let part[ni]: float32 in register: (vector forall ni: forall ki: part[ni] += table_X[ki] * W[n,k]); vector forall ni: sums[ni] += part[ni]); vector forall ni: Y[t,n] = sums[ni]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));
typedef int32_t int32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t int64x8 __attribute__((vector_size(64)));
typedef int64_t int64x8_memory __attribute__((vector_size(64), aligned(8), may_alias));
typedef int8_t int8x8 __attribute__((vector_size(8)));
typedef int8_t int8x8_memory __attribute__((vector_size(8), aligned(1), may_alias));

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

typedef float native_float32x8 __attribute__((vector_size(32)));

typedef int native_int32x8 __attribute__((vector_size(32)));

#ifdef __clang__
#define SPARSIFY_MASKED(vector, element) vector
#else
#define SPARSIFY_MASKED(vector, element) element
#endif

extern "C" int omp_get_thread_num() noexcept;
extern "C" int omp_get_num_threads() noexcept;

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

static inline __attribute__((always_inline)) int8x8 load_int8x8(const int8_t *address) {
  return *(const int8x8_memory *)address;
}

static inline __attribute__((always_inline)) float32x8 lookup_1_float32x8(int32x8 places, float32x8 table_0) {
#if defined(__AVX2__)
  return (float32x8)__builtin_ia32_permvarsf256((native_float32x8)table_0, (native_int32x8)places);
#endif
  float32x8 value{};
  for (int lane = 0; lane < 8; ++lane) value[lane] = table_0[places[lane] & 7];
  return value;
}

static inline __attribute__((always_inline)) int32x8 broadcast_int32x8(int32_t value) {
  return value - int32x8{};
}

static inline __attribute__((always_inline)) float32x8 lookup_2_float32x8(int32x8 places, float32x8 table_0, float32x8 table_1) {
  return (places & broadcast_int32x8(8)) != int32x8{} ? lookup_1_float32x8(places, table_1) : lookup_1_float32x8(places, table_0);
}

static inline __attribute__((always_inline)) float32x8 lookup_4_float32x8(int32x8 places, float32x8 table_0, float32x8 table_1, float32x8 table_2, float32x8 table_3) {
  return (places & broadcast_int32x8(16)) != int32x8{} ? lookup_2_float32x8(places, table_2, table_3) : lookup_2_float32x8(places, table_0, table_1);
}

static inline __attribute__((always_inline)) float32x8 lookup_8_float32x8(int32x8 places, float32x8 table_0, float32x8 table_1, float32x8 table_2, float32x8 table_3, float32x8 table_4, float32x8 table_5, float32x8 table_6, float32x8 table_7) {
  return (places & broadcast_int32x8(32)) != int32x8{} ? lookup_4_float32x8(places, table_4, table_5, table_6, table_7) : lookup_4_float32x8(places, table_0, table_1, table_2, table_3);
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
}

static inline __attribute__((always_inline)) int32x8 below_int32x8(int64_t count) {
  return int32x8{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)(count < 8 ? count : 8);
}

static inline __attribute__((always_inline)) float32x8 load_part_float32x8(const float *address, int64_t count) {
#if defined(__AVX512VL__)
  const unsigned char mask = (unsigned char)((1u << (count < 8 ? count : 8)) - 1);
  return (float32x8)__builtin_ia32_loadups256_mask((SPARSIFY_MASKED(const native_float32x8, const float) *)address, (native_float32x8)float32x8{}, mask);
#elif defined(__AVX2__)
  return (float32x8)__builtin_ia32_maskloadps256((const native_float32x8 *)address, (native_int32x8)below_int32x8(count));
#else
  float32x8 value{};
  for (int lane = 0; lane < 8; ++lane)
    if (lane < count) value[lane] = address[lane];
  return value;
#endif
}

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static inline __attribute__((always_inline)) void store_part_float32x8(float *address, float32x8 value, int64_t count) {
#if defined(__AVX512VL__)
  const unsigned char mask = (unsigned char)((1u << (count < 8 ? count : 8)) - 1);
  __builtin_ia32_storeups256_mask((SPARSIFY_MASKED(native_float32x8, float) *)address, (native_float32x8)value, mask);
#elif defined(__AVX2__)
  __builtin_ia32_maskstoreps256((native_float32x8 *)address, (native_int32x8)below_int32x8(count), (native_float32x8)value);
#else
  for (int lane = 0; lane < 8; ++lane)
    if (lane < count) address[lane] = value[lane];
#endif
}

static __attribute__((noinline)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t n_extent,
    const int64_t t_extent,
    const int64_t k_extent,
    const float *__restrict X_vals,
    const int32_t *__restrict W4_pos,
    const int8_t *__restrict W4_crd,
    const float *__restrict W_vals,
    float *__restrict Y_vals) {
  const int64_t extent = n_extent + 15 >> 4;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t nos_begin = split_int64(chunk, chunks, extent);
    const int64_t nos_end = split_int64(chunk + 1, chunks, extent);
    for (int64_t no_0 = nos_begin, no_0_end = min_int64(nos_end, n_extent + 15 >> 4); no_0 < no_0_end; ++no_0) {
      for (int64_t t = 0; t < t_extent; ++t) {
        for (int64_t nop = 0, nop_end = min_int64(1, min_int64(nos_end, n_extent + 15 >> 4) - no_0); nop < nop_end; ++nop) {
          float32x8 sums_0 = float32x8{};
          float32x8 sums_1 = float32x8{};
          for (int64_t k_0 = 0; k_0 < k_extent; k_0 += 64) {
            const int64_t ko = k_0 >> 6;
            float32x8 table_X_0 = float32x8{};
            float32x8 table_X_1 = float32x8{};
            float32x8 table_X_2 = float32x8{};
            float32x8 table_X_3 = float32x8{};
            float32x8 table_X_4 = float32x8{};
            float32x8 table_X_5 = float32x8{};
            float32x8 table_X_6 = float32x8{};
            float32x8 table_X_7 = float32x8{};
            table_X_0 = load_float32x8(&X_vals[t * k_extent + k_0]);
            table_X_1 = load_float32x8(&X_vals[t * k_extent + k_0 + 8]);
            table_X_2 = load_float32x8(&X_vals[t * k_extent + k_0 + 16]);
            table_X_3 = load_float32x8(&X_vals[t * k_extent + k_0 + 24]);
            table_X_4 = load_float32x8(&X_vals[t * k_extent + k_0 + 32]);
            table_X_5 = load_float32x8(&X_vals[t * k_extent + k_0 + 40]);
            table_X_6 = load_float32x8(&X_vals[t * k_extent + k_0 + 48]);
            table_X_7 = load_float32x8(&X_vals[t * k_extent + k_0 + 56]);
            float32x8 part_0 = float32x8{};
            float32x8 part_1 = float32x8{};
            for (int64_t pW4 = (int64_t)W4_pos[(no_0 + nop) * (k_extent + 63 >> 6) + ko] * 16, pW4_end = (int64_t)W4_pos[(no_0 + nop) * (k_extent + 63 >> 6) + ko + 1] * 16; pW4 < pW4_end; pW4 += 16) {
              part_0 += lookup_8_float32x8(__builtin_convertvector(load_int8x8(&W4_crd[pW4]), int32x8), table_X_0, table_X_1, table_X_2, table_X_3, table_X_4, table_X_5, table_X_6, table_X_7) * load_float32x8(&W_vals[pW4]);
            }
            for (int64_t pW4v1 = (int64_t)W4_pos[(no_0 + nop) * (k_extent + 63 >> 6) + ko] * 16 + 8, pW4v1_end = (int64_t)W4_pos[(no_0 + nop) * (k_extent + 63 >> 6) + ko + 1] * 16 + 8; pW4v1 < pW4v1_end; pW4v1 += 16) {
              part_1 += lookup_8_float32x8(__builtin_convertvector(load_int8x8(&W4_crd[pW4v1]), int32x8), table_X_0, table_X_1, table_X_2, table_X_3, table_X_4, table_X_5, table_X_6, table_X_7) * load_float32x8(&W_vals[pW4v1]);
            }
            sums_0 += part_0;
            sums_1 += part_1;
          }
          store_float32x8(&Y_vals[t * n_extent + (no_0 + nop) * 16], sums_0);
          store_float32x8(&Y_vals[t * n_extent + (no_0 + nop) * 16 + 8], sums_1);
        }
      }
    }
  }
}

static __attribute__((noinline)) void region_2(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t n_extent,
    const int64_t t_extent,
    const int64_t k_extent,
    const float *__restrict X_vals,
    const int32_t *__restrict W4_pos,
    const int8_t *__restrict W4_crd,
    const float *__restrict W_vals,
    float *__restrict Y_vals) {
  const int64_t extent = n_extent + 15 >> 4;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t nos_beginv1 = split_int64(chunk, chunks, extent);
    const int64_t nos_endv1 = split_int64(chunk + 1, chunks, extent);
    for (int64_t no_0v1 = nos_beginv1, no_0v1_end = min_int64(nos_endv1, n_extent + 15 >> 4); no_0v1 < no_0v1_end; ++no_0v1) {
      for (int64_t tv1 = 0; tv1 < t_extent; ++tv1) {
        for (int64_t nopv1 = 0, nopv1_end = min_int64(1, min_int64(nos_endv1, n_extent + 15 >> 4) - no_0v1); nopv1 < nopv1_end; ++nopv1) {
          float32x8 sumsv1_0 = float32x8{};
          float32x8 sumsv1_1 = float32x8{};
          const int64_t k_last = (k_extent >> 6) * 64;
          for (int64_t k_0v1 = 0; k_0v1 < k_last; k_0v1 += 64) {
            const int64_t kov1 = k_0v1 >> 6;
            float32x8 table_Xv1_0 = float32x8{};
            float32x8 table_Xv1_1 = float32x8{};
            float32x8 table_Xv1_2 = float32x8{};
            float32x8 table_Xv1_3 = float32x8{};
            float32x8 table_Xv1_4 = float32x8{};
            float32x8 table_Xv1_5 = float32x8{};
            float32x8 table_Xv1_6 = float32x8{};
            float32x8 table_Xv1_7 = float32x8{};
            table_Xv1_0 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1]);
            table_Xv1_1 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 8]);
            table_Xv1_2 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 16]);
            table_Xv1_3 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 24]);
            table_Xv1_4 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 32]);
            table_Xv1_5 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 40]);
            table_Xv1_6 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 48]);
            table_Xv1_7 = load_float32x8(&X_vals[tv1 * k_extent + k_0v1 + 56]);
            float32x8 partv1_0 = float32x8{};
            float32x8 partv1_1 = float32x8{};
            for (int64_t pW4v2 = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov1] * 16, pW4v2_end = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov1 + 1] * 16; pW4v2 < pW4v2_end; pW4v2 += 16) {
              partv1_0 += lookup_8_float32x8(__builtin_convertvector(load_int8x8(&W4_crd[pW4v2]), int32x8), table_Xv1_0, table_Xv1_1, table_Xv1_2, table_Xv1_3, table_Xv1_4, table_Xv1_5, table_Xv1_6, table_Xv1_7) * load_part_float32x8(&W_vals[pW4v2], min_int64(16, n_extent - (no_0v1 + nopv1) * 16));
            }
            for (int64_t pW4v3 = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov1] * 16 + 8, pW4v3_end = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov1 + 1] * 16 + 8; pW4v3 < pW4v3_end; pW4v3 += 16) {
              partv1_1 += lookup_8_float32x8(__builtin_convertvector(load_int8x8(&W4_crd[pW4v3]), int32x8), table_Xv1_0, table_Xv1_1, table_Xv1_2, table_Xv1_3, table_Xv1_4, table_Xv1_5, table_Xv1_6, table_Xv1_7) * load_part_float32x8(&W_vals[pW4v3], max_int64(min_int64(16, n_extent - (no_0v1 + nopv1) * 16) - 8, 0));
            }
            sumsv1_0 += partv1_0;
            sumsv1_1 += partv1_1;
          }
          if (k_last < k_extent) {
            const int64_t k_left = k_extent - k_last;
            const int64_t kov2 = k_last >> 6;
            float32x8 table_Xv2_0 = float32x8{};
            float32x8 table_Xv2_1 = float32x8{};
            float32x8 table_Xv2_2 = float32x8{};
            float32x8 table_Xv2_3 = float32x8{};
            float32x8 table_Xv2_4 = float32x8{};
            float32x8 table_Xv2_5 = float32x8{};
            float32x8 table_Xv2_6 = float32x8{};
            float32x8 table_Xv2_7 = float32x8{};
            table_Xv2_0 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last], k_left);
            table_Xv2_1 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 8], max_int64(k_left - 8, 0));
            table_Xv2_2 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 16], max_int64(k_left - 16, 0));
            table_Xv2_3 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 24], max_int64(k_left - 24, 0));
            table_Xv2_4 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 32], max_int64(k_left - 32, 0));
            table_Xv2_5 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 40], max_int64(k_left - 40, 0));
            table_Xv2_6 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 48], max_int64(k_left - 48, 0));
            table_Xv2_7 = load_part_float32x8(&X_vals[tv1 * k_extent + k_last + 56], max_int64(k_left - 56, 0));
            float32x8 partv2_0 = float32x8{};
            float32x8 partv2_1 = float32x8{};
            for (int64_t pW4v4 = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov2] * 16, pW4v4_end = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov2 + 1] * 16; pW4v4 < pW4v4_end; pW4v4 += 16) {
              partv2_0 += lookup_8_float32x8(__builtin_convertvector(load_int8x8(&W4_crd[pW4v4]), int32x8), table_Xv2_0, table_Xv2_1, table_Xv2_2, table_Xv2_3, table_Xv2_4, table_Xv2_5, table_Xv2_6, table_Xv2_7) * load_part_float32x8(&W_vals[pW4v4], min_int64(16, n_extent - (no_0v1 + nopv1) * 16));
            }
            for (int64_t pW4v5 = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov2] * 16 + 8, pW4v5_end = (int64_t)W4_pos[(no_0v1 + nopv1) * (k_extent + 63 >> 6) + kov2 + 1] * 16 + 8; pW4v5 < pW4v5_end; pW4v5 += 16) {
              partv2_1 += lookup_8_float32x8(__builtin_convertvector(load_int8x8(&W4_crd[pW4v5]), int32x8), table_Xv2_0, table_Xv2_1, table_Xv2_2, table_Xv2_3, table_Xv2_4, table_Xv2_5, table_Xv2_6, table_Xv2_7) * load_part_float32x8(&W_vals[pW4v5], max_int64(min_int64(16, n_extent - (no_0v1 + nopv1) * 16) - 8, 0));
            }
            sumsv1_0 += partv2_0;
            sumsv1_1 += partv2_1;
          }
          store_part_float32x8(&Y_vals[tv1 * n_extent + (no_0v1 + nopv1) * 16], sumsv1_0, min_int64(16, n_extent - (no_0v1 + nopv1) * 16));
          store_part_float32x8(&Y_vals[tv1 * n_extent + (no_0v1 + nopv1) * 16 + 8], sumsv1_1, max_int64(min_int64(16, n_extent - (no_0v1 + nopv1) * 16) - 8, 0));
        }
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t t_extent = sizes[0];
  const int64_t k_extent = sizes[1];
  const int64_t n_extent = sizes[2];
  const int64_t W_nnz = sizes[3];
  const int64_t serial_threshold = sizes[4];
  const float *__restrict X_vals = (const float *)buffers[0];
  const int32_t *__restrict W4_pos = (const int32_t *)buffers[1];
  const int8_t *__restrict W4_crd = (const int8_t *)buffers[2];
  const float *__restrict W_vals = (const float *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  if ((k_extent & 63) == 0 && (n_extent & 15) == 0) {
    const int64_t work_1 = k_extent * t_extent + W_nnz + n_extent + t_extent * n_extent;
    int64_t next_1 = 0;
    const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 4);
    if (work_1 < serial_threshold || context->threads == 1) {
      region_1(0, 1, &next_1, 1, n_extent, t_extent, k_extent, X_vals, W4_pos, W4_crd, W_vals, Y_vals);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, n_extent, t_extent, k_extent, X_vals, W4_pos, W4_crd, W_vals, Y_vals);
    }
  } else {
    const int64_t work_2 = k_extent * t_extent + W_nnz + n_extent + t_extent * n_extent;
    int64_t next_2 = 0;
    const int64_t chunks_2 = context->threads * (work_2 < 64 * serial_threshold ? 4 : 4);
    if (work_2 < serial_threshold || context->threads == 1) {
      region_2(0, 1, &next_2, 1, n_extent, t_extent, k_extent, X_vals, W4_pos, W4_crd, W_vals, Y_vals);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      region_2(omp_get_thread_num(), omp_get_num_threads(), &next_2, chunks_2, n_extent, t_extent, k_extent, X_vals, W4_pos, W4_crd, W_vals, Y_vals);
    }
  }
  return 0;
}
