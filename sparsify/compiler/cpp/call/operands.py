"""The C++ text of shortcuts, first part: frames of earlier calls, and conversion of operands to kernel buffers.

In: tensors of Python. Out: addresses on the stack, and whether the operands match a frame.

Continues the text of the trampoline; `results` and `fast_call` continue this text.
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
enum { OUTPUTS = 6, MADE = 24 };
enum { POSITION_OVERFLOW = 2 };  // the status of a kernel

// A tensor of C++ is one pointer; a handle of torch's C interface is the address of one.
struct Implementation;
typedef Implementation *const *Tensor;

// Functions of torch, in the order of `torch_functions.NAMES`.
static struct {
  int (*data_ptr)(Tensor, void **);
  int (*dim)(Tensor, int64_t *);
  int (*sizes)(Tensor, const int64_t **);
  int (*strides)(Tensor, const int64_t **);
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
static PyObject *parts_of;
static PyObject *name_pattern, *name_vals, *name_fill, *name_cache, *name_written, *name_level, *name_is_inference;

// A tensor of a call: an operand, or one that a stage made.
struct Operand {
  Tensor outer;                // as it was given; of a sparse one without memory of its own
  void *data;                  // of a sparse one the values, as what follows
  int64_t length;
  int dtype;
  int64_t dim;                 // as it was given
  const int64_t *shape;
  const int64_t *strides;      // of one that is not contiguous, else null
  PyObject *pattern, *values;  // of a sparse one, referred to until the call ends
  PyObject *object, *fill;     // of one that a stage made: the tensor, once Python needs it
  Tensor handle;               // memory that torch made for a stage without an object of Python
};

// The extents of an index variable that share a frame, both included; just one where the kernel knows it.
struct Range {
  int64_t low, high;
};

// How an operand was.
struct Known {
  int64_t dtype, dim, is_sparse;
  PyObject *fill;
};

// A tensor that a stage reads, of each mode the place of its index variable among the ranges. A dimension of -1 leaves
// all checks to the function of Python that reads it.
struct Input {
  int64_t slot, nnz_place;     // the place of the number of stored entries among the sizes, -1 for none
  int64_t pattern_slot;        // of a sparse one: the operand whose pattern it has, -1 for none
  int64_t dtype, dim, extents[MODES];
  int64_t is_inside, strides[MODES];  // of one inside rows of zeros; others are contiguous
  PyObject *key;               // of a sparse one: what patterns that have this kernel keep its arrays under; else null
  PyObject *keep;              // of a sparse one as the kernel reads it: has a pattern keep them; else null
};

// A tensor that a kernel writes: dense, or the values on the pattern of the tensor in slot `root`.
struct Output {
  int64_t dtype, item_bytes, dim, extents[MODES], is_inside, root;
  PyObject *empty, *fill;
};

// A step of a call: a kernel, or `compute`, a function of Python from a tuple of tensors to the results. Of each size
// of the kernel `size_extents` is the place of the range whose extent it is, -1 for a number. A kernel that allocates
// the arrays of its result has `array_count` of them.
struct Stage {
  int64_t kernel, threads, input_count, output_count, size_count;
  Input inputs[OPERANDS];
  Output outputs[OUTPUTS];
  int64_t sizes[SIZES], size_extents[SIZES];
  int64_t array_count, entries_place, array_dtypes[ARRAYS], array_bytes[ARRAYS];
  PyObject *array, *known, *finish, *compute;
};

// What a call was like, and what follows from that. `last` is, of each tensor that a stage makes, the stage after which
// nothing reads it.
struct Frame {
  int64_t references, operand_count, argument_count, range_count, stage_count, result_count, only_differentiable;
  int64_t arguments[OPERANDS], results[OUTPUTS], last[MADE];
  int64_t least_bytes, most_bytes;
  Known operands[OPERANDS];
  Range ranges[EXTENTS];
  PyObject *differentiable;
  Stage stages[];
};

static Tensor tensor_of(PyObject *object) { return (Tensor)((char *)object + torch.offset); }

static bool is_a(PyObject *object, PyObject *first, PyObject *second) {
  PyObject *type = PyObject_Type(object);
  Py_DecRef(type);
  return type == first || type == second;
}

// The bytes of an entry by the number of a dtype, 0 for an unknown one.
static int64_t item_bytes_of(int dtype) {
  static const int64_t item_bytes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2};
  return dtype < 0 || dtype >= 16 ? 0 : item_bytes[dtype];
}

// Whether the storage of a tensor has its entries; its owner may have made it smaller. Of a tensor with strides the
// shape is known.
static bool has_entries(Tensor tensor, const Operand &found) {
  int64_t bytes, offset, end = found.length;
  if (!item_bytes_of(found.dtype) || torch.storage_size(tensor, &bytes)) return false;
  if (found.strides && found.length) {
    end = 1;
    for (int64_t mode = 0; mode < found.dim; mode++) end += (found.shape[mode] - 1) * found.strides[mode];
  }
  return !torch.storage_offset(tensor, &offset) && (offset + end) * item_bytes_of(found.dtype) <= bytes;
}

// Reads the shape of a tensor, and the strides of one that is not contiguous.
static bool read_shape(Tensor tensor, bool contiguous, Operand &found) {
  if (torch.dim(tensor, &found.dim) || torch.sizes(tensor, &found.shape) || found.dim > MODES) return false;
  return contiguous || !torch.strides(tensor, &found.strides);
}

// Reads a tensor in plain memory of the CPU; false for any other, and for one that is not contiguous unless it
// `may_have_strides`.
static bool read_memory(PyObject *object, Operand &found, bool may_have_strides = false) {
  if (!is_a(object, plain_tensor, plain_parameter)) return false;
  Tensor tensor = tensor_of(object);
  found.strides = nullptr;
  int device;
  bool contiguous;
  bool plain = torch.has_storage(*tensor) && !torch.is_neg(tensor) && !torch.is_conj(tensor);
  return plain && !torch.device_type(tensor, &device) && device == 0 && !torch.is_contiguous(tensor, &contiguous) &&
         (contiguous || (may_have_strides && read_shape(tensor, false, found))) &&
         !torch.numel(tensor, &found.length) && !torch.data_ptr(tensor, &found.data) &&
         (found.data || !found.length) && !torch.dtype(tensor, &found.dtype) && has_entries(tensor, found);
}

static bool read_operand(PyObject *object, Operand &found, bool may_have_strides = false) {
  found.outer = tensor_of(object);
  if (is_a(object, sparse_tensor, sparse_tensor)) {
    found.pattern = PyObject_GetAttr(object, name_pattern);
    found.values = PyObject_GetAttr(object, name_vals);
    if (!found.pattern || !found.values || !read_memory(found.values, found)) return false;
  } else if (!read_memory(object, found, may_have_strides)) {
    return false;
  }
  return read_shape(found.outer, true, found);
}

// Whether a tensor is contiguous, or inside rows of zeros where the kernel reads it there: modes with one entry may
// have any stride.
static bool has_strides(const Operand &operand, const Input &input) {
  if (!input.is_inside) return !operand.strides;
  for (int64_t mode = input.dim - 1, stride = 1; mode >= 0; stride *= operand.shape[mode--]) {
    const int64_t found = operand.strides ? operand.strides[mode] : stride;
    if (found != input.strides[mode] && operand.shape[mode] != 1) return false;
  }
  return true;
}

// Whether the modes of a tensor have extents in their ranges, the same for one index variable everywhere; `extents`
// holds those that were met before, else -1.
static bool has_extents(const Operand &operand, const Input &input, const Range *ranges, int64_t *extents) {
  if (!has_strides(operand, input)) return false;
  for (int64_t mode = 0; mode < input.dim; mode++) {
    int64_t place = input.extents[mode], extent = operand.shape[mode];
    if (extents[place] < 0 && ranges[place].low <= extent && extent <= ranges[place].high) extents[place] = extent;
    if (extents[place] != extent) return false;
  }
  return true;
}

// Whether an operand is as it was when the frame was made; an exception may be set when it is not.
static bool is_alike(PyObject *object, const Operand &operand, const Known &known) {
  if (!known.is_sparse) return true;
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

// Keeps a frame while the block runs: others may replace it in its table when they hold the interpreter's lock.
static void release(Frame *frame);
struct Hold {
  Frame *frame;
  Hold(Frame *frame) : frame(frame) { frame->references++; }
  ~Hold() { release(frame); }
};

// Has the patterns of operands that the kernels have not read yet keep what they read of them, where they are stored as
// the kernels read them; whether one does now. An exception may be set.
static bool keep_patterns(Frame *frame, const Operand *operands) {
  Hold hold(frame);
  bool kept = false;
  for (int64_t number = 0; number < frame->stage_count; number++) {
    const Stage &stage = frame->stages[number];
    for (int64_t i = 0; i < stage.input_count; i++) {
      const Input &input = stage.inputs[i];
      if (!input.keep || input.pattern_slot < 0) continue;
      PyObject *pattern = operands[input.pattern_slot].pattern;
      if (PyErr_Occurred() || kept_by(pattern, input.key)) continue;
      PyObject *done = PyObject_CallFunctionObjArgs(input.keep, pattern, nullptr);
      if (!done) return false;
      kept = done != &_Py_FalseStruct;
      Py_DecRef(done);
      if (!kept) return false;
    }
  }
  return kept;
}

static void drop_made(Operand &made) {
  PyObject *const objects[] = {made.pattern, made.values, made.object};
  for (PyObject *object : objects)
    if (object) Py_DecRef(object);
  if (made.handle) torch.delete_tensor(made.handle);
  made = {};
}

// The tensors of a call by slot: its operands, then those that its stages make.
struct Tensors {
  Operand *operands;
  int64_t operand_count, made_count;
  Operand made[MADE];

  Tensors(Operand *operands, int64_t count) : operands(operands), operand_count(count), made_count(0) {}
  Operand &at(int64_t slot) { return slot < operand_count ? operands[slot] : made[slot - operand_count]; }
  Operand &add() { return made[made_count++] = {}; }
  ~Tensors() {
    while (made_count) drop_made(made[--made_count]);
  }
};

// Whether a tensor that a stage made is as a kernel reads it.
static bool is_as_read(const Operand &operand, const Input &input, const Range *ranges, int64_t *extents) {
  if (!operand.shape || !operand.pattern != !input.key || (!operand.data && operand.length)) return false;
  if (operand.dtype != input.dtype || operand.dim != input.dim) return false;
  return has_extents(operand, input, ranges, extents);
}

// Puts all that a kernel reads into its buffers and sizes; false when a tensor is not as the kernel reads it.
static bool read_inputs(const Frame &frame, const Stage &stage, Tensors &tensors, int64_t *extents, void **buffers,
                        Py_ssize_t &count, int64_t *sizes) {
  for (int64_t i = 0; i < stage.input_count; i++) {
    const Input &input = stage.inputs[i];
    bool is_made = input.slot >= tensors.operand_count;
    if (is_made && !is_as_read(tensors.at(input.slot), input, frame.ranges, extents)) return false;
  }
  for (int64_t i = 0; i < stage.size_count; i++)
    sizes[i] = stage.size_extents[i] < 0 ? stage.sizes[i] : extents[stage.size_extents[i]];
  for (int64_t i = 0; i < stage.input_count; i++) {
    const Input &input = stage.inputs[i];
    const Operand &operand = tensors.at(input.slot);
    if (input.key && !read_arrays(operand.pattern, input.key, buffers, count, sizes)) return false;
    if (input.nnz_place >= 0) sizes[input.nnz_place] = operand.length;
    if (count >= BUFFERS) return false;
    buffers[count++] = operand.data;
  }
  return true;
}
}
"""
