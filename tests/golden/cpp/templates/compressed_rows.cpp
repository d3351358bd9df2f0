// order i, k
// precompute row_Y = Y at i in thread
// vector k in row_Y
// parallel i static
// parallel forall i: let row_Y[k]: float32 in thread: (vector forall k: row_Y[k] = relu(T[i,k])); forall k: Y[i,k] = row_Y[k]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));
typedef int32_t int32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t int64x4 __attribute__((vector_size(32)));
typedef int64_t int64x4_memory __attribute__((vector_size(32), aligned(8), may_alias));

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

static inline void fill_int64(int64_t *address, int64_t count, int64_t value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) float32x8 relu_float32x8(float32x8 x) {
  return x < float32x8{} ? float32x8{} : x;
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

static __attribute__((noinline, hot)) int64_t count_kept_float32(const float *from, int64_t count, float fill) {
  int64_t total = 0;
  for (int64_t k = 0; k < count; ++k) total += from[k] != fill;
  return total;
}

static __attribute__((noinline, hot)) int64_t compress_int64_float32(
    int64_t *numbers, float *values, int64_t next, int64_t end, const float *from, int64_t first,
    int64_t count, float fill) {
  int64_t k = 0;
  for (; k < count && next < end; ++k) {
    numbers[next] = (int64_t)(first + k);
    values[next] = from[k];
    next += from[k] != fill;
  }
  return next;
}

static inline __attribute__((always_inline)) int64x4 load_int64x4(const int64_t *address) {
  return *(const int64x4_memory *)address;
}

static inline __attribute__((always_inline)) void store_int64x4(int64_t *address, int64x4 value) {
  *(int64x4_memory *)address = value;
}

static __attribute__((noinline, hot)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    const int64_t i_extent,
    const int64_t k_extent,
    const float *__restrict T_vals,
    int64_t *__restrict Y2_pos) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  const int64_t extent = i_extent;
  const int64_t i_beginv1 = split_int64(thread, threads, extent);
  const int64_t i_endv1 = split_int64(thread + 1, threads, extent);
  for (int64_t iv1 = i_beginv1; iv1 < i_endv1; ++iv1) {
    int64_t Y2_nextv1 = 0;
    const int64_t k_restv1 = (k_extent >> 3) * 8;
    for (int64_t kv1 = 0; kv1 < k_restv1; kv1 += 8) {
      store_float32x8(&row_Y[kv1], relu_float32x8(load_float32x8(&T_vals[iv1 * k_extent + kv1])));
    }
    if (k_restv1 < k_extent) {
      const int64_t k_leftv1 = k_extent - k_restv1;
      store_part_float32x8(&row_Y[k_restv1], relu_float32x8(load_part_float32x8(&T_vals[iv1 * k_extent + k_restv1], k_leftv1)), k_leftv1);
    }
    Y2_nextv1 += count_kept_float32(row_Y, k_extent, 0.0f);
    Y2_pos[iv1 + 1] = Y2_nextv1;
  }
  return 0;
}

static __attribute__((noinline, hot)) int64_t region_2(
    int64_t thread,
    int64_t threads,
    const int64_t i_extent,
    const int64_t k_extent,
    int64_t *__restrict Y2_pos,
    const float *__restrict T_vals,
    int64_t *__restrict Y2_crd,
    float *__restrict Y_vals) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  const int64_t extent = i_extent;
  const int64_t i_beginv2 = split_int64(thread, threads, extent);
  const int64_t i_endv2 = split_int64(thread + 1, threads, extent);
  for (int64_t iv2 = i_beginv2; iv2 < i_endv2; ++iv2) {
    int64_t Y2_nextv1v1 = Y2_pos[iv2];
    const int64_t k_restv2 = (k_extent >> 3) * 8;
    for (int64_t kv2 = 0; kv2 < k_restv2; kv2 += 8) {
      store_float32x8(&row_Y[kv2], relu_float32x8(load_float32x8(&T_vals[iv2 * k_extent + kv2])));
    }
    if (k_restv2 < k_extent) {
      const int64_t k_leftv2 = k_extent - k_restv2;
      store_part_float32x8(&row_Y[k_restv2], relu_float32x8(load_part_float32x8(&T_vals[iv2 * k_extent + k_restv2], k_leftv2)), k_leftv2);
    }
    Y2_nextv1v1 = compress_int64_float32(Y2_crd, Y_vals, Y2_nextv1v1, Y2_pos[iv2 + 1], row_Y, 0, k_extent, 0.0f);
  }
  return 0;
}

