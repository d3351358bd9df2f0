"""Products with sparse weights: scales of integer weights, and rows read whole by sparse inputs.

In: `y[i,k] = sum(j, x[i,j] * w[k,j]) + b[k]` with w of integers and a scale for each row.
Out: `y[i,k] = sum(j, x[i,j] * w[k,j]) * s[k] + b[k]`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Call, Expr, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.passes.rewrite.simplify import is_multilinear

SUMS_ROWS: Final = "{} sums over the rows of {}, which have a scale each: int8 is for rows of outputs"


def scale_rows(program: ModelProgram, weights: Mapping[str, Matrix]) -> None:
    """`sum(j, x[i,j] * w[k,j]) -> sum(j, x[i,j] * w[k,j]) * s[k]` for weights with scales s, in place.

    Other readers of a scaled weight, such as sums over its rows, are left to torch.
    """
    scales = {name: m.scales for name, m in weights.items() if m.scales is not None}
    for name in list(program.statements):
        read = [scaled for scaled in program.reads(name) if scaled in scales]
        for weight in read if name in program.statements else ():
            scale = scales[weight]
            assert scale is not None, "weights without scales were left out"
            statement = program.statements[name]
            value = each_sum(statement.value, scaled_by(weight, program.leaf(scale)))
            count = sum(access.tensor == scale.name for access in find(value, Access))
            if count == sum(access.tensor == weight for access in find(statement.value, Access)):
                program.statements[name] = replace(statement, value=value)
            else:
                source = program.source[name]
                leave_opaque(program, source, SUMS_ROWS.format(operator_name(source), weight))


def scaled_by(weight: str, scales: str) -> Callable[[Reduce], Expr]:
    """The law for one weight."""

    def scaled(total: Reduce) -> Expr:
        read = [access for access in find(total, Access) if access.tensor == weight]
        if not is_multilinear(total) or len(read) != 1 or str(read[0].indices[0]) in total.indices:
            return total
        return Call("mul", (total, Access(scales, read[0].indices[:1])))

    return scaled


def leave_opaque(program: ModelProgram, source: fx.Node, reason: str) -> None:
    """Leaves a node to torch."""
    for name in [name for name in program.statements if program.source[name] is source]:
        del program.statements[name]
    program.opaque[source.name] = reason


def gathered(program: ModelProgram, storage: Storage, weights: Collection[str]) -> set[str]:
    """The weights w of `sum(j, a[i,j] * w[k,j])` with a sparse a, whose rows are gathered whole.

    Co-iteration of a and w is slower.
    """
    result = set[str]()
    for statement in program.statements.values():
        for total in find(statement.value, Reduce):
            read = find(total, Access) if is_multilinear(total) else []
            others = [a for a in read if storage.is_sparse(a.tensor) and is_input(program, a.tensor)]
            looked_up = {index for access in others for index in access.indices}
            result |= {a.tensor for a in read if a.tensor in weights and looked_up & {*a.indices}}
    return result


def is_input(program: ModelProgram, name: str) -> bool:
    """Whether a tensor is a dense input, declared sparse by a rule."""
    return name in program.nodes and program.nodes[name].op == "placeholder"


def each_sum(expr: Expr, rule: Callable[[Reduce], Expr]) -> Expr:
    """An expression with a rule applied to its reductions."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        return rule(node) if isinstance(node, Reduce) else node

    result = visit(expr)
    assert isinstance(result, Expr)
    return result
