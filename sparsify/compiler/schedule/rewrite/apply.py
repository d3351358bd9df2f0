"""Applies a schedule to concrete index notation, directive by directive, and refuses illegal ones.

In:  `forall i: forall k: forall j: Y[i,k] += A[i,j] * T[j,k]` and `order i, j, k; vector k; parallel i`
Out: `parallel forall i: forall j: vector forall k: Y[i,k] += A[i,j] * T[j,k]`
"""

from dataclasses import replace
from typing import NoReturn, assert_never

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Notation, Statement
from sparsify.compiler.notation.provenance import Provenance
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.rewrite.distribute import distribute
from sparsify.compiler.schedule.rewrite.fuse_loops import merge
from sparsify.compiler.schedule.rewrite.nests import (
    Body,
    accesses,
    assigns,
    close_chain,
    loop_chain,
    loop_names,
    rewrite_loops,
)
from sparsify.compiler.schedule.rewrite.online_rescale import rescale
from sparsify.compiler.schedule.rewrite.recompute import recompute
from sparsify.compiler.schedule.rewrite.workspace import pack, precompute_at, precompute_of, precompute_over
from sparsify.errors import ScheduleError


def apply(program: Notation, schedule: d.Schedule) -> Notation:
    """`program` after all directives of `schedule`.

    Raises:
        ScheduleError: a directive with an unknown name, or one that would change the result.
    """
    for directive in schedule.directives:
        before = program
        program = _step(program, directive)
        if program == before and not isinstance(directive, d.Order):
            raise ScheduleError(
                f"`{directive}` changes nothing in {program.body}", "name a loop or tensor of it"
            )
    return program


def _step(program: Notation, directive: d.Directive) -> Notation:
    """`program` after one directive."""
    match directive:
        case d.Order(indices=indices, nest=nest):
            _check_order(program, directive)
            return replace(program, body=_order(program.body, indices, nest))
        case d.Split():
            return _split(program, directive)
        case d.Fuse():
            return _fuse(program, directive)
        case d.Join():
            return _join(program, directive)
        case d.Merge(index=index):
            return replace(program, body=merge(program.body, index))
        case d.Pos():
            return _pos(program, directive)
        case d.Precompute(over=over) if over:
            return precompute_over(program, directive)
        case d.Precompute(source=source) if source:
            return precompute_of(program, directive)
        case d.Precompute():
            return precompute_at(program, directive)
        case d.Distribute():
            return distribute(program, directive)
        case d.Recompute():
            return recompute(program, directive)
        case d.Rescale():
            return rescale(program, directive)
        case d.Pack():
            return pack(program, directive)
        case d.Vector(index=index, nest=nest):
            return _set_kind(program, index, notation.Vector(), nest)
        case d.Unroll(index=index, nest=nest):
            return _set_kind(program, index, notation.Unrolled(), nest)
        case d.Parallel(index, policy, by, chunks, nest, hubs):
            _check_parallel(program, index, nest)
            return _set_kind(program, index, notation.Parallel(policy, by, chunks, hubs), nest)
        case d.Transpose(rows=rows, lanes=lanes, nest=nest):
            turned = _set_kind(program, rows, notation.Transposed(), nest)
            done = _set_kind(turned, lanes, notation.Vector(), nest)
            if turned == program or done == turned:
                _refuse(
                    directive, f"no loop over {rows if turned == program else lanes} around {nest}", program
                )
            return done
        case d.Prefetch(tensor=tensor, distance=distance):
            return replace(program, relations=(*program.relations, notation.Prefetch(tensor, distance)))
        case _:
            assert_never(directive)  # type: ignore[arg-type]


def _set_kind(program: Notation, index: str, kind: notation.Kind, nest: str = "") -> Notation:
    """`forall index -> kind forall index`, everywhere or around the assignments to `nest` only."""

    def change(loop: Forall) -> Forall:
        return replace(loop, kind=kind) if not nest or assigns(loop, nest) else loop

    return replace(program, body=rewrite_loops(program.body, index, change))


def _check_order(program: Notation, directive: d.Order) -> None:
    """Raises for an unknown loop, a loop named twice, or an unknown nest."""
    assigns_to = {n.target.tensor for n in find(program.body, Assign)}
    if directive.nest and directive.nest not in assigns_to:
        _refuse(directive, f"nothing is assigned to {directive.nest}", program)
    loops = [n.index for n in find(program.body, Forall)]
    for name in directive.indices:
        if name not in loops:
            _refuse(directive, f"there is no loop {name}", program)
        if directive.indices.count(name) > 1:
            _refuse(directive, f"{name} is named twice", program)


def _refuse(directive: d.Directive, found: str, program: Notation) -> NoReturn:
    """Raises, with the existing loops."""
    loops = dict.fromkeys(n.index for n in find(program.body, Forall))
    raise ScheduleError(f"`{directive}`: {found} in {program.body}", f"the loops are {', '.join(loops)}")


def _order(body: Body, indices: tuple[str, ...], nest: str) -> Statement:
    """Chains of loops with those over `indices` permuted into the given order, in their places."""

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