static __attribute__((noinline, hot)) int64_t region_3(
    int64_t thread,
    int64_t threads,
    const int64_t i_extent,
    const int64_t k_extent,
    const float *__restrict T_vals,
    int64_t *__restrict Y2_crd,
    float *__restrict Y_vals,
    int64_t *__restrict Y_first,
    int64_t *__restrict Y2_pos) {
  const Scratch row_Y_scratch(k_extent * 4);
  float *__restrict row_Y = (float *)row_Y_scratch.memory;
  if (!row_Y) return 1;
  const int64_t extent = i_extent;
  const int64_t i_begin = split_int64(thread, threads, extent);
  const int64_t i_end = split_int64(thread + 1, threads, extent);
  int64_t Y2_next = -1;
  for (int64_t i = i_begin; i < i_end; ++i) {
    if (Y2_next < 0) {
      Y2_next = i * k_extent;
    }
    const int64_t Y_begin = Y2_next;
    const int64_t k_rest = (k_extent >> 3) * 8;
    for (int64_t k = 0; k < k_rest; k += 8) {
      store_float32x8(&row_Y[k], relu_float32x8(load_float32x8(&T_vals[i * k_extent + k])));
    }
    if (k_rest < k_extent) {
      const int64_t k_left = k_extent - k_rest;
      store_part_float32x8(&row_Y[k_rest], relu_float32x8(load_part_float32x8(&T_vals[i * k_extent + k_rest], k_left)), k_left);
    }
    Y2_next = compress_int64_float32(Y2_crd, Y_vals, Y2_next, (i + 1) * k_extent, row_Y, 0, k_extent, 0.0f);
    Y_first[i] = Y_begin;
    Y2_pos[i + 1] = Y2_next - Y_begin;
  }
  return 0;
}

