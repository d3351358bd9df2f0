"""The C++ text of shortcuts, third part: the stages of a call, one kernel after the other.

In: a frame and operands that fit it. Out: the results.

A stage reads operands and tensors of earlier stages, by slot. Small tensors that a kernel writes are made by torch
without an object of Python; each is let go after the last stage that reads it. A stage that no kernel computes, as a
dense product of torch, is a function of Python.
"""

from typing import Final

SOURCE: Final = r"""
extern "C" {
// A shape as a tuple of Python.
static PyObject *tuple_of(const int64_t *shape, int64_t dim) {
  PyObject *found = PyTuple_New((Py_ssize_t)dim);
  for (int64_t mode = 0; found && mode < dim; mode++)
    PyTuple_SetItem(found, (Py_ssize_t)mode, PyLong_FromLongLong(shape[mode]));
  return found;
}

// Makes the memory of an output: the values of one on the pattern of `root`, else of the frame's shape; false, perhaps
// without an exception, when torch cannot make it here.
static bool make_output(const Frame &frame, const Output &output, const int64_t *extents, Tensors &tensors) {
  const Operand *root = output.root < 0 ? nullptr : &tensors.at(output.root);
  int64_t shape[MODES] = {root ? root->length : 0}, strides[MODES] = {1}, dim = root ? 1 : output.dim;
  int64_t length = root ? root->length : 1, stride = 1;
  for (int64_t mode = dim - 1; !root && mode >= 0; mode--) {
    shape[mode] = extents[output.extents[mode]];
    if (shape[mode] < 0) return false;
    strides[mode] = stride;
    length *= shape[mode];
    stride *= shape[mode] ? shape[mode] : 1;
  }
  Operand &made = tensors.add();
  made.length = length;
  made.fill = output.fill;
  made.dtype = (int)output.dtype;
  made.dim = root ? root->dim : dim;
  if (root) made.shape = root->shape;
  if (root) made.pattern = one_more(root->pattern);
  int64_t bytes = length * output.item_bytes;
  if (!output.is_inside && (bytes < frame.least_bytes || bytes > frame.most_bytes)) {
    if (torch.empty_strided(dim, shape, strides, (int)output.dtype, 0, 0, &made.handle)) {
      made.handle = nullptr;
      return false;
    }
    return (root || !torch.sizes(made.handle, &made.shape)) && !torch.data_ptr(made.handle, &made.data);
  }
  PyObject *about = root ? one_more(root->pattern) : tuple_of(shape, dim);
  if (about) made.values = PyObject_CallFunctionObjArgs(output.empty, about, nullptr);
  if (about) Py_DecRef(about);
  if (!made.values) return false;
  Tensor memory = tensor_of(made.values);
  if (output.is_inside && torch.strides(memory, &made.strides)) return false;
  return (root || !torch.sizes(memory, &made.shape)) && !torch.data_ptr(memory, &made.data);
}

// A tensor as an object of Python, which the tensor owns; null with an exception.
static PyObject *object_of(Operand &tensor) {
  if (tensor.object) return tensor.object;
  if (!tensor.values) tensor.values = torch.wrap(tensor.handle);
  if (!tensor.values) return nullptr;
  if (!tensor.pattern) return tensor.object = one_more(tensor.values);
  PyObject *const arguments[] = {tensor.pattern, tensor.values, tensor.fill};
  return tensor.object = PyObject_Vectorcall(wrap_sparse, arguments, 3, nullptr);
}

// Takes a tensor that Python made. One that is not in plain memory has a length without an address: no kernel reads it.
static void take(PyObject *object, Tensors &tensors) {
  Operand &made = tensors.add();
  made.object = one_more(object);
  if (read_operand(object, made)) return;
  made.data = nullptr;
  made.length = 1;
}

static bool compute_in_python(const Stage &stage, PyObject *given, Tensors &tensors) {
  Reference operands = {PyTuple_New((Py_ssize_t)stage.input_count)};
  if (!operands.object) return false;
  for (int64_t i = 0; i < stage.input_count; i++) {
    int64_t slot = stage.inputs[i].slot;
    PyObject *object = slot < tensors.operand_count ? PyTuple_GetItem(given, slot) : object_of(tensors.at(slot));
    if (!object) return false;
    PyTuple_SetItem(operands.object, i, one_more(object));
  }
  Reference results = {PyObject_CallFunctionObjArgs(stage.compute, operands.object, nullptr)};
  if (!results.object) return false;
  if (stage.output_count == 1) {
    take(results.object, tensors);
    return true;
  }
  if (PyTuple_Size(results.object) != stage.output_count) return false;
  for (int64_t i = 0; i < stage.output_count; i++) take(PyTuple_GetItem(results.object, i), tensors);
  return true;
}

static bool run_kernel(const Frame &frame, const Stage &stage, Tensors &tensors, int64_t *extents) {
  int64_t sizes[SIZES];
  void *buffers[BUFFERS];
  Py_ssize_t count = 0;
  if (!read_inputs(frame, stage, tensors, extents, buffers, count, sizes)) return false;
  if (count + stage.output_count > BUFFERS) return false;
  for (int64_t i = 0; i < stage.output_count; i++) {
    if (!make_output(frame, stage.outputs[i], extents, tensors)) return false;
    buffers[count++] = tensors.made[tensors.made_count - 1].data;
  }
  State state = {&_Py_NoneStruct, nullptr, false};
  Context context = {threads_of(stage), &state, allocate};
  Kernel kernel = (Kernel)stage.kernel;
  state.thread = PyEval_SaveThread();
  int64_t status = kernel(sizes, buffers, &context);
  PyEval_RestoreThread(state.thread);
  if (!status || state.failed) return !state.failed;
  PyObject *made = PyObject_CallFunction(fail_with, "L", (long long)status);
  if (made) Py_DecRef(made);
  return false;
}

static bool run_stage(const Frame &frame, const Stage &stage, PyObject *given, Tensors &tensors, int64_t *extents) {
  if (stage.compute) return compute_in_python(stage, given, tensors);
  if (!stage.array_count) return run_kernel(frame, stage, tensors, extents);
  PyObject *result = assemble(frame, stage, tensors, extents);
  if (!result) return false;
  Operand &made = tensors.add();
  made.object = result;
  made.length = 1;  // as of one that no kernel reads
  return true;
}

// Whether the operands' patterns keep what the stages read of them: no stage runs in vain. A kernel in front checks and
// keeps what it reads itself; functions of Python take the frame's word for it.
static bool are_read(const Frame &frame, const Operand *operands) {
  for (int64_t number = 0; number < frame.stage_count; number++) {
    const Stage &stage = frame.stages[number];
    if (!number && !stage.compute) continue;
    for (int64_t i = 0; i < stage.input_count; i++) {
      const Input &input = stage.inputs[i];
      if (!input.key || input.pattern_slot < 0) continue;
      PyObject *found = kept_by(operands[input.pattern_slot].pattern, input.key);
      if (!found || (!stage.compute && PyTuple_GetItem(found, 2) != &_Py_NoneStruct)) return false;
    }
  }
  return true;
}

// The results for operands that are as the frame says; null, perhaps without an exception, when they are not.
static PyObject *run(Frame *frame, PyObject *given, Operand *operands, int64_t *extents) {
  if (!are_read(*frame, operands)) return nullptr;
  Hold hold(frame);
  Tensors tensors(operands, frame->operand_count);
  for (int64_t number = 0; number < frame->stage_count; number++) {
    if (!run_stage(*frame, frame->stages[number], given, tensors, extents)) return nullptr;
    for (int64_t place = 0; place < tensors.made_count; place++)
      if (frame->last[place] == number) drop_made(tensors.made[place]);
  }
  if (frame->result_count == 1) {
    PyObject *result = object_of(tensors.at(frame->results[0]));
    return result ? one_more(result) : nullptr;
  }
  Reference results = {PyTuple_New((Py_ssize_t)frame->result_count)};
  for (int64_t i = 0; results.object && i < frame->result_count; i++) {
    PyObject *result = object_of(tensors.at(frame->results[i]));
    if (!result) return nullptr;
    PyTuple_SetItem(results.object, i, one_more(result));
  }
  return results.object ? one_more(results.object) : nullptr;
}
}
"""
