"""Scopes of temporaries: `precompute` moves or introduces a `let` at a loop.

In:  `let w[i,k]: (forall i: forall k: forall j: w[i,k] += ..); forall i: forall k: Y[i,k] = relu(w[i,k])`
     and `precompute w at i in register`
Out: `forall i: let w[k] in register: (forall k: forall j: w[k] += ..); forall k: Y[i,k] = relu(w[k])`
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar

from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of, reduced
from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.dtypes import Kind, computing
from sparsify.compiler.ir.node import Node, find, walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import (
    Forall,
    Let,
    Notation,
    Position,
    Sequence,
    Serial,
    Split,
    Temporary,
)
from sparsify.compiler.notation.provenance import Provenance
from sparsify.compiler.schedule.directives.directive import NAME, SCOPES, Directive
from sparsify.compiler.schedule.nests import (
    Body,
    accesses,
    accesses_by_tensor,
    close_chain,
    let_of,
    loop_chain,
    loops_around,
    loops_to_assignment,
    replace_accesses,
    replace_body,
    sequence,
)
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Precompute(Directive):
    """`precompute w at ko in register`: `w` is computed inside loop `ko`, right before its consumer, and shrinks.

    `precompute a = Y at ko in register` introduces `a`, an accumulator of the additions to `Y` inside loop `ko`;
    `precompute a = w over p in register` gives each iteration of `p` a copy of `w`, added up afterwards.

    `listed` temporaries keep a list of their entries in use: the workspaces of sparse results. `marked` ones mark
    entries in use: the marks give the pattern of the whole result first, then values are computed on the pattern.
    """

    form: ClassVar[str] = "precompute a [= Y] at i|over p in register|thread|memory [listed|marked]"
    pattern: ClassVar[str] = (
        rf"precompute\s+(?P<temporary>{NAME})(?:\s*=\s*(?P<source>{NAME}))?"
        rf"\s+(?:at\s+(?P<at>{NAME})|over\s+(?P<over>{NAME}))\s+in\s+(?P<scope>{NAME})"
        r"(?:\s+(?P<listed>listed)|\s+(?P<marked>marked))?"
    )

    temporary: str
    scope: str
    at: str = ""
    source: str = ""
    over: str = ""
    listed: bool = False
    marked: bool = False

    def __str__(self) -> str:
        source = f" = {self.source}" if self.source else ""
        place = f" over {self.over}" if self.over else f" at {self.at or 'root'}"
        kept = " listed" * self.listed + " marked" * self.marked
        return f"precompute {self.temporary}{source}{place} in {self.scope}{kept}"

    def check(self, text: str) -> None:
        """Raises for an unknown scope, lists of registers, and copies of no accumulator."""
        check_scope(self.scope, text)
        if self.scope == "register" and (self.listed or self.marked):
            raise ScheduleError(f"`{text}`: registers have no list", "in thread or in memory")
        if self.over and not self.source:
            raise ScheduleError(
                f"`{text}`: what is computed over {self.over}?", "precompute a = w over p in register"
            )

    def describe(self) -> str:
        """The meaning in words."""
        name, where = self.temporary, SCOPES[self.scope]
        if self.over:
            return (
                f"each iteration of {self.over} has a {self.source} of its own, {name}, combined at the end"
            )
        place = f"inside {self.at}" if self.at else "before all loops"
        if self.source:
            return f"{place}, {name} collects what is added to {self.source}, {where}"
        return f"{place}, {name} is computed right before it is read, {where}"

    def apply(self, program: Notation) -> Notation:
        """A `let` of the temporary at the loop, with the temporary as small as its consumers allow."""
        if self.over:
            return _over(program, self)
        return _of(program, self) if self.source else _at(program, self)


def check_scope(scope: str, text: str) -> None:
    """Raises for an unknown scope of temporaries."""
    if scope not in SCOPES:
        raise ScheduleError(f"`{text}`: there is no scope {scope}", f"one of {', '.join(SCOPES)}")


def _at(program: Notation, directive: Precompute) -> Notation:
    """`let w: (forall i: P); forall i: C -> forall i: let w: P; C`, with `w` without the indices of shared loops.

    All statements from the first to the last with `w` move into one loop, except independent ones in other loops, which
    come first. A `w` already inside the loop moves out of the loops around it,
    `forall p: let w: P; C -> let w[p]: (forall p: P); forall p: C`.
    """
    let = let_of(program, directive.temporary, directive)
    temporary = next(t for t in let.temporaries if t.name == directive.temporary)
    if not directive.at:
        return _replace_let(program, let, _with(let, _kept(temporary, directive)))
    around = _loop_around(program.body, directive.at, let)
    return (
        _shared_loops(program, let, temporary, directive)
        if around is None
        else _out_of_loops(program, around, let, temporary, directive)
    )


def _shared_loops(program: Notation, let: Let, temporary: Temporary, directive: Precompute) -> Notation:
    """The statements of the temporary fused in one nest of the loops up to the directive's."""
    name = temporary.name
    statements = let.body.statements if isinstance(let.body, Sequence) else (let.body,)
    places = [n for n, s in enumerate(statements) if accesses(s, name)]
    ahead, group = _in_other_loops(statements[places[0] : places[-1] + 1], directive)
    if any(access != accesses(group[0], name)[0] for s in group for access in accesses(s, name)):
        raise ScheduleError(
            f"`{directive}`: {name} is read at other indices than it is computed", "another place"
        )
    cut = [_cut_chain(statement, directive) for statement in group]
    shared = cut[0][0]
    for chain, _ in cut[1:]:
        if [loop.index for loop in chain] != [loop.index for loop in shared]:
            raise ScheduleError(
                f"`{directive}`: {name} is computed in loops {_indices(shared)}, read in {_indices(chain)}",
                "give all nests the same outer loops with order",
            )
    _check_joined([body for _, body in cut], [loop.index for loop in shared], program, directive)
    shrunk = _shrink(program, temporary, [loop.index for loop in shared], group[0], directive)
    inner: Body = sequence([body for _, body in cut])
    inner = Let((shrunk,), replace_accesses(inner, name, access_to(shrunk)))
    merged = close_chain(shared, inner)
    rest = [*statements[: places[0]], *ahead, merged, *statements[places[-1] + 1 :]]
    outer = tuple(t for t in let.temporaries if t.name != name)
    body = sequence(rest)
    return _replace_let(program, let, Let(outer, body) if outer else body)


