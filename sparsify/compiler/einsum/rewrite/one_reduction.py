"""Programs with at most one reduction in each statement, outermost on its right side.

In: `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.
Out: `w[i,k] sum= A[i,j] * T[j,k]` over j, then `Y[i,k] = relu(w[i,k] + b[k])`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.register import expand_functions
from sparsify.compiler.einsum.rename import fresh
from sparsify.compiler.einsum.rewrite.simplify import simplify
from sparsify.compiler.ir.node import Node, map_children


@dataclass(frozen=True, slots=True)
class Flat:
    """`target = body`, or `body` reduced over `reduced` by a monoid; `body` contains no reduction.

    With `accumulates` the result is combined with the value of earlier statements in the target.
    """

    target: Access
    monoid: str | None
    reduced: tuple[str, ...]
    body: Expr
    accumulates: bool = False

    @property
    def indices(self) -> tuple[str, ...]:
        """The index variables of the target."""
        return tuple(index.name for index in self.target.indices if isinstance(index, Index))

    def assign(self) -> Assign:
        """The statement as a node."""
        if self.accumulates:
            return Assign(self.target, self.monoid, self.body)
        if self.monoid is None:
            return Assign(self.target, None, self.body)
        value = Reduce(self.monoid, self.reduced, self.body) if self.reduced else self.body
        return Assign(self.target, None, value)


def flatten(program: Program, taken: Collection[str] = ()) -> tuple[tuple[Flat, ...], frozenset[str]]:
    """The statements of `program`, inner reductions as separate statements, and the names of those."""
    names = set(taken) | {declared.name for declared in program.declarations}
    names |= {statement.target.tensor for statement in program.statements}
    flats: list[Flat] = []
    hoisted: set[str] = set()
    started: set[str] = set()
    for statement in program.statements:
        value: Expr = simplify(expand_functions(statement.value))
        monoid = statement.monoid
        reduced: tuple[str, ...] = ()
        order = tuple(index.name for index in statement.target.indices if isinstance(index, Index))
        if monoid is None and isinstance(value, Reduce):
            monoid, reduced, value = value.monoid, value.indices, value.body
            value = _hoist(value, order, names, hoisted, flats)
        else:
            value = _hoist(value, order, names, hoisted, flats)
            if monoid is not None:
                reduced = tuple(name for name in free_indices(value) if name not in order)
        name = statement.target.tensor
        accumulates = statement.monoid is not None and (name in started or _is_repeated(program, name))
        flats.append(Flat(statement.target, monoid, reduced, value, accumulates))
        started.add(name)
    return tuple(flats), frozenset(hoisted)


def _hoist(
    value: Expr, order: tuple[str, ...], names: set[str], hoisted: set[str], flats: list[Flat]
) -> Expr:
    """`value` with its reductions replaced by temporaries, each computed once by a new member of `flats`."""
    known: dict[Reduce, Access] = {}

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if not isinstance(node, Reduce):
            return node
        if node in known:
            return known[node]
        free = [name for name in free_indices(node.body) if name not in node.indices]
        free.sort(key=lambda name: order.index(name) if name in order else len(order))
        name = fresh("w", names)
        names.add(name)
        hoisted.add(name)
        target = Access(name, tuple(map(Index, free)))
        flats.append(Flat(target, node.monoid, node.indices, node.body))
        known[node] = target
        return target

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def _is_repeated(program: Program, name: str) -> bool:
    """Whether several statements assign `name`."""
    return sum(statement.target.tensor == name for statement in program.statements) > 1
