// split ii it is 8
// split ji jt js 8
// split l lo li 8
// order S: io, jo, jt, it, is, js
// precompute w at it in register
// order w: k, is, js
// order m: io, it, is, jo, jt, js
// precompute lanes_m = m over js in register
// order P: io, it, jo, jt, is, js
// order d: io, it, is, jo, jt, js
// precompute lanes_d = d over js in register
// order w1: io, lo, it, jo, jt, js, is, li
// order Y: io, lo, it, is, li
// precompute w1 at it in register
// precompute S at io in thread
// precompute m at io in thread
// precompute P at io in thread
// precompute d at io in thread
// pack turned_K = K[jo, jt, k, js] at root in memory
// transpose k js in turned_K
// parallel jo in turned_K static
// pack panels_V = V[lo, jo, jt, js, li] at root in memory
// vector li in panels_V
// order panels_V: jo, lo
// parallel jo in panels_V static
// unroll is in w
// vector js in w
// unroll is in S
// vector js in S
// vector js in lanes_m
// vector js in m
// vector js in P
// vector js in lanes_d
// vector js in d
// unroll is in w1
// vector li in w1
// unroll is in Y
// vector li in Y
// parallel io dynamic M chunks 4
// let panels_V[lo,jo,jt,js,li]: float32 in memory: (parallel forall jo: forall lo: forall jt: forall js: vector forall li: panels_V[lo,jo,jt,js,li] = V[j,l]); let turned_K[jo,jt,k,js]: float32 in memory: (parallel forall jo: forall jt: transposed forall k: vector forall js: turned_K[jo,jt,k,js] = K[j,k]); parallel forall io dynamic by positions of M chunks 4: let d[it,is]: float32 in thread: let P[it,jo,jt,is,js]: float32 in thread pattern of M[i,j]: (let m[it,is]: float32 in thread: let S[jo,jt,it,is,js]: float32 in thread pattern of M[i,j]: (forall jo: forall jt: forall it: let w[is,js]: float32 in register: (forall k: unrolled forall is: vector forall js: w[is,js] += Q[i,k] * turned_K[jo,jt,k,js]); unrolled forall is: vector forall js: S[jo,jt,it,is,js] = where(stored(M[i,j]), w[is,js], -inf)); (forall it: forall is: let lanes_m[js]: float32 in register: (forall jo: forall jt: vector forall js: lanes_m[js] max= S[jo,jt,it,is,js]); vector forall js: m[it,is] max= lanes_m[js]); forall it: forall jo: forall jt: forall is: vector forall js: P[it,jo,jt,is,js] = exp(S[jo,jt,it,is,js] - where(m[it,is] == -inf, 0, m[it,is]))); (forall it: forall is: let lanes_d[js]: float32 in register: (forall jo: forall jt: vector forall js: lanes_d[js] += P[it,jo,jt,is,js]); vector forall js: d[it,is] += lanes_d[js]); forall lo: forall it: let w1[is,li]: float32 in register: (forall jo: forall jt: forall js: unrolled forall is: vector forall li: w1[is,li] += P[it,jo,jt,is,js] * panels_V[lo,jo,jt,js,li]); unrolled forall is: vector forall li: Y[i,l] = w1[is,li] / where(d[it,is] == 0, 1, d[it,is])
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x4 __attribute__((vector_size(16)));
typedef float float32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));
typedef int32_t int32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));

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

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static inline __attribute__((always_inline)) void store_float32x8(float *address, float32x8 value) {
  *(float32x8_memory *)address = value;
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

static inline void fill_float32(float *address, int64_t count, float value) {
  for (int64_t p = 0; p < count; ++p) address[p] = value;
}

static inline __attribute__((always_inline)) float32x8 held_float32x8(float32x8 value) {
#ifdef __AVX__
  __asm__("" : "+x"(value));
#endif
  return value;
}

static inline __attribute__((always_inline)) float32x8 broadcast_float32x8(float value) {
  return value - float32x8{};
}

static inline __attribute__((always_inline)) float32x8 at_least_float32x8(float32x8 bound, float32x8 x) {
#if defined(__AVX__)
  return __builtin_ia32_maxps256(bound, x);
#else
  return x < bound ? bound : x;
#endif
}

static inline __attribute__((always_inline)) float32x8 max_float32x8(float32x8 x, float32x8 y) {
  return y != y ? y : at_least_float32x8(y, x);
}

static inline __attribute__((always_inline)) float max_float32(float x, float y) {
  return (x > y) | (x != x) ? x : y;
}

static inline __attribute__((always_inline)) float32x4 max_float32x4(float32x4 x, float32x4 y) {
  return (x > y) | (x != x) ? x : y;
}

static inline __attribute__((always_inline)) float reduce_max_float32x4(float32x4 value) {
  value = max_float32x4(value, __builtin_shufflevector(value, value, 2, 3, 0, 1));
  value = max_float32x4(value, __builtin_shufflevector(value, value, 1, 2, 3, 0));
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_max_float32x8(float32x8 value) {
  return reduce_max_float32x4(max_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3), __builtin_shufflevector(value, value, 4, 5, 6, 7)));
}

