// C[i] = A[i] + B[i]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int32_t *__restrict A_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict A_crd = (const int32_t *)buffers[1];
  const float *__restrict A_vals = (const float *)buffers[2];
  const int32_t *__restrict B_pos = (const int32_t *)buffers[3];
  const int32_t *__restrict B_crd = (const int32_t *)buffers[4];
  const float *__restrict B_vals = (const float *)buffers[5];
  int32_t *__restrict C_crd = (int32_t *)buffers[6];
  float *__restrict C_vals = (float *)buffers[7];
  int32_t *__restrict C_pos = (int32_t *)buffers[8];
  int64_t pA = A_pos[0];
  int64_t pB = B_pos[0];
  const int64_t pA_end = A_pos[1];
  const int64_t pB_end = B_pos[1];
  C_crd = (int32_t *)context->allocate(context->state, 6, (pA_end + pB_end) * 4);
  if (!C_crd && pA_end + pB_end > 0) return 1;
  C_vals = (float *)context->allocate(context->state, 7, (pA_end + pB_end) * 4);
  if (!C_vals && pA_end + pB_end > 0) return 1;
  int64_t n = 0;
  // A and B
  while (pA < pA_end && pB < pB_end) {
    const int32_t iA = A_crd[pA];
    const int32_t iB = B_crd[pB];
    if (iA == iB) {
      C_crd[n] = iA;
      C_vals[n] = A_vals[pA] + B_vals[pB];
      n += 1;
      pA += 1;
      pB += 1;
    } else if (iA < iB) {
      C_crd[n] = iA;
      C_vals[n] = A_vals[pA];
      n += 1;
      pA += 1;
    } else {
      C_crd[n] = iB;
      C_vals[n] = B_vals[pB];
      n += 1;
      pB += 1;
    }
  }
  // only A
  while (pA < pA_end) {
    __asm__ volatile("");  // for a few entries: no calls
    C_crd[n] = A_crd[pA];
    C_vals[n] = A_vals[pA];
    n += 1;
    pA += 1;
  }
  // only B
  while (pB < pB_end) {
    __asm__ volatile("");  // for a few entries: no calls
    C_crd[n] = B_crd[pB];
    C_vals[n] = B_vals[pB];
    n += 1;
    pB += 1;
  }
  C_pos[1] = (int32_t)n;
  return 0;
}