def _in_other_loops(statements: Listed[Body], directive: Precompute) -> tuple[list[Body], list[Body]]:
    """The statements in other loops that can be hoisted before the group, and the group."""

    def loops(statement: Body) -> list[str]:
        names = [loop.index for loop in loop_chain(statement)[0]]
        return names[: names.index(directive.at) + 1] if directive.at in names else []

    def touched(statement: Body) -> tuple[set[str], set[str]]:
        written = {assign.target.tensor for assign in find(statement, Assign)}
        return written, {access.tensor for access in find(statement, Access)}

    ahead, group = [], list(statements[:1])
    for statement in statements[1:]:
        written, read = touched(statement)
        is_bound = any(written & touched(other)[1] or read & touched(other)[0] for other in group)
        if is_bound or loops(statement) == loops(statements[0]):
            group.append(statement)
        else:
            ahead.append(statement)
    return ahead, group


def _check_joined(bodies: list[Body], shared: list[str], program: Notation, directive: Precompute) -> None:
    """Raises if an iteration of the fused loops would read a value written by another iteration."""
    written = {a.target.tensor for body in bodies for a in find(body, Assign)}
    local = {t.name for body in bodies for let in find(body, Let) for t in let.temporaries}
    by_body = [accesses_by_tensor(body) for body in bodies]
    for tensor in written - local:
        holders = [by_tensor[tensor] for by_tensor in by_body if tensor in by_tensor]
        if len(holders) < 2:
            continue
        found = [access for part in holders for access in part]
        for access in found:
            leaves = {leaf for name in index_names(access) for leaf in _leaves(program, name)}
            if access != found[0] or not set(shared) <= leaves:
                raise ScheduleError(
                    f"`{directive}`: {tensor} is written in some iterations of {', '.join(shared)} and read in others",
                    "another place",
                )


def _out_of_loops(
    program: Notation, around: Forall, let: Let, temporary: Temporary, directive: Precompute
) -> Notation:
    """The temporary expanded over the loops in between, which then run once for each statement.

    Other temporaries of the same `let` move too.
    """
    chain, inner = loop_chain(around)
    statements = let.body.statements if isinstance(let.body, Sequence) else (let.body,)
    written = [a.target.tensor for a in find(let.body, Assign)]
    together = {t.name for t in let.temporaries}
    apart = all(
        tensor in together or sum(bool(accesses(s, tensor)) for s in statements) == 1 for tensor in written
    )
    if inner is not let or not apart:
        raise ScheduleError(
            f"`{directive}`: {temporary.name} cannot leave the loops around it", "another place"
        )
    between = [replace(loop, kind=Serial()) for loop in chain[1:]]
    names = tuple(loop.index for loop in between)
    wider = [replace(t, indices=(*names, *t.indices), scope=directive.scope) for t in let.temporaries]
    parts = []
    for statement in statements:
        for t in wider:
            statement = replace_accesses(statement, t.name, access_to(t))
        parts.append(close_chain(between, statement))
    return replace(
        program,
        body=replace_body(program.body, around, replace(around, body=Let(tuple(wider), sequence(parts)))),
    )


