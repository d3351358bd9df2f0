"""The loops of a program as the actions of the search need them.

In: `let w: (forall i: forall k: forall j: w[i,k] += A[i,j] * X[j,k]); forall i: forall k: Y[i,k] = relu(w[i,k])`.
Out: two chains, `i, k, j` of `w` and `i, k` of `Y`; `i` before `j` in the first; `k` is dense and contiguous.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.node import Node, children, find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation
from sparsify.compiler.notation.provenance import extent_names
from sparsify.compiler.schedule.cost.iterations import is_plain
from sparsify.compiler.schedule.cost.scheduled import Pricing
from sparsify.compiler.schedule.directives import Directive, Schedule
from sparsify.compiler.schedule.rewrite.apply import apply
from sparsify.compiler.schedule.rewrite.nests import downward, loop_chain, loop_names
from sparsify.compiler.schedule.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Chain:
    """Perfectly nested loops.

    Attributes:
        loops: index variables, outermost first, in an order concordant with every sparse operand.
        nest: name of the nest in directives, "" if the directive concerns all nests.
        outer: number of the chain around this one, -1 without.
        assign: the assignment inside, `None` around several statements.
        edges: pairs of loops of which the first must enclose the second.
    """

    loops: tuple[str, ...]
    nest: str
    outer: int
    assign: Assign | None
    edges: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Facts:
    """A program before its schedule.

    Attributes:
        plain: notation.
        pricing: sizes, lanes and element size.
        chains: chains of loops, those around others first.
        extents: known extents of index variables.
        taken: names of loops.
        applied: memoized programs under the first directives of schedules.
    """

    plain: Notation
    pricing: Pricing
    chains: tuple[Chain, ...]
    extents: Mapping[str, int]
    taken: frozenset[str]
    applied: dict[tuple[Directive, ...], Notation] = field(default_factory=dict)

    def under(self, directives: tuple[Directive, ...]) -> Notation:
        """The program under some directives.

        Raises:
            ScheduleError: a directive that does not apply.
        """
        if not directives:
            return self.plain
        found = self.applied.get(directives)
        if found is None:
            found = apply(self.under(directives[:-1]), Schedule(directives[-1:]))
            self.applied[directives] = found
        return found

    @cached_property
    def declared(self) -> dict[str, Declaration]:
        """The declarations by name."""
        return {declared.name: declared for declared in self.plain.declarations}

    @cached_property
    def temporaries(self) -> dict[str, tuple[str, ...]]:
        """The index variables of each temporary."""
        return {t.name: t.indices for let in find(self.plain.body, Let) for t in let.temporaries}

    def fresh(self, name: str) -> str:
        """An unused loop name."""
        while name in self.taken:
            name += "_"
        return name

    @cached_property
    def stored(self) -> set[str]:
        """The index variables along levels of sparse operands."""
        declared = self.declared
        reads = find(self.plain.body, Access)
        return {
            name
            for access in reads
            if access.tensor in declared and not declared[access.tensor].format.is_dense
            for name in index_names(access)
        }


def facts_of(
    plain: Notation, lanes: int, item_bytes: int, sizes: Sizes, order: tuple[str, ...] = ()
) -> Facts | None:
    """The facts about a program; `None` for blocks, windows, and results that drop or select entries.

    Args:
        plain: notation before its schedule.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: bytes of such an element.
        sizes: sizes of the operands.
        order: loop order, if chosen by cost.
    """
    declared = {d.name: d for d in plain.declarations}
    accesses = find(plain.body, Access)
    if not all(is_plain(a, declared[a.tensor]) for a in accesses if a.tensor in declared):
        return None
    if any(not isinstance(index, Index) for access in accesses for index in access.indices):
        return None
    if any(declared[name].drops or declared[name].selection for name in plain.outputs) or plain.relations:
        return None
    if any(t.pattern_of for let in find(plain.body, Let) for t in let.temporaries):
        return None
    found: list[Chain] = []
    _collect(plain.body, -1, found, declared)
    if not found:
        return None
    if len(found) == 1:
        only = found[0]
        loops = order if sorted(order) == sorted(only.loops) else only.loops
        found = [Chain(loops, "", -1, only.assign, only.edges)]
    named = extent_names(plain)
    known = {**dict(plain.extents), **sizes.extents}
    extents = {name: known[of] for name, of in named.items() if type(known.get(of)) is int}
    pricing = Pricing(sizes, lanes, item_bytes)
    return Facts(plain, pricing, tuple(found), extents, frozenset(loop_names(plain)))


def _collect(node: Node, outer: int, found: list[Chain], declared: Mapping[str, Declaration]) -> None:
    """Appends the chains of a statement."""
    if isinstance(node, Forall):
        loops, inner = loop_chain(node)
        edges = frozenset(_edges(inner, declared))
        names = [loop.index for loop in loops]
        assign = inner if isinstance(inner, Assign) else None
        target = set(index_names(assign.target)) if assign is not None else set(names)
        order = downward(sorted(names, key=lambda name: name not in target), edges)
        found.append(
            Chain(tuple(order), "" if assign is None else assign.target.tensor, outer, assign, edges)
        )
        outer, node = len(found) - 1, inner
    if not isinstance(node, Assign):
        for child in children(node):
            _collect(child, outer, found, declared)


def _edges(body: Node, declared: Mapping[str, Declaration]) -> list[tuple[str, str]]:
    """Pairs of index variables at neighbouring levels of sparse operands."""
    edges: list[tuple[str, str]] = []
    for access in find(body, Access):
        own = declared.get(access.tensor)
        if own is not None and not own.format.is_dense:
            names = index_names(access)
            edges += pairwise([names[stored.expression.mode] for stored in own.format.levels])
    return edges
