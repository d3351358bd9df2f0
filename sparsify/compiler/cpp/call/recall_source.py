"""The C++ text of recalls: the result of an earlier call, found without Python code while no leaf has changed.

In: `sparsify_recall(otherwise, secret)`. Out: a callable `recall(leaves)` of Python, described in
`sparsify.compiler.kernel.recall`. The text continues `operands` and `digest_source`.

A recollection has for each leaf the object itself, or a weak reference to a tensor, and for each array of a tensor its
address, version and digest. Digests of a call are taken before and after the result is computed: a result of entries
that another thread wrote meanwhile is not kept.
"""

from typing import Final

SOURCE: Final = r"""
extern "C" {
enum { LEAVES = 16, PIECES = 64, KEPT = 2, READ_WHOLE = 64 * SAMPLED };
PyObject *PyWeakref_NewRef(PyObject *, PyObject *);
int PyObject_IsInstance(PyObject *, PyObject *);

// An array of a tensor. Of a large one, of which a digest reads a sample, the version counts, -1 without a version.
struct Piece {
  PyObject *object;  // belongs to a leaf
  void *data;
  int dtype;
  int64_t bytes, version;
  uint64_t digest;  // of the shape, too
};

// An argument of a call: a tensor by a weak reference, any other object by a reference. The pieces of a tensor end
// before `end`. `parts` are those of a sparse one, referred to: the first two are its pattern and its values.
struct Leaf {
  PyObject *reference, *parts;
  bool is_tensor;
  int64_t end;
};

struct Recollection {
  PyObject *result;
  int64_t leaf_count;
  Leaf leaves[LEAVES];
  Piece pieces[PIECES];
};

struct Recall {
  PyObject *otherwise;
  const uint64_t *secret;
  Recollection *kept[KEPT];
};

// Reads an array as it is now; false for one outside plain, contiguous memory of the CPU, or with many modes.
static bool read_piece(PyObject *object, const uint64_t *secret, Piece &piece) {
  Operand found;
  if (!read_memory(object, found) || !read_shape(tensor_of(object), true, found)) return false;
  piece.object = object;
  piece.data = found.data;
  piece.dtype = found.dtype;
  piece.bytes = found.length * item_bytes_of(found.dtype);
  piece.digest = sparsify_sample((const char *)found.data, piece.bytes, secret);
  for (int64_t mode = 0; mode < found.dim; mode++)
    piece.digest = fold(piece.digest ^ (uint64_t)found.shape[mode], secret[KEYS]);
  return true;
}

static bool is_as_before(const Piece &piece, const uint64_t *secret) {
  Piece now;
  if (!read_piece(piece.object, secret, now)) return false;
  if (now.data != piece.data || now.dtype != piece.dtype || now.bytes != piece.bytes) return false;
  if (now.digest != piece.digest) return false;
  return piece.version < 0 || torch.version(tensor_of(piece.object)) == piece.version;
}

static bool is_same_leaf(PyObject *object, const Leaf &leaf) {
  if (!leaf.is_tensor) return object == leaf.reference;
  PyObject *alive = PyObject_CallFunctionObjArgs(leaf.reference, nullptr);
  if (!alive) return false;
  Py_DecRef(alive);
  if (alive != object) return false;
  if (!leaf.parts) return true;
  Reference pattern = {PyObject_GetAttr(object, name_pattern)}, values = {PyObject_GetAttr(object, name_vals)};
  return pattern.object == PyTuple_GetItem(leaf.parts, 0) && values.object == PyTuple_GetItem(leaf.parts, 1);
}

// Whether the leaves are those of an earlier call, unchanged; an exception may be set when they are not.
static bool holds(const Recollection *found, PyObject *leaves, const uint64_t *secret) {
  if (!found || found->leaf_count != PyTuple_Size(leaves)) return false;
  for (int64_t i = 0; i < found->leaf_count; i++)
    if (!is_same_leaf(PyTuple_GetItem(leaves, i), found->leaves[i])) return false;
  const int64_t end = found->leaf_count ? found->leaves[found->leaf_count - 1].end : 0;
  for (int64_t i = 0; i < end; i++)
    if (!is_as_before(found->pieces[i], secret)) return false;
  return true;
}

// Adds an array of a tensor; the version of a large one is asked for in Python, as inference tensors have none.
static bool add_piece(PyObject *object, const uint64_t *secret, bool is_weight, Recollection &made, int64_t &count) {
  if (count == PIECES || !read_piece(object, secret, made.pieces[count])) return false;
  Piece &piece = made.pieces[count++];
  piece.version = -1;
  if (piece.bytes <= READ_WHOLE) return true;
  if (!is_weight) return false;
  PyObject *const arguments[] = {object};
  Reference is_inference = {PyObject_VectorcallMethod(name_is_inference, arguments, 1, nullptr)};
  if (!is_inference.object) return false;
  if (is_inference.object == &_Py_FalseStruct) piece.version = torch.version(tensor_of(object));
  return true;
}

static bool add_leaf(PyObject *object, const uint64_t *secret, Recollection &made, int64_t &count) {
  Leaf &leaf = made.leaves[made.leaf_count];
  const bool is_plain = is_a(object, plain_tensor, plain_parameter);
  leaf.is_tensor = is_plain || is_a(object, sparse_tensor, sparse_tensor);
  if (!leaf.is_tensor && PyObject_IsInstance(object, plain_tensor)) return false;
  leaf.reference = leaf.is_tensor ? PyWeakref_NewRef(object, nullptr) : one_more(object);
  if (!leaf.reference) return false;
  made.leaf_count++;
  if (is_plain && !add_piece(object, secret, false, made, count)) return false;
  if (leaf.is_tensor && !is_plain) {
    leaf.parts = PyObject_CallFunctionObjArgs(parts_of, object, nullptr);
    if (!leaf.parts) return false;
    for (Py_ssize_t i = 1, size = PyTuple_Size(leaf.parts); i < size; i++)
      if (!add_piece(PyTuple_GetItem(leaf.parts, i), secret, true, made, count)) return false;
  }
  leaf.end = count;
  return true;
}

static void drop(Recollection *found) {
  if (!found) return;
  for (int64_t i = 0; i < found->leaf_count; i++) {
    Py_DecRef(found->leaves[i].reference);
    if (found->leaves[i].parts) Py_DecRef(found->leaves[i].parts);
  }
  if (found->result) Py_DecRef(found->result);
  free(found);
}

// The leaves as they are now; null, perhaps with an exception, for leaves of which changes are not seen.
static Recollection *recollection(PyObject *leaves, const uint64_t *secret) {
  const Py_ssize_t size = PyTuple_Size(leaves);
  if (size < 0 || size > LEAVES || torch.dispatch_mode_enabled()) return nullptr;
  Recollection *made = (Recollection *)calloc(1, sizeof(Recollection));
  int64_t count = 0;
  for (Py_ssize_t i = 0; made && i < size; i++) {
    if (add_leaf(PyTuple_GetItem(leaves, i), secret, *made, count)) continue;
    drop(made);
    return nullptr;
  }
  return made;
}

static bool has_dead_leaf(const Recollection &found) {
  for (int64_t i = 0; i < found.leaf_count; i++) {
    if (!found.leaves[i].is_tensor) continue;
    Reference alive = {PyObject_CallFunctionObjArgs(found.leaves[i].reference, nullptr)};
    if (alive.object == &_Py_NoneStruct) return true;
  }
  return false;
}

// Keeps a result in front of the earlier ones; drops those whose tensors are gone, and the earliest above the limit.
static void keep(Recall &table, Recollection *made) {
  Recollection *gone[KEPT] = {}, *kept[KEPT] = {made};
  int64_t count = 1;
  for (int64_t i = 0; i < KEPT; i++) {
    Recollection *before = table.kept[i];
    if (before && count < KEPT && !has_dead_leaf(*before)) kept[count++] = before;
    else gone[i] = before;
  }
  memcpy(table.kept, kept, sizeof kept);
  for (Recollection *one : gone) drop(one);
}

// recall(leaves: tuple) -> the result of `otherwise(leaves)`, now or earlier.
static PyObject *recall(PyObject *self, PyObject *leaves) {
  Recall *table = (Recall *)PyCapsule_GetPointer(self, nullptr);
  if (!table) return nullptr;
  const bool is_plain = !torch.dispatch_mode_enabled();
  for (int64_t i = 0; i < KEPT && is_plain; i++) {
    if (holds(table->kept[i], leaves, table->secret)) return one_more(table->kept[i]->result);
    if (PyErr_Occurred()) return nullptr;
  }
  Recollection *made = recollection(leaves, table->secret);
  PyObject *result = PyErr_Occurred() ? nullptr : PyObject_CallFunctionObjArgs(table->otherwise, leaves, nullptr);
  if (made && result && holds(made, leaves, table->secret)) {
    made->result = one_more(result);
    keep(*table, made);
    return result;
  }
  drop(made);
  if (!result || !PyErr_Occurred()) return result;
  Py_DecRef(result);
  return nullptr;
}

static void forget_all(PyObject *capsule) {
  Recall *table = (Recall *)PyCapsule_GetPointer(capsule, nullptr);
  for (Recollection *found : table->kept) drop(found);
  Py_DecRef(table->otherwise);
  free(table);
}

static PyMethodDef recall_definition = {"recall", (void *)recall, 0x0008, "recall(leaves)"};

// A recall in front of otherwise(leaves); the secret words of digests stay where they are.
PyObject *sparsify_recall(PyObject *otherwise, const uint64_t *secret) {
  if (!name_is_inference) name_is_inference = PyUnicode_InternFromString("is_inference");
  Recall *table = (Recall *)calloc(1, sizeof(Recall));
  PyObject *capsule = table && name_is_inference ? PyCapsule_New(table, nullptr, forget_all) : nullptr;
  if (!capsule) return nullptr;
  Py_IncRef(table->otherwise = otherwise);
  table->secret = secret;
  PyObject *function = PyCFunction_NewEx(&recall_definition, capsule, nullptr);
  Py_DecRef(capsule);
  return function;
}
}
"""
