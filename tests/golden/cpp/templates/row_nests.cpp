// split k ko ki 128 tail 64 32 16 8
// order S: i, ko, j, ki
// order w: i, ko, ki
// order Y: i, ko, ki
// precompute sum_S = S at ko in register
// precompute lanes_w = w over ki in register
// precompute S at i in thread
// precompute w at i in register
// precompute m at i in register
// vector ki
// parallel i dynamic A
// prefetch X 32
// parallel forall i dynamic by positions of A: let m: float32 in register: let w: float32 in register: let S[ko,ki]: float32 in thread: (forall ko: let sum_S[ki]: float32 in register: (forall j: vector forall ki: sum_S[ki] += A[i,j] * X[j,k]); vector forall ki: S[ko,ki] = sum_S[ki]); (let lanes_w[ki]: float32 in register: (forall ko: vector forall ki: lanes_w[ki] += S[ko,ki]); vector forall ki: w += lanes_w[ki]); m = w / 2; forall ko: vector forall ki: Y[i,k] = S[ko,ki] - m
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

extern "C" void *aligned_alloc(__SIZE_TYPE__ alignment, __SIZE_TYPE__ bytes) noexcept;
extern "C" void free(void *memory) noexcept;

struct Scratch {
  void *memory;
  __attribute__((noinline)) explicit Scratch(int64_t bytes) noexcept
      : memory(aligned_alloc(64, (bytes + 127) / 64 * 64)) {}
  __attribute__((noinline)) ~Scratch() noexcept { free(memory); }
};

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

static inline __attribute__((always_inline)) float reduce_add_float32x4(float32x4 value) {
  value = value + __builtin_shufflevector(value, value, 2, 3, 0, 1);
  value = value + __builtin_shufflevector(value, value, 1, 2, 3, 0);
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_add_float32x8(float32x8 value) {
  return reduce_add_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7));
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

