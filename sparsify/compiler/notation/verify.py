"""Invariants of concrete index notation.

In: a notation. Out: nothing, or `ScheduleError` for an invariant broken by a schedule.
"""

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import Node, find, walk
from sparsify.compiler.notation.nodes import (
    Forall,
    Fuse,
    If,
    Let,
    Notation,
    Parallel,
    Position,
    Prefetch,
    Relation,
    Sequence,
    Split,
    Statement,
    Temporary,
    Unrolled,
)
from sparsify.compiler.notation.provenance import extent_names
from sparsify.errors import ScheduleError


def verify(notation: Notation) -> None:
    """Raises unless `notation` is well formed.

    Raises:
        ScheduleError: an index variable without a loop or with two, a temporary out of its scope, cyclic
            relations, a parallel loop with iterations writing the same entry, an unrolled loop without a
            constant extent.
    """
    _verify_relations(notation.relations)
    declared = {d.name for d in notation.declarations}
    for relation in notation.relations:
        if isinstance(relation, Position | Prefetch):
            known = declared | {t.name for n in find(notation.body, Let) for t in n.temporaries}
            if relation.tensor not in known:
                raise ScheduleError(
                    f"`{relation}` names {relation.tensor}, which is no tensor", "name a tensor"
                )
    _Verifier(notation).visit(notation.body, ())