static inline __attribute__((always_inline)) float32x8 at_most_float32x8(float32x8 bound, float32x8 x) {
#if defined(__AVX__)
  return __builtin_ia32_minps256(bound, x);
#else
  return x > bound ? bound : x;
#endif
}

static inline __attribute__((always_inline)) float32x8 exp_float32x8(float32x8 x) {
  const float32x8 above = at_least_float32x8(broadcast_float32x8(-105.0f), x);
  const float32x8 bounded = at_most_float32x8(broadcast_float32x8(89.0f), above);
  const float32x8 shifted = bounded * 1.4426950408889634f + 12582912.0f;
  const float32x8 n = shifted - 12582912.0f;
  const float32x8 r = (bounded - n * 0.693145751953125f) - n * 1.428606765330187e-06f;
  float32x8 p = broadcast_float32x8(0.0013926203361634337f);
  p = p * r + 0.008363194882419041f;
  p = p * r + 0.0416665544984137f;
  p = p * r + 0.166665768946066f;
  p = p * r + 0.5f;
  const float32x8 e = (r * r * p + r) + 1.0f;
  const int32x8 zero = (int32x8)(broadcast_float32x8(12582912.0f));
  const int32x8 half = (int32x8)(n * 0.5f + 12582912.0f) - zero;
  const int32x8 rest = (int32x8)shifted - zero - half;
  const float32x8 first = (float32x8)((half + 127) << 23);
  const float32x8 second = (float32x8)((rest + 127) << 23);
  return e * first * second;
}

static inline __attribute__((always_inline)) float reduce_add_float32x4(float32x4 value) {
  value = value + __builtin_shufflevector(value, value, 2, 3, 0, 1);
  value = value + __builtin_shufflevector(value, value, 1, 2, 3, 0);
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_add_float32x8(float32x8 value) {
  return reduce_add_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7));
}

static __attribute__((noinline, hot)) void region_1(
    int64_t thread,
    int64_t threads,
    float *__restrict panels_V,
    const float *__restrict V_vals) {
  const int64_t extent = 8;
  const int64_t jo_begin = split_int64(thread, threads, extent);
  const int64_t jo_end = split_int64(thread + 1, threads, extent);
  for (int64_t j_0 = jo_begin * 8, j_0_end = min_int64(jo_end * 8, 64); j_0 < j_0_end; j_0 += 8) {
    const int64_t jo = j_0 >> 3;
    for (int64_t js = 0; js < 8; ++js) {
      store_float32x8(&panels_V[(jo * 8 + js) * 8], load_float32x8(&V_vals[(j_0 + js) * 8]));
    }
  }
}

