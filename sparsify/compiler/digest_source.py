"""The C++ text of digests: 64 bits of a range of bytes.

In: 64 secret words. Out: a callable `digest(tensor, bytes)` of Python.

It continues the text of the trampoline and its shortcuts.
"""

from typing import Final

SYMBOL: Final = "sparsify_bind_digest"
WORDS: Final = 64

SOURCE: Final = r"""
typedef __UINT64_TYPE__ uint64_t;
// Vectors are as wide as registers.
#if defined(__AVX512F__)
enum { LANES = 8, PARTS = 4 };
#elif defined(__AVX2__)
enum { LANES = 4, PARTS = 4 };
#else
enum { LANES = 2, PARTS = 4 };
#endif
typedef uint64_t Lanes __attribute__((vector_size(8 * LANES)));
typedef int Halves __attribute__((vector_size(8 * LANES)));
extern "C" {
static uint64_t fold(uint64_t first, uint64_t second) {
  unsigned __int128 product = (unsigned __int128)first * second;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

// The product of the halves of each word.
static inline __attribute__((always_inline)) Lanes multiply_halves(Lanes words) {
#if defined(__AVX512F__)
  return (words & 0xffffffffu) * (words >> 32);
#elif defined(__AVX2__)
  return (Lanes)__builtin_ia32_pmuludq256((Halves)words, (Halves)(words >> 32));
#elif defined(__SSE2__)
  return (Lanes)__builtin_ia32_pmuludq128((Halves)words, (Halves)(words >> 32));
#else
  return (words & 0xffffffffu) * (words >> 32);
#endif
}

// Two sums of products of the halves of each word, under two keys of its place, as NH of UMAC (RFC 4418) takes one; the
// words themselves are added, too. The keys follow xorshift64 (Marsaglia, 2003): sums of keys that grew by steps would
// be equal for other words.
uint64_t sparsify_digest(const char *bytes, int64_t count, const uint64_t *secret) {
  enum { BLOCK = sizeof(Lanes) * PARTS };
  Lanes apart[PARTS], first[PARTS] = {}, second[PARTS] = {}, place, other;
  memcpy(apart, secret, sizeof apart);
  memcpy(&place, secret + 32, sizeof place);
  memcpy(&other, secret + 40, sizeof other);
  const auto add = [&](const char *block) __attribute__((always_inline)) {
    for (int part = 0; part < PARTS; part++) {
      Lanes words;
      memcpy(&words, block + sizeof words * part, sizeof words);
      const Lanes key = place ^ apart[part];
      first[part] += words + multiply_halves(words ^ key);
      second[part] += multiply_halves(words ^ (key + other));
    }
    place ^= place << 13;
    place ^= place >> 7;
    place ^= place << 17;
  };
  const char *const end = bytes + count / BLOCK * BLOCK;
  for (; bytes != end; bytes += BLOCK) add(bytes);
  if (count % BLOCK) {
    char padded[BLOCK] = {};
    memcpy(padded, bytes, (size_t)(count % BLOCK));
    add(padded);
  }
  uint64_t result = fold((uint64_t)count ^ secret[48], secret[49]);
  for (int part = 0; part < PARTS; part++) {
    for (int lane = 0; lane < LANES; lane++) {
      result = fold(result ^ first[part][lane] ^ secret[50], second[part][lane] ^ secret[51 + part]) + result;
    }
  }
  return result;
}

PyObject *PyLong_FromUnsignedLongLong(unsigned long long);

// digest(tensor, bytes: int) -> int; long ranges are read without the interpreter's lock.
static PyObject *digest(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "a digest takes a tensor and its number of bytes");
    return nullptr;
  }
  const char *bytes = (const char *)address_of(arguments[0]);
  if (!bytes && PyErr_Occurred()) return nullptr;
  const int64_t size = PyLong_AsLongLong(arguments[1]);
  if (size == -1 && PyErr_Occurred()) return nullptr;
  const uint64_t *secret = (const uint64_t *)PyLong_AsVoidPtr(self);
  if (size < 65536) return PyLong_FromUnsignedLongLong(sparsify_digest(bytes, size, secret));
  PyThreadState *thread = PyEval_SaveThread();
  const uint64_t found = sparsify_digest(bytes, size, secret);
  PyEval_RestoreThread(thread);
  return PyLong_FromUnsignedLongLong(found);
}

static PyMethodDef digest_definition = {"digest", (void *)digest, 0x0080, "digest(tensor, bytes)"};

// A callable for digests with these secret words, which have to stay where they are.
PyObject *sparsify_bind_digest(void *secret) {
  if (!data_ptr) data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject *self = data_ptr ? PyLong_FromVoidPtr(secret) : nullptr;
  if (!self) return nullptr;
  PyObject *function = PyCFunction_NewEx(&digest_definition, self, nullptr);
  Py_DecRef(self);
  return function;
}
}
"""
