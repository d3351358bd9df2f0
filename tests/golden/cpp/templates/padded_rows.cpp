// split k ko ki 8
// order ko, j, i, ki
// precompute sum_Y = Y at ko in memory
// vector ki
// parallel ko static
// parallel forall ko: let sum_Y[i,ki]: float32 in memory: (forall j: forall i: vector forall ki: sum_Y[i,ki] += A[i,j] * B[j,k]); forall i: vector forall ki: Y[i,k] = sum_Y[i,ki]
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

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
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
    const int64_t k_extent,
    const int64_t i_extent,
    const int64_t j_extent,
    const int32_t *__restrict A2_pos,
    const int32_t *__restrict A2_crd,
    const float *__restrict A_vals,
    const float *__restrict B_vals,
    float *__restrict Y_vals) {
  const Scratch sum_Y_scratch((i_extent * 8) * 4);
  float *__restrict sum_Y = (float *)sum_Y_scratch.memory;
  if (!sum_Y) return 1;
  const int64_t extent = k_extent + 7 >> 3;
  const int64_t ko_begin = split_int64(thread, threads, extent);
  const int64_t ko_end = split_int64(thread + 1, threads, extent);
  const int64_t k_last = ko_begin * 8 + (max_int64(min_int64(ko_end * 8, k_extent) - ko_begin * 8, 0) >> 3) * 8;
  for (int64_t k_0 = ko_begin * 8; k_0 < k_last; k_0 += 8) {
    fill_float32(sum_Y, i_extent * 8, 0.0f);
    for (int64_t j = 0; j < j_extent; ++j) {
      for (int64_t pA2 = A2_pos[j], pA2_end = A2_pos[j + 1]; pA2 < pA2_end; ++pA2) {
        const int64_t i = A2_crd[pA2];
        store_float32x8(&sum_Y[i * 8], load_float32x8(&sum_Y[i * 8]) + A_vals[pA2] * load_float32x8(&B_vals[j * k_extent + k_0]));
      }
    }
    for (int64_t iv1 = 0; iv1 < i_extent; ++iv1) {
      store_float32x8(&Y_vals[iv1 * k_extent + k_0], load_float32x8(&sum_Y[iv1 * 8]));
    }
  }
  if (k_last < min_int64(ko_end * 8, k_extent)) {
    const int64_t k_left = min_int64(ko_end * 8, k_extent) - k_last;
    fill_float32(sum_Y, i_extent * 8, 0.0f);
    for (int64_t jv1 = 0; jv1 < j_extent; ++jv1) {
      for (int64_t pA2v1 = A2_pos[jv1], pA2v1_end = A2_pos[jv1 + 1]; pA2v1 < pA2v1_end; ++pA2v1) {
        const int64_t iv2 = A2_crd[pA2v1];
        store_float32x8(&sum_Y[iv2 * 8], load_float32x8(&sum_Y[iv2 * 8]) + A_vals[pA2v1] * load_part_float32x8(&B_vals[jv1 * k_extent + k_last], k_left));
      }
    }
    for (int64_t iv3 = 0; iv3 < i_extent; ++iv3) {
      store_part_float32x8(&Y_vals[iv3 * k_extent + k_last], load_float32x8(&sum_Y[iv3 * 8]), k_left);
    }
  }
  return 0;
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
  const float *__restrict B_vals = (const float *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  const int64_t work_1 = k_extent * A_nnz + i_extent * k_extent;
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, k_extent, i_extent, j_extent, A2_pos, A2_crd, A_vals, B_vals, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), k_extent, i_extent, j_extent, A2_pos, A2_crd, A_vals, B_vals, Y_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  return 0;
}
