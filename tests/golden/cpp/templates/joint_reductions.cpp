// split f fo fi 32 tail 16 8
// order s: i, fo, j, fi
// order m: i, fo, j, fi
// order Y: i, fo, fi
// precompute s at fo in register
// precompute m at fo in register
// merge j
// vector fi
// parallel i dynamic A
// prefetch X 128
// parallel forall i dynamic by positions of A: forall fo: let m[fi]: float32 in register: let s[fi]: float32 in register: (forall j: (vector forall fi: s[fi] += A[i,j] * X[j,f]); vector forall fi: m[fi] max= where(stored(A[i,j]), X[j,f], -inf)); vector forall fi: Y[i,f] = s[fi] + m[fi]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

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

typedef float native_float32x8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef int native_int32x8 __attribute__((vector_size(32), aligned(4), may_alias));

#ifdef __clang__
#define SPARSIFY_MASKED(vector, element) vector
#else
#define SPARSIFY_MASKED(vector, element) element
#endif

extern "C" int omp_get_thread_num() noexcept;
extern "C" int omp_get_num_threads() noexcept;

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

static inline __attribute__((always_inline)) float32x8 broadcast_float32x8(float value) {
  return value - float32x8{};
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) float32x8 held_float32x8(float32x8 value) {
#ifdef __AVX__
  __asm__("" : "+x"(value));
#endif
  return value;
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static inline __attribute__((always_inline)) float32x8 at_least_float32x8(float32x8 bound, float32x8 x) {
#if defined(__AVX__)
  return __builtin_ia32_maxps256(bound, x);
#else
  return x < bound ? bound : x;
#endif
}

static inline __attribute__((always_inline)) float32x8 max_float32x8(float32x8 x, float32x8 y) {
  return y != y ? y : at_least_float32x8(y, x);
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
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t f_extent,
    const int32_t *__restrict A2_crd,
    const int64_t A_nnz,
    const float *__restrict X_vals,
    const float *__restrict A_vals,
    float *__restrict Y_vals) {
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      const int64_t f_last = (f_extent >> 5) * 32;
      for (int64_t f_0 = 0; f_0 < f_last; f_0 += 32) {
        float32x8 m_0 = broadcast_float32x8(-__builtin_inff());
        float32x8 m_1 = broadcast_float32x8(-__builtin_inff());
        float32x8 m_2 = broadcast_float32x8(-__builtin_inff());
        float32x8 m_3 = broadcast_float32x8(-__builtin_inff());
        float32x8 s_0 = float32x8{};
        float32x8 s_1 = float32x8{};
        float32x8 s_2 = float32x8{};
        float32x8 s_3 = float32x8{};
        for (int64_t pA2 = A2_pos[i], pA2_end = A2_pos[i + 1]; pA2 < pA2_end; ++pA2) {
          const int64_t j = A2_crd[pA2];
          const int64_t j_ahead = A2_crd[min_int64(pA2 + 128, A_nnz - 1)];
          __builtin_prefetch(&X_vals[j_ahead * f_extent + f_0]);
          __builtin_prefetch(&X_vals[j_ahead * f_extent + f_0 + 16]);
          const float32x8 X_vals_held = held_float32x8(load_float32x8(&X_vals[j * f_extent + f_0]));
          const float32x8 X_vals_heldv1 = held_float32x8(load_float32x8(&X_vals[j * f_extent + f_0 + 8]));
          const float32x8 X_vals_heldv2 = held_float32x8(load_float32x8(&X_vals[j * f_extent + f_0 + 16]));
          const float32x8 X_vals_heldv3 = held_float32x8(load_float32x8(&X_vals[j * f_extent + f_0 + 24]));
          s_0 += A_vals[pA2] * X_vals_held;
          s_1 += A_vals[pA2] * X_vals_heldv1;
          s_2 += A_vals[pA2] * X_vals_heldv2;
          s_3 += A_vals[pA2] * X_vals_heldv3;
          m_0 = max_float32x8(m_0, X_vals_held);
          m_1 = max_float32x8(m_1, X_vals_heldv1);
          m_2 = max_float32x8(m_2, X_vals_heldv2);
          m_3 = max_float32x8(m_3, X_vals_heldv3);
        }
        store_float32x8(&Y_vals[i * f_extent + f_0], s_0 + m_0);
        store_float32x8(&Y_vals[i * f_extent + f_0 + 8], s_1 + m_1);
        store_float32x8(&Y_vals[i * f_extent + f_0 + 16], s_2 + m_2);
        store_float32x8(&Y_vals[i * f_extent + f_0 + 24], s_3 + m_3);
      }
      int64_t f_done = 0;
      if (f_last + f_done + 16 <= f_extent) {
        float32x8 mv1_0 = broadcast_float32x8(-__builtin_inff());
        float32x8 mv1_1 = broadcast_float32x8(-__builtin_inff());
        float32x8 sv1_0 = float32x8{};
        float32x8 sv1_1 = float32x8{};
        for (int64_t pA2v1 = A2_pos[i], pA2v1_end = A2_pos[i + 1]; pA2v1 < pA2v1_end; ++pA2v1) {
          const int64_t jv1 = A2_crd[pA2v1];
          const float32x8 X_vals_heldv4 = held_float32x8(load_float32x8(&X_vals[jv1 * f_extent + f_last + f_done]));
          const float32x8 X_vals_heldv5 = held_float32x8(load_float32x8(&X_vals[jv1 * f_extent + f_last + f_done + 8]));
          sv1_0 += A_vals[pA2v1] * X_vals_heldv4;
          sv1_1 += A_vals[pA2v1] * X_vals_heldv5;
          mv1_0 = max_float32x8(mv1_0, X_vals_heldv4);
          mv1_1 = max_float32x8(mv1_1, X_vals_heldv5);
        }
        store_float32x8(&Y_vals[i * f_extent + f_last + f_done], sv1_0 + mv1_0);
        store_float32x8(&Y_vals[i * f_extent + f_last + f_done + 8], sv1_1 + mv1_1);
        f_done += 16;
      }
      if (f_last + f_done + 8 <= f_extent) {
        float32x8 mv2_0 = broadcast_float32x8(-__builtin_inff());
        float32x8 sv2_0 = float32x8{};
        for (int64_t pA2v2 = A2_pos[i], pA2v2_end = A2_pos[i + 1]; pA2v2 < pA2v2_end; ++pA2v2) {
          const int64_t jv2 = A2_crd[pA2v2];
          const float32x8 X_vals_heldv6 = held_float32x8(load_float32x8(&X_vals[jv2 * f_extent + f_last + f_done]));
          sv2_0 += A_vals[pA2v2] * X_vals_heldv6;
          mv2_0 = max_float32x8(mv2_0, X_vals_heldv6);
        }
        store_float32x8(&Y_vals[i * f_extent + f_last + f_done], sv2_0 + mv2_0);
        f_done += 8;
      }
      if (f_last + f_done < f_extent) {
        const int64_t f_left = f_extent - f_last;
        float32x8 mv3_0 = broadcast_float32x8(-__builtin_inff());
        float32x8 sv3_0 = float32x8{};
        for (int64_t pA2v3 = A2_pos[i], pA2v3_end = A2_pos[i + 1]; pA2v3 < pA2v3_end; ++pA2v3) {
          const int64_t jv3 = A2_crd[pA2v3];
          const float32x8 X_vals_heldv7 = held_float32x8(load_part_float32x8(&X_vals[jv3 * f_extent + f_last + f_done], f_left - f_done));
          sv3_0 += A_vals[pA2v3] * X_vals_heldv7;
          mv3_0 = max_float32x8(mv3_0, X_vals_heldv7);
        }
        store_part_float32x8(&Y_vals[i * f_extent + f_last + f_done], sv3_0 + mv3_0, f_left - f_done);
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t f_extent = sizes[2];
  const int64_t A_nnz = sizes[3];
  const int64_t serial_threshold = sizes[4];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const float *__restrict X_vals = (const float *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  const int64_t work_1 = f_extent * A_nnz + i_extent * f_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  if (work_1 < serial_threshold || context->threads == 1) {
    region_1(0, 1, &next_1, 1, A2_pos, i_extent, f_extent, A2_crd, A_nnz, X_vals, A_vals, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A2_pos, i_extent, f_extent, A2_crd, A_nnz, X_vals, A_vals, Y_vals);
  }
  return 0;
}
