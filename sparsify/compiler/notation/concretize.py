"""Einsum program -> concrete index notation: every sum becomes an assignment of its own, every index a loop.

In:  `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`
Out: `let w[i,k]: (forall i: forall k: forall j: w[i,k] += A[i,j] * T[j,k]);
      forall i: forall k: Y[i,k] = relu(w[i,k] + b[k])`
"""

from collections.abc import Iterable

from sparsify.compiler.einsum import nodes as einsum
from sparsify.compiler.node import Node, map_children, walk
from sparsify.compiler.notation.nodes import (
    Forall,
    Let,
    Notation,
    Sequence,
    Split,
    Statement,
    Temporary,
)
from sparsify.errors import UnsupportedProgramError


def concretize(program: einsum.Program) -> Notation:
    """The notation of `program`: one loop nest per sum and statement, in order; no decision is taken yet."""
    hoisted = _Hoist(program)
    for statement in program.statements:
        hoisted.add(statement)
    body: Statement = Sequence(tuple(hoisted.nests))
    if len(hoisted.nests) == 1 and isinstance(hoisted.nests[0], Statement):
        body = hoisted.nests[0]
    if hoisted.temporaries:
        body = Let(tuple(hoisted.temporaries), body)
    blocks = block_relations(program)
    for split in blocks:
        body = split_loops(body, split)
    return Notation(body, blocks, program.declarations, program.inputs, program.outputs, program.extents)


class _Hoist:
    """Collects the loop nests of a program and the temporaries that hold its inner sums."""

    def __init__(self, program: einsum.Program) -> None:
        self.program = program
        self.nests: list[Statement | einsum.Assign] = []
        self.temporaries: list[Temporary] = []
        self.names = {declaration.name for declaration in program.declarations}

    def add(self, statement: einsum.Assign) -> None:
        """Adds the nest of `statement`, after the nests of the sums inside it."""
        target, monoid, value = statement.target, statement.monoid, statement.value
        declaration = self.program.declaration(target.tensor)
        if target.tensor not in self.program.outputs:
            indices = tuple(index.name for index in target.indices if isinstance(index, einsum.Index))
            self.temporaries.append(
                Temporary(target.tensor, indices, declaration.dtype, pattern_of=declaration.pattern_of)
            )
        if monoid is None and isinstance(value, einsum.Reduce):
            monoid, value = value.monoid, value.body
        value = self._hoist(value, index_names(target), declaration.dtype)
        self.nests.append(nest(einsum.Assign(target, monoid, value)))

    def _hoist(self, expr: einsum.Expr, order: tuple[str, ...], dtype: str) -> einsum.Expr:
        """`expr` with each sum replaced by a temporary that an earlier nest computes."""

        def visit(node: Node) -> Node:
            node = map_children(node, visit)
            if not isinstance(node, einsum.Reduce):
                return node
            free = [name for name in index_names(node.body) if name not in node.indices]
            indices = tuple(sorted(free, key=lambda name: order.index(name) if name in order else len(order)))
            name = self._fresh_name()
            self.temporaries.append(Temporary(name, indices, dtype))
            target = einsum.Access(name, tuple(einsum.Index(index) for index in indices))
            self.nests.append(nest(einsum.Assign(target, node.monoid, node.body)))
            return target

        result = visit(expr)
        assert isinstance(result, einsum.Expr)
        return result

    def _fresh_name(self) -> str:
        """`w`, `w1`, `w2`, ...: the next name that no tensor has."""
        number = 0
        while (name := f"w{number or ''}") in self.names:
            number += 1
        self.names.add(name)
        return name


def nest(assign: einsum.Assign) -> Statement | einsum.Assign:
    """`assign` inside a loop per index variable, those of the target outermost."""
    body: Statement | einsum.Assign = assign
    target = index_names(assign.target)
    reduced = [name for name in index_names(assign.value) if name not in target]
    for name in reversed([*target, *reduced]):
        body = Forall(name, body)
    return body


def index_names(node: Node) -> tuple[str, ...]:
    """The index variables that occur in `node` and are not bound by a sum inside it, in order of appearance."""
    bound: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, einsum.Reduce):
            bound.update(inner.indices)
    names = (inner.name for inner in walk(node) if isinstance(inner, einsum.Index))
    return tuple(dict.fromkeys(name for name in names if name not in bound))


def block_relations(program: einsum.Program) -> tuple[Split, ...]:
    """One split per index variable that a stored level divides, `i/16` and `i%16`: split i io ii 16."""
    splits: dict[str, Split] = {}
    for access in _accesses(program.statements):
        for stored in program.declaration(access.tensor).format.levels:
            expression = stored.expression
            if expression.kind not in ("block", "within"):
                continue
            index = access.indices[expression.mode]
            if not isinstance(index, einsum.Index):
                raise UnsupportedProgramError(
                    f"{access} reads a blocked mode through {index}",
                    "a blocked mode needs a plain index variable; store the tensor without blocks",
                )
            name, size = index.name, expression.size
            split = splits.setdefault(name, Split(name, f"{name}o", f"{name}i", size))
            if split.size != size:
                raise UnsupportedProgramError(
                    f"{name} is stored in blocks of {split.size} and of {size}",
                    "convert one of the tensors to the block size of the other",
                )
    return tuple(splits.values())


def _accesses(nodes: Iterable[Node]) -> Iterable[einsum.Access]:
    return (inner for node in nodes for inner in walk(node) if isinstance(inner, einsum.Access))


def split_loops(body: Statement, split: Split) -> Statement:
    """`forall index: body -> forall outer: forall inner: body` at every loop over the index."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if isinstance(node, Forall) and node.index == split.index:
            return Forall(split.outer, Forall(split.inner, node.body), node.kind)
        return node

    result = visit(body)
    assert isinstance(result, Statement)
    return result
