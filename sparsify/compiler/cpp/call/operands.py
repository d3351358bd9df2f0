"""The C++ text of shortcuts, first part: what a call was like, and how its operands become a kernel's buffers.

In: tensors of Python. Out: addresses on the stack, and whether the operands are as those of a frame.

It continues the text of the trampoline; `shortcut_arrays` and `shortcut_source` continue it.
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
PyObject *PyTuple_New(Py_ssize_t);
PyObject *PyLong_FromLongLong(long long);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);

enum { OPERANDS = 12, MODES = 8, EXTENTS = 32, SIZES = 48, BUFFERS = 48, ARRAYS = 20, FRAMES = 64 };
enum { POSITION_OVERFLOW = 2 };  // the status of a kernel

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
  int (*storage_size)(Tensor, int64_t *);
  int (*storage_offset)(Tensor, int64_t *);
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
static PyObject *differentiate, *is_transformed, *wrap_sparse, *fail_with, *forward_names;
static PyObject *name_pattern, *name_vals, *name_fill, *name_cache, *name_written, *name_level;

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

// The extents of an index variable that share a frame, both included; just one where the kernel knows it.
struct Range {
  int64_t low, high;
};

// How an operand was; of each mode the place of its index variable among the ranges.
struct Known {
  int64_t dtype, dim, extents[MODES];
  PyObject *key, *fill;        // of a sparse one: what patterns that have this kernel keep its arrays under; else null
  PyObject *keep;              // of a sparse one as the kernel reads it: has a pattern keep them; else null
};

// A buffer of the kernel: an operand, before whose values the arrays of its pattern come.
struct Input {
  int64_t operand, nnz_place;  // the place of the number of stored entries among the sizes, -1 for none
};

// What a call was like, and what follows from that. Of each size of the kernel `size_extents` is the place of the range
// whose extent it is, -1 for a number; of each mode of a dense result so is `extents`.
struct Frame {
  int64_t kernel, threads, operand_count, input_count, size_count, range_count, root;
  Known operands[OPERANDS];
  Input inputs[OPERANDS];
  Range ranges[EXTENTS];
  int64_t sizes[SIZES], size_extents[SIZES];
  int64_t dtype, dim, extents[MODES];
  int64_t least_bytes, most_bytes, item_bytes;
  int64_t array_count, entries_place, array_dtypes[ARRAYS], array_bytes[ARRAYS];
  PyObject *empty, *fill, *differentiable, *known, *finish;
};

static Tensor tensor_of(PyObject *object) { return (Tensor)((char *)object + torch.offset); }

static bool is_a(PyObject *object, PyObject *first, PyObject *second) {
  PyObject *type = PyObject_Type(object);
  Py_DecRef(type);
  return type == first || type == second;
}

// Whether the storage of a tensor has its entries; its owner may have made it smaller.
static bool has_entries(Tensor tensor, const Operand &found) {
  static const int64_t item_bytes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2};  // by the number of a dtype
  int64_t bytes, offset;
  if (found.dtype < 0 || found.dtype >= 16 || torch.storage_size(tensor, &bytes)) return false;
  return !torch.storage_offset(tensor, &offset) && (offset + found.length) * item_bytes[found.dtype] <= bytes;
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
         (found.data || !found.length) && !torch.dtype(tensor, &found.dtype) && has_entries(tensor, found);
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

// Whether the modes of an operand have extents in their ranges, the same for one index variable everywhere; `extents`
// holds those that were met before, else -1.
static bool has_extents(const Operand &operand, const Known &known, const Range *ranges, int64_t *extents) {
  for (int64_t mode = 0; mode < operand.dim; mode++) {
    int64_t place = known.extents[mode], extent = operand.shape[mode];
    if (extents[place] < 0 && ranges[place].low <= extent && extent <= ranges[place].high) extents[place] = extent;
    if (extents[place] != extent) return false;
  }
  return true;
}

// Whether an operand is as it was when the frame was made; an exception may be set when it is not.
static bool is_alike(PyObject *object, const Operand &operand, const Known &known) {
  if (!known.key) return true;
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

// Has the patterns of operands that the kernel has not read yet keep what it reads of them, where they are stored as it
// reads them; whether one does now. The frame may be replaced meanwhile. An exception may be set.
static bool keep_patterns(Frame *const &place, const Operand *operands, Py_ssize_t count) {
  const Frame *frame = place;
  bool kept = false;
  for (Py_ssize_t i = 0; i < count && frame && frame == place; i++) {
    const Known &known = frame->operands[i];
    if (!known.keep || PyErr_Occurred() || kept_by(operands[i].pattern, known.key)) continue;
    PyObject *keep = known.keep;
    Py_IncRef(keep);
    PyObject *done = PyObject_CallFunctionObjArgs(keep, operands[i].pattern, nullptr);
    Py_DecRef(keep);
    if (!done) return false;
    kept = done != &_Py_FalseStruct;
    Py_DecRef(done);
    if (!kept) return false;
  }
  return kept;
}

// Puts all that the kernel reads into its buffers and sizes; false when an operand is not as the kernel reads it.
static bool read_inputs(const Frame &frame, const Operand *operands, const int64_t *extents, void **buffers,
                        Py_ssize_t &count, int64_t *sizes) {
  for (int64_t i = 0; i < frame.size_count; i++)
    sizes[i] = frame.size_extents[i] < 0 ? frame.sizes[i] : extents[frame.size_extents[i]];
  for (int64_t i = 0; i < frame.input_count; i++) {
    const Operand &operand = operands[frame.inputs[i].operand];
    PyObject *key = frame.operands[frame.inputs[i].operand].key;
    if (key && !read_arrays(operand.pattern, key, buffers, count, sizes)) return false;
    if (frame.inputs[i].nnz_place >= 0) sizes[frame.inputs[i].nnz_place] = operand.length;
    buffers[count++] = operand.data;
  }
  return true;
}
}
"""
