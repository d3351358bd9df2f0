// split n ns np 8
// order ns, t, np, ko, ki
// precompute tile_Y = Y at t in thread
// order Y: ns, t, np
// precompute sums = tile_Y at np in register
// precompute apart = sums over ki in register
// vector ki
// parallel ns dynamic chunks 4
// parallel forall ns dynamic chunks 4: forall t: let tile_Y[np]: float32 in thread: (forall np: let sums: float32 in register: (let apart[ki]: float32 in register: (forall ko: vector forall ki: apart[ki] += X[t,k] * W[n,k]); vector forall ki: sums += apart[ki]); tile_Y[np] = sums); forall np: Y[t,n] = tile_Y[np]
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float float32x4 __attribute__((vector_size(16)));
typedef float float32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef float float32x8 __attribute__((vector_size(32)));
typedef float float32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));
typedef int32_t int32x8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t int64x2 __attribute__((vector_size(16)));
typedef int64_t int64x2_memory __attribute__((vector_size(16), aligned(8), may_alias));
typedef int8_t int8x8 __attribute__((vector_size(8)));
typedef int8_t int8x8_memory __attribute__((vector_size(8), aligned(1), may_alias));

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

typedef float native_float32x8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef int native_int32x8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef float native_places_float32 __attribute__((vector_size(32)));

typedef int native_places_int32 __attribute__((vector_size(32)));

#ifdef __clang__
#define SPARSIFY_MASKED(vector, element) vector
#else
#define SPARSIFY_MASKED(vector, element) element
#endif

#if defined(__AVX2__)
typedef char bytes_of_numbers __attribute__((vector_size(16)));
static inline __attribute__((always_inline)) int32x8 numbers_of_bytes(int64_t bytes) {
#ifdef __clang__
  int8x8 each;
  __builtin_memcpy(&each, &bytes, 8);
  return __builtin_convertvector(each, int32x8);
#else
  const int64x2 both{bytes, 0};
  return (int32x8)__builtin_ia32_pmovsxbd256((bytes_of_numbers)both);
#endif
}
#endif

extern "C" int omp_get_thread_num() noexcept;
extern "C" int omp_get_num_threads() noexcept;

