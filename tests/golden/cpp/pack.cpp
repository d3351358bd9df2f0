// P[k,j] = X[j,k]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x4 __attribute__((vector_size(16)));
typedef float float32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

static inline __attribute__((always_inline)) float32x4 load_float32x4(const float *address) {
  return *(const float32x4_memory *)address;
}

static inline __attribute__((always_inline)) void transpose_float32x4(float32x4 &row_0, float32x4 &row_1, float32x4 &row_2, float32x4 &row_3) {
  const float32x4 step_1_0 = __builtin_shufflevector(row_0, row_1, 0, 4, 2, 6);
  const float32x4 step_1_1 = __builtin_shufflevector(row_0, row_1, 1, 5, 3, 7);
  const float32x4 step_1_2 = __builtin_shufflevector(row_2, row_3, 0, 4, 2, 6);
  const float32x4 step_1_3 = __builtin_shufflevector(row_2, row_3, 1, 5, 3, 7);
  const float32x4 last_0 = step_1_0, last_1 = step_1_1, last_2 = step_1_2, last_3 = step_1_3;
  row_0 = __builtin_shufflevector(last_0, last_2, 0, 1, 4, 5);
  row_2 = __builtin_shufflevector(last_0, last_2, 2, 3, 6, 7);
  row_1 = __builtin_shufflevector(last_1, last_3, 0, 1, 4, 5);
  row_3 = __builtin_shufflevector(last_1, last_3, 2, 3, 6, 7);
}

static inline __attribute__((always_inline)) void store_float32x4(float *address, float32x4 value) {
  *(float32x4_memory *)address = value;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t j_extent = sizes[0];
  const int64_t k_extent = sizes[1];
  const float *__restrict X = (const float *)buffers[0];
  float *__restrict P = (float *)buffers[1];
  for (int64_t j = 0; j < j_extent; j += 4) {
    for (int64_t k = 0; k < k_extent; k += 4) {
      float32x4 x_0 = load_float32x4(&X[j * k_extent + k]);
      float32x4 x_1 = load_float32x4(&X[(j + 1) * k_extent + k]);
      float32x4 x_2 = load_float32x4(&X[(j + 2) * k_extent + k]);
      float32x4 x_3 = load_float32x4(&X[(j + 3) * k_extent + k]);
      transpose_float32x4(x_0, x_1, x_2, x_3);
      store_float32x4(&P[k * j_extent + j], x_0);
      store_float32x4(&P[(k + 1) * j_extent + j], x_1);
      store_float32x4(&P[(k + 2) * j_extent + j], x_2);
      store_float32x4(&P[(k + 3) * j_extent + j], x_3);
    }
  }
  return 0;
}
