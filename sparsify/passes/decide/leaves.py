"""Sparse operands of a model program: marked inputs and parameters.

In: a placeholder `a` with a mark, or `zeros.index_put((rows, columns), values)` of marked values, the dense stand-in of
a sparse input. Out: `Matrix("a", ...)`, and its declaration in programs: `Operand(csr, float32)`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.nodes import Stored
from sparsify.compiler.ir.node import find
from sparsify.compiler.plan.prepare.expand_blocks import unblocked_format
from sparsify.errors import SparsifyError
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.choose.estimate import extents_of, stored_entries
from sparsify.passes.graph import insert
from sparsify.passes.graph.canonicalize import input_of_expression, number_of_expression, size_node
from sparsify.passes.graph.kept_entries import kept_entries, read, sparse_gradient
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import (
    argument,
    is_constant,
    known_size,
    operator_name,
    sources,
    tensor_value,
)
from sparsify.passes.operands.cached_operands import Joins
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import By, ModelProgram, Relation, Size, sizes_of
from sparsify.passes.region.sparse_operand import HALVES, Bags, Matrix, scales_of
from sparsify.sparsification.rules.streaming import ScalarThreshold
from sparsify.storage.format import Format

aten: Final = torch.ops.aten
# Of relations with the numbers of edges as a mode: `A[i,e,j]`.
RELATION: Final = Format("dense, compressed, singleton")
VECTOR: Final = Format("compressed")
MATRIX: Final = 2
# Reduction of duplicate edges, by the kind of a relation's entries.
JOINS: Final[dict[By, Joins]] = {"logarithms": "logsumexp", "distinct": "nothing"}
# Position of the left operand of each product.
LEFT: Final = {"linear": 0, "mm": 0, "matmul": 0, "addmm": 1}
# The roles of sparse inputs.
INPUTS: Final = ("adjacency", "activation")
# Dtypes of marked tensors readable by programs.
DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool)
# Marks of operators are for kernels of attention or experts.
LEAVES: Final = ("placeholder", "get_attr")


def marked_leaves(draft: Draft, covered: set[fx.Node]) -> dict[str, Matrix]:
    """The marked tensors read outside of regions, as sparse operands by name.

    Inputs and parameters, and dense tensors built in the graph from coordinates and marked values. In training with
    half precision, torch's products are faster than products with trained sparse weights, which are left out.
    """
    leaves = {}
    for node in list(draft.graph.nodes):
        matrix = declared(node) if node.op in LEAVES else written_out(node) or activation(draft, node)
        if matrix is not None and draft.is_trainable and node.op == "get_attr" and matrix.dtype in HALVES:
            continue
        is_made_dense = matrix is not None and node.op not in LEAVES and matrix.dense is None
        set_info(node, is_made_dense=is_made_dense)
        readers = (user for user in node.users if operator_name(user) not in ("sym_size", "size"))
        is_read = matrix is not None and (node.op == "get_attr" or not matrix.format.is_dense)
        if matrix is not None and is_read and not covered.issuperset(readers):
            leaves[node.name] = matrix
    return leaves


def declared(node: fx.Node) -> Matrix | None:
    """An input or a parameter declared sparse by a rule."""
    mark, value = info(node).mark, tensor_value(node)
    if not isinstance(mark, Mark) or mark.derived or mark.mask is not None or value is None:
        return None
    is_rounded = mark.dtype != "same"
    if is_rounded and (node.op != "get_attr" or value.dim() != MATRIX):
        return None
    # Modes of extent 1 are left out of programs, and nothing is stored in empty ones.
    sizes = sizes_of(value)[is_single_row(node) :]
    if value.dtype not in DTYPES or any(size in (0, 1) for size in (sizes or [0])):
        return None
    form = storage_format(mark, value.dim())
    dtype = getattr(torch, mark.dtype) if is_rounded else value.dtype
    return None if form is None else Matrix(
        name=node.name, extents=None, rows=None, columns=None, values=None, dense=node,
        transposed=False, dtype=dtype, mark=mark, packed=form,
        scales=scales_of(node, value) if dtype is torch.int8 else None,
    )  # fmt: skip


def activation(draft: Draft, node: fx.Node) -> Matrix | None:
    """An operator result sparsified by a rule, as a sparse operand of products.

    In training only if its zeros get no gradients; otherwise dense.
    """
    mark, value = info(node).mark, tensor_value(node)
    if not isinstance(mark, Mark) or mark.outputs is None or mark.derived or value is None:
        return None
    if draft.is_trainable and has_gradients_at_zeros(node):
        return None
    if value.dim() < MATRIX or value.dtype not in DTYPES or any(size in (0, 1) for size in sizes_of(value)):
        return None
    if not all(is_dense_product(reader, node) for reader in node.users):
        return None
    form = Format(", ".join(["dense"] * (value.dim() - 1) + ["compressed"]))
    return Matrix(
        name=node.name, extents=None, rows=None, columns=None, values=None, dense=node,
        transposed=False, dtype=value.dtype, mark=mark, packed=form,
        places=node if draft.is_trainable else None,
    )  # fmt: skip


def has_gradients_at_zeros(node: fx.Node) -> bool:
    """Whether zero entries of a sparsified result may get gradients.

    relu has no gradient where its result is 0, and a threshold above 0 keeps no zeros.
    """
    if node.target is sparse_gradient:
        thin, mask, sparsifiers = node.args
        return mask is None or bool(sparsifiers) or has_gradients_at_zeros(thin)  # type: ignore[arg-type]
    match operator_name(node), node.args:
        case "where", (fx.Node() as mask, fx.Node() as value, 0) if mask.target is kept_entries:
            sparsifier = read(str(mask.args[1]))
            drops_zeros = isinstance(sparsifier, ScalarThreshold) and sparsifier.threshold > 0
            return not drops_zeros and has_gradients_at_zeros(value)
        case "relu", _:
            return False
    return True


def is_dense_product(node: fx.Node, left: fx.Node) -> bool:
    """Whether a node is a product with a given left operand and no other marked operand."""
    others = [read for read in node.all_input_nodes if read is not left]
    position = LEFT.get(operator_name(node))
    is_left = (
        position is not None and node.args[position] is left and len(others) == len(node.all_input_nodes) - 1
    )
    return is_left and all(info(read).mark is None for read in others) and bool(others)


def is_single_row(node: fx.Node) -> bool:
    """Whether a parameter is the weight [1, n] of layers with one result, and nothing else."""
    value = node.meta["val"]
    is_row = node.op == "get_attr" and value.dim() == MATRIX and sizes_of(value)[0] == 1
    return is_row and all(operator_name(u) == "linear" and u.args[1] is node for u in node.users)


def program_operand(matrix: Matrix | Bags) -> Operand:
    """The access of a model's program to a sparse operand: a weight of one row is a vector."""
    if isinstance(matrix, Bags):
        return matrix.declared
    is_row = matrix.dense is not None and matrix.dense.op == "get_attr" and is_single_row(matrix.dense)
    return replace(matrix.declared, format=VECTOR, index_dtypes=()) if is_row else matrix.declared


