"""The C++ text of the trampoline: from Python's tuples to a kernel's arrays in one foreign call.

In: `bind(address, fail)`. Out: a callable `call(sizes, buffers, threads, allocator)` of Python.

The trampoline uses functions of Python's stable interface only and treats objects as opaque: no header and no
development package are needed, and one shared object serves all Python versions.
"""

from typing import Final

SYMBOL: Final = "sparsify_bind"

SOURCE: Final = r"""
typedef __INT64_TYPE__ int64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ Py_ssize_t;

extern "C" {
struct PyObject;
struct PyThreadState;
struct PyMethodDef { const char *name; void *function; int flags; const char *doc; };
extern PyObject *PyExc_TypeError;
extern PyObject *PyExc_ValueError;
extern PyObject _Py_NoneStruct;
void PyErr_SetString(PyObject *, const char *);
PyObject *PyErr_Occurred();
PyThreadState *PyEval_SaveThread();
void PyEval_RestoreThread(PyThreadState *);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
PyObject *PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);
PyObject *PyUnicode_InternFromString(const char *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject *);
PyObject *PyTuple_Pack(Py_ssize_t, ...);
long long PyLong_AsLongLong(PyObject *);
int PyObject_IsTrue(PyObject *);
void *PyLong_AsVoidPtr(PyObject *);
PyObject *PyLong_FromVoidPtr(void *);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);

struct Context {
  int64_t threads;
  void *state;
  void *(*allocate)(void *state, int64_t slot, int64_t bytes);
};
typedef int64_t (*Kernel)(const int64_t *sizes, void *const *buffers, const Context *context);

struct State {
  PyObject *allocator;
  PyThreadState *thread;
  bool failed;
};

static PyObject *data_ptr, *numel;

// The address of a tensor's first element; null for None. An exception is set when this fails.
static void *address_of(PyObject *tensor) {
  if (tensor == &_Py_NoneStruct) return nullptr;
  PyObject *number = PyObject_VectorcallMethod(data_ptr, &tensor, 1, nullptr);
  if (!number) return nullptr;
  void *address = PyLong_AsVoidPtr(number);
  Py_DecRef(number);
  return address;
}

// Whether a buffer without an address may be given to a kernel: None, and tensors without entries. An exception is set
// where it may not.
static bool may_be_null(PyObject *tensor) {
  if (PyErr_Occurred()) return false;
  if (tensor == &_Py_NoneStruct) return true;
  PyObject *number = PyObject_VectorcallMethod(numel, &tensor, 1, nullptr);
  if (!number) return false;
  int has_entries = PyObject_IsTrue(number);
  Py_DecRef(number);
  if (has_entries == 1)
    PyErr_SetString(PyExc_ValueError, "a kernel reads memory, and a buffer with entries has none of its own");
  return !has_entries;
}

// Called by the kernel, outside parallel regions, while this thread does not hold the interpreter's lock.
static void *allocate(void *pointer, int64_t slot, int64_t bytes) {
  State *state = (State *)pointer;
  if (state->failed) return nullptr;
  PyEval_RestoreThread(state->thread);
  void *address = nullptr;
  PyObject *tensor = nullptr;
  if (state->allocator == &_Py_NoneStruct) PyErr_SetString(PyExc_TypeError, "this kernel needs an allocator");
  else tensor = PyObject_CallFunction(state->allocator, "LL", (long long)slot, (long long)bytes);
  if (tensor) {
    address = address_of(tensor);
    Py_DecRef(tensor);
  }
  state->failed = PyErr_Occurred() != nullptr;
  state->thread = PyEval_SaveThread();
  return address;
}

// call(sizes: tuple, buffers: tuple, threads: int, allocator) -> None
static PyObject *call(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes sizes, buffers, threads and an allocator");
    return nullptr;
  }
  Py_ssize_t sizes_count = PyTuple_Size(arguments[0]), buffers_count = PyTuple_Size(arguments[1]);
  if (sizes_count < 0 || buffers_count < 0) {
    PyErr_SetString(PyExc_TypeError, "sizes and buffers of a kernel are tuples");
    return nullptr;
  }
  if (sizes_count > 4096 || buffers_count > 4096) {
    PyErr_SetString(PyExc_TypeError, "a kernel takes at most 4096 sizes and 4096 buffers");
    return nullptr;
  }
  int64_t sizes[sizes_count + 1];
  void *buffers[buffers_count + 1];
  for (Py_ssize_t i = 0; i < sizes_count; i++) {
    sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(arguments[0], i));
    if (sizes[i] == -1 && PyErr_Occurred()) return nullptr;
  }
  for (Py_ssize_t i = 0; i < buffers_count; i++) {
    buffers[i] = address_of(PyTuple_GetItem(arguments[1], i));
    if (!buffers[i] && !may_be_null(PyTuple_GetItem(arguments[1], i))) return nullptr;
  }
  State state = {arguments[3], nullptr, false};
  Context context = {PyLong_AsLongLong(arguments[2]), &state, allocate};
  if (context.threads < 1) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a kernel runs on 1 thread or more");
    return nullptr;
  }
  Kernel kernel = (Kernel)PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  state.thread = PyEval_SaveThread();
  int64_t status = kernel(sizes, buffers, &context);
  PyEval_RestoreThread(state.thread);
  if (state.failed) return nullptr;
  if (status) return PyObject_CallFunction(PyTuple_GetItem(self, 1), "L", (long long)status);
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

static PyMethodDef definition = {"call", (void *)call, 0x0080, "call(sizes, buffers, threads, allocator)"};

// A callable for the kernel at this address; `fail(status)` raises the exception for a status.
PyObject *sparsify_bind(void *kernel, PyObject *fail) {
  if (!data_ptr) data_ptr = PyUnicode_InternFromString("data_ptr");
  if (!numel) numel = PyUnicode_InternFromString("numel");
  PyObject *address = PyLong_FromVoidPtr(kernel);
  if (!data_ptr || !numel || !address) return nullptr;
  PyObject *self = PyTuple_Pack(2, address, fail);
  Py_DecRef(address);
  if (!self) return nullptr;
  PyObject *function = PyCFunction_NewEx(&definition, self, nullptr);
  Py_DecRef(self);
  return function;
}
}
"""
