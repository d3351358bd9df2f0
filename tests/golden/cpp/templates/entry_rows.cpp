// pos j p M
// split p po pi 8
// split l lo li 64 tail 32 16 8
// order S: i, po, pi
// order m: i, po, pi
// precompute lanes_m = m over pi in register
// order P: i, po, pi
// order d: i, po, pi
// precompute lanes_d = d over pi in register
// order w: i, lo, po, pi, li
// order Y: i, lo, li
// precompute w at lo in register
// precompute S at i in thread
// precompute m at i in thread
// precompute P at i in thread
// precompute d at i in thread
// vector pi in S
// vector pi in lanes_m
// vector pi in m
// vector pi in P
// vector pi in lanes_d
// vector pi in d
// vector li in w
// vector li in Y
// parallel i dynamic M
// parallel forall i dynamic by positions of M: let d: float32 in thread: let P[j]: float32 in thread pattern of M[i,j]: (let m: float32 in thread: let S[j]: float32 in thread pattern of M[i,j]: (forall po: vector forall pi: S[j] = where(stored(M[i,j]), a[i] * b[j], -inf)); (let lanes_m[pi]: float32 in register: (forall po: vector forall pi: lanes_m[pi] max= S[j]); vector forall pi: m max= lanes_m[pi]); forall po: vector forall pi: P[j] = exp(S[j] - where(m == -inf, 0, m))); (let lanes_d[pi]: float32 in register: (forall po: vector forall pi: lanes_d[pi] += P[j]); vector forall pi: d += lanes_d[pi]); forall lo: let w[li]: float32 in register: (forall po: forall pi: vector forall li: w[li] += P[j] * V[j,l]); vector forall li: Y[i,l] = w[li] / where(d == 0, 1, d)
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x4 __attribute__((vector_size(16)));
typedef float float32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));
typedef int32_t int32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t int64x8 __attribute__((vector_size(64)));
typedef int64_t int64x8_memory __attribute__((vector_size(64), aligned(8), may_alias));

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

extern "C" void *aligned_alloc(__SIZE_TYPE__ alignment, __SIZE_TYPE__ bytes) noexcept;
extern "C" void free(void *memory) noexcept;