def written_out(node: fx.Node) -> Matrix | None:
    """`zeros.index_put((rows, .., columns), values, accumulate=True)` with marked operands."""
    value = tensor_value(node)
    if operator_name(node) != "index_put" or value is None or value.dim() < 2 or value.dtype not in DTYPES:
        return None
    base, places, values = (
        argument(node, position, name) for position, name in enumerate(("self", "indices", "values"))
    )
    is_whole = len(places) == value.dim() and all(isinstance(position, fx.Node) for position in places)
    if not is_whole or operator_name(base) != "zeros" or argument(node, 3, "accumulate") is not True:
        return None
    rows, *between, columns = places
    marks = (info(source).mark for source in sources([*places, values]))
    mark = next((mark for mark in marks if isinstance(mark, Mark)), None)
    shapes = [tensor_value(part) for part in (*places, values)]
    if mark is None or any(shape is None or shape.dim() != 1 for shape in shapes) or 1 in sizes_of(value):
        return None
    form = storage_format(mark, value.dim())
    return None if form is None else Matrix(
        name=node.name, extents=tuple(base.args[0]), rows=rows, between=tuple(between), columns=columns,
        values=values, dense=None, transposed=False, dtype=value.dtype, mark=mark, packed=form,
    )  # fmt: skip


def is_free(matrix: Matrix) -> bool:
    """Whether a sparse operand is a parameter with a format left open by its rule."""
    return matrix.dense is not None and matrix.dense.op == "get_attr" and matrix.mark.format == "auto"


