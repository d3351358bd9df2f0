// precompute m at i in thread
// precompute P at i in thread
// parallel i static
// parallel forall i: let P[j]: float32 in thread pattern of A[i,j]: (let m: float32 in thread: (forall j: m max= A[i,j]); forall j: P[j] = where(stored(A[i,j]), exp(A[i,j] - m), 0)); forall j: y[i] += P[j] * x[j]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

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

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) float max_float32(float x, float y) {
  return (x > y) | (x != x) ? x : y;
}

static inline __attribute__((always_inline)) float at_least_float32(float bound, float x) {
  return x < bound ? bound : x;
}

static inline __attribute__((always_inline)) float at_most_float32(float bound, float x) {
  return x > bound ? bound : x;
}

static inline __attribute__((always_inline)) float exp_float32(float x) {
  const float above = at_least_float32(-105.0f, x);
  const float bounded = at_most_float32(89.0f, above);
  const float shifted = bounded * 1.4426950408889634f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693145751953125f) - n * 1.428606765330187e-06f;
  float p = 0.0013926203361634337f;
  p = p * r + 0.008363194882419041f;
  p = p * r + 0.0416665544984137f;
  p = p * r + 0.166665768946066f;
  p = p * r + 0.5f;
  const float e = (r * r * p + r) + 1.0f;
  const int32_t zero = __builtin_bit_cast(int32_t, (12582912.0f));
  const int32_t half = __builtin_bit_cast(int32_t, (n * 0.5f + 12582912.0f)) - zero;
  const int32_t rest = __builtin_bit_cast(int32_t, shifted) - zero - half;
  const float first = __builtin_bit_cast(float, (half + 127) << 23);
  const float second = __builtin_bit_cast(float, (rest + 127) << 23);
  return e * first * second;
}

static __attribute__((noinline)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    const int64_t i_extent,
    const int64_t A2_longest,
    const int32_t *__restrict A2_pos,
    const int64_t j_extent,
    const int32_t *__restrict A2_crd,
    const float *__restrict A_vals,
    float *__restrict y_vals,
    const float *__restrict x_vals) {
  const Scratch P_scratch((A2_longest + 7) * 4);
  float *__restrict P = (float *)P_scratch.memory;
  if (!P) return 1;
  alignas(64) float m[1];
  const int64_t extent = i_extent;
  const int64_t i_begin = split_int64(thread, threads, extent);
  const int64_t i_end = split_int64(thread + 1, threads, extent);
  for (int64_t i = i_begin; i < i_end; ++i) {
    fill_float32(m, 1, -__builtin_inff());
    int64_t pA2 = A2_pos[i];
    const int64_t pA2_end = A2_pos[i + 1];
    for (int64_t j = 0; j < j_extent; ++j) {
      const bool has_A = pA2 < pA2_end && (int64_t)A2_crd[pA2] == j;
      if (has_A) {
        m[0] = max_float32(m[0], A_vals[pA2]);
      } else {
        m[0] = max_float32(m[0], 0.0f);
      }
      if (has_A) {
        pA2 += 1;
      }
    }
    for (int64_t pA2v1 = A2_pos[i], pA2v1_end = A2_pos[i + 1]; pA2v1 < pA2v1_end; ++pA2v1) {
      P[pA2v1 - (int64_t)A2_pos[i]] = exp_float32(A_vals[pA2v1] - m[0]);
    }
    for (int64_t pA2v2 = A2_pos[i], pA2v2_end = A2_pos[i + 1]; pA2v2 < pA2v2_end; ++pA2v2) {
      const int64_t jv2 = A2_crd[pA2v2];
      y_vals[i] = y_vals[i] + P[pA2v2 - (int64_t)A2_pos[i]] * x_vals[jv2];
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t j_extent = sizes[1];
  const int64_t A_nnz = sizes[2];
  const int64_t serial_threshold = sizes[3];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const float *__restrict x_vals = (const float *)buffers[3];
  float *__restrict y_vals = (float *)buffers[4];
  fill_float32(y_vals, i_extent, 0.0f);
  int64_t A2_longest_found = 0;
  for (int64_t A2_segment = 0; A2_segment < i_extent; ++A2_segment) {
    A2_longest_found = max_int64(A2_longest_found, (int64_t)A2_pos[A2_segment + 1] - (int64_t)A2_pos[A2_segment]);
  }
  const int64_t A2_longest = A2_longest_found;
  const int64_t work_1 = A_nnz + A_nnz;
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, i_extent, A2_longest, A2_pos, j_extent, A2_crd, A_vals, y_vals, x_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), i_extent, A2_longest, A2_pos, j_extent, A2_crd, A_vals, y_vals, x_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  return 0;
}
