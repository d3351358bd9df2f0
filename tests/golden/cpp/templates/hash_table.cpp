// order i, j
// forall i: forall j: y[i] += A[i,j] * H[i,j]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t i_extent = sizes[0];
  const int32_t *__restrict A2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A2_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const int32_t *__restrict H2_pos = (const int32_t *)buffers[3];
  const int32_t *__restrict H2_crd = (const int32_t *)buffers[4];
  const float *__restrict H_vals = (const float *)buffers[5];
  float *__restrict y_vals = (float *)buffers[6];
  fill_float32(y_vals, i_extent, 0.0f);
  for (int64_t i = 0; i < i_extent; ++i) {
    for (int64_t pA2 = A2_pos[i], pA2_end = A2_pos[i + 1]; pA2 < pA2_end; ++pA2) {
      const int64_t j = A2_crd[pA2];
      const int64_t pH2_begin = H2_pos[i];
      const int64_t pH2_end = H2_pos[i + 1];
      int64_t pH2 = pH2_end;
      if (pH2_begin < pH2_end) {
        pH2 = pH2_begin + (((j & 2147483647) * 1327217885 & 2147483647) * (pH2_end - pH2_begin) >> 31);
        while ((int64_t)H2_crd[pH2] != j && (int64_t)H2_crd[pH2] >= 0) {
          pH2 += 1;
          if (pH2 == pH2_end) {
            pH2 = pH2_begin;
          }
        }
      }
      if (pH2 < (int64_t)H2_pos[i + 1] && (int64_t)H2_crd[pH2] == j) {
        y_vals[i] = y_vals[i] + A_vals[pA2] * H_vals[pH2];
      }
    }
  }
  return 0;
}