def _loop_around(body: Body, index: str, inner: Node) -> Forall | None:
    """The loop over `index` around `inner`."""
    for node in walk(body):
        if isinstance(node, Forall) and node.index == index and any(part is inner for part in walk(node)):
            return node
    return None


def _of(program: Notation, directive: Precompute) -> Notation:
    """`forall k: Y += e -> forall k: let a: a += e; Y = a`, the new `a` indexed by the loops inside `k`.

    A plain assignment, `Y = e`, becomes `a = e; Y = a`.
    """
    nest = _nest_of(program, directive.source)
    if nest is None:
        raise ScheduleError(
            f"`{directive}`: nothing is added to {directive.source}", "the name of a sum's target"
        )
    shared, inside = _cut_chain(nest, directive) if directive.at else ([], nest)
    chain, assign = loop_chain(inside)
    if not isinstance(assign, Assign):
        raise ScheduleError(f"`{directive}`: {directive.source} is not a plain sum there", "another place")
    source = Temporary(directive.temporary, index_names(assign.target), _accumulated(program, assign))
    shrunk = _shrink(program, source, [loop.index for loop in shared], inside, directive)
    access = access_to(shrunk)
    given = [replace(loop, kind=Serial()) for loop in chain if loop.index in shrunk.indices]
    if directive.listed:  # unordered entries are read in the order of the result's levels
        given.sort(key=lambda loop: _level(program, assign.target, loop.index))
    around = [*loops_around(_life(program.body, nest, assign.target.tensor), nest), *shared, *given]
    whole = all(_is_of_target(program, loop, assign.target) for loop in around)
    collect = close_chain(chain, Assign(access, assign.monoid, assign.value))
    give = close_chain(given, Assign(assign.target, None if whole else assign.monoid, access))
    new = close_chain(shared, Let((shrunk,), Sequence((collect, give))))
    return replace(program, body=replace_body(program.body, nest, new))


def _level(program: Notation, target: Access, index: str) -> int:
    """The level of a result over which a loop runs; 0 without levels of whole modes."""
    declared = next((d for d in program.declarations if d.name == target.tensor), None)
    names = index_names(target)
    if declared is None or not declared.format.is_short or index not in names:
        return 0
    modes = [stored.expression.mode for stored in declared.format.levels]
    return modes.index(names.index(index)) if names.index(index) in modes else 0


def _over(program: Notation, directive: Precompute) -> Notation:
    """`w += e -> let a: (a[p] += e); forall p: w += a[p]`: a partial sum for each iteration of `p`, added up last."""
    nest = _nest_of(program, directive.source)
    if nest is None:
        raise ScheduleError(
            f"`{directive}`: nothing is added to {directive.source}", "the name of a sum's target"
        )
    chain, assign = loop_chain(nest)
    if not isinstance(assign, Assign) or assign.monoid is None:
        raise ScheduleError(f"`{directive}`: {directive.source} is not a plain sum there", "another place")
    names = [loop.index for loop in chain]
    if directive.over not in names:
        raise ScheduleError(
            f"`{directive}`: no loop {directive.over} in the nest of {directive.source}", _indices(chain)
        )
    split = next((r for r in program.relations if isinstance(r, Split) and r.inner == directive.over), None)
    if split is None:
        raise ScheduleError(f"`{directive}`: {directive.over} has no constant extent", "split it first")
    outer = list(takewhile(lambda loop: _is_of_target(program, loop, assign.target), chain))
    inner = chain[len(outer) :]
    kept = [loop.index for loop in inner if _is_of_target(program, loop, assign.target)]
    copies = Temporary(
        directive.temporary,
        (directive.over, *kept),
        _accumulated(program, assign),
        directive.scope,
    )
    access = access_to(copies)
    collect = close_chain(inner, Assign(access, assign.monoid, assign.value))
    loops = [loop for loop in inner if loop.index in copies.indices]
    loops.sort(key=lambda loop: copies.indices.index(loop.index))
    give = close_chain(loops, Assign(assign.target, assign.monoid, access))
    new = close_chain(outer, Let((copies,), Sequence((collect, give))))
    return replace(program, body=replace_body(program.body, nest, new))


