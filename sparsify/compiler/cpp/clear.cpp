// Entries of a tensor become 0 where the bits of a mask are 0: 64 entries a word, the first one in the lowest bit.
//
// In: the values [3, 5, 7] and the bits 0b101. Out: the values [3, 0, 7]. Words that keep all of their entries write
// nothing. Threads take consecutive parts, as those do that have written the values.

typedef __INT64_TYPE__ int64_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

enum { WORD = 64 };

struct Context {
  int64_t threads;
};

template <typename T>
static void clear(T *values, const uint64_t *bits, int64_t count, int64_t threads) {
  const int64_t words = count / WORD;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t word = 0; word < words; word++) {
    const uint64_t kept = bits[word];
    if (kept == ~(uint64_t)0) continue;
    T *block = values + word * WORD;
    for (int half = 0; half < WORD; half += 32) {
      const uint32_t half_kept = (uint32_t)(kept >> half);
      for (int lane = 0; lane < 32; lane++) block[half + lane] &= (T)(0 - (T)((half_kept >> lane) & 1u));
    }
  }
  for (int64_t entry = words * WORD; entry < count; entry++)
    if (!((bits[entry / WORD] >> (entry % WORD)) & 1)) values[entry] = 0;
}

// sizes: entries, bytes of each; buffers: values [entries], bits [entries / 64, rounded up].
extern "C" int64_t sparsify_clear(const int64_t *sizes, void *const *buffers, const Context *context) {
  const int64_t count = sizes[0], bytes = sizes[1], threads = context->threads;
  const uint64_t *bits = (const uint64_t *)buffers[1];
  if (bytes == 2) clear((uint16_t *)buffers[0], bits, count, threads);
  else if (bytes == 4) clear((uint32_t *)buffers[0], bits, count, threads);
  else if (bytes == 8) clear((uint64_t *)buffers[0], bits, count, threads);
  else return 4;
  return 0;
}
