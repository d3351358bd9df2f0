"""Cuts of a model program to regions: with textbook names and operands of the graph.

In: the cut `mul[i4,i5] = a[i4,i5] * sum(i9, x[i4,i9] * x[i5,i9])`. Out: the region of `Y[i,k] = A[i,k] * sum(j, X[i,j]
* X[k,j])`, or the refusal. Modes of extent 1, absent in programs, are removed from operands and restored in results.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.nodes import Access, Reduce
from sparsify.compiler.einsum.rename import rename_accesses
from sparsify.compiler.ir.dtypes import name_of
from sparsify.compiler.ir.node import find
from sparsify.errors import SparsifyError
from sparsify.passes.decide.cut import Cut, is_layer
from sparsify.passes.decide.gates import Tokens, tokens_of
from sparsify.passes.decide.rows import Rows, matrix_of, rows_of
from sparsify.passes.decide.textbook import textbook, unified, unread_indices
from sparsify.passes.graph import insert
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import between, operator_name
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import MATRIX, ModelProgram, sizes_of
from sparsify.passes.program.translate import dense_operand
from sparsify.passes.region.region import Region, declare_equations
from sparsify.passes.region.sparse_operand import Matrix, PatternOperand, SparseOperand

aten: Final = torch.ops.aten
# Views that may drop a mode of extent 1.
SQUEEZES: Final = ("squeeze", "select", "view", "reshape", "flatten")


def region_of(
    program: ModelProgram, storage: Storage, cut: Cut, marked: Mapping[str, SparseOperand]
) -> Region | str:
    """The region of a cut, or the refusal."""
    if not any(name in marked for name in cut.operands):
        return "no sparse operand is read"
    matrices = {n: matrix for n in cut.operands if isinstance(matrix := marked.get(n), Matrix)}
    gates = [name for name, matrix in matrices.items() if matrix.mark.role == "gate"]
    tokens = tokens_of(program, cut, gates)
    if isinstance(tokens, str):
        return tokens
    cut = Cut(tokens.statements, cut.outputs)
    marked = {**marked, **{name: tokens.matrix(matrices[name]) for name in gates}}
    cut = before_squeeze(program, storage, cut)
    rows = rows_of(program, storage, cut)
    cut = Cut(rows.statements, cut.outputs)
    unread = unread_indices(unified(program, cut.statements))
    if any(not isinstance(program.extents[name], int) for name in unread):
        return "an extent of a result is known in a call alone"
    order = {node.name: number for number, node in enumerate(program.graph.nodes)}
    outputs = sorted(cut.outputs, key=order.__getitem__)
    sources = {name: marked[name] if name in marked else program.nodes[name] for name in cut.operands}
    text = textbook(program, cut, outputs, sources)
    ranks = {a.tensor: len(a.indices) for s in cut.statements for a in find(s.value, Access)}
    declared = {text.names[name]: declared_in(program, name, sources[name], ranks[name]) for name in sources}
    results_in = {text.names[name]: name_of(program.nodes[name].meta["val"].dtype) for name in outputs}
    try:
        declared_program = declare_equations(text.statements, declared, results_in, text.sizes)
    except SparsifyError as error:
        return f"no program: {error}".splitlines()[0]
    inside = nodes_of(program, outputs, sources)
    operands: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, source in sources.items():
        operand: Any = source
        if isinstance(source, fx.Node):
            operand = operand_in(tokens, rows, name, source, inside, ranks[name])
        operands[operand.name] = operand
        names[operand.name] = text.names[name]
    for node in inside if gates else ():
        insert.move_behind_inputs(node)
    results = []
    for name in outputs:
        results.append(result_in(program, tokens, rows, name))
        names[results[-1].name] = text.names[name]
    back = {short: name for name, short in names.items()}
    return Region(
        statements=[(results[-1], (), rename_accesses(text.statements[-1].value, back))],
        operands=operands,
        covered=list(dict.fromkeys([*(n for n in inside if n not in operands.values()), *results])),
        names=names,
        program=declared_program,
        results=tuple(results) if len(results) > 1 else (),
        equations=text,
        is_layer=is_product(program, storage, cut),
    )


def declared_in(program: ModelProgram, name: str, source: SparseOperand | fx.Node, rank: int) -> Operand:
    """The declaration of an operand in the program of a region."""
    if isinstance(source, fx.Node):
        return replace(dense_operand(program, name), format=dense_format(rank))
    return source.declared


def before_squeeze(program: ModelProgram, storage: Storage, cut: Cut) -> Cut:
    """A one-column layer without its last view: `squeeze(sigmoid(x W), 1) -> sigmoid(x W)` [n, 1]."""
    name, *more = cut.names
    if more or not is_layer(program, storage, name):
        return cut
    (statement,) = cut.statements
    read = [
        a for part in find(statement.value, Reduce) for a in find(part, Access) if a.tensor in program.weights
    ]
    node = program.nodes[name]
    if operator_name(node) not in SQUEEZES or all(len(access.indices) == MATRIX for access in read):
        return cut
    base = node.all_input_nodes[0]
    if sizes_of(base.meta["val"])[-1] != 1 or base.name in program.statements:
        return cut
    renamed_statement = replace(statement, target=replace(statement.target, tensor=base.name))
    program.statements[base.name] = renamed_statement
    return Cut([renamed_statement], [base.name])


def operand_in(
    tokens: Tokens, rows: Rows, name: str, node: fx.Node, readers: list[fx.Node], rank: int
) -> fx.Node:
    """A dense tensor with the modes of its access in a region's program, also for the region's nodes."""
    if name in tokens.flat:
        return tokens.operand(node, readers)
    if name in rows.flat:
        return read_through(node, readers, matrix_of(node))
    return node if node.meta["val"].dim() == rank else read_through(node, readers, *without_units(node))


def result_in(program: ModelProgram, tokens: Tokens, rows: Rows, name: str) -> fx.Node:
    """A result with the modes computed by the region's program; its readers get all modes."""
    node = program.nodes[name]
    if name in rows.flat:
        program.nodes[name] = rows.flatten(node)
        return node
    if tokens.gate is not None:
        return tokens.result(node)
    return read_through(node, list(node.users), *without_units(node))


