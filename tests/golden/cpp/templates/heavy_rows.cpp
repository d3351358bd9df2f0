// order i, j
// precompute w = y at i in register
// parallel i dynamic A hubs 131072
// parallel forall i dynamic by positions of A hubs 131072: let w: float32 in register: (forall j: w += A[i,j] * x[j]); y[i] = w
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

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
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

static __attribute__((noinline)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t A_parts,
    const int64_t A_first,
    const int64_t A_last,
    const int32_t *__restrict A2_crd,
    const float *__restrict A_vals,
    const float *__restrict x_vals,
    float *__restrict w_parts) {
  const int64_t extent = A_parts;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t part_begin = split_int64(chunk, chunks, extent);
    const int64_t part_end = split_int64(chunk + 1, chunks, extent);
    for (int64_t part = part_begin; part < part_end; ++part) {
      const int64_t part_first = A_first + part * 4096;
      const int64_t part_last = min_int64(part_first + 4096, A_last);
      float wv2 = 0.0f;
      for (int64_t pA2v1 = part_first; pA2v1 < part_last; ++pA2v1) {
        const int64_t jv1 = A2_crd[pA2v1];
        wv2 += A_vals[pA2v1] * x_vals[jv1];
      }
      w_parts[part] = wv2;
    }
  }
}

static __attribute__((noinline)) void region_2(
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
      if ((int64_t)A2_pos[i + 1] - (int64_t)A2_pos[i] <= 131072) {
        float w = 0.0f;
        for (int64_t pA2 = A2_pos[i], pA2_end = A2_pos[i + 1]; pA2 < pA2_end; ++pA2) {
          const int64_t j = A2_crd[pA2];
          w += A_vals[pA2] * x_vals[j];
        }
        y_vals[i] = w;
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t A_nnz = sizes[2];
  const int64_t serial_threshold = sizes[3];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const float *__restrict x_vals = (const float *)buffers[3];
  float *__restrict y_vals = (float *)buffers[4];
  for (int64_t i_block = 0; i_block < i_extent; i_block += 64) {
    const int64_t i_next = min_int64(i_block + 64, i_extent);
    if ((int64_t)A2_pos[i_next] - (int64_t)A2_pos[i_block] > 131072) {
      for (int64_t iv1 = i_block; iv1 < i_next; ++iv1) {
        if ((int64_t)A2_pos[iv1 + 1] - (int64_t)A2_pos[iv1] > 131072) {
          float wv1 = 0.0f;
          const int64_t A_first = A2_pos[iv1];
          const int64_t A_last = A2_pos[iv1 + 1];
          const int64_t A_parts = A_last - A_first + 4095 >> 12;
          const Scratch w_parts_scratch(A_parts * 4);
          float *__restrict w_parts = (float *)w_parts_scratch.memory;
          if (!w_parts) return 1;
          const int64_t work_1 = A_last - A_first;
          int64_t next_1 = 0;
          const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
          if (work_1 < serial_threshold || context->threads == 1) {
            region_1(0, 1, &next_1, 1, A_parts, A_first, A_last, A2_crd, A_vals, x_vals, w_parts);
          } else {
#pragma omp parallel num_threads((int)context->threads)
            region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, A_parts, A_first, A_last, A2_crd, A_vals, x_vals, w_parts);
          }
          for (int64_t partv1 = 0; partv1 < A_parts; ++partv1) {
            wv1 += w_parts[partv1];
          }
          y_vals[iv1] = wv1;
        }
      }
    }
  }
  const int64_t work_2 = A_nnz + i_extent;
  int64_t next_2 = 0;
  const int64_t chunks_2 = context->threads * (work_2 < 64 * serial_threshold ? 4 : 32);
  if (work_2 < serial_threshold || context->threads == 1) {
    region_2(0, 1, &next_2, 1, A2_pos, i_extent, A2_crd, A_vals, x_vals, y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_2(omp_get_thread_num(), omp_get_num_threads(), &next_2, chunks_2, A2_pos, i_extent, A2_crd, A_vals, x_vals, y_vals);
  }
  return 0;
}