static __attribute__((noinline, hot)) void region_2(
    int64_t thread,
    int64_t threads,
    const float *__restrict K_vals,
    float *__restrict turned_K) {
  const int64_t extent = 8;
  const int64_t jo_beginv1 = split_int64(thread, threads, extent);
  const int64_t jo_endv1 = split_int64(thread + 1, threads, extent);
  for (int64_t j_0v1 = jo_beginv1 * 8, j_0v1_end = min_int64(jo_endv1 * 8, 64); j_0v1 < j_0v1_end; j_0v1 += 8) {
    const int64_t jov1 = j_0v1 >> 3;
    float32x8 K_row = load_float32x8(&K_vals[j_0v1 * 8]);
    float32x8 K_rowv1 = load_float32x8(&K_vals[(j_0v1 + 1) * 8]);
    float32x8 K_rowv2 = load_float32x8(&K_vals[(j_0v1 + 2) * 8]);
    float32x8 K_rowv3 = load_float32x8(&K_vals[(j_0v1 + 3) * 8]);
    float32x8 K_rowv4 = load_float32x8(&K_vals[(j_0v1 + 4) * 8]);
    float32x8 K_rowv5 = load_float32x8(&K_vals[(j_0v1 + 5) * 8]);
    float32x8 K_rowv6 = load_float32x8(&K_vals[(j_0v1 + 6) * 8]);
    float32x8 K_rowv7 = load_float32x8(&K_vals[(j_0v1 + 7) * 8]);
    transpose_float32x8(K_row, K_rowv1, K_rowv2, K_rowv3, K_rowv4, K_rowv5, K_rowv6, K_rowv7);
    store_float32x8(&turned_K[jov1 * 64], K_row);
    store_float32x8(&turned_K[(jov1 * 8 + 1) * 8], K_rowv1);
    store_float32x8(&turned_K[(jov1 * 8 + 2) * 8], K_rowv2);
    store_float32x8(&turned_K[(jov1 * 8 + 3) * 8], K_rowv3);
    store_float32x8(&turned_K[(jov1 * 8 + 4) * 8], K_rowv4);
    store_float32x8(&turned_K[(jov1 * 8 + 5) * 8], K_rowv5);
    store_float32x8(&turned_K[(jov1 * 8 + 6) * 8], K_rowv6);
    store_float32x8(&turned_K[(jov1 * 8 + 7) * 8], K_rowv7);
  }
}

