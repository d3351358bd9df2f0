"""The C++ text of digests: 64 bits of a range of bytes.

In: 80 secret words. Out: a callable `digest(tensor, bytes)` of Python.

It continues the text of the trampoline and its shortcuts.
"""

from typing import Final

SYMBOL: Final = "sparsify_bind_digest"
WORDS: Final = 80

SOURCE: Final = r"""
typedef __UINT64_TYPE__ uint64_t;
typedef uint64_t Lanes __attribute__((vector_size(64)));
extern "C" {
static uint64_t fold(uint64_t first, uint64_t second) {
  unsigned __int128 product = (unsigned __int128)first * second;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline __attribute__((always_inline)) Lanes every(uint64_t number) {
  return (Lanes){number, number, number, number, number, number, number, number};
}

// The product of the halves of each word.
static inline __attribute__((always_inline)) Lanes multiply_halves(Lanes words) {
  return (words & every(0xffffffffu)) * (words >> every(32));
}

// Sums of words, and of products of their halves under two keys of their place, as NH of UMAC (RFC 4418) takes one. The
// keys follow xorshift64 (Marsaglia, 2003): sums of keys that grew by steps would be equal for other words.
uint64_t sparsify_digest(const char *bytes, int64_t count, const uint64_t *secret) {
  Lanes keys[4], sums[4] = {}, first[4] = {}, second[4] = {}, other;
  memcpy(keys, secret, sizeof keys);
  memcpy(&other, secret + 32, sizeof other);
  for (int64_t left = count; left > 0; bytes += 256, left -= 256) {
    char padded[256] = {};
    const char *block = bytes;
    if (left < 256) block = (const char *)memcpy(padded, bytes, (size_t)left);
    for (int part = 0; part < 4; part++) {
      Lanes words, &key = keys[part];
      memcpy(&words, block + 64 * part, 64);
      sums[part] += words;
      first[part] += multiply_halves(words ^ key);
      second[part] += multiply_halves((words << every(16) | words >> every(48)) ^ (key + other));
      key ^= key << every(13);
      key ^= key >> every(7);
      key ^= key << every(17);
    }
  }
  uint64_t result = fold((uint64_t)count ^ secret[40], secret[41]);
  for (int part = 0; part < 4; part++) {
    for (int lane = 0; lane < 8; lane++) {
      result = fold(result ^ first[part][lane] ^ secret[42], sums[part][lane] ^ secret[43]) + result;
      result = fold(result ^ second[part][lane] ^ secret[44], secret[45 + part]) + result;
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
