"""The C++ text of shortcuts: from Python's operands to the kernel and back, for operands like those met before.

In: `sparsify_shortcut(otherwise)`. Out: a callable `shortcut(operands)` of Python; `sparsify.compiler.shortcut`
says what it does. The text continues that of the trampoline.

A shortcut keeps frames in a small table: what a call was like, and what follows from that. A call reads dtype,
shape and address of its operands from torch, looks for their frame, and goes to the kernel with addresses on the
stack. Whatever is not plain memory of the CPU, or not as the frame says, is left to `otherwise`.
"""

from typing import Final

SOURCE: Final = r"""
extern "C" {
extern PyObject _Py_FalseStruct;
void *calloc(size_t, size_t);
void free(void *);
int memcmp(const void *, const void *, size_t);
void *memcpy(void *, const void *, size_t);
int PyObject_RichCompareBool(PyObject *, PyObject *, int);
void PyErr_Clear();
PyObject *PyCapsule_New(void *, const char *, void (*)(PyObject *));
void *PyCapsule_GetPointer(PyObject *, const char *);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_Type(PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);

enum { OPERANDS = 12, MODES = 8, SIZES = 48, BUFFERS = 48, FRAMES = 64 };

// A tensor of C++ is one pointer; a handle of torch's C interface is the address of one.
struct Implementation;
typedef Implementation *const *Tensor;

// Functions of torch, in the order of `torch_functions.NAMES`.
static struct {
  int (*data_ptr)(Tensor, void **);
  int (*dim)(Tensor, int64_t *);
  int (*sizes)(Tensor, const int64_t **);
  int (*dtype)(Tensor, int *);
  int (*device_type)(Tensor, int *);
  int (*numel)(Tensor, int64_t *);
  int (*is_contiguous)(Tensor, bool *);
  int (*empty_strided)(int64_t, const int64_t *, const int64_t *, int, int, int, Tensor *);
  int (*delete_tensor)(Tensor);
  bool (*grad_mode_is_enabled)();
  int (*num_threads)();
  bool (*is_neg)(Tensor);
  bool (*is_conj)(Tensor);
  int64_t (*version)(Tensor);
  bool (*has_storage)(Implementation *);
  bool (*requires_grad)(Implementation *);
  bool (*dispatch_mode_enabled)();
  PyObject *(*wrap)(Tensor);
  const int64_t *forked;
  int64_t offset;
} torch;

// Classes, functions and names of Python.
static PyObject *plain_tensor, *plain_parameter, *sparse_tensor;
static PyObject *differentiate, *is_transformed, *wrap_sparse, *fail_with;
static PyObject *name_pattern, *name_vals, *name_fill, *name_cache, *name_written;

// An operand of a call.
struct Operand {
  Tensor outer;                // as it was given; of a sparse one without memory of its own
  void *data;                  // of a sparse one the values, as what follows
  int64_t length;
  int dtype;
  int64_t dim;                 // as it was given
  const int64_t *shape;
  PyObject *pattern, *values;  // of a sparse one, referred to until the call ends
};

// How an operand was.
struct Known {
  int64_t dtype, dim, shape[MODES], length;
  PyObject *key, *fill;        // of a sparse one: what its pattern keeps the kernel's arrays under; else null
};

// A buffer of the kernel: an operand, before whose values the arrays of its pattern come.
struct Input {
  int64_t operand, nnz_place;  // the place of the number of stored entries among the sizes, -1 for none
};

// What a call was like, and what follows from that.
struct Frame {
  int64_t kernel, threads, operand_count, input_count, size_count, root;
  Known operands[OPERANDS];
  Input inputs[OPERANDS];
  int64_t sizes[SIZES];
  int64_t dtype, dim, shape[MODES], strides[MODES];
  int64_t most_bytes, item_bytes;
  PyObject *empty, *fill, *differentiable;
};

struct Table {
  PyObject *otherwise;
  Frame *frames[FRAMES];
};

static Tensor tensor_of(PyObject *object) { return (Tensor)((char *)object + torch.offset); }

static bool is_a(PyObject *object, PyObject *first, PyObject *second) {
  PyObject *type = PyObject_Type(object);
  Py_DecRef(type);
  return type == first || type == second;
}

// Reads a tensor in plain, contiguous memory of the CPU; false for any other.
static bool read_memory(PyObject *object, Operand &found) {
  if (!is_a(object, plain_tensor, plain_parameter)) return false;
  Tensor tensor = tensor_of(object);
  int device;
  bool contiguous;
  bool plain = torch.has_storage(*tensor) && !torch.is_neg(tensor) && !torch.is_conj(tensor);
  return plain && !torch.device_type(tensor, &device) && device == 0 && !torch.is_contiguous(tensor, &contiguous) &&
         contiguous && !torch.numel(tensor, &found.length) && !torch.data_ptr(tensor, &found.data) &&
         (found.data || !found.length) && !torch.dtype(tensor, &found.dtype);
}

static bool read_operand(PyObject *object, Operand &found) {
  found.outer = tensor_of(object);
  if (is_a(object, sparse_tensor, sparse_tensor)) {
    found.pattern = PyObject_GetAttr(object, name_pattern);
    found.values = PyObject_GetAttr(object, name_vals);
    if (!found.pattern || !found.values || !read_memory(found.values, found)) return false;
  } else if (!read_memory(object, found)) {
    return false;
  }
  return !torch.dim(found.outer, &found.dim) && !torch.sizes(found.outer, &found.shape) && found.dim <= MODES;
}

// Stored entries in powers of two: patterns of one shape but of other density may have another kernel.
static int64_t bits(int64_t length) { return length ? 64 - __builtin_clzll((unsigned long long)length) : 0; }

static size_t slot_of(const Operand *operands, Py_ssize_t count) {
  size_t hash = (size_t)count;
  for (Py_ssize_t i = 0; i < count; i++) {
    int64_t kind = operands[i].dtype + (operands[i].pattern ? 64 : 0) + bits(operands[i].length) * 128;
    hash = hash * 1000003 + (size_t)kind;
    for (int64_t mode = 0; mode < operands[i].dim; mode++) hash = hash * 1000003 + (size_t)operands[i].shape[mode];
  }
  return (hash ^ hash >> 17) % FRAMES;
}

// Whether an operand is as it was when the frame was made; an exception may be set when it is not.
static bool is_alike(PyObject *object, const Operand &operand, const Known &known) {
  if (operand.dtype != known.dtype || operand.dim != known.dim || !operand.pattern != !known.key) return false;
  if (memcmp(operand.shape, known.shape, (size_t)known.dim * sizeof(int64_t))) return false;
  if (!known.key) return true;
  if (bits(operand.length) != bits(known.length)) return false;
  PyObject *fill = PyObject_GetAttr(object, name_fill);
  bool alike = fill && PyObject_RichCompareBool(fill, known.fill, 2) == 1;
  if (fill) Py_DecRef(fill);
  return alike;
}

// Whether nobody has written to the arrays of a pattern since it was made.
static bool is_unchanged(PyObject *pattern) {
  PyObject *written = PyObject_GetAttr(pattern, name_written);
  if (!written) return false;
  bool unchanged = true;
  for (Py_ssize_t i = 0, count = PyTuple_Size(written); i < count && unchanged; i++) {
    PyObject *pair = PyTuple_GetItem(written, i);
    unchanged = torch.version(tensor_of(PyTuple_GetItem(pair, 0))) == PyLong_AsLongLong(PyTuple_GetItem(pair, 1));
  }
  Py_DecRef(written);
  return unchanged;
}

// What a pattern keeps of the reading of an input; null when the kernel has not read it, or it was written to.
static PyObject *kept_by(PyObject *pattern, PyObject *key) {
  PyObject *cache = is_unchanged(pattern) ? PyObject_GetAttr(pattern, name_cache) : nullptr;
  PyObject *found = cache ? PyDict_GetItemWithError(cache, key) : nullptr;
  if (cache) Py_DecRef(cache);  // the pattern has it and never forgets
  return found;
}

// Puts the addresses of the arrays of a pattern into the buffers, and its widths into the sizes; false when the kernel
// has not read this pattern yet, or reads converted values.
static bool read_arrays(PyObject *pattern, PyObject *key, void **buffers, Py_ssize_t &count, int64_t *sizes) {
  PyObject *found = kept_by(pattern, key);
  if (!found || PyTuple_GetItem(found, 2) != &_Py_NoneStruct) return false;
  PyObject *arrays = PyTuple_GetItem(found, 0), *widths = PyTuple_GetItem(found, 1);
  Py_ssize_t array_count = PyTuple_Size(arrays), width_count = PyTuple_Size(widths);
  if (count + array_count + 2 > BUFFERS) return false;
  for (Py_ssize_t i = 0; i < array_count; i++) {
    Operand array;
    if (!read_memory(PyTuple_GetItem(arrays, i), array)) return false;
    buffers[count++] = array.data;
  }
  for (Py_ssize_t i = 0; i < width_count; i++) {
    PyObject *width = PyTuple_GetItem(widths, i);
    sizes[PyLong_AsLongLong(PyTuple_GetItem(width, 0))] = PyLong_AsLongLong(PyTuple_GetItem(width, 1));
  }
  return true;
}

// A tensor for the result, of `length` entries or of the shape of the frame; null without an exception when torch
// cannot make it here.
static PyObject *make_result(const Frame &frame, int64_t length, PyObject *pattern) {
  bool is_large = frame.root >= 0 && length * frame.item_bytes >= frame.most_bytes;
  PyObject *empty = frame.empty;
  if (empty && (is_large || frame.root < 0)) {
    Py_IncRef(empty);
    PyObject *result = PyObject_CallFunctionObjArgs(empty, pattern, nullptr);
    Py_DecRef(empty);
    return result;
  }
  int64_t one = 1;
  Tensor made;
  int failed = frame.root >= 0
                   ? torch.empty_strided(1, &length, &one, (int)frame.dtype, 0, 0, &made)
                   : torch.empty_strided(frame.dim, frame.shape, frame.strides, (int)frame.dtype, 0, 0, &made);
  if (failed) return nullptr;
  PyObject *result = torch.wrap(made);
  torch.delete_tensor(made);
  return result;
}

// The result for operands that are as the frame says; null, perhaps without an exception, when they are not.
static PyObject *run(const Frame &frame, const Operand *operands) {
  int64_t sizes[SIZES];
  void *buffers[BUFFERS];
  Py_ssize_t count = 0;
  memcpy(sizes, frame.sizes, (size_t)frame.size_count * sizeof(int64_t));
  for (int64_t i = 0; i < frame.input_count; i++) {
    const Operand &operand = operands[frame.inputs[i].operand];
    PyObject *key = frame.operands[frame.inputs[i].operand].key;
    if (key && !read_arrays(operand.pattern, key, buffers, count, sizes)) return nullptr;
    if (frame.inputs[i].nnz_place >= 0) sizes[frame.inputs[i].nnz_place] = operand.length;
    buffers[count++] = operand.data;
  }
  const Operand *root = frame.root < 0 ? nullptr : &operands[frame.root];
  State state = {&_Py_NoneStruct, nullptr, false};
  Context context = {*torch.forked ? 1 : frame.threads ? frame.threads : torch.num_threads(), &state, allocate};
  Kernel kernel = (Kernel)frame.kernel;
  PyObject *fill = frame.fill;
  Py_IncRef(fill);
  // From here on the frame may be replaced: others may hold the interpreter's lock.
  PyObject *result = make_result(frame, root ? root->length : 0, root ? root->pattern : nullptr);
  if (!result || torch.data_ptr(tensor_of(result), &buffers[count])) {
    Py_DecRef(fill);
    if (result) Py_DecRef(result);
    return nullptr;
  }
  state.thread = PyEval_SaveThread();
  int64_t status = kernel(sizes, buffers, &context);
  PyEval_RestoreThread(state.thread);
  PyObject *made = nullptr;
  if (status && !state.failed) made = PyObject_CallFunction(fail_with, "L", (long long)status);
  else if (!state.failed && !root) Py_IncRef(made = result);
  else if (!state.failed) made = PyObject_CallFunctionObjArgs(wrap_sparse, root->pattern, result, fill, nullptr);
  Py_DecRef(result);
  Py_DecRef(fill);
  return made;
}

// The same under autograd: `differentiate(kernel, *operands)`, with the operands in the order of the kernel; null,
// without an exception, within transforms of functorch.
static PyObject *run_differentiably(const Frame &frame, const Operand *operands, PyObject *tuple) {
  for (int64_t i = 0; i < frame.operand_count; i++)
    if (frame.operands[i].key && !kept_by(operands[i].pattern, frame.operands[i].key)) return nullptr;
  PyObject *transformed = PyObject_CallFunctionObjArgs(is_transformed, nullptr);
  if (transformed) Py_DecRef(transformed);
  if (transformed != &_Py_FalseStruct) return nullptr;
  PyObject *arguments[OPERANDS + 1] = {frame.differentiable};
  for (int64_t i = 0; i < frame.input_count; i++) arguments[i + 1] = PyTuple_GetItem(tuple, frame.inputs[i].operand);
  Py_IncRef(arguments[0]);
  PyObject *result = PyObject_Vectorcall(differentiate, arguments, (size_t)frame.input_count + 1, nullptr);
  Py_DecRef(arguments[0]);
  return result;
}

static bool needs_gradient(const Operand *operands, Py_ssize_t count) {
  if (!torch.grad_mode_is_enabled()) return false;
  for (Py_ssize_t i = 0; i < count; i++)
    if (torch.requires_grad(*operands[i].outer)) return true;
  return false;
}

// The result by the frame that fits the operands, null without an exception when none does. `slot` becomes the place
// of such a frame, -1 where there can be none.
static PyObject *by_frame(const Table &table, PyObject *tuple, Operand *operands, int64_t &slot) {
  Py_ssize_t count = PyTuple_Size(tuple);
  if (count < 0 || count > OPERANDS || torch.dispatch_mode_enabled()) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!read_operand(PyTuple_GetItem(tuple, i), operands[i])) return nullptr;
  slot = (int64_t)slot_of(operands, count);
  const Frame *frame = table.frames[slot];
  if (!frame || frame->operand_count != count) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!is_alike(PyTuple_GetItem(tuple, i), operands[i], frame->operands[i])) return nullptr;
  if (!needs_gradient(operands, count)) return run(*frame, operands);
  return frame->differentiable ? run_differentiably(*frame, operands, tuple) : nullptr;
}

static void count_references(const Frame &frame, void (*count)(PyObject *)) {
  for (int64_t i = 0; i < frame.operand_count; i++) {
    if (frame.operands[i].key) count(frame.operands[i].key);
    if (frame.operands[i].fill) count(frame.operands[i].fill);
  }
  if (frame.empty) count(frame.empty);
  if (frame.fill) count(frame.fill);
  if (frame.differentiable) count(frame.differentiable);
}

static void forget(PyObject *capsule) {
  Table *table = (Table *)PyCapsule_GetPointer(capsule, nullptr);
  for (Frame *frame : table->frames)
    if (frame) {
      count_references(*frame, Py_DecRef);
      free(frame);
    }
  Py_DecRef(table->otherwise);
  free(table);
}

// learn(address of a frame: int): copies it into the table, in the place of the one whose operands had the same hash.
static PyObject *learn(PyObject *self, PyObject *address) {
  Table *table = (Table *)PyCapsule_GetPointer(self, nullptr);
  const Frame *frame = (const Frame *)PyLong_AsVoidPtr(address);
  if (!table || !frame) return nullptr;
  Py_IncRef(&_Py_NoneStruct);
  Frame *own = (Frame *)calloc(1, sizeof(Frame));
  if (!own) return &_Py_NoneStruct;
  Operand operands[OPERANDS] = {};
  for (int64_t i = 0; i < frame->operand_count; i++) {
    const Known &known = frame->operands[i];
    operands[i].dtype = (int)known.dtype;
    operands[i].dim = known.dim;
    operands[i].shape = known.shape;
    operands[i].length = known.length;
    operands[i].pattern = known.key;
  }
  *own = *frame;
  count_references(*own, Py_IncRef);
  size_t slot = slot_of(operands, (Py_ssize_t)frame->operand_count);
  Frame *before = table->frames[slot];
  table->frames[slot] = own;
  if (before) {
    count_references(*before, Py_DecRef);
    free(before);
  }
  return &_Py_NoneStruct;
}

static PyMethodDef learn_definition = {"learn", (void *)learn, 0x0008, "learn(frame)"};


// shortcut(operands: tuple) -> the result, by the frame of such a call, or by otherwise(operands, learn), where `learn`
// is None if no frame can hold them.
static PyObject *shortcut(PyObject *self, PyObject *tuple) {
  Table *table = (Table *)PyCapsule_GetPointer(self, nullptr);
  if (!table) return nullptr;
  Operand operands[OPERANDS] = {};
  int64_t slot = -1;
  PyObject *result = by_frame(*table, tuple, operands, slot);
  for (Operand &operand : operands) {
    if (operand.pattern) Py_DecRef(operand.pattern);
    if (operand.values) Py_DecRef(operand.values);
  }
  if (result || PyErr_Occurred()) return result;
  if (slot < 0) return PyObject_CallFunctionObjArgs(table->otherwise, tuple, &_Py_NoneStruct, nullptr);
  PyObject *teach = PyCFunction_NewEx(&learn_definition, self, nullptr);
  if (!teach) return nullptr;
  result = PyObject_CallFunctionObjArgs(table->otherwise, tuple, teach, nullptr);
  Py_DecRef(teach);
  return result;
}

static PyMethodDef shortcut_definition = {"shortcut", (void *)shortcut, 0x0008, "shortcut(operands)"};

// A shortcut in front of otherwise(operands, learn).
PyObject *sparsify_shortcut(PyObject *otherwise) {
  Table *table = (Table *)calloc(1, sizeof(Table));
  PyObject *capsule = table ? PyCapsule_New(table, nullptr, forget) : nullptr;
  if (!capsule) return nullptr;
  Py_IncRef(table->otherwise = otherwise);
  PyObject *function = PyCFunction_NewEx(&shortcut_definition, capsule, nullptr);
  Py_DecRef(capsule);
  return function;
}

// Tells where torch's functions are, and the classes and functions of Python that shortcuts need.
void sparsify_set_up(const void *functions, PyObject *objects) {
  memcpy(&torch, functions, sizeof torch);
  PyObject **places[] = {&plain_tensor,   &plain_parameter, &sparse_tensor, &differentiate,
                          &is_transformed, &wrap_sparse,     &fail_with};
  for (Py_ssize_t i = 0; i < 7; i++) Py_IncRef(*places[i] = PyTuple_GetItem(objects, i));
  name_pattern = PyUnicode_InternFromString("_pattern");
  name_vals = PyUnicode_InternFromString("_vals");
  name_fill = PyUnicode_InternFromString("_fill");
  name_cache = PyUnicode_InternFromString("_cache");
  name_written = PyUnicode_InternFromString("_written");
}
}
"""
