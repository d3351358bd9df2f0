// split i ib im 96
// split im io ii 6 tail 1
// split k ko ki 16 masked
// order ib, ko, io, j, ii, ki
// precompute sums = C at io in register
// pack panels_W = W[ko, j, ki] at root in memory
// vector ki
// unroll ii
// parallel ib dynamic chunks 4
// let panels_W[ko,j,ki]: float32 in memory: (forall ko: forall j: vector forall ki: panels_W[ko,j,ki] = W[j,k]); parallel forall ib dynamic chunks 4: forall ko: forall io: let sums[ii,ki]: float32 in register: (forall j: unrolled forall ii: vector forall ki: sums[ii,ki] += A[i,j] * panels_W[ko,j,ki]); unrolled forall ii: vector forall ki: C[i,k] = sums[ii,ki]
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

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
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

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
}

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static inline __attribute__((always_inline)) int64_t floordiv_int64(int64_t x, int64_t y) {
  const int64_t quotient = x / y;
  return quotient - (quotient * y != x && (x ^ y) < 0);
}

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
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

static __attribute__((noinline, hot)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t i_extent,
    const int64_t k_extent,
    const int64_t j_extent,
    float *__restrict panels_W,
    const float *__restrict A_vals,
    float *__restrict C_vals) {
  const int64_t extent = floordiv_int64(i_extent + 95, 96);
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t ib_begin = split_int64(chunk, chunks, extent);
    const int64_t ib_end = split_int64(chunk + 1, chunks, extent);
    for (int64_t i_0 = ib_begin * 96, i_0_end = min_int64(ib_end * 96, i_extent); i_0 < i_0_end; i_0 += 96) {
      for (int64_t k_0v1 = 0; k_0v1 < k_extent; k_0v1 += 16) {
        const int64_t ki_countv1 = min_int64(16, k_extent - k_0v1);
        const int64_t kov1 = k_0v1 >> 4;
        const int64_t im_last = floordiv_int64(min_int64(96, min_int64(ib_end * 96, i_extent) - i_0), 6) * 6;
        for (int64_t im_0 = 0; im_0 < im_last; im_0 += 6) {
          float32x8 sums_0_0 = float32x8{};
          float32x8 sums_0_1 = float32x8{};
          float32x8 sums_1_0 = float32x8{};
          float32x8 sums_1_1 = float32x8{};
          float32x8 sums_2_0 = float32x8{};
          float32x8 sums_2_1 = float32x8{};
          float32x8 sums_3_0 = float32x8{};
          float32x8 sums_3_1 = float32x8{};
          float32x8 sums_4_0 = float32x8{};
          float32x8 sums_4_1 = float32x8{};
          float32x8 sums_5_0 = float32x8{};
          float32x8 sums_5_1 = float32x8{};
          for (int64_t jv1 = 0; jv1 < j_extent; ++jv1) {
            const float32x8 panels_W_held = held_float32x8(load_float32x8(&panels_W[(kov1 * j_extent + jv1) * 16]));
            const float32x8 panels_W_heldv1 = held_float32x8(load_float32x8(&panels_W[(kov1 * j_extent + jv1) * 16 + 8]));
            sums_0_0 += A_vals[(i_0 + im_0) * j_extent + jv1] * panels_W_held;
            sums_0_1 += A_vals[(i_0 + im_0) * j_extent + jv1] * panels_W_heldv1;
            sums_1_0 += A_vals[(i_0 + im_0 + 1) * j_extent + jv1] * panels_W_held;
            sums_1_1 += A_vals[(i_0 + im_0 + 1) * j_extent + jv1] * panels_W_heldv1;
            sums_2_0 += A_vals[(i_0 + im_0 + 2) * j_extent + jv1] * panels_W_held;
            sums_2_1 += A_vals[(i_0 + im_0 + 2) * j_extent + jv1] * panels_W_heldv1;
            sums_3_0 += A_vals[(i_0 + im_0 + 3) * j_extent + jv1] * panels_W_held;
            sums_3_1 += A_vals[(i_0 + im_0 + 3) * j_extent + jv1] * panels_W_heldv1;
            sums_4_0 += A_vals[(i_0 + im_0 + 4) * j_extent + jv1] * panels_W_held;
            sums_4_1 += A_vals[(i_0 + im_0 + 4) * j_extent + jv1] * panels_W_heldv1;
            sums_5_0 += A_vals[(i_0 + im_0 + 5) * j_extent + jv1] * panels_W_held;
            sums_5_1 += A_vals[(i_0 + im_0 + 5) * j_extent + jv1] * panels_W_heldv1;
          }
          store_part_float32x8(&C_vals[(i_0 + im_0) * k_extent + k_0v1], sums_0_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_0) * k_extent + k_0v1 + 8], sums_0_1, max_int64(ki_countv1 - 8, 0));
          store_part_float32x8(&C_vals[(i_0 + im_0 + 1) * k_extent + k_0v1], sums_1_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_0 + 1) * k_extent + k_0v1 + 8], sums_1_1, max_int64(ki_countv1 - 8, 0));
          store_part_float32x8(&C_vals[(i_0 + im_0 + 2) * k_extent + k_0v1], sums_2_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_0 + 2) * k_extent + k_0v1 + 8], sums_2_1, max_int64(ki_countv1 - 8, 0));
          store_part_float32x8(&C_vals[(i_0 + im_0 + 3) * k_extent + k_0v1], sums_3_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_0 + 3) * k_extent + k_0v1 + 8], sums_3_1, max_int64(ki_countv1 - 8, 0));
          store_part_float32x8(&C_vals[(i_0 + im_0 + 4) * k_extent + k_0v1], sums_4_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_0 + 4) * k_extent + k_0v1 + 8], sums_4_1, max_int64(ki_countv1 - 8, 0));
          store_part_float32x8(&C_vals[(i_0 + im_0 + 5) * k_extent + k_0v1], sums_5_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_0 + 5) * k_extent + k_0v1 + 8], sums_5_1, max_int64(ki_countv1 - 8, 0));
        }
        int64_t im_done = 0;
        while (im_last + im_done + 1 <= min_int64(96, min_int64(ib_end * 96, i_extent) - i_0)) {
          float32x8 sumsv1_0_0 = float32x8{};
          float32x8 sumsv1_0_1 = float32x8{};
          for (int64_t jv2 = 0; jv2 < j_extent; ++jv2) {
            sumsv1_0_0 += A_vals[(i_0 + im_last + im_done) * j_extent + jv2] * load_float32x8(&panels_W[(kov1 * j_extent + jv2) * 16]);
            sumsv1_0_1 += A_vals[(i_0 + im_last + im_done) * j_extent + jv2] * load_float32x8(&panels_W[(kov1 * j_extent + jv2) * 16 + 8]);
          }
          store_part_float32x8(&C_vals[(i_0 + im_last + im_done) * k_extent + k_0v1], sumsv1_0_0, ki_countv1);
          store_part_float32x8(&C_vals[(i_0 + im_last + im_done) * k_extent + k_0v1 + 8], sumsv1_0_1, max_int64(ki_countv1 - 8, 0));
          im_done += 1;
        }
      }
    }
  }
}