struct Scratch {
  void *memory;
  __attribute__((noinline)) explicit Scratch(int64_t bytes) noexcept
      : memory(aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  __attribute__((noinline)) ~Scratch() noexcept { free(memory); }
};

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
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

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline __attribute__((always_inline)) int32x8 load_int32x8(const int32_t *address) {
  return *(const int32x8_memory *)address;
}

template <class Indices>
static inline __attribute__((always_inline)) float32x8 gather_float32x8(const float *address, Indices indices) {
  return float32x8{address[indices[0]], address[indices[1]], address[indices[2]], address[indices[3]], address[indices[4]], address[indices[5]], address[indices[6]], address[indices[7]]};
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
}

static inline __attribute__((always_inline)) int32x8 below_int32x8(int64_t count) {
  return int32x8{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)(count < 8 ? count : 8);
}

static inline __attribute__((always_inline)) int32x8 load_part_int32x8(const int32_t *address, int64_t count) {
#if defined(__AVX512VL__)
  const unsigned char mask = (unsigned char)((1u << (count < 8 ? count : 8)) - 1);
  return (int32x8)__builtin_ia32_loaddqusi256_mask((SPARSIFY_MASKED(const native_int32x8, const int) *)address, (native_int32x8)int32x8{}, mask);
#elif defined(__AVX2__)
  return (int32x8)__builtin_ia32_maskloadd256((const native_int32x8 *)address, (native_int32x8)below_int32x8(count));
#else
  int32x8 value{};
  for (int lane = 0; lane < 8; ++lane)
    if (lane < count) value[lane] = address[lane];
  return value;
#endif
}

static inline __attribute__((always_inline)) float32x8 keep_float32x8(float32x8 value, int64_t count, float32x8 rest) {
  return below_int32x8(count) ? value : rest;
}

template <class Index>
static inline __attribute__((always_inline)) float32x8 gather_part_from_float32x8(
    const float *address, const Index *indices, int64_t count) {
#if defined(__AVX512VL__)
  if (sizeof(Index) == 4) {
    const unsigned char mask = (unsigned char)((1u << (count < 8 ? count : 8)) - 1);
    return (float32x8)__builtin_ia32_gather3siv8sf((native_float32x8)float32x8{}, address, (native_int32x8)load_part_int32x8((const int32_t *)indices, count), mask, 4);
  }
#endif
  if (count <= 0) return float32x8{};
  return keep_float32x8(float32x8{address[indices[0]], address[indices[1 < count ? 1 : 0]], address[indices[2 < count ? 2 : 0]], address[indices[3 < count ? 3 : 0]], address[indices[4 < count ? 4 : 0]], address[indices[5 < count ? 5 : 0]], address[indices[6 < count ? 6 : 0]], address[indices[7 < count ? 7 : 0]]}, count, float32x8{});
}

static inline __attribute__((always_inline)) float32x8 broadcast_float32x8(float value) {
  return value - float32x8{};
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

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
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

static inline __attribute__((always_inline)) float max_float32(float x, float y) {
  return (x > y) | (x != x) ? x : y;
}

static inline __attribute__((always_inline)) float32x4 max_float32x4(float32x4 x, float32x4 y) {
  return (x > y) | (x != x) ? x : y;
}

static inline __attribute__((always_inline)) float reduce_max_float32x4(float32x4 value) {
  value = max_float32x4(value, __builtin_shufflevector(value, value, 2, 3, 0, 1));
  value = max_float32x4(value, __builtin_shufflevector(value, value, 1, 2, 3, 0));
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_max_float32x8(float32x8 value) {
  return reduce_max_float32x4(max_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3), __builtin_shufflevector(value, value, 4, 5, 6, 7)));
}

static inline __attribute__((always_inline)) float32x8 at_most_float32x8(float32x8 bound, float32x8 x) {
#if defined(__AVX__)
  return __builtin_ia32_minps256(bound, x);
#else
  return x > bound ? bound : x;
#endif
}

static inline __attribute__((always_inline)) float32x8 exp_float32x8(float32x8 x) {
  const float32x8 above = at_least_float32x8(broadcast_float32x8(-105.0f), x);
  const float32x8 bounded = at_most_float32x8(broadcast_float32x8(89.0f), above);
  const float32x8 shifted = bounded * 1.4426950408889634f + 12582912.0f;
  const float32x8 n = shifted - 12582912.0f;
  const float32x8 r = (bounded - n * 0.693145751953125f) - n * 1.428606765330187e-06f;
  float32x8 p = broadcast_float32x8(0.0013926203361634337f);
  p = p * r + 0.008363194882419041f;
  p = p * r + 0.0416665544984137f;
  p = p * r + 0.166665768946066f;
  p = p * r + 0.5f;
  const float32x8 e = (r * r * p + r) + 1.0f;
  const int32x8 zero = (int32x8)(broadcast_float32x8(12582912.0f));
  const int32x8 half = (int32x8)(n * 0.5f + 12582912.0f) - zero;
  const int32x8 rest = (int32x8)shifted - zero - half;
  const float32x8 first = (float32x8)((half + 127) << 23);
  const float32x8 second = (float32x8)((rest + 127) << 23);
  return e * first * second;
}

static inline __attribute__((always_inline)) float reduce_add_float32x4(float32x4 value) {
  value = value + __builtin_shufflevector(value, value, 2, 3, 0, 1);
  value = value + __builtin_shufflevector(value, value, 1, 2, 3, 0);
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_add_float32x8(float32x8 value) {
  return reduce_add_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7));
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static __attribute__((noinline, hot)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict M2_pos,
    const int64_t i_extent,
    const int64_t M2_longest,
    const int32_t *__restrict M2_crd,
    const float *__restrict a_vals,
    const float *__restrict b_vals,
    const float *__restrict V_vals,
    float *__restrict Y_vals) {
  alignas(64) float d[1];
  const Scratch P_scratch((M2_longest + 7) * 4);
  float *__restrict P = (float *)P_scratch.memory;
  if (!P) return 1;
  alignas(64) float m[1];
  const Scratch S_scratch((M2_longest + 7) * 4);
  float *__restrict S = (float *)S_scratch.memory;
  if (!S) return 1;
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, M2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, M2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      fill_float32(d, 1, 0.0f);
      fill_float32(m, 1, -__builtin_inff());
      const int64_t p_last = (int64_t)M2_pos[i] + ((int64_t)M2_pos[i + 1] - (int64_t)M2_pos[i] >> 3) * 8;
      for (int64_t p_0 = M2_pos[i]; p_0 < p_last; p_0 += 8) {
        store_float32x8(&S[p_0 - (int64_t)M2_pos[i]], a_vals[i] * gather_float32x8(b_vals, &M2_crd[p_0]));
      }
      if (p_last < (int64_t)M2_pos[i + 1]) {
        const int64_t p_left = (int64_t)M2_pos[i + 1] - p_last;
        store_float32x8(&S[p_last - (int64_t)M2_pos[i]], a_vals[i] * gather_part_from_float32x8(b_vals, &M2_crd[p_last], p_left));
      }
      float32x8 lanes_m_0 = broadcast_float32x8(-__builtin_inff());
      const int64_t p_lastv1 = (int64_t)M2_pos[i] + ((int64_t)M2_pos[i + 1] - (int64_t)M2_pos[i] >> 3) * 8;
      for (int64_t p_0v1 = M2_pos[i]; p_0v1 < p_lastv1; p_0v1 += 8) {
        lanes_m_0 = max_float32x8(lanes_m_0, load_float32x8(&S[p_0v1 - (int64_t)M2_pos[i]]));
      }
      if (p_lastv1 < (int64_t)M2_pos[i + 1]) {
        const int64_t p_leftv1 = (int64_t)M2_pos[i + 1] - p_lastv1;
        lanes_m_0 = 0 + int32x8{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)p_leftv1 ? max_float32x8(lanes_m_0, load_part_float32x8(&S[p_lastv1 - (int64_t)M2_pos[i]], p_leftv1)) : lanes_m_0;
      }
      m[0] = max_float32(m[0], reduce_max_float32x8(lanes_m_0));
      const int64_t p_lastv2 = (int64_t)M2_pos[i] + ((int64_t)M2_pos[i + 1] - (int64_t)M2_pos[i] >> 3) * 8;
      for (int64_t p_0v2 = M2_pos[i]; p_0v2 < p_lastv2; p_0v2 += 8) {
        store_float32x8(&P[p_0v2 - (int64_t)M2_pos[i]], exp_float32x8(load_float32x8(&S[p_0v2 - (int64_t)M2_pos[i]]) - (m[0] == -__builtin_inff() ? 0.0f : m[0])));
      }
      if (p_lastv2 < (int64_t)M2_pos[i + 1]) {
        const int64_t p_leftv2 = (int64_t)M2_pos[i + 1] - p_lastv2;
        store_float32x8(&P[p_lastv2 - (int64_t)M2_pos[i]], exp_float32x8(load_part_float32x8(&S[p_lastv2 - (int64_t)M2_pos[i]], p_leftv2) - (m[0] == -__builtin_inff() ? 0.0f : m[0])));
      }
      float32x8 lanes_d_0 = float32x8{};
      const int64_t p_lastv3 = (int64_t)M2_pos[i] + ((int64_t)M2_pos[i + 1] - (int64_t)M2_pos[i] >> 3) * 8;
      for (int64_t p_0v3 = M2_pos[i]; p_0v3 < p_lastv3; p_0v3 += 8) {
        lanes_d_0 += load_float32x8(&P[p_0v3 - (int64_t)M2_pos[i]]);
      }
      if (p_lastv3 < (int64_t)M2_pos[i + 1]) {
        const int64_t p_leftv3 = (int64_t)M2_pos[i + 1] - p_lastv3;
        lanes_d_0 += load_part_float32x8(&P[p_lastv3 - (int64_t)M2_pos[i]], p_leftv3);
      }
      d[0] = d[0] + reduce_add_float32x8(lanes_d_0);
      float32x8 w_0 = float32x8{};
      for (int64_t p_0v4 = M2_pos[i], p_0v4_end = M2_pos[i + 1]; p_0v4 < p_0v4_end; p_0v4 += 8) {
        for (int64_t pi = 0, pi_end = min_int64(8, (int64_t)M2_pos[i + 1] - p_0v4); pi < pi_end; ++pi) {
          const int64_t jv8 = M2_crd[p_0v4 + pi];
          w_0 += P[p_0v4 + pi - (int64_t)M2_pos[i]] * load_float32x8(&V_vals[jv8 * 8]);
        }
      }
      store_float32x8(&Y_vals[i * 8], w_0 / (d[0] == 0.0f ? 1.0f : d[0]));
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default"), cold))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t j_extent = sizes[1];
  const int64_t M_nnz = sizes[2];
  const int64_t serial_threshold = sizes[3];
  const int32_t *__restrict M2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict M2_crd = (const int32_t *)buffers[1];
  const float *__restrict a_vals = (const float *)buffers[3];
  const float *__restrict b_vals = (const float *)buffers[4];
  const float *__restrict V_vals = (const float *)buffers[5];
  float *__restrict Y_vals = (float *)buffers[6];
  int64_t M2_longest_found = 0;
  for (int64_t M2_segment = 0; M2_segment < i_extent; ++M2_segment) {
    M2_longest_found = max_int64(M2_longest_found, (int64_t)M2_pos[M2_segment + 1] - (int64_t)M2_pos[M2_segment]);
  }
  const int64_t M2_longest = M2_longest_found;
  const int64_t work_1 = M_nnz + j_extent + j_extent * 8 + i_extent * 8;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, &next_1, 1, M2_pos, i_extent, M2_longest, M2_crd, a_vals, b_vals, V_vals, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, M2_pos, i_extent, M2_longest, M2_crd, a_vals, b_vals, V_vals, Y_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  return 0;
}