static __attribute__((noinline, hot)) int64_t region_3(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int32_t *__restrict M2_pos,
    const int64_t M2_longest,
    const int32_t *__restrict M2_crd,
    float *__restrict turned_K,
    const float *__restrict Q_vals,
    float *__restrict panels_V,
    float *__restrict Y_vals) {
  alignas(64) float d[8];
  const Scratch P_scratch((M2_longest * 64) * 4);
  float *__restrict P = (float *)P_scratch.memory;
  if (!P) return 1;
  alignas(64) float m[8];
  const Scratch S_scratch((M2_longest * 64) * 4);
  float *__restrict S = (float *)S_scratch.memory;
  if (!S) return 1;
  const int64_t extent = 8;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t io_begin = split_positions_int32(chunk, chunks, extent, M2_pos, 1);
    const int64_t io_end = split_positions_int32(chunk + 1, chunks, extent, M2_pos, 1);
    for (int64_t i_0 = io_begin * 8, i_0_end = min_int64(io_end * 8, 64); i_0 < i_0_end; i_0 += 8) {
      const int64_t io = i_0 >> 3;
      fill_float32(d, 8, 0.0f);
      fill_float32(m, 8, -__builtin_inff());
      for (int64_t pM2 = M2_pos[io], pM2_end = M2_pos[io + 1]; pM2 < pM2_end; ++pM2) {
        const int64_t jov2 = M2_crd[pM2];
        float32x8 w_0_0 = float32x8{};
        float32x8 w_1_0 = float32x8{};
        float32x8 w_2_0 = float32x8{};
        float32x8 w_3_0 = float32x8{};
        float32x8 w_4_0 = float32x8{};
        float32x8 w_5_0 = float32x8{};
        float32x8 w_6_0 = float32x8{};
        float32x8 w_7_0 = float32x8{};
        for (int64_t kv2 = 0; kv2 < 8; ++kv2) {
          const float32x8 turned_K_held = held_float32x8(load_float32x8(&turned_K[(jov2 * 8 + kv2) * 8]));
          w_0_0 += Q_vals[i_0 * 8 + kv2] * turned_K_held;
          w_1_0 += Q_vals[(i_0 + 1) * 8 + kv2] * turned_K_held;
          w_2_0 += Q_vals[(i_0 + 2) * 8 + kv2] * turned_K_held;
          w_3_0 += Q_vals[(i_0 + 3) * 8 + kv2] * turned_K_held;
          w_4_0 += Q_vals[(i_0 + 4) * 8 + kv2] * turned_K_held;
          w_5_0 += Q_vals[(i_0 + 5) * 8 + kv2] * turned_K_held;
          w_6_0 += Q_vals[(i_0 + 6) * 8 + kv2] * turned_K_held;
          w_7_0 += Q_vals[(i_0 + 7) * 8 + kv2] * turned_K_held;
        }
        store_float32x8(&S[(pM2 - (int64_t)M2_pos[io]) * 64], w_0_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 1) * 8], w_1_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 2) * 8], w_2_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 3) * 8], w_3_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 4) * 8], w_4_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 5) * 8], w_5_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 6) * 8], w_6_0);
        store_float32x8(&S[((pM2 - (int64_t)M2_pos[io]) * 8 + 7) * 8], w_7_0);
      }
      for (int64_t is = 0; is < 8; ++is) {
        float32x8 lanes_m_0 = broadcast_float32x8(-__builtin_inff());
        for (int64_t pM2v1 = M2_pos[io], pM2v1_end = M2_pos[io + 1]; pM2v1 < pM2v1_end; ++pM2v1) {
          lanes_m_0 = max_float32x8(lanes_m_0, load_float32x8(&S[((pM2v1 - (int64_t)M2_pos[io]) * 8 + is) * 8]));
        }
        m[is] = max_float32(m[is], reduce_max_float32x8(lanes_m_0));
      }
      for (int64_t pM2v2 = M2_pos[io], pM2v2_end = M2_pos[io + 1]; pM2v2 < pM2v2_end; ++pM2v2) {
        for (int64_t isv1 = 0; isv1 < 8; ++isv1) {
          store_float32x8(&P[((pM2v2 - (int64_t)M2_pos[io]) * 8 + isv1) * 8], exp_float32x8(load_float32x8(&S[((pM2v2 - (int64_t)M2_pos[io]) * 8 + isv1) * 8]) - (m[isv1] == -__builtin_inff() ? 0.0f : m[isv1])));
        }
      }
      for (int64_t isv2 = 0; isv2 < 8; ++isv2) {
        float32x8 lanes_d_0 = float32x8{};
        for (int64_t pM2v3 = M2_pos[io], pM2v3_end = M2_pos[io + 1]; pM2v3 < pM2v3_end; ++pM2v3) {
          lanes_d_0 += load_float32x8(&P[((pM2v3 - (int64_t)M2_pos[io]) * 8 + isv2) * 8]);
        }
        d[isv2] = d[isv2] + reduce_add_float32x8(lanes_d_0);
      }
      float32x8 w1_0_0 = float32x8{};
      float32x8 w1_1_0 = float32x8{};
      float32x8 w1_2_0 = float32x8{};
      float32x8 w1_3_0 = float32x8{};
      float32x8 w1_4_0 = float32x8{};
      float32x8 w1_5_0 = float32x8{};
      float32x8 w1_6_0 = float32x8{};
      float32x8 w1_7_0 = float32x8{};
      for (int64_t pM2v4 = M2_pos[io], pM2v4_end = M2_pos[io + 1]; pM2v4 < pM2v4_end; ++pM2v4) {
        const int64_t jov6 = M2_crd[pM2v4];
        for (int64_t jsv3 = 0; jsv3 < 8; ++jsv3) {
          const float32x8 panels_V_held = held_float32x8(load_float32x8(&panels_V[(jov6 * 8 + jsv3) * 8]));
          w1_0_0 += P[(pM2v4 - (int64_t)M2_pos[io]) * 64 + jsv3] * panels_V_held;
          w1_1_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 1) * 8 + jsv3] * panels_V_held;
          w1_2_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 2) * 8 + jsv3] * panels_V_held;
          w1_3_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 3) * 8 + jsv3] * panels_V_held;
          w1_4_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 4) * 8 + jsv3] * panels_V_held;
          w1_5_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 5) * 8 + jsv3] * panels_V_held;
          w1_6_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 6) * 8 + jsv3] * panels_V_held;
          w1_7_0 += P[((pM2v4 - (int64_t)M2_pos[io]) * 8 + 7) * 8 + jsv3] * panels_V_held;
        }
      }
      store_float32x8(&Y_vals[i_0 * 8], w1_0_0 / (d[0] == 0.0f ? 1.0f : d[0]));
      store_float32x8(&Y_vals[(i_0 + 1) * 8], w1_1_0 / (d[1] == 0.0f ? 1.0f : d[1]));
      store_float32x8(&Y_vals[(i_0 + 2) * 8], w1_2_0 / (d[2] == 0.0f ? 1.0f : d[2]));
      store_float32x8(&Y_vals[(i_0 + 3) * 8], w1_3_0 / (d[3] == 0.0f ? 1.0f : d[3]));
      store_float32x8(&Y_vals[(i_0 + 4) * 8], w1_4_0 / (d[4] == 0.0f ? 1.0f : d[4]));
      store_float32x8(&Y_vals[(i_0 + 5) * 8], w1_5_0 / (d[5] == 0.0f ? 1.0f : d[5]));
      store_float32x8(&Y_vals[(i_0 + 6) * 8], w1_6_0 / (d[6] == 0.0f ? 1.0f : d[6]));
      store_float32x8(&Y_vals[(i_0 + 7) * 8], w1_7_0 / (d[7] == 0.0f ? 1.0f : d[7]));
    }
  }
  return 0;
}

