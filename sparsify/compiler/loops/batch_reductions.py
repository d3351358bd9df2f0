"""Horizontal reductions of several accumulators, combined in one tree of shuffles.

In:  `w_0 = w_0 + horizontal add(x_0); w_1 = w_1 + horizontal add(x_1)`.
Out: `s_0, s_1 = horizontal add(x_0, x_1); w_0 = w_0 + s_0; w_1 = w_1 + s_1`.
"""

from dataclasses import dataclass, replace

from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.names import Names
from sparsify.compiler.loops.nodes import Block, Expr, Horizontal, Op, Set, Stmt, Type, Var, type_of


def together(function: nodes.Function) -> nodes.Function:
    """The kernel with neighbouring horizontal reductions into different variables combined."""
    if not holds(function.body, Horizontal):
        return function
    names = Names({node.name for node in find(function.body, Var)})

    def visit(node: Node) -> Node:
        if not holds(node, Horizontal):
            return node
        node = map_children(node, visit)
        return _block(node, names) if isinstance(node, Block) else node

    body = visit(function.body)
    assert isinstance(body, Stmt)
    return function if body == function.body else replace(function, body=body)


@dataclass(frozen=True, slots=True)
class _Sum:
    """`var = function(var, horizontal function(value))`."""

    var: Var
    function: str
    value: Expr


def _sum(stmt: Stmt) -> _Sum | None:
    match stmt:
        case Set(var, Op(name, (Var(same), Horizontal(function, value, _, None)), _)):
            if same == var.name and name == function and type_of(value).lanes > 1 and var.type != nodes.BOOL:
                return _Sum(var, function, value)
    return None


def _block(block: Block, names: Names) -> Block:
    """The block with each run of horizontal sums in groups."""
    statements: list[Stmt] = []
    run: list[_Sum] = []
    for stmt in block.statements:
        found = _sum(stmt)
        if run and (found is None or not _joins(run, found)):
            statements += _grouped(run, names)
            run = []
        if found is None:
            statements.append(stmt)
        else:
            run.append(found)
    statements += _grouped(run, names)
    return block if tuple(statements) == block.statements else Block(tuple(statements))


def _joins(run: list[_Sum], found: _Sum) -> bool:
    """Whether a sum may join the run of sums."""
    read = {node.name for node in find(found.value, Var)}
    same = found.function == run[0].function and type_of(found.value) == type_of(run[0].value)
    return same and not read & {part.var.name for part in run}


def _grouped(run: list[_Sum], names: Names) -> list[Stmt]:
    """The sums of a run: sums into one variable are added lane by lane first, then in groups of powers of two."""
    values: dict[Var, Expr] = {}
    for part in run:
        before = values.get(part.var)
        kind = type_of(part.value)
        values[part.var] = part.value if before is None else Op(part.function, (before, part.value), kind)
    left = list(values.items())
    statements: list[Stmt] = []
    while left:
        count = 1
        while 2 * count <= min(len(left), type_of(left[0][1]).lanes):
            count *= 2
        statements += _group(left[:count], run[0].function, names)
        left = left[count:]
    return statements


def _group(sums: list[tuple[Var, Expr]], function: str, names: Names) -> list[Stmt]:
    scalar = Type(sums[0][0].type.dtype)
    if len(sums) == 1:
        var, value = sums[0]
        return [Set(var, Op(function, (var, Horizontal(function, value, scalar)), scalar))]
    outputs = tuple(Var(names.fresh(f"{var.name}_sum"), scalar) for var, _ in sums)
    whole = nodes.HorizontalTogether(outputs, function, tuple(value for _, value in sums))
    adds = [Set(var, Op(function, (var, new), scalar)) for (var, _), new in zip(sums, outputs, strict=True)]
    return [whole, *adds]
