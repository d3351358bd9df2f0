"""Graph nodes to statements, by the operator table.

In: `%y = softmax(%x, -1); %s = sort(%y)`. Out: a `ModelProgram` with `y_max[i] = max(j, x[i,j]); ..; y[i,j] = ..`, and
the reason why `sort` is opaque. Nodes without statements are leaves of the program.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.infer.dtype import infer_dtype
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.nodes import Assign, Cast, Declaration
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.dtypes import name_of
from sparsify.errors import EinsumError
from sparsify.passes.graph.operators import operator_name, tensor_value
from sparsify.passes.program.model import ModelProgram, Refusal, Size, require_extents
from sparsify.passes.program.operator_view import OperatorView
from sparsify.passes.program.table import OPAQUE, ROWS

# Dtypes of statements; torch computes tensors of other dtypes, which are leaves of programs.
DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.bool, torch.int32, torch.int64),
)


def translate(graph: fx.Graph, opaque: Collection[fx.Node] = ()) -> ModelProgram:
    """The program of a graph.

    Args:
        opaque: nodes that are opaque.
    """
    program = ModelProgram(graph)
    for extent, number in fixed_extents(graph):
        program.unite(extent, number)
    declarations: dict[str, Declaration] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or tensor_value(node) is None:
            continue
        before = dict(program.statements)
        reason = (
            "computed by another region" if node in opaque else reason_against(program, node, declarations)
        )
        if reason:
            program.statements = before
            program.opaque[node.name] = reason
    program.dtypes = {name: declared.dtype for name, declared in declarations.items()}
    return program


def fixed_extents(graph: fx.Graph) -> Iterator[tuple[Size, int]]:
    """Extents fixed to numbers by the shape guards of a graph, as `8*(s - 2)` and 72."""
    values = (node.meta.get("val") for node in graph.find_nodes(op="placeholder"))
    extents = (extent for value in values for extent in getattr(value, "shape", ()))
    environment = next((e.node.shape_env for e in extents if isinstance(e, torch.SymInt)), None)
    for guard in environment.guards if environment is not None else ():
        if getattr(guard.expr, "rel_op", "") == "==" and guard.expr.rhs.is_Integer:
            yield guard.expr.lhs, int(guard.expr.rhs)


def reason_against(
    program: ModelProgram,
    node: fx.Node,
    declarations: dict[str, Declaration],
) -> str:
    """Adds the statements of a node; returns the reason for none, "" on success."""
    call = node.args[0] if operator_name(node) == "getitem" else node
    assert isinstance(call, fx.Node), "parts are of nodes"
    name = operator_name(call)
    row = ROWS.get(name)
    if row is None:
        return f"{name}: {OPAQUE.get(name, 'the table has no row for it')}"
    value = node.meta["val"]
    if value.dtype not in DTYPES:
        return f"{name}: statements of {value.dtype} are not supported yet"
    view = OperatorView(program, call, value, node)
    count_before = len(program.statements)
    try:
        translation = row.translate(view)
    except Refusal as refusal:
        return f"{name}: {refusal}"
    expr = (
        parse_expression(translation, indices=program.extents)
        if isinstance(translation, str)
        else translation
    )
    indices = tuple([index for index, size in zip(view.out, view.sizes, strict=True) if size != 1])
    program.assign(node.name, indices, expr, node)
    try:
        for statement in list(program.statements.values())[count_before:]:
            require_extents(program, statement)
            note_dtype(program, statement, declarations)
    except (EinsumError, Refusal) as error:
        return f"{name}: {error}"
    dtype = name_of(value.dtype)
    if declarations[node.name].dtype != dtype:
        program.assign(node.name, indices, Cast(dtype, expr), node)
        declarations[node.name] = declaration(node.name, indices, dtype)
    return ""


def note_dtype(program: ModelProgram, statement: Assign, declarations: dict[str, Declaration]) -> None:
    """Adds the declarations of a statement's target and of its leaves to `declarations`."""
    for name in program.reads(statement.target.tensor):
        if name not in declarations:
            declarations[name] = leaf_declaration(program, name)
    dtype = infer_dtype([statement], declarations)
    indices = tuple(str(index) for index in statement.target.indices)
    declarations[statement.target.tensor] = declaration(statement.target.tensor, indices, dtype)


def infer_dtypes(program: ModelProgram) -> None:
    """Infers the dtypes of statements after rewrites; `bfloat16(x) -> x` for x in bfloat16 already."""
    declarations: dict[str, Declaration] = {}
    for name, statement in program.statements.items():
        if isinstance(statement.value, Cast):
            bare = replace(statement, value=statement.value.value)
            note_dtype(program, bare, declarations)
            if declarations[name].dtype == statement.value.dtype:
                program.statements[name] = bare
                continue
        note_dtype(program, statement, declarations)
    program.dtypes = {name: declared.dtype for name, declared in declarations.items()}


def leaf_declaration(program: ModelProgram, name: str) -> Declaration:
    """The declaration of a tensor without a statement, as a dense operand."""
    value = program.source[name].meta["val"]
    extents = tuple(f"{name}_{mode}" for mode in range(len(program.sizes[name])))
    return declaration(name, extents, name_of(value.dtype))


def declaration(name: str, extents: tuple[str, ...], dtype: str) -> Declaration:
    """A dense tensor."""
    return Declaration(name, extents, dense_format(len(extents)), dtype)


def dense_operand(program: ModelProgram, name: str) -> Operand:
    """A leaf as a dense operand of a program."""
    return Operand(dense_format(len(program.sizes[name])), name_of(program.source[name].meta["val"].dtype))