static __attribute__((noinline)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int64_t k_extent,
    const int32_t *__restrict A2_crd,
    const int64_t A_nnz,
    const float *__restrict X_vals,
    const float *__restrict A_vals,
    float *__restrict Y_vals) {
  const Scratch S_scratch(((k_extent + 127 >> 7) * 128) * 4);
  float *__restrict S = (float *)S_scratch.memory;
  if (!S) return 1;
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      float m = 0.0f;
      float w = 0.0f;
      const int64_t k_last = (k_extent >> 7) * 128;
      for (int64_t k_0 = 0; k_0 < k_last; k_0 += 128) {
        const int64_t ko = k_0 >> 7;
        float32x8 sum_S_0 = float32x8{};
        float32x8 sum_S_1 = float32x8{};
        float32x8 sum_S_2 = float32x8{};
        float32x8 sum_S_3 = float32x8{};
        float32x8 sum_S_4 = float32x8{};
        float32x8 sum_S_5 = float32x8{};
        float32x8 sum_S_6 = float32x8{};
        float32x8 sum_S_7 = float32x8{};
        float32x8 sum_S_8 = float32x8{};
        float32x8 sum_S_9 = float32x8{};
        float32x8 sum_S_10 = float32x8{};
        float32x8 sum_S_11 = float32x8{};
        float32x8 sum_S_12 = float32x8{};
        float32x8 sum_S_13 = float32x8{};
        float32x8 sum_S_14 = float32x8{};
        float32x8 sum_S_15 = float32x8{};
        for (int64_t pA2 = A2_pos[i], pA2_end = A2_pos[i + 1]; pA2 < pA2_end; ++pA2) {
          const int64_t j = A2_crd[pA2];
          const int64_t j_ahead = A2_crd[min_int64(pA2 + 32, A_nnz - 1)];
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 16]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 32]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 48]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 64]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 80]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 96]);
          __builtin_prefetch(&X_vals[j_ahead * k_extent + k_0 + 112]);
          sum_S_0 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0]);
          sum_S_1 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 8]);
          sum_S_2 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 16]);
          sum_S_3 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 24]);
          sum_S_4 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 32]);
          sum_S_5 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 40]);
          sum_S_6 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 48]);
          sum_S_7 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 56]);
          sum_S_8 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 64]);
          sum_S_9 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 72]);
          sum_S_10 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 80]);
          sum_S_11 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 88]);
          sum_S_12 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 96]);
          sum_S_13 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 104]);
          sum_S_14 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 112]);
          sum_S_15 += A_vals[pA2] * load_float32x8(&X_vals[j * k_extent + k_0 + 120]);
        }
        store_float32x8(&S[ko * 128], sum_S_0);
        store_float32x8(&S[ko * 128 + 8], sum_S_1);
        store_float32x8(&S[ko * 128 + 16], sum_S_2);
        store_float32x8(&S[ko * 128 + 24], sum_S_3);
        store_float32x8(&S[ko * 128 + 32], sum_S_4);
        store_float32x8(&S[ko * 128 + 40], sum_S_5);
        store_float32x8(&S[ko * 128 + 48], sum_S_6);
        store_float32x8(&S[ko * 128 + 56], sum_S_7);
        store_float32x8(&S[ko * 128 + 64], sum_S_8);
        store_float32x8(&S[ko * 128 + 72], sum_S_9);
        store_float32x8(&S[ko * 128 + 80], sum_S_10);
        store_float32x8(&S[ko * 128 + 88], sum_S_11);
        store_float32x8(&S[ko * 128 + 96], sum_S_12);
        store_float32x8(&S[ko * 128 + 104], sum_S_13);
        store_float32x8(&S[ko * 128 + 112], sum_S_14);
        store_float32x8(&S[ko * 128 + 120], sum_S_15);
      }
      int64_t k_done = 0;
      if (k_last + k_done + 64 <= k_extent) {
        const int64_t kov1 = k_last >> 7;
        float32x8 sum_Sv1_0 = float32x8{};
        float32x8 sum_Sv1_1 = float32x8{};
        float32x8 sum_Sv1_2 = float32x8{};
        float32x8 sum_Sv1_3 = float32x8{};
        float32x8 sum_Sv1_4 = float32x8{};
        float32x8 sum_Sv1_5 = float32x8{};
        float32x8 sum_Sv1_6 = float32x8{};
        float32x8 sum_Sv1_7 = float32x8{};
        for (int64_t pA2v1 = A2_pos[i], pA2v1_end = A2_pos[i + 1]; pA2v1 < pA2v1_end; ++pA2v1) {
          const int64_t jv1 = A2_crd[pA2v1];
          const int64_t j_aheadv1 = A2_crd[min_int64(pA2v1 + 32, A_nnz - 1)];
          __builtin_prefetch(&X_vals[j_aheadv1 * k_extent + k_last]);
          __builtin_prefetch(&X_vals[j_aheadv1 * k_extent + k_last + 16]);
          __builtin_prefetch(&X_vals[j_aheadv1 * k_extent + k_last + 32]);
          __builtin_prefetch(&X_vals[j_aheadv1 * k_extent + k_last + 48]);
          sum_Sv1_0 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done]);
          sum_Sv1_1 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 8]);
          sum_Sv1_2 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 16]);
          sum_Sv1_3 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 24]);
          sum_Sv1_4 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 32]);
          sum_Sv1_5 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 40]);
          sum_Sv1_6 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 48]);
          sum_Sv1_7 += A_vals[pA2v1] * load_float32x8(&X_vals[jv1 * k_extent + k_last + k_done + 56]);
        }
        store_float32x8(&S[kov1 * 128 + k_done], sum_Sv1_0);
        store_float32x8(&S[kov1 * 128 + k_done + 8], sum_Sv1_1);
        store_float32x8(&S[kov1 * 128 + k_done + 16], sum_Sv1_2);
        store_float32x8(&S[kov1 * 128 + k_done + 24], sum_Sv1_3);
        store_float32x8(&S[kov1 * 128 + k_done + 32], sum_Sv1_4);
        store_float32x8(&S[kov1 * 128 + k_done + 40], sum_Sv1_5);
        store_float32x8(&S[kov1 * 128 + k_done + 48], sum_Sv1_6);
        store_float32x8(&S[kov1 * 128 + k_done + 56], sum_Sv1_7);
        k_done += 64;
      }
      if (k_last + k_done + 32 <= k_extent) {
        const int64_t kov2 = k_last >> 7;
        float32x8 sum_Sv2_0 = float32x8{};
        float32x8 sum_Sv2_1 = float32x8{};
        float32x8 sum_Sv2_2 = float32x8{};
        float32x8 sum_Sv2_3 = float32x8{};
        for (int64_t pA2v2 = A2_pos[i], pA2v2_end = A2_pos[i + 1]; pA2v2 < pA2v2_end; ++pA2v2) {
          const int64_t jv2 = A2_crd[pA2v2];
          const int64_t j_aheadv2 = A2_crd[min_int64(pA2v2 + 32, A_nnz - 1)];
          __builtin_prefetch(&X_vals[j_aheadv2 * k_extent + k_last]);
          __builtin_prefetch(&X_vals[j_aheadv2 * k_extent + k_last + 16]);
          sum_Sv2_0 += A_vals[pA2v2] * load_float32x8(&X_vals[jv2 * k_extent + k_last + k_done]);
          sum_Sv2_1 += A_vals[pA2v2] * load_float32x8(&X_vals[jv2 * k_extent + k_last + k_done + 8]);
          sum_Sv2_2 += A_vals[pA2v2] * load_float32x8(&X_vals[jv2 * k_extent + k_last + k_done + 16]);
          sum_Sv2_3 += A_vals[pA2v2] * load_float32x8(&X_vals[jv2 * k_extent + k_last + k_done + 24]);
        }
        store_float32x8(&S[kov2 * 128 + k_done], sum_Sv2_0);
        store_float32x8(&S[kov2 * 128 + k_done + 8], sum_Sv2_1);
        store_float32x8(&S[kov2 * 128 + k_done + 16], sum_Sv2_2);
        store_float32x8(&S[kov2 * 128 + k_done + 24], sum_Sv2_3);
        k_done += 32;
      }
      if (k_last + k_done + 16 <= k_extent) {
        const int64_t kov3 = k_last >> 7;
        float32x8 sum_Sv3_0 = float32x8{};
        float32x8 sum_Sv3_1 = float32x8{};
        for (int64_t pA2v3 = A2_pos[i], pA2v3_end = A2_pos[i + 1]; pA2v3 < pA2v3_end; ++pA2v3) {
          const int64_t jv3 = A2_crd[pA2v3];
          sum_Sv3_0 += A_vals[pA2v3] * load_float32x8(&X_vals[jv3 * k_extent + k_last + k_done]);
          sum_Sv3_1 += A_vals[pA2v3] * load_float32x8(&X_vals[jv3 * k_extent + k_last + k_done + 8]);
        }
        store_float32x8(&S[kov3 * 128 + k_done], sum_Sv3_0);
        store_float32x8(&S[kov3 * 128 + k_done + 8], sum_Sv3_1);
        k_done += 16;
      }
      if (k_last + k_done + 8 <= k_extent) {
        const int64_t kov4 = k_last >> 7;
        float32x8 sum_Sv4_0 = float32x8{};
        for (int64_t pA2v4 = A2_pos[i], pA2v4_end = A2_pos[i + 1]; pA2v4 < pA2v4_end; ++pA2v4) {
          const int64_t jv4 = A2_crd[pA2v4];
          sum_Sv4_0 += A_vals[pA2v4] * load_float32x8(&X_vals[jv4 * k_extent + k_last + k_done]);
        }
        store_float32x8(&S[kov4 * 128 + k_done], sum_Sv4_0);
        k_done += 8;
      }
      if (k_last + k_done < k_extent) {
        const int64_t k_left = k_extent - k_last;
        const int64_t kov5 = k_last >> 7;
        float32x8 sum_Sv5_0 = float32x8{};
        for (int64_t pA2v5 = A2_pos[i], pA2v5_end = A2_pos[i + 1]; pA2v5 < pA2v5_end; ++pA2v5) {
          const int64_t jv5 = A2_crd[pA2v5];
          sum_Sv5_0 += A_vals[pA2v5] * load_part_float32x8(&X_vals[jv5 * k_extent + k_last + k_done], k_left - k_done);
        }
        store_float32x8(&S[kov5 * 128 + k_done], sum_Sv5_0);
      }
      float32x8 lanes_w_0 = float32x8{};
      float32x8 lanes_w_1 = float32x8{};
      float32x8 lanes_w_2 = float32x8{};
      float32x8 lanes_w_3 = float32x8{};
      float32x8 lanes_w_4 = float32x8{};
      float32x8 lanes_w_5 = float32x8{};
      float32x8 lanes_w_6 = float32x8{};
      float32x8 lanes_w_7 = float32x8{};
      float32x8 lanes_w_8 = float32x8{};
      float32x8 lanes_w_9 = float32x8{};
      float32x8 lanes_w_10 = float32x8{};
      float32x8 lanes_w_11 = float32x8{};
      float32x8 lanes_w_12 = float32x8{};
      float32x8 lanes_w_13 = float32x8{};
      float32x8 lanes_w_14 = float32x8{};
      float32x8 lanes_w_15 = float32x8{};
      const int64_t k_lastv1 = (k_extent >> 7) * 128;
      for (int64_t k_0v1 = 0; k_0v1 < k_lastv1; k_0v1 += 128) {
        const int64_t kov6 = k_0v1 >> 7;
        lanes_w_0 += load_float32x8(&S[kov6 * 128]);
        lanes_w_1 += load_float32x8(&S[kov6 * 128 + 8]);
        lanes_w_2 += load_float32x8(&S[kov6 * 128 + 16]);
        lanes_w_3 += load_float32x8(&S[kov6 * 128 + 24]);
        lanes_w_4 += load_float32x8(&S[kov6 * 128 + 32]);
        lanes_w_5 += load_float32x8(&S[kov6 * 128 + 40]);
        lanes_w_6 += load_float32x8(&S[kov6 * 128 + 48]);
        lanes_w_7 += load_float32x8(&S[kov6 * 128 + 56]);
        lanes_w_8 += load_float32x8(&S[kov6 * 128 + 64]);
        lanes_w_9 += load_float32x8(&S[kov6 * 128 + 72]);
        lanes_w_10 += load_float32x8(&S[kov6 * 128 + 80]);
        lanes_w_11 += load_float32x8(&S[kov6 * 128 + 88]);
        lanes_w_12 += load_float32x8(&S[kov6 * 128 + 96]);
        lanes_w_13 += load_float32x8(&S[kov6 * 128 + 104]);
        lanes_w_14 += load_float32x8(&S[kov6 * 128 + 112]);
        lanes_w_15 += load_float32x8(&S[kov6 * 128 + 120]);
      }
      int64_t k_donev1 = 0;
      if (k_lastv1 + k_donev1 + 64 <= k_extent) {
        const int64_t kov7 = k_lastv1 >> 7;
        lanes_w_0 += load_float32x8(&S[kov7 * 128 + k_donev1]);
        lanes_w_1 += load_float32x8(&S[kov7 * 128 + k_donev1 + 8]);
        lanes_w_2 += load_float32x8(&S[kov7 * 128 + k_donev1 + 16]);
        lanes_w_3 += load_float32x8(&S[kov7 * 128 + k_donev1 + 24]);
        lanes_w_4 += load_float32x8(&S[kov7 * 128 + k_donev1 + 32]);
        lanes_w_5 += load_float32x8(&S[kov7 * 128 + k_donev1 + 40]);
        lanes_w_6 += load_float32x8(&S[kov7 * 128 + k_donev1 + 48]);
        lanes_w_7 += load_float32x8(&S[kov7 * 128 + k_donev1 + 56]);
        k_donev1 += 64;
      }
      if (k_lastv1 + k_donev1 + 32 <= k_extent) {
        const int64_t kov8 = k_lastv1 >> 7;
        lanes_w_0 += load_float32x8(&S[kov8 * 128 + k_donev1]);
        lanes_w_1 += load_float32x8(&S[kov8 * 128 + k_donev1 + 8]);
        lanes_w_2 += load_float32x8(&S[kov8 * 128 + k_donev1 + 16]);
        lanes_w_3 += load_float32x8(&S[kov8 * 128 + k_donev1 + 24]);
        k_donev1 += 32;
      }
      if (k_lastv1 + k_donev1 + 16 <= k_extent) {
        const int64_t kov9 = k_lastv1 >> 7;
        lanes_w_0 += load_float32x8(&S[kov9 * 128 + k_donev1]);
        lanes_w_1 += load_float32x8(&S[kov9 * 128 + k_donev1 + 8]);
        k_donev1 += 16;
      }
      if (k_lastv1 + k_donev1 + 8 <= k_extent) {
        const int64_t kov10 = k_lastv1 >> 7;
        lanes_w_0 += load_float32x8(&S[kov10 * 128 + k_donev1]);
        k_donev1 += 8;
      }
      if (k_lastv1 + k_donev1 < k_extent) {
        const int64_t k_leftv1 = k_extent - k_lastv1;
        const int64_t kov11 = k_lastv1 >> 7;
        lanes_w_0 = 0 + int32x8{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)(k_leftv1 - k_donev1) ? lanes_w_0 + load_float32x8(&S[kov11 * 128 + k_donev1]) : lanes_w_0;
      }
      w += reduce_add_float32x8(lanes_w_0 + lanes_w_1 + lanes_w_2 + lanes_w_3 + lanes_w_4 + lanes_w_5 + lanes_w_6 + lanes_w_7 + lanes_w_8 + lanes_w_9 + lanes_w_10 + lanes_w_11 + lanes_w_12 + lanes_w_13 + lanes_w_14 + lanes_w_15);
      m = w / 2.0f;
      const int64_t k_lastv2 = (k_extent >> 7) * 128;
      for (int64_t k_0v2 = 0; k_0v2 < k_lastv2; k_0v2 += 128) {
        const int64_t kov12 = k_0v2 >> 7;
        store_float32x8(&Y_vals[i * k_extent + k_0v2], load_float32x8(&S[kov12 * 128]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 8], load_float32x8(&S[kov12 * 128 + 8]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 16], load_float32x8(&S[kov12 * 128 + 16]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 24], load_float32x8(&S[kov12 * 128 + 24]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 32], load_float32x8(&S[kov12 * 128 + 32]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 40], load_float32x8(&S[kov12 * 128 + 40]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 48], load_float32x8(&S[kov12 * 128 + 48]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 56], load_float32x8(&S[kov12 * 128 + 56]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 64], load_float32x8(&S[kov12 * 128 + 64]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 72], load_float32x8(&S[kov12 * 128 + 72]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 80], load_float32x8(&S[kov12 * 128 + 80]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 88], load_float32x8(&S[kov12 * 128 + 88]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 96], load_float32x8(&S[kov12 * 128 + 96]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 104], load_float32x8(&S[kov12 * 128 + 104]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 112], load_float32x8(&S[kov12 * 128 + 112]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_0v2 + 120], load_float32x8(&S[kov12 * 128 + 120]) - m);
      }
      int64_t k_donev2 = 0;
      if (k_lastv2 + k_donev2 + 64 <= k_extent) {
        const int64_t kov13 = k_lastv2 >> 7;
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2], load_float32x8(&S[kov13 * 128 + k_donev2]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 8], load_float32x8(&S[kov13 * 128 + k_donev2 + 8]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 16], load_float32x8(&S[kov13 * 128 + k_donev2 + 16]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 24], load_float32x8(&S[kov13 * 128 + k_donev2 + 24]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 32], load_float32x8(&S[kov13 * 128 + k_donev2 + 32]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 40], load_float32x8(&S[kov13 * 128 + k_donev2 + 40]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 48], load_float32x8(&S[kov13 * 128 + k_donev2 + 48]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 56], load_float32x8(&S[kov13 * 128 + k_donev2 + 56]) - m);
        k_donev2 += 64;
      }
      if (k_lastv2 + k_donev2 + 32 <= k_extent) {
        const int64_t kov14 = k_lastv2 >> 7;
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2], load_float32x8(&S[kov14 * 128 + k_donev2]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 8], load_float32x8(&S[kov14 * 128 + k_donev2 + 8]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 16], load_float32x8(&S[kov14 * 128 + k_donev2 + 16]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 24], load_float32x8(&S[kov14 * 128 + k_donev2 + 24]) - m);
        k_donev2 += 32;
      }
      if (k_lastv2 + k_donev2 + 16 <= k_extent) {
        const int64_t kov15 = k_lastv2 >> 7;
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2], load_float32x8(&S[kov15 * 128 + k_donev2]) - m);
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2 + 8], load_float32x8(&S[kov15 * 128 + k_donev2 + 8]) - m);
        k_donev2 += 16;
      }
      if (k_lastv2 + k_donev2 + 8 <= k_extent) {
        const int64_t kov16 = k_lastv2 >> 7;
        store_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2], load_float32x8(&S[kov16 * 128 + k_donev2]) - m);
        k_donev2 += 8;
      }
      if (k_lastv2 + k_donev2 < k_extent) {
        const int64_t k_leftv2 = k_extent - k_lastv2;
        const int64_t kov17 = k_lastv2 >> 7;
        store_part_float32x8(&Y_vals[i * k_extent + k_lastv2 + k_donev2], load_float32x8(&S[kov17 * 128 + k_donev2]) - m, k_leftv2 - k_donev2);
      }
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t k_extent = sizes[2];
  const int64_t A_nnz = sizes[3];
  const int64_t serial_threshold = sizes[4];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const float *__restrict X_vals = (const float *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  const int64_t work_1 = k_extent * A_nnz + k_extent + i_extent * k_extent + 1;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, &next_1, 1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, X_vals, A_vals, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A2_pos, i_extent, k_extent, A2_crd, A_nnz, X_vals, A_vals, Y_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  return 0;
}