// Of the set ones of eight bits: how many are set below, with the sign bit.
static const uint64_t places_of_bits[256] = {
  0x0ull, 0x80ull, 0x8000ull, 0x8180ull,
  0x800000ull, 0x810080ull, 0x818000ull, 0x828180ull,
  0x80000000ull, 0x81000080ull, 0x81008000ull, 0x82008180ull,
  0x81800000ull, 0x82810080ull, 0x82818000ull, 0x83828180ull,
  0x8000000000ull, 0x8100000080ull, 0x8100008000ull, 0x8200008180ull,
  0x8100800000ull, 0x8200810080ull, 0x8200818000ull, 0x8300828180ull,
  0x8180000000ull, 0x8281000080ull, 0x8281008000ull, 0x8382008180ull,
  0x8281800000ull, 0x8382810080ull, 0x8382818000ull, 0x8483828180ull,
  0x800000000000ull, 0x810000000080ull, 0x810000008000ull, 0x820000008180ull,
  0x810000800000ull, 0x820000810080ull, 0x820000818000ull, 0x830000828180ull,
  0x810080000000ull, 0x820081000080ull, 0x820081008000ull, 0x830082008180ull,
  0x820081800000ull, 0x830082810080ull, 0x830082818000ull, 0x840083828180ull,
  0x818000000000ull, 0x828100000080ull, 0x828100008000ull, 0x838200008180ull,
  0x828100800000ull, 0x838200810080ull, 0x838200818000ull, 0x848300828180ull,
  0x828180000000ull, 0x838281000080ull, 0x838281008000ull, 0x848382008180ull,
  0x838281800000ull, 0x848382810080ull, 0x848382818000ull, 0x858483828180ull,
  0x80000000000000ull, 0x81000000000080ull, 0x81000000008000ull, 0x82000000008180ull,
  0x81000000800000ull, 0x82000000810080ull, 0x82000000818000ull, 0x83000000828180ull,
  0x81000080000000ull, 0x82000081000080ull, 0x82000081008000ull, 0x83000082008180ull,
  0x82000081800000ull, 0x83000082810080ull, 0x83000082818000ull, 0x84000083828180ull,
  0x81008000000000ull, 0x82008100000080ull, 0x82008100008000ull, 0x83008200008180ull,
  0x82008100800000ull, 0x83008200810080ull, 0x83008200818000ull, 0x84008300828180ull,
  0x82008180000000ull, 0x83008281000080ull, 0x83008281008000ull, 0x84008382008180ull,
  0x83008281800000ull, 0x84008382810080ull, 0x84008382818000ull, 0x85008483828180ull,
  0x81800000000000ull, 0x82810000000080ull, 0x82810000008000ull, 0x83820000008180ull,
  0x82810000800000ull, 0x83820000810080ull, 0x83820000818000ull, 0x84830000828180ull,
  0x82810080000000ull, 0x83820081000080ull, 0x83820081008000ull, 0x84830082008180ull,
  0x83820081800000ull, 0x84830082810080ull, 0x84830082818000ull, 0x85840083828180ull,
  0x82818000000000ull, 0x83828100000080ull, 0x83828100008000ull, 0x84838200008180ull,
  0x83828100800000ull, 0x84838200810080ull, 0x84838200818000ull, 0x85848300828180ull,
  0x83828180000000ull, 0x84838281000080ull, 0x84838281008000ull, 0x85848382008180ull,
  0x84838281800000ull, 0x85848382810080ull, 0x85848382818000ull, 0x86858483828180ull,
  0x8000000000000000ull, 0x8100000000000080ull, 0x8100000000008000ull, 0x8200000000008180ull,
  0x8100000000800000ull, 0x8200000000810080ull, 0x8200000000818000ull, 0x8300000000828180ull,
  0x8100000080000000ull, 0x8200000081000080ull, 0x8200000081008000ull, 0x8300000082008180ull,
  0x8200000081800000ull, 0x8300000082810080ull, 0x8300000082818000ull, 0x8400000083828180ull,
  0x8100008000000000ull, 0x8200008100000080ull, 0x8200008100008000ull, 0x8300008200008180ull,
  0x8200008100800000ull, 0x8300008200810080ull, 0x8300008200818000ull, 0x8400008300828180ull,
  0x8200008180000000ull, 0x8300008281000080ull, 0x8300008281008000ull, 0x8400008382008180ull,
  0x8300008281800000ull, 0x8400008382810080ull, 0x8400008382818000ull, 0x8500008483828180ull,
  0x8100800000000000ull, 0x8200810000000080ull, 0x8200810000008000ull, 0x8300820000008180ull,
  0x8200810000800000ull, 0x8300820000810080ull, 0x8300820000818000ull, 0x8400830000828180ull,
  0x8200810080000000ull, 0x8300820081000080ull, 0x8300820081008000ull, 0x8400830082008180ull,
  0x8300820081800000ull, 0x8400830082810080ull, 0x8400830082818000ull, 0x8500840083828180ull,
  0x8200818000000000ull, 0x8300828100000080ull, 0x8300828100008000ull, 0x8400838200008180ull,
  0x8300828100800000ull, 0x8400838200810080ull, 0x8400838200818000ull, 0x8500848300828180ull,
  0x8300828180000000ull, 0x8400838281000080ull, 0x8400838281008000ull, 0x8500848382008180ull,
  0x8400838281800000ull, 0x8500848382810080ull, 0x8500848382818000ull, 0x8600858483828180ull,
  0x8180000000000000ull, 0x8281000000000080ull, 0x8281000000008000ull, 0x8382000000008180ull,
  0x8281000000800000ull, 0x8382000000810080ull, 0x8382000000818000ull, 0x8483000000828180ull,
  0x8281000080000000ull, 0x8382000081000080ull, 0x8382000081008000ull, 0x8483000082008180ull,
  0x8382000081800000ull, 0x8483000082810080ull, 0x8483000082818000ull, 0x8584000083828180ull,
  0x8281008000000000ull, 0x8382008100000080ull, 0x8382008100008000ull, 0x8483008200008180ull,
  0x8382008100800000ull, 0x8483008200810080ull, 0x8483008200818000ull, 0x8584008300828180ull,
  0x8382008180000000ull, 0x8483008281000080ull, 0x8483008281008000ull, 0x8584008382008180ull,
  0x8483008281800000ull, 0x8584008382810080ull, 0x8584008382818000ull, 0x8685008483828180ull,
  0x8281800000000000ull, 0x8382810000000080ull, 0x8382810000008000ull, 0x8483820000008180ull,
  0x8382810000800000ull, 0x8483820000810080ull, 0x8483820000818000ull, 0x8584830000828180ull,
  0x8382810080000000ull, 0x8483820081000080ull, 0x8483820081008000ull, 0x8584830082008180ull,
  0x8483820081800000ull, 0x8584830082810080ull, 0x8584830082818000ull, 0x8685840083828180ull,
  0x8382818000000000ull, 0x8483828100000080ull, 0x8483828100008000ull, 0x8584838200008180ull,
  0x8483828100800000ull, 0x8584838200810080ull, 0x8584838200818000ull, 0x8685848300828180ull,
  0x8483828180000000ull, 0x8584838281000080ull, 0x8584838281008000ull, 0x8685848382008180ull,
  0x8584838281800000ull, 0x8685848382810080ull, 0x8685848382818000ull, 0x8786858483828180ull};
