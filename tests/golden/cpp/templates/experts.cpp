// pos t p G
// split p po pi 6 tail 2 1
// split h ho hi 16
// split o oo oi 16
// order H: ho, e, po, pi, hi
// order Y: oo, e, po, ho, hi, pi, oi
// join h in Y
// precompute w at po in register
// order w: d, pi, hi
// precompute sum_Y = Y at po in register
// unroll pi in w
// vector hi in w
// unroll pi in H
// vector hi in H
// unroll pi in sum_Y
// vector oi in sum_Y
// unroll pi in Y
// vector oi in Y
// pack tile_w = W[d, hi] at e in thread for w
// transpose d hi in tile_w
// pack tile_sum_Y = V[h, oi] at e in thread for sum_Y
// transpose h oi in tile_sum_Y
// parallel ho in H dynamic
// parallel oo in Y dynamic
// let H[t,e,h]: float32 in memory pattern of G[t,e]: (parallel forall ho dynamic: forall e: let tile_w[d,hi]: float32 in thread: (transposed forall d: vector forall hi: tile_w[d,hi] = W[e,h,d]); forall po: let w[pi,hi]: float32 in register: (forall d: unrolled forall pi: vector forall hi: w[pi,hi] += X[t,d] * tile_w[d,hi]); unrolled forall pi: vector forall hi: H[t,e,h] = G[t,e] * relu(w[pi,hi])); parallel forall oo dynamic: forall e: let tile_sum_Y[h,oi]: float32 in thread: (transposed forall h: vector forall oi: tile_sum_Y[h,oi] = V[e,o,h]); forall po: let sum_Y[pi,oi]: float32 in register: (forall h: unrolled forall pi: vector forall oi: sum_Y[pi,oi] += H[t,e,h] * tile_sum_Y[h,oi]); unrolled forall pi: vector forall oi: Y[t,o] += sum_Y[pi,oi]
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

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static inline __attribute__((always_inline)) void transpose_float32x8(float32x8 &row_0, float32x8 &row_1, float32x8 &row_2, float32x8 &row_3, float32x8 &row_4, float32x8 &row_5, float32x8 &row_6, float32x8 &row_7) {
  const float32x8 step_1_0 = __builtin_shufflevector(row_0, row_1, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_1 = __builtin_shufflevector(row_0, row_1, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_1_2 = __builtin_shufflevector(row_2, row_3, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_3 = __builtin_shufflevector(row_2, row_3, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_1_4 = __builtin_shufflevector(row_4, row_5, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_5 = __builtin_shufflevector(row_4, row_5, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_1_6 = __builtin_shufflevector(row_6, row_7, 0, 8, 2, 10, 4, 12, 6, 14);
  const float32x8 step_1_7 = __builtin_shufflevector(row_6, row_7, 1, 9, 3, 11, 5, 13, 7, 15);
  const float32x8 step_2_0 = __builtin_shufflevector(step_1_0, step_1_2, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_2 = __builtin_shufflevector(step_1_0, step_1_2, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 step_2_1 = __builtin_shufflevector(step_1_1, step_1_3, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_3 = __builtin_shufflevector(step_1_1, step_1_3, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 step_2_4 = __builtin_shufflevector(step_1_4, step_1_6, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_6 = __builtin_shufflevector(step_1_4, step_1_6, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 step_2_5 = __builtin_shufflevector(step_1_5, step_1_7, 0, 1, 8, 9, 4, 5, 12, 13);
  const float32x8 step_2_7 = __builtin_shufflevector(step_1_5, step_1_7, 2, 3, 10, 11, 6, 7, 14, 15);
  const float32x8 last_0 = step_2_0, last_1 = step_2_1, last_2 = step_2_2, last_3 = step_2_3, last_4 = step_2_4, last_5 = step_2_5, last_6 = step_2_6, last_7 = step_2_7;
  row_0 = __builtin_shufflevector(last_0, last_4, 0, 1, 2, 3, 8, 9, 10, 11);
  row_4 = __builtin_shufflevector(last_0, last_4, 4, 5, 6, 7, 12, 13, 14, 15);
  row_1 = __builtin_shufflevector(last_1, last_5, 0, 1, 2, 3, 8, 9, 10, 11);
  row_5 = __builtin_shufflevector(last_1, last_5, 4, 5, 6, 7, 12, 13, 14, 15);
  row_2 = __builtin_shufflevector(last_2, last_6, 0, 1, 2, 3, 8, 9, 10, 11);
  row_6 = __builtin_shufflevector(last_2, last_6, 4, 5, 6, 7, 12, 13, 14, 15);
  row_3 = __builtin_shufflevector(last_3, last_7, 0, 1, 2, 3, 8, 9, 10, 11);
  row_7 = __builtin_shufflevector(last_3, last_7, 4, 5, 6, 7, 12, 13, 14, 15);
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
}

static inline __attribute__((always_inline)) int64_t floordiv_int64(int64_t x, int64_t y) {
  const int64_t quotient = x / y;
  return quotient - (quotient * y != x && (x ^ y) < 0);
}

static inline __attribute__((always_inline)) float32x8 relu_float32x8(float32x8 x) {
  return x < float32x8{} ? float32x8{} : x;
}

static inline __attribute__((always_inline)) int32x8 below_int32x8(int64_t count) {
  return int32x8{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)(count < 8 ? count : 8);
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

static inline __attribute__((always_inline)) float32x8 held_float32x8(float32x8 value) {
#ifdef __AVX__
  __asm__("" : "+x"(value));
#endif
  return value;
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

static __attribute__((noinline)) int64_t region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t h_extent,
    const int64_t d_extent,
    const int64_t e_extent,
    const int32_t *__restrict G2_pos,
    const float *__restrict W_vals,
    const int32_t *__restrict G2_crd,
    const float *__restrict X_vals,
    float *__restrict H,
    const float *__restrict G_vals) {
  const Scratch tile_w_scratch((d_extent * 16) * 4);
  float *__restrict tile_w = (float *)tile_w_scratch.memory;
  if (!tile_w) return 1;
  const int64_t extent = h_extent + 15 >> 4;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t ho_begin = split_int64(chunk, chunks, extent);
    const int64_t ho_end = split_int64(chunk + 1, chunks, extent);
    const int64_t h_last = ho_begin * 16 + (max_int64(min_int64(ho_end * 16, h_extent) - ho_begin * 16, 0) >> 4) * 16;
    for (int64_t h_0 = ho_begin * 16; h_0 < h_last; h_0 += 16) {
      for (int64_t e = 0; e < e_extent; ++e) {
        if ((int64_t)G2_pos[e] < (int64_t)G2_pos[e + 1]) {
          const int64_t d_rest = (d_extent >> 3) * 8;
          for (int64_t d = 0; d < d_rest; d += 8) {
            for (int64_t hiv1 = 0; hiv1 < 16; hiv1 += 8) {
              float32x8 W_row = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1) * d_extent + d]);
              float32x8 W_rowv1 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 1) * d_extent + d]);
              float32x8 W_rowv2 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 2) * d_extent + d]);
              float32x8 W_rowv3 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 3) * d_extent + d]);
              float32x8 W_rowv4 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 4) * d_extent + d]);
              float32x8 W_rowv5 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 5) * d_extent + d]);
              float32x8 W_rowv6 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 6) * d_extent + d]);
              float32x8 W_rowv7 = load_float32x8(&W_vals[(e * h_extent + h_0 + hiv1 + 7) * d_extent + d]);
              transpose_float32x8(W_row, W_rowv1, W_rowv2, W_rowv3, W_rowv4, W_rowv5, W_rowv6, W_rowv7);
              store_float32x8(&tile_w[d * 16 + hiv1], W_row);
              store_float32x8(&tile_w[(d + 1) * 16 + hiv1], W_rowv1);
              store_float32x8(&tile_w[(d + 2) * 16 + hiv1], W_rowv2);
              store_float32x8(&tile_w[(d + 3) * 16 + hiv1], W_rowv3);
              store_float32x8(&tile_w[(d + 4) * 16 + hiv1], W_rowv4);
              store_float32x8(&tile_w[(d + 5) * 16 + hiv1], W_rowv5);
              store_float32x8(&tile_w[(d + 6) * 16 + hiv1], W_rowv6);
              store_float32x8(&tile_w[(d + 7) * 16 + hiv1], W_rowv7);
            }
          }
          for (int64_t dv1 = d_rest; dv1 < d_extent; ++dv1) {
            for (int64_t hiv2 = 0; hiv2 < 16; ++hiv2) {
              tile_w[dv1 * 16 + hiv2] = W_vals[(e * h_extent + h_0 + hiv2) * d_extent + dv1];
            }
          }
          const int64_t p_last = (int64_t)G2_pos[e] + floordiv_int64((int64_t)G2_pos[e + 1] - (int64_t)G2_pos[e], 6) * 6;
          for (int64_t p_0 = G2_pos[e]; p_0 < p_last; p_0 += 6) {
            float32x8 w_0_0 = float32x8{};
            float32x8 w_0_1 = float32x8{};
            float32x8 w_1_0 = float32x8{};
            float32x8 w_1_1 = float32x8{};
            float32x8 w_2_0 = float32x8{};
            float32x8 w_2_1 = float32x8{};
            float32x8 w_3_0 = float32x8{};
            float32x8 w_3_1 = float32x8{};
            float32x8 w_4_0 = float32x8{};
            float32x8 w_4_1 = float32x8{};
            float32x8 w_5_0 = float32x8{};
            float32x8 w_5_1 = float32x8{};
            for (int64_t dv2 = 0; dv2 < d_extent; ++dv2) {
              const int64_t t = G2_crd[p_0];
              w_0_0 += X_vals[t * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16]);
              w_0_1 += X_vals[t * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16 + 8]);
              const int64_t tv1 = G2_crd[p_0 + 1];
              w_1_0 += X_vals[tv1 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16]);
              w_1_1 += X_vals[tv1 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16 + 8]);
              const int64_t tv2 = G2_crd[p_0 + 2];
              w_2_0 += X_vals[tv2 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16]);
              w_2_1 += X_vals[tv2 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16 + 8]);
              const int64_t tv3 = G2_crd[p_0 + 3];
              w_3_0 += X_vals[tv3 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16]);
              w_3_1 += X_vals[tv3 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16 + 8]);
              const int64_t tv4 = G2_crd[p_0 + 4];
              w_4_0 += X_vals[tv4 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16]);
              w_4_1 += X_vals[tv4 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16 + 8]);
              const int64_t tv5 = G2_crd[p_0 + 5];
              w_5_0 += X_vals[tv5 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16]);
              w_5_1 += X_vals[tv5 * d_extent + dv2] * load_float32x8(&tile_w[dv2 * 16 + 8]);
            }
            store_float32x8(&H[p_0 * h_extent + h_0], G_vals[p_0] * relu_float32x8(w_0_0));
            store_float32x8(&H[p_0 * h_extent + h_0 + 8], G_vals[p_0] * relu_float32x8(w_0_1));
            store_float32x8(&H[(p_0 + 1) * h_extent + h_0], G_vals[p_0 + 1] * relu_float32x8(w_1_0));
            store_float32x8(&H[(p_0 + 1) * h_extent + h_0 + 8], G_vals[p_0 + 1] * relu_float32x8(w_1_1));
            store_float32x8(&H[(p_0 + 2) * h_extent + h_0], G_vals[p_0 + 2] * relu_float32x8(w_2_0));
            store_float32x8(&H[(p_0 + 2) * h_extent + h_0 + 8], G_vals[p_0 + 2] * relu_float32x8(w_2_1));
            store_float32x8(&H[(p_0 + 3) * h_extent + h_0], G_vals[p_0 + 3] * relu_float32x8(w_3_0));
            store_float32x8(&H[(p_0 + 3) * h_extent + h_0 + 8], G_vals[p_0 + 3] * relu_float32x8(w_3_1));
            store_float32x8(&H[(p_0 + 4) * h_extent + h_0], G_vals[p_0 + 4] * relu_float32x8(w_4_0));
            store_float32x8(&H[(p_0 + 4) * h_extent + h_0 + 8], G_vals[p_0 + 4] * relu_float32x8(w_4_1));
            store_float32x8(&H[(p_0 + 5) * h_extent + h_0], G_vals[p_0 + 5] * relu_float32x8(w_5_0));
            store_float32x8(&H[(p_0 + 5) * h_extent + h_0 + 8], G_vals[p_0 + 5] * relu_float32x8(w_5_1));
          }
          int64_t p_done = 0;
          while (p_last + p_done + 2 <= (int64_t)G2_pos[e + 1]) {
            float32x8 wv1_0_0 = float32x8{};
            float32x8 wv1_0_1 = float32x8{};
            float32x8 wv1_1_0 = float32x8{};
            float32x8 wv1_1_1 = float32x8{};
            for (int64_t dv3 = 0; dv3 < d_extent; ++dv3) {
              const int64_t tv12 = G2_crd[p_last + p_done];
              wv1_0_0 += X_vals[tv12 * d_extent + dv3] * load_float32x8(&tile_w[dv3 * 16]);
              wv1_0_1 += X_vals[tv12 * d_extent + dv3] * load_float32x8(&tile_w[dv3 * 16 + 8]);
              const int64_t tv13 = G2_crd[p_last + p_done + 1];
              wv1_1_0 += X_vals[tv13 * d_extent + dv3] * load_float32x8(&tile_w[dv3 * 16]);
              wv1_1_1 += X_vals[tv13 * d_extent + dv3] * load_float32x8(&tile_w[dv3 * 16 + 8]);
            }
            store_float32x8(&H[(p_last + p_done) * h_extent + h_0], G_vals[p_last + p_done] * relu_float32x8(wv1_0_0));
            store_float32x8(&H[(p_last + p_done) * h_extent + h_0 + 8], G_vals[p_last + p_done] * relu_float32x8(wv1_0_1));
            store_float32x8(&H[(p_last + p_done + 1) * h_extent + h_0], G_vals[p_last + p_done + 1] * relu_float32x8(wv1_1_0));
            store_float32x8(&H[(p_last + p_done + 1) * h_extent + h_0 + 8], G_vals[p_last + p_done + 1] * relu_float32x8(wv1_1_1));
            p_done += 2;
          }
          if (p_last + p_done + 1 <= (int64_t)G2_pos[e + 1]) {
            float32x8 wv2_0_0 = float32x8{};
            float32x8 wv2_0_1 = float32x8{};
            for (int64_t dv4 = 0; dv4 < d_extent; ++dv4) {
              const int64_t tv16 = G2_crd[p_last + p_done];
              wv2_0_0 += X_vals[tv16 * d_extent + dv4] * load_float32x8(&tile_w[dv4 * 16]);
              wv2_0_1 += X_vals[tv16 * d_extent + dv4] * load_float32x8(&tile_w[dv4 * 16 + 8]);
            }
            store_float32x8(&H[(p_last + p_done) * h_extent + h_0], G_vals[p_last + p_done] * relu_float32x8(wv2_0_0));
            store_float32x8(&H[(p_last + p_done) * h_extent + h_0 + 8], G_vals[p_last + p_done] * relu_float32x8(wv2_0_1));
            p_done += 1;
          }
        }
      }
    }
    if (h_last < min_int64(ho_end * 16, h_extent)) {
      const int64_t h_left = min_int64(ho_end * 16, h_extent) - h_last;
      for (int64_t ev1 = 0; ev1 < e_extent; ++ev1) {
        if ((int64_t)G2_pos[ev1] < (int64_t)G2_pos[ev1 + 1]) {
          const int64_t d_restv1 = (d_extent >> 3) * 8;
          for (int64_t dv5 = 0; dv5 < d_restv1; dv5 += 8) {
            for (int64_t hiv3 = 0; hiv3 < h_left; hiv3 += 8) {
              const int64_t hi_left = h_left - hiv3;
              float32x8 W_rowv8 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3) * d_extent + dv5]);
              float32x8 W_rowv9 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(1, hi_left - 1)) * d_extent + dv5]);
              float32x8 W_rowv10 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(2, hi_left - 1)) * d_extent + dv5]);
              float32x8 W_rowv11 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(3, hi_left - 1)) * d_extent + dv5]);
              float32x8 W_rowv12 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(4, hi_left - 1)) * d_extent + dv5]);
              float32x8 W_rowv13 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(5, hi_left - 1)) * d_extent + dv5]);
              float32x8 W_rowv14 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(6, hi_left - 1)) * d_extent + dv5]);
              float32x8 W_rowv15 = load_float32x8(&W_vals[(ev1 * h_extent + h_last + hiv3 + min_int64(7, hi_left - 1)) * d_extent + dv5]);
              transpose_float32x8(W_rowv8, W_rowv9, W_rowv10, W_rowv11, W_rowv12, W_rowv13, W_rowv14, W_rowv15);
              store_float32x8(&tile_w[dv5 * 16 + hiv3], W_rowv8);
              store_float32x8(&tile_w[(dv5 + 1) * 16 + hiv3], W_rowv9);
              store_float32x8(&tile_w[(dv5 + 2) * 16 + hiv3], W_rowv10);
              store_float32x8(&tile_w[(dv5 + 3) * 16 + hiv3], W_rowv11);
              store_float32x8(&tile_w[(dv5 + 4) * 16 + hiv3], W_rowv12);
              store_float32x8(&tile_w[(dv5 + 5) * 16 + hiv3], W_rowv13);
              store_float32x8(&tile_w[(dv5 + 6) * 16 + hiv3], W_rowv14);
              store_float32x8(&tile_w[(dv5 + 7) * 16 + hiv3], W_rowv15);
            }
          }
          for (int64_t dv6 = d_restv1; dv6 < d_extent; ++dv6) {
            for (int64_t hiv4 = 0; hiv4 < h_left; ++hiv4) {
              tile_w[dv6 * 16 + hiv4] = W_vals[(ev1 * h_extent + h_last + hiv4) * d_extent + dv6];
            }
          }
          const int64_t p_lastv1 = (int64_t)G2_pos[ev1] + floordiv_int64((int64_t)G2_pos[ev1 + 1] - (int64_t)G2_pos[ev1], 6) * 6;
          for (int64_t p_0v1 = G2_pos[ev1]; p_0v1 < p_lastv1; p_0v1 += 6) {
            float32x8 wv3_0_0 = float32x8{};
            float32x8 wv3_0_1 = float32x8{};
            float32x8 wv3_1_0 = float32x8{};
            float32x8 wv3_1_1 = float32x8{};
            float32x8 wv3_2_0 = float32x8{};
            float32x8 wv3_2_1 = float32x8{};
            float32x8 wv3_3_0 = float32x8{};
            float32x8 wv3_3_1 = float32x8{};
            float32x8 wv3_4_0 = float32x8{};
            float32x8 wv3_4_1 = float32x8{};
            float32x8 wv3_5_0 = float32x8{};
            float32x8 wv3_5_1 = float32x8{};
            for (int64_t dv7 = 0; dv7 < d_extent; ++dv7) {
              const int64_t tv18 = G2_crd[p_0v1];
              wv3_0_0 += X_vals[tv18 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16]);
              wv3_0_1 += X_vals[tv18 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16 + 8]);
              const int64_t tv19 = G2_crd[p_0v1 + 1];
              wv3_1_0 += X_vals[tv19 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16]);
              wv3_1_1 += X_vals[tv19 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16 + 8]);
              const int64_t tv20 = G2_crd[p_0v1 + 2];
              wv3_2_0 += X_vals[tv20 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16]);
              wv3_2_1 += X_vals[tv20 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16 + 8]);
              const int64_t tv21 = G2_crd[p_0v1 + 3];
              wv3_3_0 += X_vals[tv21 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16]);
              wv3_3_1 += X_vals[tv21 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16 + 8]);
              const int64_t tv22 = G2_crd[p_0v1 + 4];
              wv3_4_0 += X_vals[tv22 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16]);
              wv3_4_1 += X_vals[tv22 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16 + 8]);
              const int64_t tv23 = G2_crd[p_0v1 + 5];
              wv3_5_0 += X_vals[tv23 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16]);
              wv3_5_1 += X_vals[tv23 * d_extent + dv7] * load_float32x8(&tile_w[dv7 * 16 + 8]);
            }
            store_part_float32x8(&H[p_0v1 * h_extent + h_last], G_vals[p_0v1] * relu_float32x8(wv3_0_0), h_left);
            store_part_float32x8(&H[p_0v1 * h_extent + h_last + 8], G_vals[p_0v1] * relu_float32x8(wv3_0_1), max_int64(h_left - 8, 0));
            store_part_float32x8(&H[(p_0v1 + 1) * h_extent + h_last], G_vals[p_0v1 + 1] * relu_float32x8(wv3_1_0), h_left);
            store_part_float32x8(&H[(p_0v1 + 1) * h_extent + h_last + 8], G_vals[p_0v1 + 1] * relu_float32x8(wv3_1_1), max_int64(h_left - 8, 0));
            store_part_float32x8(&H[(p_0v1 + 2) * h_extent + h_last], G_vals[p_0v1 + 2] * relu_float32x8(wv3_2_0), h_left);
            store_part_float32x8(&H[(p_0v1 + 2) * h_extent + h_last + 8], G_vals[p_0v1 + 2] * relu_float32x8(wv3_2_1), max_int64(h_left - 8, 0));
            store_part_float32x8(&H[(p_0v1 + 3) * h_extent + h_last], G_vals[p_0v1 + 3] * relu_float32x8(wv3_3_0), h_left);
            store_part_float32x8(&H[(p_0v1 + 3) * h_extent + h_last + 8], G_vals[p_0v1 + 3] * relu_float32x8(wv3_3_1), max_int64(h_left - 8, 0));
            store_part_float32x8(&H[(p_0v1 + 4) * h_extent + h_last], G_vals[p_0v1 + 4] * relu_float32x8(wv3_4_0), h_left);
            store_part_float32x8(&H[(p_0v1 + 4) * h_extent + h_last + 8], G_vals[p_0v1 + 4] * relu_float32x8(wv3_4_1), max_int64(h_left - 8, 0));
            store_part_float32x8(&H[(p_0v1 + 5) * h_extent + h_last], G_vals[p_0v1 + 5] * relu_float32x8(wv3_5_0), h_left);
            store_part_float32x8(&H[(p_0v1 + 5) * h_extent + h_last + 8], G_vals[p_0v1 + 5] * relu_float32x8(wv3_5_1), max_int64(h_left - 8, 0));
          }
          int64_t p_donev1 = 0;
          while (p_lastv1 + p_donev1 + 2 <= (int64_t)G2_pos[ev1 + 1]) {
            float32x8 wv4_0_0 = float32x8{};
            float32x8 wv4_0_1 = float32x8{};
            float32x8 wv4_1_0 = float32x8{};
            float32x8 wv4_1_1 = float32x8{};
            for (int64_t dv8 = 0; dv8 < d_extent; ++dv8) {
              const int64_t tv30 = G2_crd[p_lastv1 + p_donev1];
              wv4_0_0 += X_vals[tv30 * d_extent + dv8] * load_float32x8(&tile_w[dv8 * 16]);
              wv4_0_1 += X_vals[tv30 * d_extent + dv8] * load_float32x8(&tile_w[dv8 * 16 + 8]);
              const int64_t tv31 = G2_crd[p_lastv1 + p_donev1 + 1];
              wv4_1_0 += X_vals[tv31 * d_extent + dv8] * load_float32x8(&tile_w[dv8 * 16]);
              wv4_1_1 += X_vals[tv31 * d_extent + dv8] * load_float32x8(&tile_w[dv8 * 16 + 8]);
            }
            store_part_float32x8(&H[(p_lastv1 + p_donev1) * h_extent + h_last], G_vals[p_lastv1 + p_donev1] * relu_float32x8(wv4_0_0), h_left);
            store_part_float32x8(&H[(p_lastv1 + p_donev1) * h_extent + h_last + 8], G_vals[p_lastv1 + p_donev1] * relu_float32x8(wv4_0_1), max_int64(h_left - 8, 0));
            store_part_float32x8(&H[(p_lastv1 + p_donev1 + 1) * h_extent + h_last], G_vals[p_lastv1 + p_donev1 + 1] * relu_float32x8(wv4_1_0), h_left);
            store_part_float32x8(&H[(p_lastv1 + p_donev1 + 1) * h_extent + h_last + 8], G_vals[p_lastv1 + p_donev1 + 1] * relu_float32x8(wv4_1_1), max_int64(h_left - 8, 0));
            p_donev1 += 2;
          }
          if (p_lastv1 + p_donev1 + 1 <= (int64_t)G2_pos[ev1 + 1]) {
            float32x8 wv5_0_0 = float32x8{};
            float32x8 wv5_0_1 = float32x8{};
            for (int64_t dv9 = 0; dv9 < d_extent; ++dv9) {
              const int64_t tv34 = G2_crd[p_lastv1 + p_donev1];
              wv5_0_0 += X_vals[tv34 * d_extent + dv9] * load_float32x8(&tile_w[dv9 * 16]);
              wv5_0_1 += X_vals[tv34 * d_extent + dv9] * load_float32x8(&tile_w[dv9 * 16 + 8]);
            }
            store_part_float32x8(&H[(p_lastv1 + p_donev1) * h_extent + h_last], G_vals[p_lastv1 + p_donev1] * relu_float32x8(wv5_0_0), h_left);
            store_part_float32x8(&H[(p_lastv1 + p_donev1) * h_extent + h_last + 8], G_vals[p_lastv1 + p_donev1] * relu_float32x8(wv5_0_1), max_int64(h_left - 8, 0));
            p_donev1 += 1;
          }
        }
      }
    }
  }
  return 0;
}

