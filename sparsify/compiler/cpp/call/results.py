"""The C++ text of shortcuts, second part: results with arrays allocated by the running kernel.

In: a frame with arrays of a result. Out: the result, on the pattern known from earlier operands of equal patterns, or
on a new one.

Small arrays are made by torch without the interpreter's lock; large ones by `empty`. The known properties of a pattern
are requested from Python once a call, and Python finishes a result of a new pattern.
"""

from typing import Final

SOURCE: Final = r"""
extern "C" {
// An object that is let go when the block ends.
struct Reference {
  PyObject *object;
  ~Reference() {
    if (object) Py_DecRef(object);
  }
};

static PyObject *one_more(PyObject *object) {
  Py_IncRef(object);
  return object;
}

static int64_t threads_of(const Stage &stage) {
  return *torch.forked ? 1 : stage.threads ? stage.threads : torch.num_threads();
}

// The arrays that a kernel has asked for; the first is in slot `first` of its buffers.
struct Made {
  State state;
  int64_t first, count, least_bytes, dtypes[ARRAYS], item_bytes[ARRAYS];
  Tensor handles[ARRAYS];     // made without the lock
  PyObject *objects[ARRAYS];  // made by `empty`

  // Forgets an array; with the lock where `empty` has made it.
  void drop(int64_t place) {
    if (handles[place]) torch.delete_tensor(handles[place]);
    if (objects[place]) Py_DecRef(objects[place]);
    handles[place] = nullptr;
    objects[place] = nullptr;
  }

  bool has(int64_t place) const { return handles[place] || objects[place]; }

  // The array as an object of Python, None for one that the kernel did not ask for.
  PyObject *take(int64_t place) const {
    if (handles[place]) return torch.wrap(handles[place]);
    return one_more(objects[place] ? objects[place] : &_Py_NoneStruct);
  }

  ~Made() {
    for (int64_t place = 0; place < count; place++) drop(place);
  }
};

// Called by the kernel as `allocate` is.
static void *allocate_array(void *pointer, int64_t slot, int64_t bytes) {
  Made &made = *(Made *)pointer;
  int64_t place = slot - made.first;
  if (made.state.failed || place < 0 || place >= made.count) return nullptr;
  void *address = nullptr;
  if (bytes < made.least_bytes && !made.objects[place]) {
    int64_t length = bytes / made.item_bytes[place], one = 1;
    made.drop(place);
    if (torch.empty_strided(1, &length, &one, (int)made.dtypes[place], 0, 0, &made.handles[place])) {
      made.handles[place] = nullptr;
      return nullptr;
    }
    return torch.data_ptr(made.handles[place], &address) ? nullptr : address;
  }
  PyEval_RestoreThread(made.state.thread);
  made.drop(place);
  PyObject *object = PyObject_CallFunction(made.state.allocator, "LL", (long long)slot, (long long)bytes);
  made.objects[place] = object;
  if (object) address = address_of(object);
  made.state.failed = PyErr_Occurred() != nullptr;
  made.state.thread = PyEval_SaveThread();
  return address;
}

// The first `length` values that a kernel has made, in memory of their own; null, perhaps without an exception, for
// arrays of Python and for fewer values.
static PyObject *first_values(const Made &made, int64_t length) {
  const Tensor values = made.handles[made.count - 1];
  int64_t filled, one = 1;
  if (!values || torch.numel(values, &filled) || filled < length) return nullptr;
  if (filled == length) return torch.wrap(values);
  Tensor kept;
  if (torch.empty_strided(1, &length, &one, (int)made.dtypes[made.count - 1], 0, 0, &kept)) return nullptr;
  void *from, *to;
  const bool is_read = !torch.data_ptr(values, &from) && !torch.data_ptr(kept, &to);
  if (is_read && length) memcpy(to, from, (size_t)(length * made.item_bytes[made.count - 1]));
  PyObject *result = is_read ? torch.wrap(kept) : nullptr;
  torch.delete_tensor(kept);
  return result;
}

// The patterns of the tensors that a stage reads, in the order of its inputs.
static PyObject *patterns_of(const Stage &stage, Tensors &tensors) {
  Py_ssize_t count = 0, place = 0;
  for (int64_t i = 0; i < stage.input_count; i++) count += tensors.at(stage.inputs[i].slot).pattern != nullptr;
  PyObject *patterns = PyTuple_New(count);
  for (int64_t i = 0; patterns && i < stage.input_count; i++) {
    PyObject *pattern = tensors.at(stage.inputs[i].slot).pattern;
    if (pattern) PyTuple_SetItem(patterns, place++, one_more(pattern));
  }
  return patterns;
}

// The result of a stage whose kernel allocates its arrays; null, perhaps without an exception, when its tensors are not
// as the frame says.
//
// known(patterns) is None or (pattern, its arrays, how many entries); finish(patterns, arrays, known) makes a result
// of arrays that are all new.
static PyObject *assemble(const Frame &frame, const Stage &stage, Tensors &tensors, int64_t *extents) {
  int64_t sizes[SIZES];
  void *buffers[BUFFERS] = {};
  Py_ssize_t count = 0;
  if (!read_inputs(frame, stage, tensors, extents, buffers, count, sizes)) return nullptr;
  if (count + stage.array_count > BUFFERS) return nullptr;
  Made made = {{stage.array, nullptr, false}, count, stage.array_count, frame.least_bytes, {}, {}, {}, {}};
  memcpy(made.dtypes, stage.array_dtypes, sizeof made.dtypes);
  memcpy(made.item_bytes, stage.array_bytes, sizeof made.item_bytes);
  Kernel kernel = (Kernel)stage.kernel;
  Reference patterns = {patterns_of(stage, tensors)};
  if (!patterns.object) return nullptr;
  Reference known = {PyObject_CallFunctionObjArgs(stage.known, patterns.object, nullptr)};
  if (!known.object) return nullptr;
  bool is_known = known.object != &_Py_NoneStruct;
  sizes[stage.entries_place] = -1;
  if (is_known) {
    PyObject *arrays = PyTuple_GetItem(known.object, 1);
    Py_ssize_t length = PyTuple_Size(arrays);
    if (length >= made.count) return nullptr;
    sizes[stage.entries_place] = PyLong_AsLongLong(PyTuple_GetItem(known.object, 2));
    for (Py_ssize_t i = 0; i < length; i++) {
      Operand array;
      if (!read_memory(PyTuple_GetItem(arrays, i), array)) return nullptr;
      buffers[count + i] = array.data;
    }
  }
  Context context = {threads_of(stage), &made, allocate_array};
  made.state.thread = PyEval_SaveThread();
  int64_t status = kernel(sizes, buffers, &context);
  PyEval_RestoreThread(made.state.thread);
  // A position that does not fit has a remedy, which `otherwise` knows.
  if (made.state.failed || status == POSITION_OVERFLOW) return nullptr;
  if (status) return PyObject_CallFunction(fail_with, "L", (long long)status);
  if (is_known) {
    // Sums fill all arrays in any case; the known pattern stays, and takes the values.
    Reference values = {first_values(made, sizes[stage.entries_place])};
    PyObject *pattern = PyTuple_GetItem(known.object, 0), *fill = stage.outputs[0].fill;
    if (values.object) return PyObject_CallFunctionObjArgs(wrap_sparse, pattern, values.object, fill, nullptr);
    if (PyErr_Occurred()) return nullptr;
  }
  bool is_new = !is_known;
  for (int64_t place = 0; place + 1 < made.count; place++) is_new = is_new || made.has(place);
  if (!is_new) {
    Reference values = {made.take(made.count - 1)};
    if (!values.object) return nullptr;
    PyObject *pattern = PyTuple_GetItem(known.object, 0);
    return PyObject_CallFunctionObjArgs(wrap_sparse, pattern, values.object, stage.outputs[0].fill, nullptr);
  }
  Reference arrays = {PyTuple_New(made.count)};
  for (int64_t place = 0; arrays.object && place < made.count; place++) {
    PyObject *array = made.take(place);
    if (!array) return nullptr;
    PyTuple_SetItem(arrays.object, place, array);
  }
  if (!arrays.object) return nullptr;
  return PyObject_CallFunctionObjArgs(stage.finish, patterns.object, arrays.object, known.object, nullptr);
}
}
"""