def _split(program: Notation, directive: d.Split) -> Notation:
    """`forall k: body -> forall ko: forall ki: body`."""
    for temporary in (t for n in find(program.body, notation.Let) for t in n.temporaries):
        if directive.index in temporary.indices and temporary.scope != "memory":
            raise ScheduleError(
                f"`{directive}` comes after {temporary} took {directive.index}", "split first"
            )
    _require_new(program, directive, directive.outer, directive.inner)
    relation = notation.Split(
        directive.index,
        directive.outer,
        directive.inner,
        directive.size,
        directive.tail,
        directive.masked,
    )

    def change(loop: Forall) -> Forall:
        if not isinstance(loop.kind, notation.Serial | notation.Parallel):
            raise ScheduleError(f"`{directive}` comes after another directive on {loop.index}", "split first")
        return Forall(directive.outer, Forall(directive.inner, loop.body), loop.kind)

    body = rewrite_loops(program.body, directive.index, change)
    if body == program.body:
        return program
    return replace(program, body=body, relations=(*program.relations, relation))


def _require_new(program: Notation, directive: d.Directive, *names: str) -> None:
    """Raises if a new loop name is taken by a loop or by the origin of a derived loop."""
    taken = loop_names(program)
    for name in names:
        if name in taken:
            raise ScheduleError(f"`{directive}`: a loop {name} exists", "another name")
        taken.add(name)


def _fuse(program: Notation, directive: d.Fuse) -> Notation:
    """`forall i: forall j: body -> forall f: body`."""

    def change(loop: Forall) -> Statement:
        if not isinstance(loop.body, Forall) or loop.body.index != directive.second:
            raise ScheduleError(
                f"`{directive}`: {directive.second} is not right inside {directive.first}", "order them first"
            )
        if not isinstance(loop.kind, notation.Serial) or not isinstance(loop.body.kind, notation.Serial):
            raise ScheduleError(f"`{directive}` comes after another directive on its loops", "fuse first")
        return Forall(directive.fused, loop.body.body)

    derived = {r.inner for r in program.relations if isinstance(r, notation.Split)}
    derived |= {r.outer for r in program.relations if isinstance(r, notation.Split)}
    derived |= {r.position for r in program.relations if isinstance(r, notation.Position)}
    if found := derived & {directive.first, directive.second}:
        raise ScheduleError(
            f"`{directive}`: {min(found)} is a part of another loop", "fuse first, then split"
        )
    _require_new(program, directive, directive.fused)
    relation = notation.Fuse(directive.first, directive.second, directive.fused)
    body = rewrite_loops(program.body, directive.first, change)
    if body == program.body:
        return program
    return replace(program, body=body, relations=(*program.relations, relation))


def _join(program: Notation, directive: d.Join) -> Notation:
    """`forall ko: forall ki: Y[k] = ... -> forall k: Y[k] = ...`; operands stored sparse by tiles need both loops.

    If the tiles are split again, their outer loop stays around: `k` then runs over the remaining part.
    """
    splits = {r.index: r for r in program.relations if isinstance(r, notation.Split)}
    relation = splits.get(directive.index)
    if relation is None:
        _refuse(directive, f"{directive.index} is not split", program)
    outer, inner = relation.outer, relation.inner
    if outer in splits:
        outer = splits[outer].inner
    temporaries = [t for let in find(program.body, notation.Let) for t in let.temporaries]
    # Temporaries with a row along the index for each stored entry: dense along the index.
    rows = {t.name for t in temporaries if t.pattern_of and directive.index not in t.pattern_indices}

    def change(loop: Forall) -> Statement:
        if not assigns(loop, directive.nest):
            return loop
        if not isinstance(loop.body, Forall) or loop.body.index != inner:
            raise ScheduleError(f"`{directive}`: {inner} is not right inside {outer}", "order them first")
        if not isinstance(loop.kind, notation.Serial) or not isinstance(loop.body.kind, notation.Serial):
            raise ScheduleError(f"`{directive}` comes after another directive on its loops", "join first")
        sparse = {declared.name for declared in program.declarations if not declared.format.is_dense}
        read = [n for n in find(loop, Access) if n.tensor in sparse and n.tensor not in rows]
        if found := [access for access in read if directive.index in index_names(access)]:
            raise ScheduleError(f"`{directive}`: {found[0]} is stored sparse", "keep the loops over tiles")
        return Forall(directive.index, loop.body.body)

    return replace(program, body=rewrite_loops(program.body, outer, change))


def _pos(program: Notation, directive: d.Pos) -> Notation:
    """`forall j: body -> forall p in positions(A): body` if the body reads `A`, or a tensor on its pattern, by `j`."""
    lets = find(program.body, notation.Let)
    kept = [t.name for let in lets for t in let.temporaries if t.pattern_of == directive.tensor]

    def change(loop: Forall) -> Forall:
        is_read = any(accesses(loop.body, name) for name in (directive.tensor, *kept))
        return replace(loop, index=directive.position) if is_read else loop

    _require_new(program, directive, directive.position)
    relation = notation.Position(directive.index, directive.position, directive.tensor)
    body = rewrite_loops(program.body, directive.index, change)
    if body == program.body:
        return program
    return replace(program, body=body, relations=(*program.relations, relation))


def _check_parallel(program: Notation, index: str, nest: str) -> None:
    """Raises if iterations of `index` (in the nest of `nest`) would write the same entries of a shared tensor."""
    provenance = Provenance(program.relations)
    loops = (n for n in find(program.body, Forall) if n.index == index)
    for loop in (n for n in loops if not nest or assigns(n, nest)):
        private = {t.name for n in find(loop, notation.Let) for t in n.temporaries}
        for assign in find(loop, Assign):
            if assign.target.tensor in private:
                continue
            written = {leaf for name in index_names(assign.target) for leaf in provenance.leaves(name)}
            if index not in written:
                raise ScheduleError(
                    f"`parallel {index}`: its iterations all write {assign.target}",
                    f"a loop over an index of {assign.target.tensor}, or a temporary inside {index}",
                )
