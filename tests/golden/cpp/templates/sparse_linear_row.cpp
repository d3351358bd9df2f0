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

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};

#if defined(__AVX2__)
// All bits of the lanes with set bits.
static const uint64_t lanes_of_byte[1024] __attribute__((aligned(32))) = {
  0x0ull, 0x0ull, 0x0ull, 0x0ull,
  0xffffffffull, 0x0ull, 0x0ull, 0x0ull,
  0xffffffff00000000ull, 0x0ull, 0x0ull, 0x0ull,
  0xffffffffffffffffull, 0x0ull, 0x0ull, 0x0ull,
  0x0ull, 0xffffffffull, 0x0ull, 0x0ull,
  0xffffffffull, 0xffffffffull, 0x0ull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffull, 0x0ull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffull, 0x0ull, 0x0ull,
  0x0ull, 0xffffffff00000000ull, 0x0ull, 0x0ull,
  0xffffffffull, 0xffffffff00000000ull, 0x0ull, 0x0ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull, 0x0ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull, 0x0ull,
  0x0ull, 0xffffffffffffffffull, 0x0ull, 0x0ull,
  0xffffffffull, 0xffffffffffffffffull, 0x0ull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull, 0x0ull,
  0x0ull, 0x0ull, 0xffffffffull, 0x0ull,
  0xffffffffull, 0x0ull, 0xffffffffull, 0x0ull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffull, 0x0ull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffull, 0x0ull,
  0x0ull, 0xffffffffull, 0xffffffffull, 0x0ull,
  0xffffffffull, 0xffffffffull, 0xffffffffull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffull, 0x0ull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffull, 0x0ull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0x0ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull, 0x0ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0x0ull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffull, 0x0ull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0x0ull,
  0x0ull, 0x0ull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffull, 0x0ull, 0xffffffff00000000ull, 0x0ull,
  0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull, 0x0ull,
  0x0ull, 0xffffffffull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0x0ull,
  0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull,
  0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull,
  0x0ull, 0x0ull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffull, 0x0ull, 0xffffffffffffffffull, 0x0ull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull, 0x0ull,
  0x0ull, 0xffffffffull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0x0ull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull,
  0x0ull, 0x0ull, 0x0ull, 0xffffffffull,
  0xffffffffull, 0x0ull, 0x0ull, 0xffffffffull,
  0xffffffff00000000ull, 0x0ull, 0x0ull, 0xffffffffull,
  0xffffffffffffffffull, 0x0ull, 0x0ull, 0xffffffffull,
  0x0ull, 0xffffffffull, 0x0ull, 0xffffffffull,
  0xffffffffull, 0xffffffffull, 0x0ull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0x0ull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0x0ull, 0xffffffffull,
  0x0ull, 0xffffffff00000000ull, 0x0ull, 0xffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0x0ull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull, 0xffffffffull,
  0x0ull, 0xffffffffffffffffull, 0x0ull, 0xffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0x0ull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull, 0xffffffffull,
  0x0ull, 0x0ull, 0xffffffffull, 0xffffffffull,
  0xffffffffull, 0x0ull, 0xffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffull, 0xffffffffull,
  0x0ull, 0xffffffffull, 0xffffffffull, 0xffffffffull,
  0xffffffffull, 0xffffffffull, 0xffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffull, 0xffffffffull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffull,
  0x0ull, 0x0ull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffull, 0x0ull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull, 0xffffffffull,
  0x0ull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull,
  0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull,
  0x0ull, 0x0ull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffull, 0x0ull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull, 0xffffffffull,
  0x0ull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull,
  0x0ull, 0x0ull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffull, 0x0ull, 0x0ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0x0ull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0x0ull, 0x0ull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffull, 0x0ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffull, 0x0ull, 0xffffffff00000000ull,
  0x0ull, 0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull,
  0x0ull, 0x0ull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0x0ull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull,
  0x0ull, 0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffull, 0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull,
  0x0ull, 0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull,
  0x0ull, 0x0ull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffull, 0x0ull, 0x0ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0x0ull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0x0ull, 0x0ull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffull, 0x0ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0x0ull, 0xffffffffffffffffull,
  0x0ull, 0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull,
  0x0ull, 0x0ull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0x0ull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull,
  0x0ull, 0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffull, 0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0x0ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull,
  0x0ull, 0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0x0ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0x0ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffff00000000ull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull,
  0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull, 0xffffffffffffffffull};
