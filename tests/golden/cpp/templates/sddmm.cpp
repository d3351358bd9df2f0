// order i, j
// pos j p A
// split p po pi 4 tail 2 1
// precompute w at po in register
// split k ko ki 16 tail 8
// order w: ko, pi, ki
// precompute lanes = w over ki in register
// unroll pi
// vector ki
// parallel i dynamic A
// prefetch Q 16
// parallel forall i dynamic by positions of A: forall po: let w[pi]: float32 in register: (let lanes[ki,pi]: float32 in register: (forall ko: unrolled forall pi: vector forall ki: lanes[ki,pi] += P[i,k] * Q[j,k]); vector forall ki: unrolled forall pi: w[pi] += lanes[ki,pi]); unrolled forall pi: S[i,j] = A[i,j] * w[pi]
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

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
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

static inline __attribute__((always_inline)) float32x4 reduce_add_of_4_float32x8(float32x8 value_0, float32x8 value_1, float32x8 value_2, float32x8 value_3) {
  const float32x8 pair_1_0 = __builtin_shufflevector(value_0, value_1, 0, 8, 2, 10, 4, 12, 6, 14) + __builtin_shufflevector(value_0, value_1, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 pair_1_1 = __builtin_shufflevector(value_2, value_3, 0, 8, 2, 10, 4, 12, 6, 14) + __builtin_shufflevector(value_2, value_3, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 pair_2_0 = __builtin_shufflevector(pair_1_0, pair_1_1, 0, 1, 8, 9, 4, 5, 12, 13) + __builtin_shufflevector(pair_1_0, pair_1_1, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x4 half_4 = __builtin_shufflevector(pair_2_0, pair_2_0, 0, 1, 2, 3) + __builtin_shufflevector(pair_2_0, pair_2_0, 4, 5, 6, 7);
  return half_4;
}

static inline __attribute__((always_inline)) float32x4 reduce_add_of_2_float32x8(float32x8 value_0, float32x8 value_1) {
  const float32x8 pair_1_0 = __builtin_shufflevector(value_0, value_1, 0, 8, 2, 10, 4, 12, 6, 14) + __builtin_shufflevector(value_0, value_1, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x4 half_4 = __builtin_shufflevector(pair_1_0, pair_1_0, 0, 1, 2, 3) + __builtin_shufflevector(pair_1_0, pair_1_0, 4, 5, 6, 7);
  const float32x4 low_2 = half_4 + __builtin_shufflevector(half_4, half_4, 2, 3, 0, 1);
  return low_2;
}

static inline __attribute__((always_inline)) float reduce_add_float32x4(float32x4 value) {
  value = value + __builtin_shufflevector(value, value, 2, 3, 0, 1);
  value = value + __builtin_shufflevector(value, value, 1, 2, 3, 0);
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_add_float32x8(float32x8 value) {
  return reduce_add_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7));
}

static __attribute__((noinline)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t k_extent,
    const int32_t *__restrict A2_crd,
    const int64_t A_nnz,
    const float *__restrict Q_vals,
    const float *__restrict P_vals,
    float *__restrict S_vals,
    const float *__restrict A_vals) {
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      const int64_t p_last = (int64_t)A2_pos[i] + ((int64_t)A2_pos[i + 1] - (int64_t)A2_pos[i] >> 2) * 4;
      for (int64_t p_0 = A2_pos[i]; p_0 < p_last; p_0 += 4) {
        float w_0 = 0.0f;
        float w_1 = 0.0f;
        float w_2 = 0.0f;
        float w_3 = 0.0f;
        float32x8 lanes_0_0 = float32x8{};
        float32x8 lanes_0_1 = float32x8{};
        float32x8 lanes_0_2 = float32x8{};
        float32x8 lanes_0_3 = float32x8{};
        float32x8 lanes_1_0 = float32x8{};
        float32x8 lanes_1_1 = float32x8{};
        float32x8 lanes_1_2 = float32x8{};
        float32x8 lanes_1_3 = float32x8{};
        const int64_t k_last = (k_extent >> 4) * 16;
        for (int64_t k_0 = 0; k_0 < k_last; k_0 += 16) {
          const int64_t j = A2_crd[p_0];
          const int64_t j_ahead = A2_crd[min_int64(p_0 + 16, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_ahead * k_extent + k_0]);
          lanes_0_0 += load_float32x8(&P_vals[i * k_extent + k_0]) * load_float32x8(&Q_vals[j * k_extent + k_0]);
          lanes_1_0 += load_float32x8(&P_vals[i * k_extent + k_0 + 8]) * load_float32x8(&Q_vals[j * k_extent + k_0 + 8]);
          const int64_t jv1 = A2_crd[p_0 + 1];
          const int64_t j_aheadv1 = A2_crd[min_int64(p_0 + 17, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_aheadv1 * k_extent + k_0]);
          lanes_0_1 += load_float32x8(&P_vals[i * k_extent + k_0]) * load_float32x8(&Q_vals[jv1 * k_extent + k_0]);
          lanes_1_1 += load_float32x8(&P_vals[i * k_extent + k_0 + 8]) * load_float32x8(&Q_vals[jv1 * k_extent + k_0 + 8]);
          const int64_t jv2 = A2_crd[p_0 + 2];
          const int64_t j_aheadv2 = A2_crd[min_int64(p_0 + 18, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_aheadv2 * k_extent + k_0]);
          lanes_0_2 += load_float32x8(&P_vals[i * k_extent + k_0]) * load_float32x8(&Q_vals[jv2 * k_extent + k_0]);
          lanes_1_2 += load_float32x8(&P_vals[i * k_extent + k_0 + 8]) * load_float32x8(&Q_vals[jv2 * k_extent + k_0 + 8]);
          const int64_t jv3 = A2_crd[p_0 + 3];
          const int64_t j_aheadv3 = A2_crd[min_int64(p_0 + 19, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_aheadv3 * k_extent + k_0]);
          lanes_0_3 += load_float32x8(&P_vals[i * k_extent + k_0]) * load_float32x8(&Q_vals[jv3 * k_extent + k_0]);
          lanes_1_3 += load_float32x8(&P_vals[i * k_extent + k_0 + 8]) * load_float32x8(&Q_vals[jv3 * k_extent + k_0 + 8]);
        }
        int64_t k_done = 0;
        if (k_last + k_done + 8 <= k_extent) {
          const int64_t jv4 = A2_crd[p_0];
          lanes_0_0 += load_float32x8(&P_vals[i * k_extent + k_last + k_done]) * load_float32x8(&Q_vals[jv4 * k_extent + k_last + k_done]);
          const int64_t jv5 = A2_crd[p_0 + 1];
          lanes_0_1 += load_float32x8(&P_vals[i * k_extent + k_last + k_done]) * load_float32x8(&Q_vals[jv5 * k_extent + k_last + k_done]);
          const int64_t jv6 = A2_crd[p_0 + 2];
          lanes_0_2 += load_float32x8(&P_vals[i * k_extent + k_last + k_done]) * load_float32x8(&Q_vals[jv6 * k_extent + k_last + k_done]);
          const int64_t jv7 = A2_crd[p_0 + 3];
          lanes_0_3 += load_float32x8(&P_vals[i * k_extent + k_last + k_done]) * load_float32x8(&Q_vals[jv7 * k_extent + k_last + k_done]);
          k_done += 8;
        }
        if (k_last + k_done < k_extent) {
          const int64_t k_left = k_extent - k_last;
          const int64_t jv8 = A2_crd[p_0];
          lanes_0_0 += load_part_float32x8(&P_vals[i * k_extent + k_last + k_done], k_left - k_done) * load_part_float32x8(&Q_vals[jv8 * k_extent + k_last + k_done], k_left - k_done);
          const int64_t jv9 = A2_crd[p_0 + 1];
          lanes_0_1 += load_part_float32x8(&P_vals[i * k_extent + k_last + k_done], k_left - k_done) * load_part_float32x8(&Q_vals[jv9 * k_extent + k_last + k_done], k_left - k_done);
          const int64_t jv10 = A2_crd[p_0 + 2];
          lanes_0_2 += load_part_float32x8(&P_vals[i * k_extent + k_last + k_done], k_left - k_done) * load_part_float32x8(&Q_vals[jv10 * k_extent + k_last + k_done], k_left - k_done);
          const int64_t jv11 = A2_crd[p_0 + 3];
          lanes_0_3 += load_part_float32x8(&P_vals[i * k_extent + k_last + k_done], k_left - k_done) * load_part_float32x8(&Q_vals[jv11 * k_extent + k_last + k_done], k_left - k_done);
        }
        const auto w_0_sum_together = reduce_add_of_4_float32x8(lanes_0_0 + lanes_1_0, lanes_0_1 + lanes_1_1, lanes_0_2 + lanes_1_2, lanes_0_3 + lanes_1_3);
        const float w_0_sum = w_0_sum_together[0];
        const float w_1_sum = w_0_sum_together[1];
        const float w_2_sum = w_0_sum_together[2];
        const float w_3_sum = w_0_sum_together[3];
        w_0 += w_0_sum;
        w_1 += w_1_sum;
        w_2 += w_2_sum;
        w_3 += w_3_sum;
        S_vals[p_0] = A_vals[p_0] * w_0;
        S_vals[p_0 + 1] = A_vals[p_0 + 1] * w_1;
        S_vals[p_0 + 2] = A_vals[p_0 + 2] * w_2;
        S_vals[p_0 + 3] = A_vals[p_0 + 3] * w_3;
      }
      int64_t p_done = 0;
      if (p_last + p_done + 2 <= (int64_t)A2_pos[i + 1]) {
        float wv1_0 = 0.0f;
        float wv1_1 = 0.0f;
        float32x8 lanesv1_0_0 = float32x8{};
        float32x8 lanesv1_0_1 = float32x8{};
        float32x8 lanesv1_1_0 = float32x8{};
        float32x8 lanesv1_1_1 = float32x8{};
        const int64_t k_lastv1 = (k_extent >> 4) * 16;
        for (int64_t k_0v1 = 0; k_0v1 < k_lastv1; k_0v1 += 16) {
          const int64_t jv24 = A2_crd[p_last + p_done];
          const int64_t j_aheadv12 = A2_crd[min_int64(p_last + p_done + 16, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_aheadv12 * k_extent + k_0v1]);
          lanesv1_0_0 += load_float32x8(&P_vals[i * k_extent + k_0v1]) * load_float32x8(&Q_vals[jv24 * k_extent + k_0v1]);
          lanesv1_1_0 += load_float32x8(&P_vals[i * k_extent + k_0v1 + 8]) * load_float32x8(&Q_vals[jv24 * k_extent + k_0v1 + 8]);
          const int64_t jv25 = A2_crd[p_last + p_done + 1];
          const int64_t j_aheadv13 = A2_crd[min_int64(p_last + p_done + 1 + 16, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_aheadv13 * k_extent + k_0v1]);
          lanesv1_0_1 += load_float32x8(&P_vals[i * k_extent + k_0v1]) * load_float32x8(&Q_vals[jv25 * k_extent + k_0v1]);
          lanesv1_1_1 += load_float32x8(&P_vals[i * k_extent + k_0v1 + 8]) * load_float32x8(&Q_vals[jv25 * k_extent + k_0v1 + 8]);
        }
        int64_t k_donev1 = 0;
        if (k_lastv1 + k_donev1 + 8 <= k_extent) {
          const int64_t jv26 = A2_crd[p_last + p_done];
          lanesv1_0_0 += load_float32x8(&P_vals[i * k_extent + k_lastv1 + k_donev1]) * load_float32x8(&Q_vals[jv26 * k_extent + k_lastv1 + k_donev1]);
          const int64_t jv27 = A2_crd[p_last + p_done + 1];
          lanesv1_0_1 += load_float32x8(&P_vals[i * k_extent + k_lastv1 + k_donev1]) * load_float32x8(&Q_vals[jv27 * k_extent + k_lastv1 + k_donev1]);
          k_donev1 += 8;
        }
        if (k_lastv1 + k_donev1 < k_extent) {
          const int64_t k_leftv1 = k_extent - k_lastv1;
          const int64_t jv28 = A2_crd[p_last + p_done];
          lanesv1_0_0 += load_part_float32x8(&P_vals[i * k_extent + k_lastv1 + k_donev1], k_leftv1 - k_donev1) * load_part_float32x8(&Q_vals[jv28 * k_extent + k_lastv1 + k_donev1], k_leftv1 - k_donev1);
          const int64_t jv29 = A2_crd[p_last + p_done + 1];
          lanesv1_0_1 += load_part_float32x8(&P_vals[i * k_extent + k_lastv1 + k_donev1], k_leftv1 - k_donev1) * load_part_float32x8(&Q_vals[jv29 * k_extent + k_lastv1 + k_donev1], k_leftv1 - k_donev1);
        }
        const auto wv1_0_sum_together = reduce_add_of_2_float32x8(lanesv1_0_0 + lanesv1_1_0, lanesv1_0_1 + lanesv1_1_1);
        const float wv1_0_sum = wv1_0_sum_together[0];
        const float wv1_1_sum = wv1_0_sum_together[1];
        wv1_0 += wv1_0_sum;
        wv1_1 += wv1_1_sum;
        S_vals[p_last + p_done] = A_vals[p_last + p_done] * wv1_0;
        S_vals[p_last + p_done + 1] = A_vals[p_last + p_done + 1] * wv1_1;
        p_done += 2;
      }
      if (p_last + p_done + 1 <= (int64_t)A2_pos[i + 1]) {
        float wv2_0 = 0.0f;
        float32x8 lanesv2_0_0 = float32x8{};
        float32x8 lanesv2_1_0 = float32x8{};
        const int64_t k_lastv2 = (k_extent >> 4) * 16;
        for (int64_t k_0v2 = 0; k_0v2 < k_lastv2; k_0v2 += 16) {
          const int64_t jv36 = A2_crd[p_last + p_done];
          const int64_t j_aheadv18 = A2_crd[min_int64(p_last + p_done + 16, A_nnz - 1)];
          __builtin_prefetch(&Q_vals[j_aheadv18 * k_extent + k_0v2]);
          lanesv2_0_0 += load_float32x8(&P_vals[i * k_extent + k_0v2]) * load_float32x8(&Q_vals[jv36 * k_extent + k_0v2]);
          lanesv2_1_0 += load_float32x8(&P_vals[i * k_extent + k_0v2 + 8]) * load_float32x8(&Q_vals[jv36 * k_extent + k_0v2 + 8]);
        }
        int64_t k_donev2 = 0;
        if (k_lastv2 + k_donev2 + 8 <= k_extent) {
          const int64_t jv37 = A2_crd[p_last + p_done];
          lanesv2_0_0 += load_float32x8(&P_vals[i * k_extent + k_lastv2 + k_donev2]) * load_float32x8(&Q_vals[jv37 * k_extent + k_lastv2 + k_donev2]);
          k_donev2 += 8;
        }
        if (k_lastv2 + k_donev2 < k_extent) {
          const int64_t k_leftv2 = k_extent - k_lastv2;
          const int64_t jv38 = A2_crd[p_last + p_done];
          lanesv2_0_0 += load_part_float32x8(&P_vals[i * k_extent + k_lastv2 + k_donev2], k_leftv2 - k_donev2) * load_part_float32x8(&Q_vals[jv38 * k_extent + k_lastv2 + k_donev2], k_leftv2 - k_donev2);
        }
        wv2_0 += reduce_add_float32x8(lanesv2_0_0 + lanesv2_1_0);
        S_vals[p_last + p_done] = A_vals[p_last + p_done] * wv2_0;
        p_done += 1;
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t j_extent = sizes[1];
  const int64_t k_extent = sizes[2];
  const int64_t A_nnz = sizes[3];
  const int64_t serial_threshold = sizes[4];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const float *__restrict P_vals = (const float *)buffers[3];
  const float *__restrict Q_vals = (const float *)buffers[4];
  float *__restrict S_vals = (float *)buffers[5];
  const int64_t work_1 = k_extent * A_nnz + j_extent * k_extent + A_nnz;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  if (work_1 < serial_threshold || context->threads == 1) {
    region_1(0, 1, &next_1, 1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, Q_vals, P_vals, S_vals, A_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, Q_vals, P_vals, S_vals, A_vals);
  }
  return 0;
}