extern "C" __attribute__((visibility("default"), cold))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t k_extent = sizes[1];
  const int64_t serial_threshold = sizes[3];
  const float *__restrict T_vals = (const float *)buffers[0];
  int64_t *__restrict Y2_pos = (int64_t *)buffers[1];
  int64_t *__restrict Y2_crd = (int64_t *)buffers[2];
  float *__restrict Y_vals = (float *)buffers[3];
  if (i_extent * k_extent > 268435456) {
    // count the entries of each row
    Y2_pos = (int64_t *)context->allocate(context->state, 1, (i_extent + 1) * 8);
    if (!Y2_pos && i_extent + 1 > 0) return 1;
    fill_int64(Y2_pos, i_extent + 1, 0);
    const int64_t work_1 = k_extent * i_extent + i_extent * k_extent;
    int64_t status_1 = 0;
    if (work_1 < serial_threshold || context->threads == 1) {
      status_1 = region_1(0, 1, i_extent, k_extent, T_vals, Y2_pos);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      if (region_1(omp_get_thread_num(), omp_get_num_threads(), i_extent, k_extent, T_vals, Y2_pos)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
    }
    if (status_1) return status_1;
    // allocate, then fill
    int64_t Y_totalv1 = 0;
    for (int64_t Y_rowv1 = 0; Y_rowv1 < i_extent; ++Y_rowv1) {
      Y_totalv1 += Y2_pos[Y_rowv1 + 1];
      Y2_pos[Y_rowv1 + 1] = Y_totalv1;
      if (Y_totalv1 > 9223372036854775807) {
        return 2;
      }
    }
    Y2_crd = (int64_t *)context->allocate(context->state, 2, Y_totalv1 * 8);
    if (!Y2_crd && Y_totalv1 > 0) return 1;
    Y_vals = (float *)context->allocate(context->state, 3, Y_totalv1 * 4);
    if (!Y_vals && Y_totalv1 > 0) return 1;
    const int64_t work_2 = k_extent * i_extent + i_extent * k_extent;
    int64_t status_2 = 0;
    if (work_2 < serial_threshold || context->threads == 1) {
      status_2 = region_2(0, 1, i_extent, k_extent, Y2_pos, T_vals, Y2_crd, Y_vals);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      if (region_2(omp_get_thread_num(), omp_get_num_threads(), i_extent, k_extent, Y2_pos, T_vals, Y2_crd, Y_vals)) __atomic_store_n(&status_2, 1, __ATOMIC_RELAXED);
    }
    if (status_2) return status_2;
  } else {
    Y2_pos = (int64_t *)context->allocate(context->state, 1, (i_extent + 1) * 8);
    if (!Y2_pos && i_extent + 1 > 0) return 1;
    fill_int64(Y2_pos, i_extent + 1, 0);
    Y2_crd = (int64_t *)context->allocate(context->state, 2, (i_extent * k_extent) * 8);
    if (!Y2_crd && i_extent * k_extent > 0) return 1;
    Y_vals = (float *)context->allocate(context->state, 3, (i_extent * k_extent) * 4);
    if (!Y_vals && i_extent * k_extent > 0) return 1;
    const Scratch Y_first_scratch(i_extent * 8);
    int64_t *__restrict Y_first = (int64_t *)Y_first_scratch.memory;
    if (!Y_first) return 1;
    fill_int64(Y_first, i_extent, 0);
    const int64_t work_3 = k_extent * i_extent + i_extent * k_extent;
    int64_t status_3 = 0;
    if (work_3 < serial_threshold || context->threads == 1) {
      status_3 = region_3(0, 1, i_extent, k_extent, T_vals, Y2_crd, Y_vals, Y_first, Y2_pos);
    } else {
#pragma omp parallel num_threads((int)context->threads)
      if (region_3(omp_get_thread_num(), omp_get_num_threads(), i_extent, k_extent, T_vals, Y2_crd, Y_vals, Y_first, Y2_pos)) __atomic_store_n(&status_3, 1, __ATOMIC_RELAXED);
    }
    if (status_3) return status_3;
    // close the gaps between rows of Y
    int64_t Y_from = 0;
    int64_t Y_to = 0;
    int64_t Y_run = 0;
    int64_t Y_total = 0;
    for (int64_t Y_row = 0; Y_row < i_extent; ++Y_row) {
      const int64_t Y_count = Y2_pos[Y_row + 1];
      const int64_t Y_found = Y_first[Y_row];
      if (Y_count > 0 && Y_found != Y_from + Y_run) {
        if (Y_to < Y_from) {
          const int64_t Y2_crd_last = (Y_run >> 2) * 4;
          for (int64_t pY2_crd = 0; pY2_crd < Y2_crd_last; pY2_crd += 4) {
            store_int64x4(&Y2_crd[Y_to + pY2_crd], load_int64x4(&Y2_crd[Y_from + pY2_crd]));
          }
          for (int64_t pY2_crd = Y2_crd_last, pY2_crd_end = Y_run; pY2_crd < pY2_crd_end; ++pY2_crd) {
            Y2_crd[Y_to + pY2_crd] = Y2_crd[Y_from + pY2_crd];
          }
          const int64_t Y_vals_last = (Y_run >> 3) * 8;
          for (int64_t pY_vals = 0; pY_vals < Y_vals_last; pY_vals += 8) {
            store_float32x8(&Y_vals[Y_to + pY_vals], load_float32x8(&Y_vals[Y_from + pY_vals]));
          }
          for (int64_t pY_vals = Y_vals_last, pY_vals_end = Y_run; pY_vals < pY_vals_end; ++pY_vals) {
            Y_vals[Y_to + pY_vals] = Y_vals[Y_from + pY_vals];
          }
        }
        Y_from = Y_found;
        Y_to = Y_total;
        Y_run = 0;
      }
      Y_run += Y_count;
      Y_total += Y_count;
      Y2_pos[Y_row + 1] = Y_total;
      if (Y_total > 9223372036854775807) {
        return 2;
      }
    }
    if (Y_to < Y_from) {
      const int64_t Y2_crd_lastv1 = (Y_run >> 2) * 4;
      for (int64_t pY2_crdv1 = 0; pY2_crdv1 < Y2_crd_lastv1; pY2_crdv1 += 4) {
        store_int64x4(&Y2_crd[Y_to + pY2_crdv1], load_int64x4(&Y2_crd[Y_from + pY2_crdv1]));
      }
      for (int64_t pY2_crdv1 = Y2_crd_lastv1, pY2_crdv1_end = Y_run; pY2_crdv1 < pY2_crdv1_end; ++pY2_crdv1) {
        Y2_crd[Y_to + pY2_crdv1] = Y2_crd[Y_from + pY2_crdv1];
      }
      const int64_t Y_vals_lastv1 = (Y_run >> 3) * 8;
      for (int64_t pY_valsv1 = 0; pY_valsv1 < Y_vals_lastv1; pY_valsv1 += 8) {
        store_float32x8(&Y_vals[Y_to + pY_valsv1], load_float32x8(&Y_vals[Y_from + pY_valsv1]));
      }
      for (int64_t pY_valsv1 = Y_vals_lastv1, pY_valsv1_end = Y_run; pY_valsv1 < pY_valsv1_end; ++pY_valsv1) {
        Y_vals[Y_to + pY_valsv1] = Y_vals[Y_from + pY_valsv1];
      }
    }
  }
  return 0;
}