#endif

typedef float native_float32x8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef int native_int32x8 __attribute__((vector_size(32), aligned(4), may_alias));

#ifdef __clang__
#define SPARSIFY_MASKED(vector, element) vector
#else
#define SPARSIFY_MASKED(vector, element) element
#endif

extern "C" int omp_get_thread_num() noexcept;
extern "C" int omp_get_num_threads() noexcept;

#if defined(__AVX2__)
// Bytes of consecutive elements in the lanes with set bits, 0x80 in the others.
static const uint64_t order_of_4x4[32] __attribute__((aligned(16))) = {
  0x8080808080808080ull, 0x8080808080808080ull, 0x8080808003020100ull, 0x8080808080808080ull,
  0x302010080808080ull, 0x8080808080808080ull, 0x706050403020100ull, 0x8080808080808080ull,
  0x8080808080808080ull, 0x8080808003020100ull, 0x8080808003020100ull, 0x8080808007060504ull,
  0x302010080808080ull, 0x8080808007060504ull, 0x706050403020100ull, 0x808080800b0a0908ull,
  0x8080808080808080ull, 0x302010080808080ull, 0x8080808003020100ull, 0x706050480808080ull,
  0x302010080808080ull, 0x706050480808080ull, 0x706050403020100ull, 0xb0a090880808080ull,
  0x8080808080808080ull, 0x706050403020100ull, 0x8080808003020100ull, 0xb0a090807060504ull,
  0x302010080808080ull, 0xb0a090807060504ull, 0x706050403020100ull, 0xf0e0d0c0b0a0908ull};
#endif

#if defined(__AVX2__)
typedef char bytes_of_lanes __attribute__((vector_size(16)));
static inline __attribute__((always_inline)) bytes_of_lanes shuffled(const void *values, const uint64_t *order) {
  bytes_of_lanes found;
  __builtin_memcpy(&found, values, sizeof(found));
  return __builtin_ia32_pshufb128(found, *(const bytes_of_lanes *)order);
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
  return *(const int32x8 *)(lanes_of_byte + 4 * bits);
#else
  return (broadcast_int32x8((int32_t)bits) & int32x8{(int32_t)((int32_t)1 << 0), (int32_t)((int32_t)1 << 1), (int32_t)((int32_t)1 << 2), (int32_t)((int32_t)1 << 3), (int32_t)((int32_t)1 << 4), (int32_t)((int32_t)1 << 5), (int32_t)((int32_t)1 << 6), (int32_t)((int32_t)1 << 7)}) != int32x8{};
#endif
}

static inline __attribute__((always_inline)) float32x8 load_float32x8(const float *address) {
  return *(const float32x8_memory *)address;
}

