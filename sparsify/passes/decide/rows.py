"""Weight products over all rows at once: the leading modes of a tensor collapsed to one mode.

In: `y[b,t,k] = relu(sum(j, x[b,t,j] * w[k,j]) + b[k])` of nodes with x [2, 5, 8].
Out: `y[r,k] = relu(sum(j, x[r,j] * w[k,j]) + b[k])` of the same nodes over `reshape(x, [-1, 8])`, and a view of their
result for its readers.

Packed weights are for products with rows: a batch of sentences is one matrix of tokens, and a single row, whose mode
programs omit, a matrix of one row. The nodes of a layer compute matrices then, as its kernel does; the next layer reads
the matrix, not the view.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.decide.cut import Cut, is_layer
from sparsify.passes.graph import canonicalize, insert
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import argument, between, operator_name, parameter_behind, tensor_value
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import MATRIX, ModelProgram, sizes_of

aten: Final = torch.ops.aten
RESHAPES: Final = (aten.view.default, aten.reshape.default)
# Products of rows with a matrix, and the positions of their row operands.
PRODUCTS: Final = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}


@dataclass
class Rows:
    """A cut with one mode for all rows.

    Attributes:
        statements: statements of the cut.
        like: node whose leading modes are collapsed, `None` for a cut without rows.
        flat: tensors with the collapsed mode.
        nodes: nodes that compute rows.
    """

    statements: list[Assign]
    like: fx.Node | None
    flat: set[str]
    nodes: list[fx.Node]

    def flatten(self, matrix: fx.Node) -> fx.Node:
        """Makes the nodes compute matrices of rows, with a view of the result for its readers.

        Returns:
            the view; the result itself if it is a matrix already.
        """
        value = matrix.meta["val"]
        if value.dim() == MATRIX:
            return matrix
        for node in self.nodes:
            shape = node.meta["val"].shape
            node.meta = {**node.meta, "val": node.meta["val"].reshape(-1, shape[-1])}
        assert self.like is not None, "rows are those of a node"
        readers, following = list(matrix.users), matrix.next
        with matrix.graph.inserting_before(following):
            view = matrix.graph.call_function(aten.view.default)
        sizes = canonicalize.sizes_of(self.like, view)
        assert sizes is not None, "rows have sizes"
        view.args = (matrix, [*sizes[:-1], int(value.shape[-1])])
        view.meta |= {**matrix.meta, "val": value}
        set_info(view, matrix=matrix)
        for reader in readers:
            if reader.target not in RESHAPES:
                reader.replace_input_with(matrix, view)
        return view


def matrix_of(node: fx.Node) -> fx.Node:
    """A tensor as a matrix of rows: itself, the base matrix of a view, or `reshape(node, [-1, n])`."""
    if info(node).matrix is not None or node.meta["val"].dim() == MATRIX:
        return info(node).matrix or node
    columns = int(node.meta["val"].shape[-1])
    while node.target in RESHAPES:
        node = node.all_input_nodes[0]
        shape = sizes_of(node.meta["val"])
        if len(shape) == MATRIX and shape[-1] == columns:
            return node
    for user in node.users:
        if user.target is aten.reshape.default and user.args[1] == [-1, columns]:
            node.append(user)  # in the model it may come after the readers of rows
            return user
    with node.graph.inserting_after(node):
        return insert.call(aten.reshape.default, node, [-1, columns])


def rows_of(program: ModelProgram, storage: Storage, cut: Cut) -> Rows:
    """A single-statement cut of a weight product, with one mode for all rows; other cuts are unchanged."""
    as_it_is = Rows(cut.statements, None, set(), [])
    name, *more = cut.names
    if more or not is_layer(program, storage, name):
        return as_it_is
    (statement,) = cut.statements
    product = next(p for p in find(statement.value, Reduce) if program.reads_weight(p))
    weight, *weights = [access for access in find(product, Access) if access.tensor in program.weights]
    others = [access for access in find(product, Access) if access.tensor not in program.weights]
    lead, column = statement.target.indices[:-1], statement.target.indices[-1:]
    if len(weight.indices) < MATRIX:  # a weight of one row: the mode is left out of programs
        lead, column = statement.target.indices, (Index(program.index(1)),)
        weight = Access(weight.tensor, (*column, *weight.indices))
    if any(storage.is_sparse(access.tensor) for access in others):
        return as_it_is
    nodes = between([program.nodes[name]], [program.nodes[read] for read in cut.operands])
    first = next((node for node in nodes if operator_name(node) in PRODUCTS), None)
    is_last = len(others) == 1 and not weights and bool(column) and column[0] in weight.indices
    if not is_last or column[0] in others[0].indices or first is None:
        return as_it_is
    rows = x_of(program, others[0], first)
    if rows not in program.nodes:  # another region computes the product, too
        return as_it_is
    nodes = between([program.nodes[name]], [program.nodes[read] for read in (rows, *cut.operands)])
    nodes = [node for node in nodes if parameter_behind(node) is None and tensor_value(node) is not None]
    row = Index(program.index(prod(program.extents[str(index)] for index in lead)))
    flat = {rows: others[0].indices[-1], name: column[0]}

    def visit(node: Node) -> Node:
        if not isinstance(node, Access):
            return map_children(node, visit)
        if node == others[0]:
            return Access(rows, (row, node.indices[-1]))
        if node.tensor == weight.tensor:
            return weight
        indices = node.indices
        if len(indices) <= len(lead) and is_of_one_column(program, node.tensor, column[0]):
            indices = (*indices, *column)
        is_row = indices[: len(lead)] == lead and (bool(lead) or is_one_row(program, node.tensor))
        if node != statement.target and (not is_row or len(indices) <= len(lead)):
            return Access(node.tensor, indices)
        flat[node.tensor] = indices[-1]
        return Access(node.tensor, (row, *indices[len(lead) :]))

    flattened = visit(statement)
    assert isinstance(flattened, Assign), "statements stay what they are"
    is_whole = rows in program.weights or {*lead} & {*find(flattened, Index)}
    if is_whole or not all(is_of_rows(program, tensor, last) for tensor, last in flat.items()):
        return as_it_is
    is_matrix = all(program.nodes[tensor].meta["val"].dim() == MATRIX for tensor in flat)
    if not is_matrix and not all(computes_rows(program, node, nodes, flat) for node in nodes):
        return as_it_is
    return Rows([flattened], program.nodes[rows], {*flat}, nodes)


def x_of(program: ModelProgram, read: Access, product: fx.Node) -> str:
    """The tensor of rows read by a product's node: `transpose(x)`, where its statement reads x."""
    node = product.args[PRODUCTS[operator_name(product)]]
    assert isinstance(node, fx.Node), "products are of tensors"
    return read.tensor if program.nodes.get(read.tensor) is node else program.leaf(node)


