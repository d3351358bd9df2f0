// pos j p A
// split p po pi 4
// order i, po, pi
// precompute sum_y = y at i in register
// precompute sums = sum_y over pi in register
// vector pi
// parallel i dynamic A
// parallel forall i dynamic by positions of A: let sum_y: float32 in register: (let sums[pi]: float32 in register: (forall po: vector forall pi: sums[pi] += A[i,j] * x[j]); vector forall pi: sum_y += sums[pi]); y[i] = sum_y
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x4 __attribute__((vector_size(16)));
typedef float float32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t int32x4 __attribute__((vector_size(16)));
typedef int32_t int32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef int64_t int64x4 __attribute__((vector_size(32)));
typedef int64_t int64x4_memory __attribute__((vector_size(32), aligned(8), may_alias));

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

typedef float native_float32x4 __attribute__((vector_size(16), aligned(4), may_alias));

typedef int native_int32x4 __attribute__((vector_size(16), aligned(4), may_alias));

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

static inline __attribute__((always_inline)) int32x4 load_int32x4(const int32_t *address) {
  return *(const int32x4_memory *)address;
}

static inline __attribute__((always_inline)) float32x4 load_float32x4(const float *address) {
  return *(const float32x4_memory *)address;
}

template <class Indices>
static inline __attribute__((always_inline)) float32x4 gather_float32x4(const float *address, Indices indices) {
  return float32x4{address[indices[0]], address[indices[1]], address[indices[2]], address[indices[3]]};
}

static inline __attribute__((always_inline)) int32x4 below_int32x4(int64_t count) {
  return int32x4{0, 1, 2, 3} < (int32_t)(count < 4 ? count : 4);
}

static inline __attribute__((always_inline)) int32x4 load_part_int32x4(const int32_t *address, int64_t count) {
#if defined(__AVX512VL__)
  const unsigned char mask = (unsigned char)((1u << (count < 4 ? count : 4)) - 1);
  return (int32x4)__builtin_ia32_loaddqusi128_mask((SPARSIFY_MASKED(const native_int32x4, const int) *)address, (native_int32x4)int32x4{}, mask);
#elif defined(__AVX2__)
  return (int32x4)__builtin_ia32_maskloadd((const native_int32x4 *)address, (native_int32x4)below_int32x4(count));
#else
  int32x4 value{};
  for (int lane = 0; lane < 4; ++lane)
    if (lane < count) value[lane] = address[lane];
  return value;
#endif
}

static inline __attribute__((always_inline)) float32x4 load_part_float32x4(const float *address, int64_t count) {
#if defined(__AVX512VL__)
  const unsigned char mask = (unsigned char)((1u << (count < 4 ? count : 4)) - 1);
  return (float32x4)__builtin_ia32_loadups128_mask((SPARSIFY_MASKED(const native_float32x4, const float) *)address, (native_float32x4)float32x4{}, mask);
#elif defined(__AVX2__)
  return (float32x4)__builtin_ia32_maskloadps((const native_float32x4 *)address, (native_int32x4)below_int32x4(count));
#else
  float32x4 value{};
  for (int lane = 0; lane < 4; ++lane)
    if (lane < count) value[lane] = address[lane];
  return value;
#endif
}

static inline __attribute__((always_inline)) float32x4 keep_float32x4(float32x4 value, int64_t count, float32x4 rest) {
  return below_int32x4(count) ? value : rest;
}

template <class Index>
static inline __attribute__((always_inline)) float32x4 gather_part_from_float32x4(
    const float *address, const Index *indices, int64_t count) {
#if defined(__AVX512VL__)
  if (sizeof(Index) == 4) {
    const unsigned char mask = (unsigned char)((1u << (count < 4 ? count : 4)) - 1);
    return (float32x4)__builtin_ia32_gather3siv4sf((native_float32x4)float32x4{}, address, (native_int32x4)load_part_int32x4((const int32_t *)indices, count), mask, 4);
  }
#endif
  if (count <= 0) return float32x4{};
  return keep_float32x4(float32x4{address[indices[0]], address[indices[1 < count ? 1 : 0]], address[indices[2 < count ? 2 : 0]], address[indices[3 < count ? 3 : 0]]}, count, float32x4{});
}

static inline __attribute__((always_inline)) float reduce_add_float32x4(float32x4 value) {
  value = value + __builtin_shufflevector(value, value, 2, 3, 0, 1);
  value = value + __builtin_shufflevector(value, value, 1, 2, 3, 0);
  return value[0];
}

static __attribute__((noinline)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict A2_pos,
    const int64_t i_extent,
    const int32_t *__restrict A2_crd,
    const float *__restrict A_vals,
    const float *__restrict x_vals,
    float *__restrict y_vals) {
  const int64_t extent = i_extent;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t i_begin = split_positions_int32(chunk, chunks, extent, A2_pos, 4);
    const int64_t i_end = split_positions_int32(chunk + 1, chunks, extent, A2_pos, 4);
    for (int64_t i = i_begin; i < i_end; ++i) {
      float sum_y = 0.0f;
      float32x4 sums_0 = float32x4{};
      const int64_t p_last = (int64_t)A2_pos[i] + ((int64_t)A2_pos[i + 1] - (int64_t)A2_pos[i] >> 2) * 4;
      for (int64_t p_0 = A2_pos[i]; p_0 < p_last; p_0 += 4) {
        sums_0 += load_float32x4(&A_vals[p_0]) * gather_float32x4(x_vals, &A2_crd[p_0]);
      }
      if (p_last < (int64_t)A2_pos[i + 1]) {
        const int64_t p_left = (int64_t)A2_pos[i + 1] - p_last;
        sums_0 += load_part_float32x4(&A_vals[p_last], p_left) * gather_part_from_float32x4(x_vals, &A2_crd[p_last], p_left);
      }
      sum_y += reduce_add_float32x4(sums_0);
      y_vals[i] = sum_y;
    }
  }
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
  const int64_t work_1 = A_nnz + j_extent + i_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  if (work_1 < serial_threshold || context->threads == 1) {
    region_1(0, 1, &next_1, 1, A2_pos, i_extent, A2_crd, A_vals, x_vals, y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A2_pos, i_extent, A2_crd, A_vals, x_vals, y_vals);
  }
  return 0;
}