static __attribute__((noinline)) float32x8 expand_slowly_float32x8(const float *values, int64_t bits, int64_t at, int64_t end) {
  float32x8 value{};
  for (int lane = 0; lane < 8; ++lane)
    if (bits >> lane & 1) value[lane] = *values++;
  return value;
}
static inline __attribute__((always_inline)) float32x8 expand_float32x8(const float *values, int64_t bits, int64_t at, int64_t end) {
#if defined(__AVX2__)
  if (__builtin_expect(at <= end - 8, 1)) {
    return (float32x8)__builtin_shufflevector(shuffled(values, order_of_4x4 + 2 * (bits & 15)),
        shuffled(values + __builtin_popcountll(bits & 15), order_of_4x4 + 2 * (bits >> 4)), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  }
#endif
  return expand_slowly_float32x8(values, bits, at, end);
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
            apart_0 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0]) & lanes_of_bits_int32x8(ki_bits)) * expand_float32x8(&W_vals[pW3], ki_bits, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bits);
            const int64_t ki_bitsv1 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 1]);
            apart_1 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 8]) & lanes_of_bits_int32x8(ki_bitsv1)) * expand_float32x8(&W_vals[pW3], ki_bitsv1, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv1);
            const int64_t ki_bitsv2 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 2]);
            apart_2 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 16]) & lanes_of_bits_int32x8(ki_bitsv2)) * expand_float32x8(&W_vals[pW3], ki_bitsv2, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv2);
            const int64_t ki_bitsv3 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 3]);
            apart_3 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 24]) & lanes_of_bits_int32x8(ki_bitsv3)) * expand_float32x8(&W_vals[pW3], ki_bitsv3, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv3);
            const int64_t ki_bitsv4 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 4]);
            apart_4 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 32]) & lanes_of_bits_int32x8(ki_bitsv4)) * expand_float32x8(&W_vals[pW3], ki_bitsv4, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv4);
            const int64_t ki_bitsv5 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 5]);
            apart_5 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 40]) & lanes_of_bits_int32x8(ki_bitsv5)) * expand_float32x8(&W_vals[pW3], ki_bitsv5, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv5);
            const int64_t ki_bitsv6 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 6]);
            apart_6 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 48]) & lanes_of_bits_int32x8(ki_bitsv6)) * expand_float32x8(&W_vals[pW3], ki_bitsv6, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv6);
            const int64_t ki_bitsv7 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + ko) * 8 + 7]);
            apart_7 += (float32x8)((int32x8)load_float32x8(&X_vals[t * k_extent + k_0 + 56]) & lanes_of_bits_int32x8(ki_bitsv7)) * expand_float32x8(&W_vals[pW3], ki_bitsv7, pW3, W_nnz);
            pW3 += count_bits_int64(ki_bitsv7);
          }
          if (k_last < k_extent) {
            const int64_t k_left = k_extent - k_last;
            const int64_t kov1 = k_last >> 6;
            int64_t pW3v1 = W3_pos[(n_0 + np) * (k_extent + 63 >> 6) + kov1];
            const int64_t ki_bitsv8 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8]);
            apart_0 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last], max_int64(k_left, 0)) & lanes_of_bits_int32x8(ki_bitsv8)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv8, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv8);
            const int64_t ki_bitsv9 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 1]);
            apart_1 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 8], max_int64(k_left - 8, 0)) & lanes_of_bits_int32x8(ki_bitsv9)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv9, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv9);
            const int64_t ki_bitsv10 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 2]);
            apart_2 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 16], max_int64(k_left - 16, 0)) & lanes_of_bits_int32x8(ki_bitsv10)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv10, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv10);
            const int64_t ki_bitsv11 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 3]);
            apart_3 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 24], max_int64(k_left - 24, 0)) & lanes_of_bits_int32x8(ki_bitsv11)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv11, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv11);
            const int64_t ki_bitsv12 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 4]);
            apart_4 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 32], max_int64(k_left - 32, 0)) & lanes_of_bits_int32x8(ki_bitsv12)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv12, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv12);
            const int64_t ki_bitsv13 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 5]);
            apart_5 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 40], max_int64(k_left - 40, 0)) & lanes_of_bits_int32x8(ki_bitsv13)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv13, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv13);
            const int64_t ki_bitsv14 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 6]);
            apart_6 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 48], max_int64(k_left - 48, 0)) & lanes_of_bits_int32x8(ki_bitsv14)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv14, pW3v1, W_nnz);
            pW3v1 += count_bits_int64(ki_bitsv14);
            const int64_t ki_bitsv15 = bits_int8x8(&W3_crd[((n_0 + np) * (k_extent + 63 >> 6) + kov1) * 8 + 7]);
            apart_7 += (float32x8)((int32x8)load_part_float32x8(&X_vals[t * k_extent + k_last + 56], max_int64(k_left - 56, 0)) & lanes_of_bits_int32x8(ki_bitsv15)) * expand_float32x8(&W_vals[pW3v1], ki_bitsv15, pW3v1, W_nnz);
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