def _shrink(
    program: Notation, temporary: Temporary, shared: list[str], producer: Body, directive: Precompute
) -> Temporary:
    """`temporary` with one index for each of its loops inside the shared loops.

    Loops over stored positions of its pattern are one index again, by which the temporary is stored.
    """
    wanted = {leaf for name in temporary.indices for leaf in _leaves(program, name)} - set(shared)
    around = loops_to_assignment(producer, temporary.name) or find(producer, Forall)
    listed = {
        leaf: relation.index
        for relation in program.relations
        if isinstance(relation, Position) and relation.tensor == temporary.pattern_of
        for leaf in _leaves(program, relation.position)
    }
    if not listed.keys() <= wanted:
        listed = {}
    # A joined loop is one index for all of its leaves.
    inside = [loop.index for loop in around if set(_leaves(program, loop.index)) <= wanted]
    indices = dict.fromkeys(listed.get(_leaves(program, index)[0], index) for index in inside)
    return replace(_kept(temporary, directive), indices=tuple(indices))


def _kept(temporary: Temporary, directive: Precompute) -> Temporary:
    """`temporary` in the scope of the directive."""
    return replace(temporary, scope=directive.scope, listed=directive.listed, marked=directive.marked)


def _cut_chain(nest: Body, directive: Precompute) -> tuple[list[Forall], Body]:
    """The loops of `nest` up to the one named by the directive, and the rest."""
    chain, body = loop_chain(nest)
    names = [loop.index for loop in chain]
    if directive.at not in names:
        raise ScheduleError(
            f"`{directive}`: there is no loop {directive.at} among {_indices(chain)}", "one of them"
        )
    cut = names.index(directive.at) + 1
    return chain[:cut], close_chain(chain[cut:], body)


def _life(body: Body, nest: Body, name: str) -> Body:
    """The scope of a temporary's `let` around `nest`, or `body` if `name` is not a temporary."""
    lets = (let for let in find(body, Let) if any(t.name == name for t in let.temporaries))
    return next((let.body for let in lets if any(node is nest for node in walk(let))), body)


def _is_of_target(program: Notation, loop: Forall, target: Access) -> bool:
    """Whether iterations of a loop write disjoint entries of the target."""
    names = set(index_names(target))
    return loop.index in names or Provenance(program.relations).roots(loop.index) <= names


def _nest_of(program: Notation, name: str) -> Body | None:
    """The largest perfect loop nest around the assignment to `name`, `None` without one."""

    def search(node: Node) -> Body | None:
        if isinstance(node, Forall | Assign):
            _, inner = loop_chain(node)
            if isinstance(inner, Assign) and inner.target.tensor == name:
                return node
        for child in (c for c in _statements(node)):
            if (found := search(child)) is not None:
                return found
        return None

    return search(program.body)


def _statements(node: Node) -> tuple[Body, ...]:
    match node:
        case Forall(body=body) | Let(body=body):
            return (body,)
        case Sequence(statements=statements):
            return statements
    return ()


def _with(let: Let, temporary: Temporary) -> Let:
    return replace(
        let, temporaries=tuple(temporary if t.name == temporary.name else t for t in let.temporaries)
    )


def _replace_let(program: Notation, let: Let, new: Body) -> Notation:
    return replace(program, body=replace_body(program.body, let, new))


def access_to(temporary: Temporary) -> Access:
    """The access to a temporary at its own indices."""
    return Access(temporary.name, tuple(Index(name) for name in temporary.indices))


def _accumulated(program: Notation, assign: Assign) -> str:
    """The dtype of the accumulation in `assign`: the truth value of a sum of numbers is taken after summing."""
    dtype = computing_dtype(program, assign.target.tensor)
    if dtype != "bool" or assign.monoid is None:
        return dtype
    kinds = {declared.name: declared_kind(declared) for declared in program.declarations}
    lets = find(program.body, Let)
    kinds |= {temporary.name: Kind(temporary.dtype) for let in lets for temporary in let.temporaries}
    return computing(reduced(kind_of(assign.value, kinds), assign.monoid, assign.value, kinds).dtype)


def computing_dtype(program: Notation, name: str) -> str:
    """The dtype of a temporary in place of a tensor or temporary: its computing dtype."""
    for node in walk(program.body):
        if isinstance(node, Let):
            for temporary in node.temporaries:
                if temporary.name == name:
                    return temporary.dtype
    return next(
        computing(declaration.dtype) for declaration in program.declarations if declaration.name == name
    )


def _leaves(program: Notation, index: str) -> list[str]:
    return Provenance(program.relations).leaves(index)


def _indices(chain: list[Forall]) -> str:
    return ", ".join(loop.index for loop in chain)