static __attribute__((noinline)) int64_t region_2(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t o_extent,
    const int64_t h_extent,
    const int64_t e_extent,
    const int32_t *__restrict G2_pos,
    const float *__restrict V_vals,
    float *__restrict H,
    const int32_t *__restrict G2_crd,
    float *__restrict Y_vals) {
  const Scratch tile_sum_Y_scratch((h_extent * 16) * 4);
  float *__restrict tile_sum_Y = (float *)tile_sum_Y_scratch.memory;
  if (!tile_sum_Y) return 1;
  const int64_t extent = o_extent + 15 >> 4;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t oo_begin = split_int64(chunk, chunks, extent);
    const int64_t oo_end = split_int64(chunk + 1, chunks, extent);
    const int64_t o_last = oo_begin * 16 + (max_int64(min_int64(oo_end * 16, o_extent) - oo_begin * 16, 0) >> 4) * 16;
    for (int64_t o_0 = oo_begin * 16; o_0 < o_last; o_0 += 16) {
      for (int64_t ev2 = 0; ev2 < e_extent; ++ev2) {
        if ((int64_t)G2_pos[ev2] < (int64_t)G2_pos[ev2 + 1]) {
          const int64_t h_rest = (h_extent >> 3) * 8;
          for (int64_t h = 0; h < h_rest; h += 8) {
            for (int64_t oiv1 = 0; oiv1 < 16; oiv1 += 8) {
              float32x8 V_row = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1) * h_extent + h]);
              float32x8 V_rowv1 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 1) * h_extent + h]);
              float32x8 V_rowv2 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 2) * h_extent + h]);
              float32x8 V_rowv3 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 3) * h_extent + h]);
              float32x8 V_rowv4 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 4) * h_extent + h]);
              float32x8 V_rowv5 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 5) * h_extent + h]);
              float32x8 V_rowv6 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 6) * h_extent + h]);
              float32x8 V_rowv7 = load_float32x8(&V_vals[(ev2 * o_extent + o_0 + oiv1 + 7) * h_extent + h]);
              transpose_float32x8(V_row, V_rowv1, V_rowv2, V_rowv3, V_rowv4, V_rowv5, V_rowv6, V_rowv7);
              store_float32x8(&tile_sum_Y[h * 16 + oiv1], V_row);
              store_float32x8(&tile_sum_Y[(h + 1) * 16 + oiv1], V_rowv1);
              store_float32x8(&tile_sum_Y[(h + 2) * 16 + oiv1], V_rowv2);
              store_float32x8(&tile_sum_Y[(h + 3) * 16 + oiv1], V_rowv3);
              store_float32x8(&tile_sum_Y[(h + 4) * 16 + oiv1], V_rowv4);
              store_float32x8(&tile_sum_Y[(h + 5) * 16 + oiv1], V_rowv5);
              store_float32x8(&tile_sum_Y[(h + 6) * 16 + oiv1], V_rowv6);
              store_float32x8(&tile_sum_Y[(h + 7) * 16 + oiv1], V_rowv7);
            }
          }
          for (int64_t hv1 = h_rest; hv1 < h_extent; ++hv1) {
            for (int64_t oiv2 = 0; oiv2 < 16; ++oiv2) {
              tile_sum_Y[hv1 * 16 + oiv2] = V_vals[(ev2 * o_extent + o_0 + oiv2) * h_extent + hv1];
            }
          }
          const int64_t p_lastv2 = (int64_t)G2_pos[ev2] + floordiv_int64((int64_t)G2_pos[ev2 + 1] - (int64_t)G2_pos[ev2], 6) * 6;
          for (int64_t p_0v2 = G2_pos[ev2]; p_0v2 < p_lastv2; p_0v2 += 6) {
            float32x8 sum_Y_0_0 = float32x8{};
            float32x8 sum_Y_0_1 = float32x8{};
            float32x8 sum_Y_1_0 = float32x8{};
            float32x8 sum_Y_1_1 = float32x8{};
            float32x8 sum_Y_2_0 = float32x8{};
            float32x8 sum_Y_2_1 = float32x8{};
            float32x8 sum_Y_3_0 = float32x8{};
            float32x8 sum_Y_3_1 = float32x8{};
            float32x8 sum_Y_4_0 = float32x8{};
            float32x8 sum_Y_4_1 = float32x8{};
            float32x8 sum_Y_5_0 = float32x8{};
            float32x8 sum_Y_5_1 = float32x8{};
            for (int64_t hv2 = 0; hv2 < h_extent; ++hv2) {
              const float32x8 tile_sum_Y_held = held_float32x8(load_float32x8(&tile_sum_Y[hv2 * 16]));
              const float32x8 tile_sum_Y_heldv1 = held_float32x8(load_float32x8(&tile_sum_Y[hv2 * 16 + 8]));
              sum_Y_0_0 += H[p_0v2 * h_extent + hv2] * tile_sum_Y_held;
              sum_Y_0_1 += H[p_0v2 * h_extent + hv2] * tile_sum_Y_heldv1;
              sum_Y_1_0 += H[(p_0v2 + 1) * h_extent + hv2] * tile_sum_Y_held;
              sum_Y_1_1 += H[(p_0v2 + 1) * h_extent + hv2] * tile_sum_Y_heldv1;
              sum_Y_2_0 += H[(p_0v2 + 2) * h_extent + hv2] * tile_sum_Y_held;
              sum_Y_2_1 += H[(p_0v2 + 2) * h_extent + hv2] * tile_sum_Y_heldv1;
              sum_Y_3_0 += H[(p_0v2 + 3) * h_extent + hv2] * tile_sum_Y_held;
              sum_Y_3_1 += H[(p_0v2 + 3) * h_extent + hv2] * tile_sum_Y_heldv1;
              sum_Y_4_0 += H[(p_0v2 + 4) * h_extent + hv2] * tile_sum_Y_held;
              sum_Y_4_1 += H[(p_0v2 + 4) * h_extent + hv2] * tile_sum_Y_heldv1;
              sum_Y_5_0 += H[(p_0v2 + 5) * h_extent + hv2] * tile_sum_Y_held;
              sum_Y_5_1 += H[(p_0v2 + 5) * h_extent + hv2] * tile_sum_Y_heldv1;
            }
            const int64_t tv42 = G2_crd[p_0v2];
            store_float32x8(&Y_vals[tv42 * o_extent + o_0], load_float32x8(&Y_vals[tv42 * o_extent + o_0]) + sum_Y_0_0);
            store_float32x8(&Y_vals[tv42 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv42 * o_extent + o_0 + 8]) + sum_Y_0_1);
            const int64_t tv43 = G2_crd[p_0v2 + 1];
            store_float32x8(&Y_vals[tv43 * o_extent + o_0], load_float32x8(&Y_vals[tv43 * o_extent + o_0]) + sum_Y_1_0);
            store_float32x8(&Y_vals[tv43 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv43 * o_extent + o_0 + 8]) + sum_Y_1_1);
            const int64_t tv44 = G2_crd[p_0v2 + 2];
            store_float32x8(&Y_vals[tv44 * o_extent + o_0], load_float32x8(&Y_vals[tv44 * o_extent + o_0]) + sum_Y_2_0);
            store_float32x8(&Y_vals[tv44 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv44 * o_extent + o_0 + 8]) + sum_Y_2_1);
            const int64_t tv45 = G2_crd[p_0v2 + 3];
            store_float32x8(&Y_vals[tv45 * o_extent + o_0], load_float32x8(&Y_vals[tv45 * o_extent + o_0]) + sum_Y_3_0);
            store_float32x8(&Y_vals[tv45 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv45 * o_extent + o_0 + 8]) + sum_Y_3_1);
            const int64_t tv46 = G2_crd[p_0v2 + 4];
            store_float32x8(&Y_vals[tv46 * o_extent + o_0], load_float32x8(&Y_vals[tv46 * o_extent + o_0]) + sum_Y_4_0);
            store_float32x8(&Y_vals[tv46 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv46 * o_extent + o_0 + 8]) + sum_Y_4_1);
            const int64_t tv47 = G2_crd[p_0v2 + 5];
            store_float32x8(&Y_vals[tv47 * o_extent + o_0], load_float32x8(&Y_vals[tv47 * o_extent + o_0]) + sum_Y_5_0);
            store_float32x8(&Y_vals[tv47 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv47 * o_extent + o_0 + 8]) + sum_Y_5_1);
          }
          int64_t p_donev2 = 0;
          while (p_lastv2 + p_donev2 + 2 <= (int64_t)G2_pos[ev2 + 1]) {
            float32x8 sum_Yv1_0_0 = float32x8{};
            float32x8 sum_Yv1_0_1 = float32x8{};
            float32x8 sum_Yv1_1_0 = float32x8{};
            float32x8 sum_Yv1_1_1 = float32x8{};
            for (int64_t hv3 = 0; hv3 < h_extent; ++hv3) {
              const float32x8 tile_sum_Y_heldv2 = held_float32x8(load_float32x8(&tile_sum_Y[hv3 * 16]));
              const float32x8 tile_sum_Y_heldv3 = held_float32x8(load_float32x8(&tile_sum_Y[hv3 * 16 + 8]));
              sum_Yv1_0_0 += H[(p_lastv2 + p_donev2) * h_extent + hv3] * tile_sum_Y_heldv2;
              sum_Yv1_0_1 += H[(p_lastv2 + p_donev2) * h_extent + hv3] * tile_sum_Y_heldv3;
              sum_Yv1_1_0 += H[(p_lastv2 + p_donev2 + 1) * h_extent + hv3] * tile_sum_Y_heldv2;
              sum_Yv1_1_1 += H[(p_lastv2 + p_donev2 + 1) * h_extent + hv3] * tile_sum_Y_heldv3;
            }
            const int64_t tv50 = G2_crd[p_lastv2 + p_donev2];
            store_float32x8(&Y_vals[tv50 * o_extent + o_0], load_float32x8(&Y_vals[tv50 * o_extent + o_0]) + sum_Yv1_0_0);
            store_float32x8(&Y_vals[tv50 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv50 * o_extent + o_0 + 8]) + sum_Yv1_0_1);
            const int64_t tv51 = G2_crd[p_lastv2 + p_donev2 + 1];
            store_float32x8(&Y_vals[tv51 * o_extent + o_0], load_float32x8(&Y_vals[tv51 * o_extent + o_0]) + sum_Yv1_1_0);
            store_float32x8(&Y_vals[tv51 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv51 * o_extent + o_0 + 8]) + sum_Yv1_1_1);
            p_donev2 += 2;
          }
          if (p_lastv2 + p_donev2 + 1 <= (int64_t)G2_pos[ev2 + 1]) {
            float32x8 sum_Yv2_0_0 = float32x8{};
            float32x8 sum_Yv2_0_1 = float32x8{};
            for (int64_t hv4 = 0; hv4 < h_extent; ++hv4) {
              sum_Yv2_0_0 += H[(p_lastv2 + p_donev2) * h_extent + hv4] * load_float32x8(&tile_sum_Y[hv4 * 16]);
              sum_Yv2_0_1 += H[(p_lastv2 + p_donev2) * h_extent + hv4] * load_float32x8(&tile_sum_Y[hv4 * 16 + 8]);
            }
            const int64_t tv53 = G2_crd[p_lastv2 + p_donev2];
            store_float32x8(&Y_vals[tv53 * o_extent + o_0], load_float32x8(&Y_vals[tv53 * o_extent + o_0]) + sum_Yv2_0_0);
            store_float32x8(&Y_vals[tv53 * o_extent + o_0 + 8], load_float32x8(&Y_vals[tv53 * o_extent + o_0 + 8]) + sum_Yv2_0_1);
            p_donev2 += 1;
          }
        }
      }
    }
    if (o_last < min_int64(oo_end * 16, o_extent)) {
      const int64_t o_left = min_int64(oo_end * 16, o_extent) - o_last;
      for (int64_t ev3 = 0; ev3 < e_extent; ++ev3) {
        if ((int64_t)G2_pos[ev3] < (int64_t)G2_pos[ev3 + 1]) {
          const int64_t h_restv1 = (h_extent >> 3) * 8;
          for (int64_t hv5 = 0; hv5 < h_restv1; hv5 += 8) {
            for (int64_t oiv3 = 0; oiv3 < o_left; oiv3 += 8) {
              const int64_t oi_left = o_left - oiv3;
              float32x8 V_rowv8 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3) * h_extent + hv5]);
              float32x8 V_rowv9 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(1, oi_left - 1)) * h_extent + hv5]);
              float32x8 V_rowv10 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(2, oi_left - 1)) * h_extent + hv5]);
              float32x8 V_rowv11 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(3, oi_left - 1)) * h_extent + hv5]);
              float32x8 V_rowv12 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(4, oi_left - 1)) * h_extent + hv5]);
              float32x8 V_rowv13 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(5, oi_left - 1)) * h_extent + hv5]);
              float32x8 V_rowv14 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(6, oi_left - 1)) * h_extent + hv5]);
              float32x8 V_rowv15 = load_float32x8(&V_vals[(ev3 * o_extent + o_last + oiv3 + min_int64(7, oi_left - 1)) * h_extent + hv5]);
              transpose_float32x8(V_rowv8, V_rowv9, V_rowv10, V_rowv11, V_rowv12, V_rowv13, V_rowv14, V_rowv15);
              store_float32x8(&tile_sum_Y[hv5 * 16 + oiv3], V_rowv8);
              store_float32x8(&tile_sum_Y[(hv5 + 1) * 16 + oiv3], V_rowv9);
              store_float32x8(&tile_sum_Y[(hv5 + 2) * 16 + oiv3], V_rowv10);
              store_float32x8(&tile_sum_Y[(hv5 + 3) * 16 + oiv3], V_rowv11);
              store_float32x8(&tile_sum_Y[(hv5 + 4) * 16 + oiv3], V_rowv12);
              store_float32x8(&tile_sum_Y[(hv5 + 5) * 16 + oiv3], V_rowv13);
              store_float32x8(&tile_sum_Y[(hv5 + 6) * 16 + oiv3], V_rowv14);
              store_float32x8(&tile_sum_Y[(hv5 + 7) * 16 + oiv3], V_rowv15);
            }
          }
          for (int64_t hv6 = h_restv1; hv6 < h_extent; ++hv6) {
            for (int64_t oiv4 = 0; oiv4 < o_left; ++oiv4) {
              tile_sum_Y[hv6 * 16 + oiv4] = V_vals[(ev3 * o_extent + o_last + oiv4) * h_extent + hv6];
            }
          }
          const int64_t p_lastv3 = (int64_t)G2_pos[ev3] + floordiv_int64((int64_t)G2_pos[ev3 + 1] - (int64_t)G2_pos[ev3], 6) * 6;
          for (int64_t p_0v3 = G2_pos[ev3]; p_0v3 < p_lastv3; p_0v3 += 6) {
            float32x8 sum_Yv3_0_0 = float32x8{};
            float32x8 sum_Yv3_0_1 = float32x8{};
            float32x8 sum_Yv3_1_0 = float32x8{};
            float32x8 sum_Yv3_1_1 = float32x8{};
            float32x8 sum_Yv3_2_0 = float32x8{};
            float32x8 sum_Yv3_2_1 = float32x8{};
            float32x8 sum_Yv3_3_0 = float32x8{};
            float32x8 sum_Yv3_3_1 = float32x8{};
            float32x8 sum_Yv3_4_0 = float32x8{};
            float32x8 sum_Yv3_4_1 = float32x8{};
            float32x8 sum_Yv3_5_0 = float32x8{};
            float32x8 sum_Yv3_5_1 = float32x8{};
            for (int64_t hv7 = 0; hv7 < h_extent; ++hv7) {
              const float32x8 tile_sum_Y_heldv4 = held_float32x8(load_float32x8(&tile_sum_Y[hv7 * 16]));
              const float32x8 tile_sum_Y_heldv5 = held_float32x8(load_float32x8(&tile_sum_Y[hv7 * 16 + 8]));
              sum_Yv3_0_0 += H[p_0v3 * h_extent + hv7] * tile_sum_Y_heldv4;
              sum_Yv3_0_1 += H[p_0v3 * h_extent + hv7] * tile_sum_Y_heldv5;
              sum_Yv3_1_0 += H[(p_0v3 + 1) * h_extent + hv7] * tile_sum_Y_heldv4;
              sum_Yv3_1_1 += H[(p_0v3 + 1) * h_extent + hv7] * tile_sum_Y_heldv5;
              sum_Yv3_2_0 += H[(p_0v3 + 2) * h_extent + hv7] * tile_sum_Y_heldv4;
              sum_Yv3_2_1 += H[(p_0v3 + 2) * h_extent + hv7] * tile_sum_Y_heldv5;
              sum_Yv3_3_0 += H[(p_0v3 + 3) * h_extent + hv7] * tile_sum_Y_heldv4;
              sum_Yv3_3_1 += H[(p_0v3 + 3) * h_extent + hv7] * tile_sum_Y_heldv5;
              sum_Yv3_4_0 += H[(p_0v3 + 4) * h_extent + hv7] * tile_sum_Y_heldv4;
              sum_Yv3_4_1 += H[(p_0v3 + 4) * h_extent + hv7] * tile_sum_Y_heldv5;
              sum_Yv3_5_0 += H[(p_0v3 + 5) * h_extent + hv7] * tile_sum_Y_heldv4;
              sum_Yv3_5_1 += H[(p_0v3 + 5) * h_extent + hv7] * tile_sum_Y_heldv5;
            }
            const int64_t tv60 = G2_crd[p_0v3];
            store_part_float32x8(&Y_vals[tv60 * o_extent + o_last], load_part_float32x8(&Y_vals[tv60 * o_extent + o_last], o_left) + sum_Yv3_0_0, o_left);
            store_part_float32x8(&Y_vals[tv60 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv60 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv3_0_1, max_int64(o_left - 8, 0));
            const int64_t tv61 = G2_crd[p_0v3 + 1];
            store_part_float32x8(&Y_vals[tv61 * o_extent + o_last], load_part_float32x8(&Y_vals[tv61 * o_extent + o_last], o_left) + sum_Yv3_1_0, o_left);
            store_part_float32x8(&Y_vals[tv61 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv61 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv3_1_1, max_int64(o_left - 8, 0));
            const int64_t tv62 = G2_crd[p_0v3 + 2];
            store_part_float32x8(&Y_vals[tv62 * o_extent + o_last], load_part_float32x8(&Y_vals[tv62 * o_extent + o_last], o_left) + sum_Yv3_2_0, o_left);
            store_part_float32x8(&Y_vals[tv62 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv62 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv3_2_1, max_int64(o_left - 8, 0));
            const int64_t tv63 = G2_crd[p_0v3 + 3];
            store_part_float32x8(&Y_vals[tv63 * o_extent + o_last], load_part_float32x8(&Y_vals[tv63 * o_extent + o_last], o_left) + sum_Yv3_3_0, o_left);
            store_part_float32x8(&Y_vals[tv63 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv63 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv3_3_1, max_int64(o_left - 8, 0));
            const int64_t tv64 = G2_crd[p_0v3 + 4];
            store_part_float32x8(&Y_vals[tv64 * o_extent + o_last], load_part_float32x8(&Y_vals[tv64 * o_extent + o_last], o_left) + sum_Yv3_4_0, o_left);
            store_part_float32x8(&Y_vals[tv64 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv64 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv3_4_1, max_int64(o_left - 8, 0));
            const int64_t tv65 = G2_crd[p_0v3 + 5];
            store_part_float32x8(&Y_vals[tv65 * o_extent + o_last], load_part_float32x8(&Y_vals[tv65 * o_extent + o_last], o_left) + sum_Yv3_5_0, o_left);
            store_part_float32x8(&Y_vals[tv65 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv65 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv3_5_1, max_int64(o_left - 8, 0));
          }
          int64_t p_donev3 = 0;
          while (p_lastv3 + p_donev3 + 2 <= (int64_t)G2_pos[ev3 + 1]) {
            float32x8 sum_Yv4_0_0 = float32x8{};
            float32x8 sum_Yv4_0_1 = float32x8{};
            float32x8 sum_Yv4_1_0 = float32x8{};
            float32x8 sum_Yv4_1_1 = float32x8{};
            for (int64_t hv8 = 0; hv8 < h_extent; ++hv8) {
              const float32x8 tile_sum_Y_heldv6 = held_float32x8(load_float32x8(&tile_sum_Y[hv8 * 16]));
              const float32x8 tile_sum_Y_heldv7 = held_float32x8(load_float32x8(&tile_sum_Y[hv8 * 16 + 8]));
              sum_Yv4_0_0 += H[(p_lastv3 + p_donev3) * h_extent + hv8] * tile_sum_Y_heldv6;
              sum_Yv4_0_1 += H[(p_lastv3 + p_donev3) * h_extent + hv8] * tile_sum_Y_heldv7;
              sum_Yv4_1_0 += H[(p_lastv3 + p_donev3 + 1) * h_extent + hv8] * tile_sum_Y_heldv6;
              sum_Yv4_1_1 += H[(p_lastv3 + p_donev3 + 1) * h_extent + hv8] * tile_sum_Y_heldv7;
            }
            const int64_t tv68 = G2_crd[p_lastv3 + p_donev3];
            store_part_float32x8(&Y_vals[tv68 * o_extent + o_last], load_part_float32x8(&Y_vals[tv68 * o_extent + o_last], o_left) + sum_Yv4_0_0, o_left);
            store_part_float32x8(&Y_vals[tv68 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv68 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv4_0_1, max_int64(o_left - 8, 0));
            const int64_t tv69 = G2_crd[p_lastv3 + p_donev3 + 1];
            store_part_float32x8(&Y_vals[tv69 * o_extent + o_last], load_part_float32x8(&Y_vals[tv69 * o_extent + o_last], o_left) + sum_Yv4_1_0, o_left);
            store_part_float32x8(&Y_vals[tv69 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv69 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv4_1_1, max_int64(o_left - 8, 0));
            p_donev3 += 2;
          }
          if (p_lastv3 + p_donev3 + 1 <= (int64_t)G2_pos[ev3 + 1]) {
            float32x8 sum_Yv5_0_0 = float32x8{};
            float32x8 sum_Yv5_0_1 = float32x8{};
            for (int64_t hv9 = 0; hv9 < h_extent; ++hv9) {
              sum_Yv5_0_0 += H[(p_lastv3 + p_donev3) * h_extent + hv9] * load_float32x8(&tile_sum_Y[hv9 * 16]);
              sum_Yv5_0_1 += H[(p_lastv3 + p_donev3) * h_extent + hv9] * load_float32x8(&tile_sum_Y[hv9 * 16 + 8]);
            }
            const int64_t tv71 = G2_crd[p_lastv3 + p_donev3];
            store_part_float32x8(&Y_vals[tv71 * o_extent + o_last], load_part_float32x8(&Y_vals[tv71 * o_extent + o_last], o_left) + sum_Yv5_0_0, o_left);
            store_part_float32x8(&Y_vals[tv71 * o_extent + o_last + 8], load_part_float32x8(&Y_vals[tv71 * o_extent + o_last + 8], max_int64(o_left - 8, 0)) + sum_Yv5_0_1, max_int64(o_left - 8, 0));
            p_donev3 += 1;
          }
        }
      }
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t t_extent = sizes[0];
  const int64_t e_extent = sizes[1];
  const int64_t d_extent = sizes[2];
  const int64_t h_extent = sizes[3];
  const int64_t o_extent = sizes[4];
  const int64_t G_nnz = sizes[5];
  const int64_t serial_threshold = sizes[6];
  const int32_t *__restrict G2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict G2_crd = (const int32_t *)buffers[1];
  const float *__restrict G_vals = (const float *)buffers[2];
  const float *__restrict X_vals = (const float *)buffers[3];
  const float *__restrict W_vals = (const float *)buffers[4];
  const float *__restrict V_vals = (const float *)buffers[5];
  float *__restrict Y_vals = (float *)buffers[6];
  fill_float32(Y_vals, t_extent * o_extent, 0.0f);
  const Scratch H_scratch((h_extent * G_nnz) * 4);
  float *__restrict H = (float *)H_scratch.memory;
  if (!H) return 1;
  const int64_t work_1 = d_extent * h_extent * e_extent + t_extent * h_extent * d_extent + h_extent * G_nnz;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 32);
  int64_t status_1 = 0;
  if (work_1 < serial_threshold || context->threads == 1) {
    status_1 = region_1(0, 1, &next_1, 1, h_extent, d_extent, e_extent, G2_pos, W_vals, G2_crd, X_vals, H, G_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, h_extent, d_extent, e_extent, G2_pos, W_vals, G2_crd, X_vals, H, G_vals)) __atomic_store_n(&status_1, 1, __ATOMIC_RELAXED);
  }
  if (status_1) return status_1;
  const int64_t work_2 = h_extent * o_extent * e_extent + o_extent * h_extent * G_nnz + t_extent * o_extent;
  int64_t next_2 = 0;
  const int64_t chunks_2 = context->threads * (work_2 < 64 * serial_threshold ? 4 : 32);
  int64_t status_2 = 0;
  if (work_2 < serial_threshold || context->threads == 1) {
    status_2 = region_2(0, 1, &next_2, 1, o_extent, h_extent, e_extent, G2_pos, V_vals, H, G2_crd, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_2(omp_get_thread_num(), omp_get_num_threads(), &next_2, chunks_2, o_extent, h_extent, e_extent, G2_pos, V_vals, H, G2_crd, Y_vals)) __atomic_store_n(&status_2, 1, __ATOMIC_RELAXED);
  }
  if (status_2) return status_2;
  return 0;
}
