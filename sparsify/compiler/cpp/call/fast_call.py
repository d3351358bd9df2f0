"""The C++ text of shortcuts: fast path from Python operands to the kernel and back, for operands like earlier ones.

In: `sparsify_shortcut(otherwise, may_have_strides)`. Out: a callable `shortcut(operands)` of Python, described in
`sparsify.compiler.kernel.fast_call`. The text continues `operands`, `results` and `stages`.

A shortcut keeps frames in a small table: the properties of a call and the derived kernel arguments. A call reads dtype,
shape and address of the operands from torch, looks for a frame with ranges that contain the extents, the latest one
first, and goes to the kernel with addresses on the stack. Operands outside plain CPU memory, or different from all
frames, are left to `otherwise`.
"""

from typing import Final

SOURCE: Final = r"""
extern "C" {
struct Table {
  PyObject *otherwise;
  bool may_have_strides;  // whether a kernel reads a tensor inside rows of zeros; others read contiguous ones alone
  int64_t latest, next;  // the place of the frame of the last call, and that of the next frame
  Frame *frames[FRAMES];
};

// The same under autograd: `differentiate(kernel, *operands)`, with the operands in the order of the kernel; null,
// without an exception, within transforms of functorch.
static PyObject *run_differentiably(const Frame &frame, const Operand *operands, PyObject *tuple) {
  for (int64_t number = 0; number < frame.stage_count; number++) {
    const Stage &stage = frame.stages[number];
    for (int64_t i = 0; i < stage.input_count; i++) {
      const Input &input = stage.inputs[i];
      bool is_sparse = input.key && input.pattern_slot >= 0;
      if (is_sparse && !kept_by(operands[input.pattern_slot].pattern, input.key)) return nullptr;
    }
  }
  PyObject *transformed = PyObject_CallFunctionObjArgs(is_transformed, nullptr);
  if (transformed) Py_DecRef(transformed);
  if (transformed != &_Py_FalseStruct) return nullptr;
  PyObject *arguments[OPERANDS + 1] = {frame.differentiable};
  for (int64_t i = 0; i < frame.argument_count; i++) arguments[i + 1] = PyTuple_GetItem(tuple, frame.arguments[i]);
  Py_IncRef(arguments[0]);
  PyObject *result = PyObject_Vectorcall(differentiate, arguments, (size_t)frame.argument_count + 1, nullptr);
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
    if (operand.dtype != known.dtype || operand.dim != known.dim || !operand.pattern != !known.is_sparse) return false;
  }
  for (int64_t number = 0; number < frame->stage_count; number++) {
    const Stage &stage = frame->stages[number];
    for (int64_t i = 0; i < stage.input_count; i++) {
      const Input &input = stage.inputs[i];
      if (input.slot < count && !has_extents(operands[input.slot], input, frame->ranges, extents)) return false;
    }
  }
  for (Py_ssize_t i = 0; i < count; i++)
    if (!is_alike(PyTuple_GetItem(tuple, i), operands[i], frame->operands[i])) return false;
  return true;
}

// The result by a frame; null, perhaps without an exception, when it does not hold for the operands.
static PyObject *by(Frame *frame, PyObject *tuple, Operand *operands, Py_ssize_t count) {
  int64_t extents[EXTENTS];
  if (!fits(frame, tuple, operands, count, extents)) return nullptr;
  if (needs_gradient(operands, count))
    return frame->differentiable ? run_differentiably(*frame, operands, tuple) : nullptr;
  return frame->only_differentiable ? nullptr : run(frame, tuple, operands, extents);
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
    if (!read_operand(PyTuple_GetItem(tuple, i), operands[i], table.may_have_strides)) return nullptr;
  can_learn = true;
  int64_t latest = table.latest;
  for (int64_t step = 0; step < FRAMES; step++) {
    int64_t place = (latest + step) % FRAMES;
    PyObject *result = by(table.frames[place], tuple, operands, count);
    if (result) table.latest = place;
    if (result || PyErr_Occurred()) return result;
  }
  for (int64_t step = 0; step < FRAMES; step++) {
    Frame *frame = table.frames[(latest + step) % FRAMES];
    int64_t extents[EXTENTS];
    if (fits(frame, tuple, operands, count, extents)) {
      Hold hold(frame);
      if (keep_patterns(frame, operands)) return by(frame, tuple, operands, count);
    }
    if (PyErr_Occurred()) return nullptr;
  }
  return nullptr;
}

static void count_references(const Frame &frame, void (*count)(PyObject *)) {
  const auto count_one = [count](PyObject *object) {
    if (object) count(object);
  };
  count_one(frame.differentiable);
  for (int64_t i = 0; i < frame.operand_count; i++) count_one(frame.operands[i].fill);
  for (int64_t number = 0; number < frame.stage_count; number++) {
    const Stage &stage = frame.stages[number];
    PyObject *const held[] = {stage.array, stage.known, stage.finish, stage.compute};
    for (PyObject *object : held) count_one(object);
    for (int64_t i = 0; i < stage.input_count; i++) {
      count_one(stage.inputs[i].key);
      count_one(stage.inputs[i].keep);
    }
    for (int64_t i = 0; i < stage.output_count; i++) {
      count_one(stage.outputs[i].empty);
      count_one(stage.outputs[i].fill);
    }
  }
}

static void release(Frame *frame) {
  if (!frame || --frame->references) return;
  count_references(*frame, Py_DecRef);
  free(frame);
}

static void forget(PyObject *capsule) {
  Table *table = (Table *)PyCapsule_GetPointer(capsule, nullptr);
  for (Frame *frame : table->frames) release(frame);
  Py_DecRef(table->otherwise);
  free(table);
}

// Whether one frame holds for just the calls that the other one holds for, but for fills.
static bool is_again(const Frame *before, const Frame &frame) {
  if (!before || before->operand_count != frame.operand_count || before->range_count != frame.range_count) return false;
  if (before->stage_count != frame.stage_count) return false;
  if (before->only_differentiable != frame.only_differentiable) return false;
  if (memcmp(before->ranges, frame.ranges, (size_t)frame.range_count * sizeof(Range))) return false;
  for (int64_t i = 0; i < frame.operand_count; i++) {
    const Known &was = before->operands[i], &is = frame.operands[i];
    if (was.dtype != is.dtype || was.dim != is.dim || was.is_sparse != is.is_sparse) return false;
  }
  for (int64_t number = 0; number < frame.stage_count; number++) {
    const Stage &then = before->stages[number], &now = frame.stages[number];
    if (then.input_count != now.input_count) return false;
    for (int64_t i = 0; i < now.input_count; i++) {
      const Input &was = then.inputs[i], &is = now.inputs[i];
      if (was.slot != is.slot || was.dim != is.dim || was.key != is.key) return false;
      if (memcmp(was.extents, is.extents, sizeof is.extents)) return false;
    }
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
  size_t bytes = sizeof(Frame) + (size_t)frame->stage_count * sizeof(Stage);
  Frame *own = (Frame *)calloc(1, bytes);
  if (!own) return &_Py_NoneStruct;
  memcpy(own, frame, bytes);
  own->references = 1;
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
  release(gone);
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
PyObject *sparsify_shortcut(PyObject *otherwise, int may_have_strides) {
  Table *table = (Table *)calloc(1, sizeof(Table));
  PyObject *capsule = table ? PyCapsule_New(table, nullptr, forget) : nullptr;
  if (!capsule) return nullptr;
  Py_IncRef(table->otherwise = otherwise);
  table->may_have_strides = may_have_strides;
  PyObject *function = PyCFunction_NewEx(&shortcut_definition, capsule, nullptr);
  Py_DecRef(capsule);
  return function;
}

// Tells where torch's functions are, and the classes and functions of Python that shortcuts need.
void sparsify_set_up(const void *functions, PyObject *objects) {
  memcpy(&torch, functions, sizeof torch);
  PyObject **places[] = {&plain_tensor,   &plain_parameter, &sparse_tensor, &differentiate,
                          &is_transformed, &wrap_sparse,     &fail_with,     &forward_names, &parts_of};
  for (Py_ssize_t i = 0; i < 9; i++) Py_IncRef(*places[i] = PyTuple_GetItem(objects, i));
  name_pattern = PyUnicode_InternFromString("_pattern");
  name_vals = PyUnicode_InternFromString("_vals");
  name_fill = PyUnicode_InternFromString("_fill");
  name_cache = PyUnicode_InternFromString("_cache");
  name_level = PyUnicode_InternFromString("_current_level");
  name_written = PyUnicode_InternFromString("_written");
}
}
"""
