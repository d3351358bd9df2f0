"""The C++ text of shortcuts: from Python's operands to the kernel and back, for operands like those met before.

In: `sparsify_shortcut(otherwise)`. Out: a callable `shortcut(operands)` of Python; `sparsify.compiler.kernel.fast_call`
says what it does. The text continues that of `shortcut_operands` and `shortcut_arrays`.

A shortcut keeps frames in a small table: what a call was like, and what follows from that. A call reads dtype,
shape and address of its operands from torch, looks for a frame whose ranges hold their extents, the latest one first,
and goes to the kernel with addresses on the stack. Whatever is not plain memory of the CPU, or not as the frame says,
is left to `otherwise`.
"""

from typing import Final

SOURCE: Final = r"""
extern "C" {
struct Table {
  PyObject *otherwise;
  int64_t latest, next;  // the place of the frame of the last call, and that of the next frame
  Frame *frames[FRAMES];
};

// A shape as a tuple of Python.
static PyObject *tuple_of(const int64_t *shape, int64_t dim) {
  PyObject *found = PyTuple_New((Py_ssize_t)dim);
  for (int64_t mode = 0; found && mode < dim; mode++)
    PyTuple_SetItem(found, (Py_ssize_t)mode, PyLong_FromLongLong(shape[mode]));
  return found;
}

// A tensor for the result: the values of one on the pattern of `root`, else of the frame's shape; null without an
// exception when torch cannot make it here.
static PyObject *make_result(const Frame &frame, const int64_t *extents, const Operand *root) {
  int64_t shape[MODES] = {root ? root->length : 0}, strides[MODES] = {1}, dim = root ? 1 : frame.dim;
  int64_t length = root ? root->length : 1, stride = 1;
  for (int64_t mode = dim - 1; !root && mode >= 0; mode--) {
    shape[mode] = extents[frame.extents[mode]];
    strides[mode] = stride;
    length *= shape[mode];
    stride *= shape[mode] ? shape[mode] : 1;
  }
  int64_t bytes = length * frame.item_bytes;
  if (bytes >= frame.least_bytes && bytes <= frame.most_bytes) {
    PyObject *empty = frame.empty, *about = root ? root->pattern : tuple_of(shape, dim);
    if (!about) return nullptr;
    Py_IncRef(empty);
    PyObject *result = PyObject_CallFunctionObjArgs(empty, about, nullptr);
    Py_DecRef(empty);
    if (!root) Py_DecRef(about);
    return result;
  }
  Tensor made;
  if (torch.empty_strided(dim, shape, strides, (int)frame.dtype, 0, 0, &made)) return nullptr;
  PyObject *result = torch.wrap(made);
  torch.delete_tensor(made);
  return result;
}

// The result for operands that are as the frame says; null, perhaps without an exception, when they are not.
static PyObject *run(const Frame &frame, const Operand *operands, const int64_t *extents) {
  int64_t sizes[SIZES];
  void *buffers[BUFFERS];
  Py_ssize_t count = 0;
  if (!read_inputs(frame, operands, extents, buffers, count, sizes)) return nullptr;
  const Operand *root = frame.root < 0 ? nullptr : &operands[frame.root];
  State state = {&_Py_NoneStruct, nullptr, false};
  Context context = {*torch.forked ? 1 : frame.threads ? frame.threads : torch.num_threads(), &state, allocate};
  Kernel kernel = (Kernel)frame.kernel;
  PyObject *fill = frame.fill;
  Py_IncRef(fill);
  // From here on the frame may be replaced: others may hold the interpreter's lock.
  PyObject *result = make_result(frame, extents, root);
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

// Whether a frame fits the operands, whose `extents` are known then; an exception may be set when it does not.
static bool fits(const Frame *frame, PyObject *tuple, const Operand *operands, Py_ssize_t count, int64_t *extents) {
  if (!frame || frame->operand_count != count) return false;
  for (int64_t place = 0; place < frame->range_count; place++) {
    const Range &range = frame->ranges[place];
    extents[place] = range.low == range.high ? range.low : -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    const Operand &operand = operands[i];
    const Known &known = frame->operands[i];
    if (operand.dtype != known.dtype || operand.dim != known.dim || !operand.pattern != !known.key) return false;
    if (!has_extents(operand, known, frame->ranges, extents)) return false;
  }
  for (Py_ssize_t i = 0; i < count; i++)
    if (!is_alike(PyTuple_GetItem(tuple, i), operands[i], frame->operands[i])) return false;
  return true;
}

// The result by a frame; null, perhaps without an exception, when it does not hold for the operands.
static PyObject *by(const Frame *frame, PyObject *tuple, const Operand *operands, Py_ssize_t count) {
  int64_t extents[EXTENTS];
  if (!fits(frame, tuple, operands, count, extents)) return nullptr;
  if (needs_gradient(operands, count))
    return frame->differentiable ? run_differentiably(*frame, operands, tuple) : nullptr;
  return frame->array_count ? assemble(*frame, operands, extents) : run(*frame, operands, extents);
}

// Whether tensors may have tangents: some code differentiates forwards.
static bool has_tangents() {
  PyObject *level = PyDict_GetItemWithError(forward_names, name_level);
  return !level || PyLong_AsLongLong(level) >= 0;
}

// The result by the frame that fits the operands, null without an exception when none does; `can_learn` becomes whether
// there can be one.
static PyObject *by_frame(Table &table, PyObject *tuple, Operand *operands, bool &can_learn) {
  Py_ssize_t count = PyTuple_Size(tuple);
  if (count < 0 || count > OPERANDS || torch.dispatch_mode_enabled() || has_tangents()) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!read_operand(PyTuple_GetItem(tuple, i), operands[i])) return nullptr;
  can_learn = true;
  int64_t latest = table.latest;
  for (int64_t step = 0; step < FRAMES; step++) {
    int64_t place = (latest + step) % FRAMES;
    PyObject *result = by(table.frames[place], tuple, operands, count);
    if (result) table.latest = place;
    if (result || PyErr_Occurred()) return result;
  }
  for (int64_t step = 0; step < FRAMES; step++) {
    Frame *const &place = table.frames[(latest + step) % FRAMES];
    int64_t extents[EXTENTS];
    bool kept = fits(place, tuple, operands, count, extents) && keep_patterns(place, operands, count);
    if (kept) return by(place, tuple, operands, count);
    if (PyErr_Occurred()) return nullptr;
  }
  return nullptr;
}

static void count_references(const Frame &frame, void (*count)(PyObject *)) {
  for (int64_t i = 0; i < frame.operand_count; i++) {
    if (frame.operands[i].key) count(frame.operands[i].key);
    if (frame.operands[i].fill) count(frame.operands[i].fill);
    if (frame.operands[i].keep) count(frame.operands[i].keep);
  }
  PyObject *const held[] = {frame.empty, frame.fill, frame.differentiable, frame.known, frame.finish};
  for (PyObject *object : held)
    if (object) count(object);
}

static void drop(Frame *frame) {
  if (!frame) return;
  count_references(*frame, Py_DecRef);
  free(frame);
}

static void forget(PyObject *capsule) {
  Table *table = (Table *)PyCapsule_GetPointer(capsule, nullptr);
  for (Frame *frame : table->frames) drop(frame);
  Py_DecRef(table->otherwise);
  free(table);
}

// Whether one frame holds for just the calls that the other one holds for, but for fills.
static bool is_again(const Frame *before, const Frame &frame) {
  if (!before || before->operand_count != frame.operand_count || before->range_count != frame.range_count) return false;
  if (memcmp(before->ranges, frame.ranges, (size_t)frame.range_count * sizeof(Range))) return false;
  for (int64_t i = 0; i < frame.operand_count; i++) {
    const Known &was = before->operands[i], &is = frame.operands[i];
    if (was.dtype != is.dtype || was.dim != is.dim || was.key != is.key) return false;
    if (memcmp(was.extents, is.extents, (size_t)is.dim * sizeof(int64_t))) return false;
  }
  return true;
}

// learn(address of a frame: int): copies it into the table, in the place of one for the same calls, else of the one
// that was learned first.
static PyObject *learn(PyObject *self, PyObject *address) {
  Table *table = (Table *)PyCapsule_GetPointer(self, nullptr);
  const Frame *frame = (const Frame *)PyLong_AsVoidPtr(address);
  if (!table || !frame) return nullptr;
  Py_IncRef(&_Py_NoneStruct);
  Frame *own = (Frame *)calloc(1, sizeof(Frame));
  if (!own) return &_Py_NoneStruct;
  *own = *frame;
  count_references(*own, Py_IncRef);
  int64_t place = 0;
  while (place < FRAMES && !is_again(table->frames[place], *own)) place++;
  if (place == FRAMES) {
    place = table->next;
    table->next = (place + 1) % FRAMES;
  }
  Frame *gone = table->frames[place];
  table->frames[place] = own;
  table->latest = place;
  drop(gone);
  return &_Py_NoneStruct;
}

static PyMethodDef learn_definition = {"learn", (void *)learn, 0x0008, "learn(frame)"};


// shortcut(operands: tuple) -> the result, by the frame of such a call, or by otherwise(operands, learn), where `learn`
// is None if no frame can hold them.
static PyObject *shortcut(PyObject *self, PyObject *tuple) {
  Table *table = (Table *)PyCapsule_GetPointer(self, nullptr);
  if (!table) return nullptr;
  Operand operands[OPERANDS] = {};
  bool can_learn = false;
  PyObject *result = by_frame(*table, tuple, operands, can_learn);
  for (Operand &operand : operands) {
    if (operand.pattern) Py_DecRef(operand.pattern);
    if (operand.values) Py_DecRef(operand.values);
  }
  if (result || PyErr_Occurred()) return result;
  if (!can_learn) return PyObject_CallFunctionObjArgs(table->otherwise, tuple, &_Py_NoneStruct, nullptr);
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
                          &is_transformed, &wrap_sparse,     &fail_with,     &forward_names};
  for (Py_ssize_t i = 0; i < 8; i++) Py_IncRef(*places[i] = PyTuple_GetItem(objects, i));
  name_pattern = PyUnicode_InternFromString("_pattern");
  name_vals = PyUnicode_InternFromString("_vals");
  name_fill = PyUnicode_InternFromString("_fill");
  name_cache = PyUnicode_InternFromString("_cache");
  name_level = PyUnicode_InternFromString("_current_level");
  name_written = PyUnicode_InternFromString("_written");
}
}
"""