extern "C" __attribute__((visibility("default"), cold))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t M_nnz = sizes[0];
  const int64_t serial_threshold = sizes[1];
  const int32_t *__restrict M2_pos = (const int32_t *)buffers[0];
  const int32_t *__restrict M2_crd = (const int32_t *)buffers[1];
  const float *__restrict Q_vals = (const float *)buffers[3];
  const float *__restrict K_vals = (const float *)buffers[4];
  const float *__restrict V_vals = (const float *)buffers[5];
  float *__restrict Y_vals = (float *)buffers[6];
  alignas(64) float panels_V[512];
  alignas(64) float turned_K[512];
  int64_t M2_longest_found = 0;
  for (int64_t M2_segment = 0; M2_segment < 8; ++M2_segment) {
    M2_longest_found = max_int64(M2_longest_found, (int64_t)M2_pos[M2_segment + 1] - (int64_t)M2_pos[M2_segment]);
  }
  const int64_t M2_longest = M2_longest_found;
  const int64_t work_1 = 512;
  if (work_1 < serial_threshold || context->threads == 1) {
    region_1(0, 1, panels_V, V_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_1(omp_get_thread_num(), omp_get_num_threads(), panels_V, V_vals);
  }
  const int64_t work_2 = 512;
  if (work_2 < serial_threshold || context->threads == 1) {
    region_2(0, 1, K_vals, turned_K);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_2(omp_get_thread_num(), omp_get_num_threads(), K_vals, turned_K);
  }
  const int64_t work_3 = M_nnz * 8 + M_nnz + M_nnz + M_nnz * 8 + 512;
  int64_t next_3 = 0;
  const int64_t chunks_3 = context->threads * (work_3 < 64 * serial_threshold ? 4 : 4);
  int64_t status_3 = 0;
  if (work_3 < serial_threshold || context->threads == 1) {
    status_3 = region_3(0, 1, &next_3, 1, M2_pos, M2_longest, M2_crd, turned_K, Q_vals, panels_V, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    if (region_3(omp_get_thread_num(), omp_get_num_threads(), &next_3, chunks_3, M2_pos, M2_longest, M2_crd, turned_K, Q_vals, panels_V, Y_vals)) __atomic_store_n(&status_3, 1, __ATOMIC_RELAXED);
  }
  if (status_3) return status_3;
  return 0;
}
