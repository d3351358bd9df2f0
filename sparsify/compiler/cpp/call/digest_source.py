"""The C++ text of digests: 64 bits of a range of bytes.

In: 260 secret words. Out: the callables `digest(tensor, bytes)` and `sample(tensor, bytes)` of Python.

Continues the text of the trampoline and the shortcuts.
"""

from typing import Final

SYMBOL: Final = "sparsify_bind_digest"
WORDS: Final = 260

SOURCE: Final = r"""
typedef __UINT64_TYPE__ uint64_t;
enum { KEYS = 256, SUMS = 8, SAMPLED = 256 };
// 16 bytes of memory, and a sum of products of their halves: carry-less where the machine multiplies so.
#if defined(__PCLMUL__)
typedef long long Words __attribute__((vector_size(16)));
typedef Words Sum;
static inline __attribute__((always_inline)) void add(Sum &sum, Words words, Words keys) {
  words ^= keys;
  sum ^= (Words)__builtin_ia32_pclmulqdq128(words, words, 0x10);
}
#else
typedef uint64_t Words __attribute__((vector_size(16)));
typedef unsigned __int128 Sum;
static inline __attribute__((always_inline)) void add(Sum &sum, Words words, Words keys) {
  words += keys;
  sum += (Sum)words[0] * words[1];
}
#endif
extern "C" {
static uint64_t fold(uint64_t first, uint64_t second) {
  unsigned __int128 product = (unsigned __int128)first * second;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

// Per block of 2 KiB the sum of (a + key) (b + key) over pairs of words (a, b): CLNH of Lemire and Kaser (2016), and NH
// of UMAC (RFC 4418) with words of 64 bits. Sums of blocks that differ are equal with a probability of 2^-64.
uint64_t sparsify_digest(const char *bytes, int64_t count, const uint64_t *secret) {
  const char *const keys = (const char *)secret;
  uint64_t result = fold((uint64_t)count ^ secret[KEYS], secret[KEYS + 1]);
  const auto add_at = [&](Sum &sum, const char *pair, int64_t at) __attribute__((always_inline)) {
    Words words, of_place;
    memcpy(&words, pair, sizeof words);
    memcpy(&of_place, keys + at, sizeof of_place);
    add(sum, words, of_place);
  };
  while (count > 0) {
    const int64_t block = count < 8 * KEYS ? count : 8 * KEYS;
    Sum sums[SUMS] = {};
    int64_t at = 0;
    for (; at + 16 * SUMS <= block; at += 16 * SUMS) {
      for (int part = 0; part < SUMS; part++) add_at(sums[part], bytes + at + 16 * part, at + 16 * part);
    }
    for (; at + 16 <= block; at += 16) add_at(sums[0], bytes + at, at);
    if (at < block) {
      char padded[16] = {};
      memcpy(padded, bytes + at, (size_t)(block - at));
      add_at(sums[1], padded, at);
    }
    for (int part = 1; part < SUMS; part++) {
#if defined(__PCLMUL__)
      sums[0] ^= sums[part];
#else
      sums[0] += sums[part];
#endif
    }
    uint64_t halves[2];
    memcpy(halves, &sums[0], sizeof halves);
    result = fold(result ^ halves[0] ^ secret[KEYS + 2], halves[1] ^ secret[KEYS + 3]) + result;
    bytes += block;
    count -= block;
  }
  return result;
}

// The digest of `SAMPLED` lines of 64 bytes at equal distances, the first and the last one among them.
uint64_t sparsify_sample(const char *bytes, int64_t count, const uint64_t *secret) {
  char lines[64 * SAMPLED];
  if (count <= (int64_t)sizeof lines) return sparsify_digest(bytes, count, secret);
  for (int64_t line = 0; line < SAMPLED; line++) {
    memcpy(lines + 64 * line, bytes + (int64_t)((double)(count - 64) * line / (SAMPLED - 1)), 64);
  }
  return sparsify_digest(lines, sizeof lines, secret);
}

PyObject *PyLong_FromUnsignedLongLong(unsigned long long);

// The tensor's address and the number of its bytes among two arguments; whether there are such.
static bool range_of(PyObject *const *arguments, Py_ssize_t count, const char **bytes, int64_t *size) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "a digest takes a tensor and its number of bytes");
    return false;
  }
  *bytes = (const char *)address_of(arguments[0]);
  if (!*bytes && PyErr_Occurred()) return false;
  *size = PyLong_AsLongLong(arguments[1]);
  if (*size == -1 && PyErr_Occurred()) return false;
  if (*bytes || *size <= 0) return true;
  PyErr_SetString(PyExc_ValueError, "a digest reads memory, and the tensor has none of its own");
  return false;
}

// digest(tensor, bytes: int) -> int; long ranges are read without the interpreter's lock.
static PyObject *digest(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  const char *bytes;
  int64_t size;
  if (!range_of(arguments, count, &bytes, &size)) return nullptr;
  const uint64_t *secret = (const uint64_t *)PyLong_AsVoidPtr(self);
  if (size < 65536) return PyLong_FromUnsignedLongLong(sparsify_digest(bytes, size, secret));
  PyThreadState *thread = PyEval_SaveThread();
  const uint64_t found = sparsify_digest(bytes, size, secret);
  PyEval_RestoreThread(thread);
  return PyLong_FromUnsignedLongLong(found);
}

// sample(tensor, bytes: int) -> int
static PyObject *sample(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  const char *bytes;
  int64_t size;
  if (!range_of(arguments, count, &bytes, &size)) return nullptr;
  const uint64_t *secret = (const uint64_t *)PyLong_AsVoidPtr(self);
  return PyLong_FromUnsignedLongLong(sparsify_sample(bytes, size, secret));
}

static PyMethodDef digest_definition = {"digest", (void *)digest, 0x0080, "digest(tensor, bytes)"};
static PyMethodDef sample_definition = {"sample", (void *)sample, 0x0080, "sample(tensor, bytes)"};

// A callable with these secret words, which have to stay where they are: for digests, or for digests of samples.
PyObject *sparsify_bind_digest(void *secret, int is_sample) {
  if (!data_ptr) data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject *self = data_ptr ? PyLong_FromVoidPtr(secret) : nullptr;
  if (!self) return nullptr;
  PyObject *function = PyCFunction_NewEx(is_sample ? &sample_definition : &digest_definition, self, nullptr);
  Py_DecRef(self);
  return function;
}
}
"""
