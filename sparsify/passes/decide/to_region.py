"""Cuts of a model program to regions: named as textbooks do, with operands of the graph.

In: the cut `mul[i4,i5] = a[i4,i5] * sum(i9, x[i4,i9] * x[i5,i9])`. Out: the region of `Y[i,k] = A[i,k] * sum(j,
X[i,j] * X[k,j])`, or why there is none. Modes of extent 1, which programs do not have, are left out of operands and put
back into results.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.einsum.infer_format import dense_format
from sparsify.compiler.einsum.nodes import Access, Expr
from sparsify.compiler.node import Node, find, map_children
from sparsify.errors import SparsifyError
from sparsify.passes.decide.cut import Cut
from sparsify.passes.decide.gates import tokens_of
from sparsify.passes.decide.leaves import LEAVES, operand_of
from sparsify.passes.decide.textbook import textbook, unified, unread_indices
from sparsify.passes.graph import insert
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.program.translate import dense_operand
from sparsify.passes.region.region import Region, declare_equations
from sparsify.passes.region.sparse_operand import Matrix, PatternOperand

aten: Final = torch.ops.aten


def region_of(
    program: ModelProgram, found: Cut, marked: Mapping[str, Matrix | PatternOperand]
) -> Region | str:
    """The region of a cut, or why there is none."""
    if not any(name in marked for name in found.operands):
        return "no sparse operand is read"
    matrices = {n: matrix for n in found.operands if isinstance(matrix := marked.get(n), Matrix)}
    gates = [name for name, matrix in matrices.items() if matrix.mark.role == "gate"]
    tokens = tokens_of(program, found, gates)
    if isinstance(tokens, str):
        return tokens
    found = Cut(tokens.statements, found.outputs)
    marked = {**marked, **{name: tokens.matrix(matrices[name]) for name in gates}}
    unread = unread_indices(unified(program, found.statements))
    if any(not isinstance(program.extents[name], int) for name in unread):
        return "an extent of a result is known in a call alone"
    place = {node.name: number for number, node in enumerate(program.graph.nodes)}
    outputs = sorted(found.outputs, key=place.__getitem__)
    sources = {name: marked[name] if name in marked else program.nodes[name] for name in found.operands}
    text = textbook(program, found, outputs, sources)
    ranks = {a.tensor: len(a.indices) for s in found.statements for a in find(s.value, Access)}
    declared = {
        text.names[name]: replace(dense_operand(program, name), format=dense_format(ranks[name]))
        if isinstance(source, fx.Node)
        else operand_of(source)
        for name, source in sources.items()
    }
    try:
        made = declare_equations(
            text.statements, declared, [text.names[name] for name in outputs], text.sizes
        )
    except SparsifyError as error:
        return f"no program: {error}".splitlines()[0]
    inside = nodes_of(program, outputs, sources)
    operands: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, source in sources.items():
        operand: Any = source
        if isinstance(source, fx.Node):
            operand = tokens.operand(source, inside) if name in tokens.flat else without_units(source, inside)
        operands[operand.name] = operand
        names[operand.name] = text.names[name]
    for node in inside if gates else ():
        insert.move_behind_inputs(node)
    results = []
    for name in outputs:
        node = program.nodes[name]
        results.append(tokens.result(node) if gates else result_without_units(node))
        names[results[-1].name] = text.names[name]
    back = {short: name for name, short in names.items()}
    return Region(
        statements=[(results[-1], (), read_by_name(text.statements[-1].value, back))],
        operands=operands,
        covered=[*inside, *(result for result in results if result not in inside)],
        names=names,
        program=made,
        results=tuple(results) if len(results) > 1 else (),
        equations=text,
    )


def nodes_behind(
    program: ModelProgram, name: str, source: Matrix | PatternOperand | fx.Node
) -> list[fx.Node]:
    """The nodes that an operand is made of."""
    if isinstance(source, PatternOperand):
        return source.size_nodes
    return [
        program.nodes[n] for n in (program.relations[name].inputs if name in program.relations else [name])
    ]


def read_by_name(value: Expr, names: Mapping[str, str]) -> Expr:
    """An expression with operands under the names of their nodes."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return Access(names.get(node.tensor, node.tensor), node.indices)
        return map_children(node, visit)

    found = visit(value)
    assert isinstance(found, Expr)
    return found


def nodes_of(
    program: ModelProgram,
    outputs: Iterable[str],
    operands: Mapping[str, Matrix | PatternOperand | fx.Node],
) -> list[fx.Node]:
    """The nodes that compute tensors from others, which they read where these stand for what they read now."""
    read = [node for name, source in operands.items() for node in nodes_behind(program, name, source)]
    bases = {node.all_input_nodes[0]: node for node in read if info(node).rows_of is not None}
    inside = between([program.nodes[name] for name in outputs], [*read, *bases])
    for base, rows in bases.items():
        for reader in inside:
            reader.replace_input_with(base, rows)
    return inside


def between(outputs: list[fx.Node], operands: list[fx.Node]) -> list[fx.Node]:
    """The nodes that compute some nodes from others, in the order of the graph."""
    found, waiting = set[fx.Node](), list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found and node not in operands and node.op not in LEAVES:
            found.add(node)
            waiting += node.all_input_nodes
    return [node for node in outputs[0].graph.nodes if node in found]


def without_units(node: fx.Node, readers: list[fx.Node]) -> fx.Node:
    """An operand without its modes of extent 1; the nodes of a region read it through them."""
    bare, whole = apart(node)
    for reader in readers if bare is not node else ():
        reader.replace_input_with(node, whole)
    return bare


def result_without_units(node: fx.Node) -> fx.Node:
    """A result without its modes of extent 1; what reads it gets them back."""
    readers = list(node.users)
    bare, whole = apart(node)
    for reader in readers if bare is not node else ():
        reader.replace_input_with(node, whole)
    return bare


def apart(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """`squeeze(node)` and `unsqueeze(squeeze(node))`, equal to the node; the node twice where no mode has extent 1."""
    shape = node.meta["val"].shape
    units = [mode for mode, extent in enumerate(shape) if type(extent) is int and extent == 1]
    if not units:
        return node, node
    with node.graph.inserting_after(node):
        bare = whole = insert.call(aten.squeeze.dims, node, units)
    set_info(bare, shown=node)
    for mode in units:
        with node.graph.inserting_after(whole):
            whole = insert.call(aten.unsqueeze.default, whole, mode)
    return bare, whole