#if defined(__AVX2__)
static inline __attribute__((always_inline)) int32x8 places_at(int64_t bits) {
  return numbers_of_bytes((int64_t)places_of_bits[bits]);
}
#endif

// Where part `chunk` of `chunks` equal parts of 0..extent begins.
static inline int64_t split_int64(int64_t chunk, int64_t chunks, int64_t extent) {
  return extent / chunks * chunk + extent % chunks * chunk / chunks;
}

static inline __attribute__((always_inline)) int64_t min_int64(int64_t x, int64_t y) {
  return x < y ? x : y;
}

static inline __attribute__((always_inline)) int64_t bits_int8x8(const int8_t *address) {
  __UINT8_TYPE__ word;
  __builtin_memcpy(&word, address, sizeof(word));
  return (int64_t)word;
}

static inline __attribute__((always_inline)) int32x8 broadcast_int32x8(int32_t value) {
  return value - int32x8{};
}

static inline __attribute__((always_inline)) int32x8 lanes_of_bits_int32x8(int64_t bits) {
#if defined(__AVX2__)
  return places_at(bits) < 0;
#else
  return (broadcast_int32x8((int32_t)bits) & int32x8{(int32_t)((int32_t)1 << 0), (int32_t)((int32_t)1 << 1), (int32_t)((int32_t)1 << 2), (int32_t)((int32_t)1 << 3), (int32_t)((int32_t)1 << 4), (int32_t)((int32_t)1 << 5), (int32_t)((int32_t)1 << 6), (int32_t)((int32_t)1 << 7)}) != int32x8{};
#endif
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static __attribute__((noinline)) float32x8 expand_slowly_float32x8(const float *values, int64_t bits, int64_t left) {
  float32x8 value{};
  for (int lane = 0; lane < 8; ++lane)
    if (bits >> lane & 1) value[lane] = *values++;
  return value;
}
static inline __attribute__((always_inline)) float32x8 expand_float32x8(const float *values, int64_t bits, int64_t left) {
#if defined(__AVX2__)
  if (__builtin_expect(left >= 8, 1)) {
    return (float32x8)__builtin_ia32_permvarsf256((native_places_float32)load_float32x8(values), (native_places_int32)places_at(bits));
  }
#endif
  return expand_slowly_float32x8(values, bits, left);
}

static inline __attribute__((always_inline)) int64_t count_bits_int64(int64_t bits) {
  return __builtin_popcountll((uint64_t)bits);
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

static inline __attribute__((always_inline)) int64_t max_int64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

static inline __attribute__((always_inline)) float reduce_add_float32x4(float32x4 value) {
  value = value + __builtin_shufflevector(value, value, 2, 3, 0, 1);
  value = value + __builtin_shufflevector(value, value, 1, 2, 3, 0);
  return value[0];
}

static inline __attribute__((always_inline)) float reduce_add_float32x8(float32x8 value) {
  return reduce_add_float32x4(__builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7));
}

static __attribute__((noinline)) void region_1(
    int64_t thread,
    int64_t threads,
    int64_t *next,
    int64_t chunks,
    const int64_t n_extent,
    const int64_t t_extent,
    const int64_t k_extent,
    const int32_t *__restrict W3_pos,
    const int8_t *__restrict W3_crd,
    const float *__restrict X_vals,
    const float *__restrict W_vals,
    const int64_t W_nnz,
    float *__restrict Y_vals) {
  alignas(64) float tile_Y[8];
  const int64_t extent = n_extent + 7 >> 3;
  for (int64_t chunk; (chunk = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks;) {
    const int64_t ns_begin = split_int64(chunk, chunks, extent);
    const int64_t ns_end = split_int64(chunk + 1, chunks, extent);
    for (int64_t n_0 = ns_begin * 8, n_0_end = min_int64(ns_end * 8, n_extent); n_0 < n_0_end; n_0 += 8) {
      for (int64_t t = 0; t < t_extent; ++t) {
        for (int64_t np = 0, np_end = min_int64(8, min_int64(ns_end * 8, n_extent) - n_0); np < np_end; ++np) {
          float sums = 0.0f;
          float32x8 apart_0 = float32x8{};
          float32x8 apart_1 = float32x8{};
          float32x8 apart_2 = float32x8{};
          float32x8 apart_3 = float32x8{};
          float32x8 apart_4 = float32x8{};
          float32x8 apart_5 = float32x8{};
          float32x8 apart_6 = float32x8{};
          float32x8 apart_7 = float32x8{};
          const int64_t k_last = (k_extent >> 6) * 64;
          for (int64_t k_0 = 0; k_0 < k_last; k_0 += 64) {
            const int64_t ko = k_0 >> 6;
            int64_t pW3 = W3_pos[(n_0 + np) * (k_extent + 63 >> 6) + ko];
            const int64_t ki_bits = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8]);
            apart_0 = lanes_of_bits_int32x8(ki_bits) ? apart_0 + load_float32x8(&X_vals[t * k_extent + k_0]) * expand_float32x8(&W_vals[pW3], ki_bits, W_nnz - pW3) : apart_0;
            pW3 += count_bits_int64(ki_bits);
            const int64_t ki_bitsv1 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 1]);
            apart_1 = lanes_of_bits_int32x8(ki_bitsv1) ? apart_1 + load_float32x8(&X_vals[t * k_extent + k_0 + 8]) * expand_float32x8(&W_vals[pW3], ki_bitsv1, W_nnz - pW3) : apart_1;
            pW3 += count_bits_int64(ki_bitsv1);
            const int64_t ki_bitsv2 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 2]);
            apart_2 = lanes_of_bits_int32x8(ki_bitsv2) ? apart_2 + load_float32x8(&X_vals[t * k_extent + k_0 + 16]) * expand_float32x8(&W_vals[pW3], ki_bitsv2, W_nnz - pW3) : apart_2;
            pW3 += count_bits_int64(ki_bitsv2);
            const int64_t ki_bitsv3 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 3]);
            apart_3 = lanes_of_bits_int32x8(ki_bitsv3) ? apart_3 + load_float32x8(&X_vals[t * k_extent + k_0 + 24]) * expand_float32x8(&W_vals[pW3], ki_bitsv3, W_nnz - pW3) : apart_3;
            pW3 += count_bits_int64(ki_bitsv3);
            const int64_t ki_bitsv4 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 4]);
            apart_4 = lanes_of_bits_int32x8(ki_bitsv4) ? apart_4 + load_float32x8(&X_vals[t * k_extent + k_0 + 32]) * expand_float32x8(&W_vals[pW3], ki_bitsv4, W_nnz - pW3) : apart_4;
            pW3 += count_bits_int64(ki_bitsv4);
            const int64_t ki_bitsv5 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 5]);
            apart_5 = lanes_of_bits_int32x8(ki_bitsv5) ? apart_5 + load_float32x8(&X_vals[t * k_extent + k_0 + 40]) * expand_float32x8(&W_vals[pW3], ki_bitsv5, W_nnz - pW3) : apart_5;
            pW3 += count_bits_int64(ki_bitsv5);
            const int64_t ki_bitsv6 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 6]);
            apart_6 = lanes_of_bits_int32x8(ki_bitsv6) ? apart_6 + load_float32x8(&X_vals[t * k_extent + k_0 + 48]) * expand_float32x8(&W_vals[pW3], ki_bitsv6, W_nnz - pW3) : apart_6;
            pW3 += count_bits_int64(ki_bitsv6);
            const int64_t ki_bitsv7 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 7]);
            apart_7 = lanes_of_bits_int32x8(ki_bitsv7) ? apart_7 + load_float32x8(&X_vals[t * k_extent + k_0 + 56]) * expand_float32x8(&W_vals[pW3], ki_bitsv7, W_nnz - pW3) : apart_7;
            pW3 += count_bits_int64(ki_bitsv7);
          }
          if (k_last < k_extent) {
            const int64_t k_left = k_extent - k_last;
            const int64_t kov1 = k_last >> 6;
            int64_t pW3v1 = W3_pos[(n_0 + np) * (k_extent + 63 >> 6) + kov1];
            const int64_t ki_bitsv8 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8]);
            apart_0 = lanes_of_bits_int32x8(ki_bitsv8) ? apart_0 + load_part_float32x8(&X_vals[t * k_extent + k_last], max_int64(k_left, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv8, W_nnz - pW3v1) : apart_0;
            pW3v1 += count_bits_int64(ki_bitsv8);
            const int64_t ki_bitsv9 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 1]);
            apart_1 = lanes_of_bits_int32x8(ki_bitsv9) ? apart_1 + load_part_float32x8(&X_vals[t * k_extent + k_last + 8], max_int64(k_left - 8, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv9, W_nnz - pW3v1) : apart_1;
            pW3v1 += count_bits_int64(ki_bitsv9);
            const int64_t ki_bitsv10 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 2]);
            apart_2 = lanes_of_bits_int32x8(ki_bitsv10) ? apart_2 + load_part_float32x8(&X_vals[t * k_extent + k_last + 16], max_int64(k_left - 16, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv10, W_nnz - pW3v1) : apart_2;
            pW3v1 += count_bits_int64(ki_bitsv10);
            const int64_t ki_bitsv11 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 3]);
            apart_3 = lanes_of_bits_int32x8(ki_bitsv11) ? apart_3 + load_part_float32x8(&X_vals[t * k_extent + k_last + 24], max_int64(k_left - 24, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv11, W_nnz - pW3v1) : apart_3;
            pW3v1 += count_bits_int64(ki_bitsv11);
            const int64_t ki_bitsv12 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 4]);
            apart_4 = lanes_of_bits_int32x8(ki_bitsv12) ? apart_4 + load_part_float32x8(&X_vals[t * k_extent + k_last + 32], max_int64(k_left - 32, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv12, W_nnz - pW3v1) : apart_4;
            pW3v1 += count_bits_int64(ki_bitsv12);
            const int64_t ki_bitsv13 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 5]);
            apart_5 = lanes_of_bits_int32x8(ki_bitsv13) ? apart_5 + load_part_float32x8(&X_vals[t * k_extent + k_last + 40], max_int64(k_left - 40, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv13, W_nnz - pW3v1) : apart_5;
            pW3v1 += count_bits_int64(ki_bitsv13);
            const int64_t ki_bitsv14 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 6]);
            apart_6 = lanes_of_bits_int32x8(ki_bitsv14) ? apart_6 + load_part_float32x8(&X_vals[t * k_extent + k_last + 48], max_int64(k_left - 48, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv14, W_nnz - pW3v1) : apart_6;
            pW3v1 += count_bits_int64(ki_bitsv14);
            const int64_t ki_bitsv15 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 7]);
            apart_7 = lanes_of_bits_int32x8(ki_bitsv15) ? apart_7 + load_part_float32x8(&X_vals[t * k_extent + k_last + 56], max_int64(k_left - 56, 0)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv15, W_nnz - pW3v1) : apart_7;
            pW3v1 += count_bits_int64(ki_bitsv15);
          }
          sums += reduce_add_float32x8(apart_0 + apart_1 + apart_2 + apart_3 + apart_4 + apart_5 + apart_6 + apart_7);
          tile_Y[np] = sums;
        }
        for (int64_t npv1 = 0, npv1_end = min_int64(8, min_int64(ns_end * 8, n_extent) - n_0); npv1 < npv1_end; ++npv1) {
          Y_vals[t * n_extent + n_0 + npv1] = tile_Y[npv1];
        }
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
int64_t sparsify_kernel(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t t_extent = sizes[0];
  const int64_t k_extent = sizes[1];
  const int64_t n_extent = sizes[2];
  const int64_t W_nnz = sizes[3];
  const int64_t serial_threshold = sizes[4];
  const float *__restrict X_vals = (const float *)buffers[0];
  const int32_t *__restrict W3_pos = (const int32_t *)buffers[1];
  const int8_t *__restrict W3_crd = (const int8_t *)buffers[2];
  const float *__restrict W_vals = (const float *)buffers[3];
  float *__restrict Y_vals = (float *)buffers[4];
  const int64_t work_1 = t_extent * W_nnz + k_extent + n_extent + t_extent * n_extent;
  int64_t next_1 = 0;
  const int64_t chunks_1 = context->threads * (work_1 < 64 * serial_threshold ? 4 : 4);
  if (work_1 < serial_threshold || context->threads == 1) {
    region_1(0, 1, &next_1, 1, n_extent, t_extent, k_extent, W3_pos, W3_crd, X_vals, W_vals, W_nnz, Y_vals);
  } else {
#pragma omp parallel num_threads((int)context->threads)
    region_1(omp_get_thread_num(), omp_get_num_threads(), &next_1, chunks_1, n_extent, t_extent, k_extent, W3_pos, W3_crd, X_vals, W_vals, W_nnz, Y_vals);
  }
  return 0;
}
