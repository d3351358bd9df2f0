// split l lo li 8
// order S: i, j, h
// order m: i, j, h
// precompute sum_m = m at i in register
// order P: i, j, h
// order d: i, j, h
// precompute sum_d = d at i in register
// order w: i, lo, j, h, li
// order Y: i, lo, h, li
// precompute w at lo in register
// precompute S at i in thread
// precompute m at i in thread
// precompute P at i in thread
// precompute d at i in thread
// vector h in S
// vector h in sum_m
// vector h in m
// vector h in P
// vector h in sum_d
// vector h in d
// unroll h in w
// vector li in w
// unroll h in Y
// vector li in Y
// parallel i dynamic M
// parallel forall i dynamic by positions of M: let d[h]: float32 in thread: let P[j,h]: float32 in thread pattern of M[i,j]: (let m[h]: float32 in thread: let S[j,h]: float32 in thread pattern of M[i,j]: (forall j: vector forall h: S[j,h] = where(stored(M[i,j]), a[j,h] + b[i,h], -inf)); (let sum_m[h]: float32 in register: (forall j: vector forall h: sum_m[h] max= S[j,h]); vector forall h: m[h] = sum_m[h]); forall j: vector forall h: P[j,h] = exp(S[j,h] - where(m[h] == -inf, 0, m[h]))); (let sum_d[h]: float32 in register: (forall j: vector forall h: sum_d[h] += P[j,h]); vector forall h: d[h] = sum_d[h]); forall lo: let w[h,li]: float32 in register: (forall j: unrolled forall h: vector forall li: w[h,li] += P[j,h] * V[j,h,l]); unrolled forall h: vector forall li: Y[i,h,l] = w[h,li] / where(d[h] == 0, 1, d[h])
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

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
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
  alignas(64) float d[2];
  const Scratch P_scratch((M2_longest * 2) * 4);
  float *__restrict P = (float *)P_scratch.memory;
  if (!P) return 1;
  alignas(64) float m[2];
  const Scratch S_scratch((M2_longest * 2) * 4);
  float *__restrict S = (float *)S_scratch.memory;
  if (!S) return 1;
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, M2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, M2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      for (int64_t pM2 = M2_pos[i], pM2_end = M2_pos[i + 1]; pM2 < pM2_end; ++pM2) {
        const int64_t j = M2_crd[pM2];
        store_part_float32x8(&S[(pM2 - (int64_t)M2_pos[i]) * 2], load_part_float32x8(&a_vals[j * 2], 2) + load_part_float32x8(&b_vals[i * 2], 2), 2);
      }
      float32x8 sum_m_0 = broadcast_float32x8(-__builtin_inff());
      for (int64_t pM2v1 = M2_pos[i], pM2v1_end = M2_pos[i + 1]; pM2v1 < pM2v1_end; ++pM2v1) {
        sum_m_0 = max_float32x8(sum_m_0, load_part_float32x8(&S[(pM2v1 - (int64_t)M2_pos[i]) * 2], 2));
      }
      store_part_float32x8(m, sum_m_0, 2);
      for (int64_t pM2v2 = M2_pos[i], pM2v2_end = M2_pos[i + 1]; pM2v2 < pM2v2_end; ++pM2v2) {
        store_part_float32x8(&P[(pM2v2 - (int64_t)M2_pos[i]) * 2], exp_float32x8(load_part_float32x8(&S[(pM2v2 - (int64_t)M2_pos[i]) * 2], 2) - (load_part_float32x8(m, 2) == broadcast_float32x8(-__builtin_inff()) ? float32x8{} : load_part_float32x8(m, 2))), 2);
      }
      float32x8 sum_d_0 = float32x8{};
      for (int64_t pM2v3 = M2_pos[i], pM2v3_end = M2_pos[i + 1]; pM2v3 < pM2v3_end; ++pM2v3) {
        sum_d_0 += load_part_float32x8(&P[(pM2v3 - (int64_t)M2_pos[i]) * 2], 2);
      }
      store_part_float32x8(d, sum_d_0, 2);
      float32x8 w_0_0 = float32x8{};
      float32x8 w_1_0 = float32x8{};
      for (int64_t pM2v4 = M2_pos[i], pM2v4_end = M2_pos[i + 1]; pM2v4 < pM2v4_end; ++pM2v4) {
        const int64_t jv4 = M2_crd[pM2v4];
        w_0_0 += P[(pM2v4 - (int64_t)M2_pos[i]) * 2] * load_float32x8(&V_vals[jv4 * 16]);
        w_1_0 += P[(pM2v4 - (int64_t)M2_pos[i]) * 2 + 1] * load_float32x8(&V_vals[(jv4 * 2 + 1) * 8]);
      }
      store_float32x8(&Y_vals[i * 16], w_0_0 / (d[0] == 0.0f ? 1.0f : d[0]));
      store_float32x8(&Y_vals[(i * 2 + 1) * 8], w_1_0 / (d[1] == 0.0f ? 1.0f : d[1]));
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
  const int64_t work_1 = M_nnz * 2 + j_extent * 2 + j_extent * 2 + j_extent * 16 + i_extent * 16 + 2;
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
