// order k, i
// vector i
// forall k: vector forall i: Y[i,k] = 2 * X[i,k]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t int64x8 __attribute__((vector_size(64)));
typedef int64_t int64x8_memory __attribute__((vector_size(64), aligned(8), may_alias));

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

static inline __attribute__((always_inline)) float32x8 broadcast_float32x8(float value) {
  return value - float32x8{};
}

template <class Indices>
static inline __attribute__((always_inline)) float32x8 gather_float32x8(const float *address, Indices indices) {
  return float32x8{address[indices[0]], address[indices[1]], address[indices[2]], address[indices[3]], address[indices[4]], address[indices[5]], address[indices[6]], address[indices[7]]};
}

template <class Indices>
static inline __attribute__((always_inline)) void scatter_float32x8(float *address, Indices indices, float32x8 value) {
  for (int lane = 0; lane < 8; ++lane) address[indices[lane]] = value[lane];
}

template <class Indices>
static inline __attribute__((always_inline)) float32x8 gather_part_float32x8(const float *address, Indices indices, int64_t count) {
  float32x8 value{};
  for (int lane = 0; lane < 8; ++lane)
    if (lane < count) value[lane] = address[indices[lane]];
  return value;
}

template <class Indices>
static inline __attribute__((always_inline)) void scatter_part_float32x8(float *address, Indices indices, float32x8 value, int64_t count) {
  for (int lane = 0; lane < 8; ++lane)
    if (lane < count) address[indices[lane]] = value[lane];
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int64_t k_extent = sizes[1];
  const float *__restrict X_vals = (const float *)buffers[0];
  float *__restrict Y_vals = (float *)buffers[1];
  for (int64_t k = 0; k < k_extent; ++k) {
    const int64_t i_rest = (i_extent >> 3) * 8;
    for (int64_t i = 0; i < i_rest; i += 8) {
      scatter_float32x8(Y_vals, i * k_extent + k + (0 + int64x8{0, 1, 2, 3, 4, 5, 6, 7}) * k_extent, broadcast_float32x8(2.0f) * gather_float32x8(&X_vals[i * k_extent + k], (0 + int64x8{0, 1, 2, 3, 4, 5, 6, 7}) * k_extent));
    }
    if (i_rest < i_extent) {
      const int64_t i_left = i_extent - i_rest;
      scatter_part_float32x8(Y_vals, i_rest * k_extent + k + (0 + int64x8{0, 1, 2, 3, 4, 5, 6, 7}) * k_extent, broadcast_float32x8(2.0f) * gather_part_float32x8(&X_vals[i_rest * k_extent + k], (0 + int64x8{0, 1, 2, 3, 4, 5, 6, 7}) * k_extent, i_left), i_left);
    }
  }
  return 0;
}
