"""The order of loops: `order i, k, j`.

In: `forall i: forall j: forall k: body` and `order i, k, j`. Out: `forall i: forall k: forall j: body`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.compiler.notation.nodes import Forall, Notation, Statement
from sparsify.compiler.schedule.directives.directive import NAME, NAMES, Directive, of_nest, refuse
from sparsify.compiler.schedule.nests import Body, assigns, close_chain, loop_chain


@dataclass(frozen=True, slots=True)
class Order(Directive):
    """`order [w:] i, j, k`: the loops of the nest of `w` (of all nests) in this order."""

    form: ClassVar[str] = "order [w:] i, j, k"
    pattern: ClassVar[str] = rf"order\s+(?:(?P<nest>{NAME})\s*:\s*)?(?P<indices>{NAMES})"

    indices: tuple[str, ...]
    nest: str = ""

    def __str__(self) -> str:
        return f"order {self.nest + ': ' if self.nest else ''}{', '.join(self.indices)}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"the loops{of_nest(self.nest)} from outside to inside"

    def apply(self, program: Notation) -> Notation:
        """Chains of loops with those of the directive permuted into its order, in their places.

        Raises:
            ScheduleError: an unknown loop, a loop named twice, or an unknown nest.
        """
        assigned = {n.target.tensor for n in find(program.body, Assign)}
        if self.nest and self.nest not in assigned:
            refuse(self, f"nothing is assigned to {self.nest}", program)
        loops = [n.index for n in find(program.body, Forall)]
        for name in self.indices:
            if name not in loops:
                refuse(self, f"there is no loop {name}", program)
            if self.indices.count(name) > 1:
                refuse(self, f"{name} is named twice", program)
        return replace(program, body=_ordered(program.body, self.indices, self.nest))


def _ordered(body: Body, indices: tuple[str, ...], nest: str) -> Statement:
    """Chains with the loops over `indices` permuted into the given order, in their places."""

    def visit(node: Node) -> Node:
        if not holds(node, Forall):
            return node
        if not isinstance(node, Forall):
            return map_children(node, visit)
        chain, inner = loop_chain(node)
        inner = visit(inner)  # type: ignore[assignment]
        wanted = [loop for name in indices for loop in chain if loop.index == name]
        if len(wanted) > 1 and (not nest or assigns(inner, nest)):
            queue = iter(wanted)
            chain = [next(queue) if loop.index in indices else loop for loop in chain]
        return close_chain(chain, inner)

    result = visit(body)
    assert isinstance(result, Statement)
    return result