def computed_weights(program: ModelProgram, storage: Storage) -> dict[str, Matrix]:
    """Sparse tensors computed from frozen parameters, such as `w * mask`, as memoized operands."""
    operands: dict[str, Matrix] = {}
    for name in program.statements:
        node = program.nodes.get(name)
        value = tensor_value(node)
        if node is None or value is None or not storage.is_sparse(name) or value.dtype not in DTYPES:
            continue
        if is_constant(node) and 1 not in sizes_of(value):
            marks = (info(source).mark for source in sources([node]))
            mark = replace(
                next(mark for mark in marks if isinstance(mark, Mark)), role="weight", format="auto"
            )
            form = storage_format(mark, value.dim())
            operands[name] = Matrix(
                name=name, extents=None, rows=None, columns=None, values=None, dense=node, transposed=False,
                dtype=value.dtype, mark=mark, packed=form, parts=tuple(sources([node])),
            )  # fmt: skip
    return operands


def is_relation_selected(program: ModelProgram) -> Callable[[str, set[str]], bool]:
    """A predicate of scatters selected by a rule: by node, or by the input that indices of edges come from."""

    def is_selected(name: str, places: set[str]) -> bool:
        node = program.source.get(name)
        nodes = [program.nodes[program.bounds.get(tensor, tensor)] for tensor in places]
        return relation_mark(nodes, node) is not None

    return is_selected


def relation_mark(places: Iterable[fx.Node], node: fx.Node | None) -> Mark | None:
    """The mark of a scatter, else of the adjacency of its indices, or of a sparse input's values."""
    node_mark = None if node is None else info(scatter_of(node)).mark
    if isinstance(node_mark, Mark):
        return node_mark
    behind = sources(list(places))
    read = behind if node is None else sources([*places, node])
    adjacency_marks = ((info(source).mark, ("adjacency",)) for source in behind)
    values = ((info(source).mark, INPUTS) for source in read if is_vector(source))
    marks = (
        mark
        for mark, roles in chain(adjacency_marks, values)
        if isinstance(mark, Mark) and mark.role in roles
    )
    return next(marks, None)


def scatter_of(node: fx.Node) -> fx.Node:
    """The operator that computes a tensor; for an element of several results, the operator with all results."""
    return node.all_input_nodes[0] if operator_name(node) == "getitem" else node


def is_vector(node: fx.Node) -> bool:
    """Whether a node is a vector, such as the numbers of edges."""
    value = tensor_value(node)
    return value is not None and value.dim() < MATRIX


def relation_operands(program: ModelProgram) -> dict[str, Matrix | Bags]:
    """The relations of a program as sparse operands."""
    readers = program.readers()
    users: dict[str, list[fx.Node]] = {}
    for name, relation in program.relations.items():
        users.setdefault(relation.rows, []).extend(program.source[reader] for reader in readers.get(name, ()))
    return {
        name: relation_operand(program, relation, users[relation.rows])
        for name, relation in program.relations.items() if users[relation.rows]
    }  # fmt: skip


def relation_operand(program: ModelProgram, relation: Relation, users: list[fx.Node]) -> Matrix | Bags:
    """A relation as a sparse operand, with coordinates from tensors of the graph."""
    nodes = [program.nodes[name] for name in relation.inputs]
    order = {node: number for number, node in enumerate(program.graph.nodes)}
    first = min(users, key=order.__getitem__)
    mark = next((mark for user in users if (mark := relation_mark(nodes, user)) is not None), None)
    assert mark is not None, "rules select what becomes a relation"
    if relation.bounds is not None:
        return bags_operand(program, relation, nodes, mark)
    rows, *others = [vector(node, first) for node in nodes]
    extents = tuple([extent_node(program, size, rows, first) for size in program.sizes[relation.name]])
    columns = others.pop(0) if relation.columns is not None else numbers_of(rows, extents[1], first)
    return Matrix(
        name=relation.name, extents=extents, rows=rows, columns=columns, values=others[0] if others else None,
        dense=None, transposed=False, dtype=getattr(torch, relation.dtype), mark=mark,
        packed=RELATION if len(extents) > 2 else unpadded_format(program, relation.name, mark),
        joins=JOINS.get(relation.by, "sum"),
    )  # fmt: skip