class _Verifier:
    """The temporaries in scope while the statements are visited."""

    def __init__(self, notation: Notation) -> None:
        self.notation = notation
        self.tensors = {
            d.name: len(d.extents)
            for d in notation.declarations
            if d.name in notation.inputs or d.name in notation.outputs
        }
        self.temporaries: dict[str, tuple[Temporary, int]] = {}

    def visit(self, statement: Statement | Assign, loops: tuple[Forall, ...]) -> None:
        """Checks a statement inside `loops`, outermost first."""
        match statement:
            case Assign():
                self._verify_assign(statement, loops)
            case Sequence(statements):
                for member in statements:
                    self.visit(member, loops)
            case If(condition, body):
                self._verify_reads(condition, statement, loops)
                self.visit(body, loops)
            case Let(temporaries, body):
                for temporary in temporaries:
                    self._verify_kept(temporary)
                    if temporary.name in self.tensors or temporary.name in self.temporaries:
                        raise ScheduleError(
                            f"`{temporary}` takes a name that is in use", "give it another name"
                        )
                    self.temporaries[temporary.name] = (temporary, len(loops))
                self.visit(body, loops)
                for temporary in temporaries:
                    del self.temporaries[temporary.name]
            case Forall(index, body, kind):
                if any(loop.index == index for loop in loops):
                    raise ScheduleError(
                        f"two loops over {index}, one inside the other", "split it, or rename one"
                    )
                if isinstance(kind, Unrolled) and not self._is_constant(index):
                    raise ScheduleError(
                        f"the loop over {index} is unrolled, its extent is not a constant", "split it"
                    )
                self.visit(body, (*loops, statement))
            case _:
                raise AssertionError(f"{type(statement).__name__} is no statement of concrete index notation")

    def _verify_kept(self, temporary: Temporary) -> None:
        """Checks entries in use: a dense row in memory, or a hash table if listed."""
        if not (temporary.listed or temporary.marked):
            return
        count = len(temporary.indices)
        if count < 1 or (temporary.marked and count > 1) or temporary.pattern_of is not None:
            raise ScheduleError(
                f"`{temporary}` keeps its entries in use",
                "no pattern; one index if they are marked, one or more if they are listed",
            )
        if temporary.scope == "register":
            raise ScheduleError(
                f"`{temporary}` lists its entries, and registers have no list", "in thread or in memory"
            )

    def _verify_assign(self, assign: Assign, loops: tuple[Forall, ...]) -> None:
        """Checks an assignment: to an output or temporary in scope, of values in scope, without a race."""
        name = assign.target.tensor
        if name not in self.notation.outputs and name not in self.temporaries:
            raise ScheduleError(
                f"`{assign}` writes {name}, which is no output and no temporary in scope here"
            )
        self._verify_reads(assign, assign, loops)
        temporary, depth = self.temporaries.get(name, (None, 0))
        targets = set(free_indices(assign.target))
        for loop in loops[depth:]:
            if not isinstance(loop.kind, Parallel):
                continue
            if not self._is_separate(loop.index, targets):
                raise ScheduleError(
                    f"iterations of the parallel loop over {loop.index} write the same entries in `{assign}`",
                    f"make a loop over an index of {assign.target} parallel, or compute {name} inside the loop",
                )
        crossing = next((loop for loop in loops[depth:] if isinstance(loop.kind, Parallel)), None)
        if temporary is None or crossing is None:
            return
        if temporary.scope == "register":
            raise ScheduleError(f"{name} is in registers outside the parallel loop over {crossing.index}")
        if temporary.listed or temporary.marked:
            raise ScheduleError(
                f"{name} has one list of its entries, and the parallel loop over {crossing.index} adds to it",
                f"compute {name} inside that loop",
            )

    def _verify_reads(self, node: Node, statement: Node, loops: tuple[Forall, ...]) -> None:
        """Checks reads: index variables have loops, tensors are in scope, with an index for each mode."""
        known = self._known(loops)
        for name in free_indices(node):
            if name not in known:
                raise ScheduleError(
                    f"no loop gives {name} of `{statement}`", "add it to the order of the loops"
                )
        ranks = self.tensors | {
            name: len(temporary.indices) for name, (temporary, _) in self.temporaries.items()
        }
        for part in walk(node):
            if isinstance(part, Access):
                if part.tensor not in ranks:
                    raise ScheduleError(f"`{statement}` reads {part.tensor} outside the scope of its let")
                if len(part.indices) != ranks[part.tensor]:
                    raise ScheduleError(
                        f"{part} has {len(part.indices)} indices, {part.tensor} {ranks[part.tensor]} modes"
                    )

    def _known(self, loops: tuple[Forall, ...]) -> set[str]:
        """The index variables with known values inside `loops`."""
        known = {loop.index for loop in loops}
        changed = True
        while changed:
            before = len(known)
            for relation in self.notation.relations:
                match relation:
                    case Split(index, outer, inner) if outer in known and inner in known:
                        known.add(index)
                    case Split(index, outer, inner) if index in known:
                        known |= {outer, inner}
                    case Fuse(first, second, fused) if fused in known:
                        known |= {first, second}
                    case Position(index, position, tensor) if position in known:
                        known |= {index, *self._outer_indices(tensor, index)}
            changed = len(known) != before
        return known

    def _outer_indices(self, tensor: str, index: str) -> set[str]:
        """The index variables of `tensor` at modes stored above the mode of `index`."""
        names: list[str] = []
        for node in walk(self.notation.body):
            if isinstance(node, Access) and node.tensor == tensor and Index(index) in node.indices:
                names = [i.name if isinstance(i, Index) else "" for i in node.indices]
        declared = next((d for d in self.notation.declarations if d.name == tensor), None)
        if declared is None or not names:
            return set()
        order = [names[mode] for mode in dict.fromkeys(declared.format.ordering)]
        return {name for name in order[: order.index(index)] if name}

    def _is_separate(self, loop: str, targets: set[str]) -> bool:
        """Whether different iterations of a loop write different entries of a target with the given indices."""
        if loop in targets:
            return True
        for relation in self.notation.relations:
            match relation:
                case Split(index, outer, inner) if loop in (outer, inner):
                    return self._is_separate(index, targets)
                case Fuse(first, second, fused) if fused == loop:
                    return self._is_separate(first, targets) and self._is_separate(second, targets)
                case Position(index, position) if position == loop:
                    return self._is_separate(index, targets)
        return False

    def _is_constant(self, index: str) -> bool:
        """Whether the extent of a loop is known at compile time."""
        if extent_names(self.notation).get(index, index) in dict(self.notation.extents):
            return True
        return any(isinstance(r, Split) and r.inner == index for r in self.notation.relations)


def _verify_relations(relations: tuple[Relation, ...]) -> None:
    """Checks that each index variable is derived at most once, and never from itself."""
    parents: dict[str, tuple[str, ...]] = {}
    for relation in relations:
        match relation:
            case Split(index, outer, inner):
                derived: dict[str, tuple[str, ...]] = {outer: (index,), inner: (index,)}
            case Fuse(first, second, fused):
                derived = {fused: (first, second)}
            case Position(index, position):
                derived = {position: (index,)}
            case _:
                continue
        for name, sources in derived.items():
            if name in parents:
                raise ScheduleError(f"`{relation}` makes {name} a second time", "use a name for each loop")
            parents[name] = sources
    for name, sources in parents.items():
        seen: set[str] = set()
        ahead = list(sources)
        while ahead:
            source = ahead.pop()
            if source == name:
                raise ScheduleError(f"{name} is made of itself by {', '.join(map(str, relations))}")
            if source not in seen:
                seen.add(source)
                ahead += parents.get(source, ())
