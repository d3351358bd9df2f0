"""The C++ text of small products of dense matrices, for which a call of a library costs more than the product.

In: `X[j,f]`, `W[k,f]` and `b[k]`. Out: `X W^T + b`, summed over `f` in an order that depends on the extents alone.

Continues the text of the trampoline; the function takes the arguments of a kernel.
"""

from typing import Final

SYMBOL: Final = "sparsify_small_product"
# Longest row of a matrix that is read by columns.
LONGEST: Final = 4096

SOURCE: Final = r"""
enum { LANES = 8, LONGEST = 4096 };

template <typename T>
static T dot(const T *left, const T *right, int64_t count) {
  T sums[LANES] = {};
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES)
    for (int lane = 0; lane < LANES; lane++) sums[lane] += left[at + lane] * right[at + lane];
  for (; at < count; at++) sums[0] += left[at] * right[at];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

template <typename T>
static void multiply(const int64_t *sizes, const T *left, const T *right, const T *bias, T *result) {
  const int64_t rows = sizes[0], inner = sizes[1], columns = sizes[2];
  const bool is_left_turned = sizes[3], is_right_turned = sizes[4];
  T line[LONGEST];
  for (int64_t row = 0; row < rows; row++) {
    T *const out = result + row * columns;
    const T *factors = left + row * inner;
    if (is_left_turned) {
      for (int64_t at = 0; at < inner; at++) line[at] = left[at * rows + row];
      factors = line;
    }
    if (is_right_turned) {
      for (int64_t column = 0; column < columns; column++)
        out[column] = dot(factors, right + column * inner, inner) + (bias ? bias[column] : 0);
      continue;
    }
    for (int64_t column = 0; column < columns; column++) out[column] = bias ? bias[column] : 0;
    for (int64_t at = 0; at < inner; at++) {
      const T factor = factors[at], *const source = right + at * columns;
      for (int64_t column = 0; column < columns; column++) out[column] += factor * source[column];
    }
  }
}

// sizes: rows, extent of the sum, columns, whether the left and the right matrix are stored transposed, whether there
// is a bias, bytes of a number; buffers: left, right, the bias if there is one, result.
extern "C" int64_t sparsify_small_product(const int64_t *sizes, void *const *buffers, const Context *) {
  const bool has_bias = sizes[5];
  const void *left = buffers[0], *right = buffers[1], *bias = has_bias ? buffers[2] : nullptr;
  void *result = buffers[has_bias ? 3 : 2];
  if (sizes[0] && sizes[2] && sizes[1] > LONGEST) return 4;
  if (sizes[6] == 4) multiply(sizes, (const float *)left, (const float *)right, (const float *)bias, (float *)result);
  else if (sizes[6] == 8)
    multiply(sizes, (const double *)left, (const double *)right, (const double *)bias, (double *)result);
  else return 4;
  return 0;
}
"""