def is_of_one_column(program: ModelProgram, tensor: str, column: Expr) -> bool:
    """Whether a tensor has the mode of a unit index variable, omitted in programs."""
    node = program.nodes.get(tensor)
    return node is not None and program.extents[str(column)] == 1 == (*sizes_of(node.meta["val"]), 0)[-2]


def is_one_row(program: ModelProgram, tensor: str) -> bool:
    """Whether a tensor is a row [1, n]; a vector [n] is none, but broadcast to all rows."""
    node = program.nodes.get(tensor)
    shape = () if node is None else sizes_of(node.meta["val"])
    return len(shape) >= MATRIX and set(shape[:-1]) == {1}


def is_of_rows(program: ModelProgram, tensor: str, last: Expr) -> bool:
    """Whether the last mode of a graph tensor is the column index, not a row mode."""
    node = program.nodes.get(tensor)
    shape = () if node is None else sizes_of(node.meta["val"])
    return bool(shape) and program.representative(shape[-1]) == program.representative(
        program.extents[str(last)]
    )


def computes_rows(program: ModelProgram, node: fx.Node, nodes: list[fx.Node], flat: Collection[str]) -> bool:
    """Whether a node of a layer can compute matrices of rows: it is a product or entrywise."""
    rows = {program.nodes[tensor] for tensor in flat}
    shape, read = sizes_of(node.meta["val"]), [arg for arg in node.all_input_nodes if arg not in nodes]
    if operator_name(node) in PRODUCTS:
        weight = argument(node, 1, "weight")
        return weight not in rows and weight not in nodes and weight.meta["val"].dim() == MATRIX
    is_entrywise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return is_entrywise and all(
        "val" in arg.meta
        and (sizes_of(arg.meta["val"]) == shape if arg in rows else arg.meta["val"].dim() < MATRIX)
        for arg in read
    )