def unpadded_format(program: ModelProgram, name: str, mark: Mark) -> Format | None:
    """The unpadded format of a relation whose edges are tested, if the rule's format has padding.

    `min(j, where(stored(A[i,j]), x[j], inf))` of an A in blocks would read the padding of blocks as edges.
    """
    accesses = (part.access for s in program.statements.values() for part in find(s.value, Stored))
    form = storage_format(mark, MATRIX)
    if form is None or not any(access.tensor == name for access in accesses):
        return None
    is_padded = not form.is_short or form.levels[-1].level.is_padded
    if not is_padded:
        return None
    return Format("csr") if form.is_dense else unblocked_format(form)


def bags_operand(program: ModelProgram, relation: Relation, nodes: list[fx.Node], mark: Mark) -> Bags:
    """A relation with edges sorted by receiver, delimited by bounds."""
    bounds, indices, *values = nodes
    receivers, _, rows = program.sizes[relation.name]
    (count,), (edges,) = (node.meta["val"].shape for node in (bounds, indices))
    has_last = program.representative(sizes_of(bounds.meta["val"])[0]) != program.representative(receivers)
    return Bags(
        name=relation.name, extents=(count - has_last, edges, int(rows)), indices=indices, offsets=bounds,
        weights=values[0] if values else None, has_last=has_last, dtype=getattr(torch, relation.dtype), mark=mark,
    )  # fmt: skip


def vector(node: fx.Node, user: fx.Node) -> fx.Node:
    """A tensor over edges with unit modes as a vector, inserted before `user` or after its definition."""
    shape = node.meta["val"].shape
    units = [mode for mode, extent in enumerate(shape) if type(extent) is int and extent == 1]
    where = user if node < user else node.next
    return insert.call_before(where, aten.squeeze.dims, node, units) if units else node


def numbers_of(rows: fx.Node, count: Any, user: fx.Node) -> fx.Node:
    """The edge numbers for some edge rows."""
    with user.graph.inserting_before(user):
        node = user.graph.call_function(aten.arange.default, (count,))
    node.meta["val"] = rows.meta["val"].new_empty(rows.meta["val"].shape, dtype=torch.int64)
    return node


def extent_node(program: ModelProgram, size: Size, edges: fx.Node, user: fx.Node) -> Any:
    """An extent as a number, or as a node inserted before `user`."""
    if isinstance(size, int):
        return size
    input_mode = input_of_expression(program.graph, size)
    if input_mode is None and (number := number_of_expression(program.graph, size)) is not None:
        return number
    source, mode = input_mode or (edges, 0)
    return size_node(source, mode, source.meta["val"].shape[mode], user)


def storage_format(mark: Mark, rank: int) -> Format | None:
    """The format of a marked tensor of a rank; `None` if the rule names one for another rank."""
    if mark.format == "auto":
        return Format("csr") if rank == 2 else Format(", ".join(["dense"] * (rank - 1) + ["compressed"]))
    try:
        result = Format(mark.format, rank=rank)
    except SparsifyError:
        return None
    return result if result.rank == rank else None


def densities(draft: Draft, marked: Mapping[str, Matrix | Bags]) -> dict[str, float]:
    """The shares of stored entries of operands, in the example."""
    shares = {}
    for name, matrix in marked.items():
        stored = stored_entries(draft, matrix)
        sizes = [known_size(extent) for extent in extents_of(matrix)]
        if stored is not None and all(sizes):
            shares[name] = stored / prod(size or 1 for size in sizes)
    return shares