def nodes_behind(program: ModelProgram, name: str, source: SparseOperand | fx.Node) -> list[fx.Node]:
    """The source nodes of an operand."""
    if isinstance(source, PatternOperand):
        return source.size_nodes
    if isinstance(source, Matrix) and source.parts:
        return [program.nodes[name], *source.parts]
    return [
        program.nodes[n] for n in (program.relations[name].inputs if name in program.relations else [name])
    ]


def is_product(program: ModelProgram, storage: Storage, cut: Cut) -> bool:
    """Whether a cut is one product of a matrix or vector with a weight, and its epilogue."""
    if len(cut.names) > 1 or not is_layer(program, storage, cut.names[0]):
        return False
    read = [a for part in find(cut.statements[0].value, Reduce) for a in find(part, Access)]
    others = [access.tensor for access in read if access.tensor not in program.weights]
    return all(len(access.indices) <= MATRIX for access in read) and not any(map(storage.is_sparse, others))


def nodes_of(
    program: ModelProgram,
    outputs: Iterable[str],
    operands: Mapping[str, SparseOperand | fx.Node],
) -> list[fx.Node]:
    """The nodes between operands and outputs of a region; readers of a base tensor read the operand's rows."""
    read = [node for name, source in operands.items() for node in nodes_behind(program, name, source)]
    bases = {node.all_input_nodes[0]: node for node in read if info(node).rows_of is not None}
    inside = between([program.nodes[name] for name in outputs], [*read, *bases])
    for base, rows in bases.items():
        for reader in inside:
            reader.replace_input_with(base, rows)
    return inside


def read_through(
    node: fx.Node, readers: list[fx.Node], bare: fx.Node, view: fx.Node | None = None
) -> fx.Node:
    """A tensor with the modes of a region, read by some nodes directly or through a view with all modes."""
    for reader in readers if bare is not node else ():
        if reader is not bare:
            reader.replace_input_with(node, view or bare)
    return bare


def without_units(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """`squeeze(node)` and an equal `unsqueeze(squeeze(node))`; the node twice without modes of extent 1."""
    shape = node.meta["val"].shape
    units = [mode for mode, extent in enumerate(shape) if type(extent) is int and extent == 1]
    if not units:
        return node, node
    bare = full = shared_call(node, aten.squeeze.dims, units)
    for mode in units:
        full = shared_call(full, aten.unsqueeze.default, mode)
    return bare, full


def shared_call(node: fx.Node, target: Any, argument: Any) -> fx.Node:
    """The call of a view of a node, reused if another region has created it."""
    for user in node.users:
        if user.target is target and user.args[1:] == (argument,):
            node.append(user)  # in the model it may come after its new readers
            return user
    with node.graph.inserting_after(node):
        view = insert.call(target, node, argument)
    set_info(view, shown=info(node).shown or node)
    return view
