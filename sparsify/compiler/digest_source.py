"""The C++ text of digests: 64 bits of a range of bytes.

In: an address, a number of bytes and 80 secret words. Out: their digest.

It continues the text of the trampoline and its shortcuts.
"""

from typing import Final

SYMBOL: Final = "sparsify_digest"
WORDS: Final = 80

SOURCE: Final = r"""
typedef __UINT64_TYPE__ uint64_t;
typedef uint64_t Lanes __attribute__((vector_size(64)));
extern "C" {
static uint64_t fold(uint64_t first, uint64_t second) {
  unsigned __int128 product = (unsigned __int128)first * second;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

// Sums of words and of products of their halves, each word with a key of its place, as XXH3 accumulates.
uint64_t sparsify_digest(const char *bytes, int64_t count, const uint64_t *secret) {
  const Lanes low = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u}, half = {32, 32, 32, 32, 32, 32, 32, 32};
  Lanes keys[4], sums[4] = {}, products[4] = {}, step;
  memcpy(keys, secret, sizeof keys);
  memcpy(&step, secret + 32, sizeof step);
  for (int64_t left = count; left > 0; bytes += 256, left -= 256) {
    char padded[256] = {};
    const char *block = bytes;
    if (left < 256) block = (const char *)memcpy(padded, bytes, (size_t)left);
    for (int part = 0; part < 4; part++) {
      Lanes words;
      memcpy(&words, block + 64 * part, 64);
      const Lanes mixed = words ^ keys[part];
      products[part] += (mixed & low) * (mixed >> half);
      sums[part] += words;
      keys[part] += step;
    }
  }
  uint64_t result = fold((uint64_t)count ^ secret[40], secret[41]);
  for (int part = 0; part < 4; part++) {
    for (int lane = 0; lane < 8; lane++) {
      const int place = part * 8 + lane;
      result = fold(result ^ products[part][lane] ^ secret[42 + place], sums[part][lane] ^ secret[place]) + result;
    }
  }
  return result;
}
}
"""