extern "C" __attribute__((visibility("default"), cold))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t j_extent = sizes[1];
  const int64_t k_extent = sizes[2];
  const int64_t serial_threshold = sizes[3];
  const float *__restrict A_vals = (const float *)buffers[0];
  const float *__restrict W_vals = (const float *)buffers[1];
  float *__restrict C_vals = (float *)buffers[2];
  const Scratch panels_W_scratch(((k_extent + 15 >> 4) * j_extent * 16) * 4);
  float *__restrict panels_W = (float *)panels_W_scratch.memory;
  if (!panels_W) return 1;
  for (int64_t k_0 = 0; k_0 < k_extent; k_0 += 16) {
    const int64_t ki_count = min_int64(16, k_extent - k_0);
    const int64_t ko = k_0 >> 4;
    for (int64_t j = 0; j < j_extent; ++j) {
      store_float32x8(&panels_W[(ko * j_extent + j) * 16], load_part_float32x8(&W_vals[j * k_extent + k_0], ki_count));
      store_float32x8(&panels_W[(ko * j_extent + j) * 16 + 8], load_part_float32x8(&W_vals[j * k_extent + k_0 + 8], max_int64(ki_count - 8, 0)));
    }
  }
  const int64_t work_1 = i_extent * k_extent * j_extent + i_extent * k_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 4);
  if (work_1 < serial_threshold || context->threads == 1) {
    region_1(0, 1, &next_1, 1, i_extent, k_extent, j_extent, panels_W, A_vals, C_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, i_extent, k_extent, j_extent, panels_W, A_vals, C_vals);
  }
  return 0;
}
