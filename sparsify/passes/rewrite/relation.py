"""Gathers and scatters by index tensors as products with an adjacency.

In: `g[e,k] = sum(j, where(c[e] == j, x[j,k], 0)); m[e,k] = relu(g[e,k]); y[i,k] = sum(e, where(r[e] == i, m[e,k], 0))`.
Out: `y[i,k] = sum(j, A[i,j] * relu(x[j,k]))`, with the number of edges from j to i in A[i,j].

The rule: an index selects one coordinate, `f(sum(j, where(c[e] == j, x[j], 0))) = sum(j, where(c[e] == j, f(x[j]),
0))`. So entrywise statements over edges under a scatter are computed over the pairs of nodes joined by edges;
`A[i,e,j]` has the number of an edge as a separate mode where edge data is read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Reduce, Stored
from sparsify.compiler.ir.dtypes import STORED_HALVES, name_of
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.canonicalize import input_of_expression, number_of_expression
from sparsify.passes.graph.operators import is_real, tensor_value
from sparsify.passes.program.model import By, ModelProgram, Refusal, Relation, Size, index_names
from sparsify.passes.region.region import substitute
from sparsify.passes.rewrite.demand import follows
from sparsify.passes.rewrite.inline import CHEAP
from sparsify.passes.rewrite.simplify import functions_of, renamed, simplify

FLOATS: Final = ("float32", "float64", *STORED_HALVES)
# Initial value of a reduction, by monoid.
EMPTY: Final = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
LEAVES: Final = ("placeholder", "get_attr")
UNLIFTED: Final = "reads or writes at places that a tensor holds, and no scatter that a rule selects needs it"


@dataclass(frozen=True)
class Choice:
    """`monoid(bound, where(places[e] == node, body, ..))`: entries chosen by an index tensor."""

    monoid: str
    bound: tuple[str, ...]
    places: str
    edge: str
    node: str
    body: Expr

    @property
    def is_gather(self) -> bool:
        """Whether one place is read for each edge."""
        return self.bound == (self.node,)

    @property
    def is_scatter(self) -> bool:
        """Whether the edges of an index are reduced."""
        return self.edge in self.bound and self.node not in self.bound


def choice_of(expr: Node) -> Choice | None:
    """A gather or a scatter by a vector of places, `None` for other expressions."""
    match expr:
        case Reduce(monoid, bound, Call("where", (Call("eq", (chosen, Index(at))), body, Const(value)))):
            match chosen:
                case Access(places, (Index(edge),)) if value == EMPTY.get(monoid):
                    return Choice(monoid, tuple(bound), places, edge, at, body)
    return None


@dataclass
class Lifting:
    """Statements over edges that become statements over the entries of a relation.

    Attributes:
        relation: the adjacency.
        shared: statements over edges that become separate statements; others are inlined.
        lifted_names: statement over the relation, by statement over edges.
    """

    program: ModelProgram
    relation: Relation
    shared: set[str]
    lifted_names: dict[str, str] = field(default_factory=dict)

    def modes(self) -> list[str]:
        """New index variables for the modes of the relation."""
        return [self.program.index(size) for size in self.program.sizes[self.relation.name]]

    def entry(self, modes: Iterable[str]) -> Access:
        """The entry of the relation at some coordinates."""
        return Access(self.relation.name, tuple(map(Index, modes)))

    def lifted(self, expr: Expr, edge: str, modes: list[str]) -> Expr:
        """An expression over an edge as one over an entry of the relation."""
        ends = {self.relation.columns: modes[-1], self.relation.rows: modes[0]}

        def visit(node: Node) -> Node:
            choice = choice_of(node)
            if choice is not None and choice.is_gather and choice.edge == edge:
                at = ends.get(choice.places)
                if at is None or not self.is_equal(at, choice.node):
                    raise Refusal(f"{choice.places} names other nodes than the ends of edges")
                return visit(self.of_edges(substitute(choice.body, {choice.node: Index(at)}), modes[0]))
            if isinstance(node, Access) and Index(edge) in node.indices:
                return self.access(node, edge, modes)
            if node == Index(edge):  # the number of the edge
                if not self.relation.is_numbered:
                    raise Refusal("the numbers of edges are read")
                return Index(modes[1])
            return map_children(node, visit)

        result = visit(expr)
        assert isinstance(result, Expr)
        return result

    def is_equal(self, first: str, second: str) -> bool:
        """Whether two index variables have the same extent."""
        first_size, second_size = (
            self.program.representative(self.program.extents[name]) for name in (first, second)
        )
        return bool(first_size == second_size)

    def of_edges(self, expr: Expr, receiver: str) -> Expr:
        """`where(n[i] == 0, c, x[i]) -> x[i]` at the receiver of an edge, n the receiver's number of edges."""
        if not isinstance(expr, Access) or Index(receiver) not in expr.indices:
            return expr
        statement = self.program.statements.get(expr.tensor)
        match statement:
            case Assign(
                target, _, Call("where", (Call("eq", (Access(count), Const(0))), _, Access() as divided))
            ):
                if self.counts_edges(count) and all(isinstance(index, Index) for index in target.indices):
                    return substitute(divided, dict(zip(map(str, target.indices), expr.indices, strict=True)))
        return expr

    def counts_edges(self, name: str) -> bool:
        """Whether a tensor counts the relation's incoming edges of each node."""
        statement = self.program.statements.get(name)
        match statement:
            case Assign(_, _, Reduce("sum", (edge,), Call("where", (_, Const(1.0), Const(0.0)))) as value):
                choice = choice_of(value)
                return choice is not None and choice.places == self.relation.rows and choice.edge == edge
            case Assign(_, _, Reduce("sum", _, Access(tensor))):
                return tensor == self.relation.name
        return False

    def access(self, access: Access, edge: str, modes: list[str]) -> Expr:
        """A tensor over edges at an entry of the relation."""
        name = access.tensor
        ends = {self.relation.columns: modes[-1], self.relation.rows: modes[0]}
        if name in ends and (self.relation.by == "distinct" or self.relation.is_numbered):
            return Index(ends[name])  # the number of the node
        statement = self.program.statements.get(name)
        mode = access.indices.index(Index(edge))
        if statement is None or self.is_other(statement, mode):
            if not self.relation.is_numbered:
                raise Refusal(f"{name} is read at edges")
            return substitute(access, {edge: Index(modes[1])})
        target_names = [str(index) for index in statement.target.indices]
        rest = [
            (o, index) for o, index in zip(target_names, access.indices, strict=True) if index != Index(edge)
        ]
        if name not in self.shared:
            bound = {b for reduction in find(statement.value, Reduce) for b in reduction.indices}
            fresh = {b: self.program.index(self.program.extents[b]) for b in bound}
            value = substitute(renamed(statement.value, fresh), dict(rest))
            return self.lifted(value, target_names[mode], modes)
        if name not in self.lifted_names:
            self.make(statement, mode)
        return Access(self.lifted_names[name], (*map(Index, modes), *(index for _, index in rest)))

    def is_other(self, statement: Assign, mode: int) -> bool:
        """Whether a statement reads nodes other than the edges' ends, or none, and is left to torch."""
        name, relation = statement.target.tensor, self.relation
        choice = choice_of(statement.value)
        if name not in self.program.nodes:
            return False
        if choice is not None:
            return choice.places not in (relation.rows, relation.columns)
        edge = str(statement.target.indices[mode])
        return is_product(statement.value, edge) or not places_of(self.program, statement.value, edge)

    def make(self, statement: Assign, mode: int) -> None:
        """Adds the statement over the relation of a statement over edges."""
        program, name = self.program, statement.target.tensor
        target_names = [str(index) for index in statement.target.indices]
        edge = target_names.pop(mode)
        names = {old: program.index(program.extents[old]) for old in target_names}
        bound = {b for reduction in find(statement.value, Reduce) for b in reduction.indices}
        names |= {b: program.index(program.extents[b]) for b in bound}
        modes = self.modes()
        value = self.lifted(renamed(statement.value, names), edge, modes)
        lifted_name = self.lifted_names[name] = f"{name}_over_{self.relation.name}"
        chosen = Call("where", (Stored(self.entry(modes)), value, Const(0)))
        program.assign(
            lifted_name, (*modes, *(names[old] for old in target_names)), chosen, program.source[name]
        )
        program.dtypes[lifted_name] = program.dtypes[name]


def relate(program: ModelProgram, is_selected: Callable[[str, set[str]], bool]) -> None:
    """Lifts the scatters selected by rules, in place; other gathers and scatters become opaque.

    Args:
        is_selected: whether a rule selects a scatter, by the name of its tensor and the names of its index tensors.
    """
    if not any(choices_in(statement.value) for statement in program.statements.values()):
        return
    narrow(program)
    for name in list(program.statements):
        for choice in scatters_of(program, name):
            attempt(program, partial(weighted, program, name, choice, is_selected))
    groups: dict[str, list[str]] = {}
    for name in list(program.statements):
        for choice in scatters_of(program, name):
            groups.setdefault(choice.places, []).append(name)
    refused: dict[str, str] = {}
    for rows, names in groups.items():
        group = list(dict.fromkeys(names))
        why = attempt(program, partial(lift_group, program, rows, group, is_selected))
        refused |= dict.fromkeys((program.source[name].name for name in group), why)
    drop_choices(program)
    for name, why in refused.items():
        if why and name in program.opaque:
            program.opaque[name] = why
    merge_equal(program)
    program.order()


def attempt(program: ModelProgram, change: Callable[[], None]) -> str:
    """Applies a change to a program; on a refusal restores the program and returns the reason."""
    before = dict(program.statements), dict(program.relations), dict(program.dtypes)
    try:
        change()
    except Refusal as refusal:
        program.statements, program.relations, program.dtypes = before
        return str(refusal)
    return ""


def choices_in(expr: Expr) -> list[Choice]:
    """The gathers and scatters of an expression."""
    return [choice for choice in map(choice_of, find(expr, Reduce)) if choice is not None]


def scatters_of(program: ModelProgram, name: str) -> list[Choice]:
    """The liftable scatters of a statement, of floating-point numbers."""
    if program.dtypes.get(name) not in FLOATS:
        return []
    return [choice for choice in choices_in(program.statements[name].value) if choice.is_scatter]


def narrow(program: ModelProgram) -> None:
    """`n[i,k] = sum(e, where(r[e] == i, 1, 0)) -> n[i] = ..`, for auxiliary statements without nodes."""
    for name, statement in list(program.statements.items()):
        indices = statement.target.indices
        used = [at for at, index in enumerate(indices) if index in find(statement.value, Index)]
        if name in program.nodes or len(used) == len(indices):
            continue
        program.assign(name, tuple(str(indices[at]) for at in used), statement.value, program.source[name])

        def narrowed(node: Node, name: str = name, used: Sequence[int] = tuple(used)) -> Node:
            if isinstance(node, Access) and node.tensor == name:
                return Access(name, tuple(node.indices[at] for at in used))
            return map_children(node, narrowed)

        for reader in program.readers().get(name, ()):
            consumer = program.statements[reader]
            program.statements[reader] = replace(consumer, value=narrowed(consumer.value))  # type: ignore[arg-type]


def weighted(
    program: ModelProgram, name: str, choice: Choice, is_selected: Callable[[str, set[str]], bool]
) -> None:
    """`sum(e, where(r[e] == i, w[e] * sum(j, where(c[e] == j, x[j,k], 0)), 0)) -> sum(j, A[i,j] * x[j,k])`.

    The values of A are the edge weights w, independent of features.
    """
    parts = edge_factors(program, choice.body, choice.edge)
    numbers = [part for part in parts if is_number_of_edge(program, part, choice.edge)]
    if choice.monoid != "sum" or choice.bound != (choice.edge,) or len(numbers) != 1 or len(parts) < 2:
        return
    rest = [part for part in parts if part not in numbers]
    places = Counter(tensor for part in rest for tensor in places_of(program, part, choice.edge))
    columns = next((candidate for candidate in places if candidate != choice.places), None)
    if columns is None or not is_selected(name, {choice.places, columns}):
        return
    (number,) = numbers
    assert isinstance(number, Access), "numbers of edges are tensors"
    read = sizes_read(program, name, choice.places, columns)
    relation = relation_of(program, name, choice, columns, "values", read, number.tensor)
    put(program, name, choice, Lifting(program, relation, set()), rest)


def is_number_of_edge(program: ModelProgram, expr: Expr, edge: str) -> bool:
    """Whether an expression is a tensor with one number per edge, independent of node features."""
    if not isinstance(expr, Access) or expr.indices != (Index(edge),) or expr.tensor not in program.nodes:
        return False
    is_float = dtype_of(program, expr.tensor) in FLOATS
    return is_float and (expr.tensor not in program.statements or is_structural(program, expr.tensor))


def edge_factors(program: ModelProgram, expr: Expr, edge: str) -> list[Expr]:
    """The factors of a message, including factors of inlined products over edges."""
    match expr:
        case Call("mul", (left, right)):
            return edge_factors(program, left, edge) + edge_factors(program, right, edge)
        case Access(name, indices) if Index(edge) in indices and name in program.statements:
            statement = program.statements[name]
            is_product = isinstance(statement.value, Call) and statement.value.function == "mul"
            is_number = len(indices) == 1 and is_structural(program, name)
            if is_product and not is_number and all(isinstance(index, Index) for index in indices):
                names = dict(zip(map(str, statement.target.indices), map(str, indices), strict=True))
                return edge_factors(program, renamed(statement.value, names), edge)
    return [expr]


def lift_group(
    program: ModelProgram, rows: str, group: list[str], is_selected: Callable[[str, set[str]], bool]
) -> None:
    """Lifts the scatters by one index tensor selected by rules, with the scatters that they depend on."""
    group = [name for name in group if name not in program.nodes or not is_structural(program, name)]
    places = Counter(tensor for name in group for tensor in places_of_scatters(program, name, rows))
    columns = next((candidate for candidate, _ in places.most_common() if candidate != rows), None)
    ends = {rows} | ({columns} if columns is not None else set())
    chosen = [name for name in group if is_selected(name, ends)]
    lifted_names = [
        name
        for name in group
        if name in chosen or any(follows(program, candidate, name) for candidate in chosen)
    ]
    kinds: dict[tuple[Size, ...], list[str]] = {}
    for name in sorted(lifted_names, key=lambda name: not sizes_read(program, name, rows, columns)):
        kind = kind_of_nodes(program, name, rows, columns)
        # Edge counts read no sending node: any adjacency with the same number of receivers has them.
        kinds.setdefault(next((key for key in kinds if key[: len(kind)] == kind), kind), []).append(name)
    for names in kinds.values():
        lift_kind(program, rows, columns, names, next((name for name in names if name in chosen), chosen[0]))


def lift_kind(program: ModelProgram, rows: str, columns: str | None, names: list[str], chosen: str) -> None:
    """Lifts scatters by one tensor of places over one adjacency: between as many nodes each."""
    ends = {rows} | ({columns} if columns is not None else set())
    first = next(choice for choice in scatters_of(program, names[0]) if choice.places == rows)
    shared = shared_over_edges(program, names, rows, columns)
    before = dict(program.statements), dict(program.relations)
    bodies = [c.body for name in names for c in scatters_of(program, name) if c.places == rows]
    nodes: By = "distinct" if reads_places(program, bodies, ends) else "nodes"
    read = {size for name in names for size in sizes_read(program, name, rows, columns)}
    kinds: tuple[By, ...] = ("edges",) if rows in program.bounds else (nodes, "edges")
    for by in kinds:  # pairs of nodes suffice without edge data; sorted edges are stored as such
        relation = relation_of(program, chosen, first, columns, by, read)
        try:
            lifting = Lifting(program, relation, shared)
            for name in names:
                for choice in scatters_of(program, name):
                    if choice.places == rows:
                        put(program, name, choice, lifting, [choice.body])
            if by == "nodes" and columns is not None:
                relation_of(program, chosen, first, columns, "logarithms", read)
            return
        except Refusal:
            program.statements, program.relations = dict(before[0]), dict(before[1])
            if by == "edges":
                raise


def kind_of_nodes(program: ModelProgram, name: str, rows: str, columns: str | None) -> tuple[Size, ...]:
    """The numbers of receiving and of sending nodes (if read) of a statement's scatters.

    Export may have two names for one number of nodes, a symbol and a number.
    """
    ends = {
        program.representative(program.extents[c.node])
        for c in scatters_of(program, name)
        if c.places == rows
    }
    read = sizes_read(program, name, rows, columns)
    return (*sorted(ends, key=str), *sorted(read, key=str))


def sizes_read(program: ModelProgram, name: str, rows: str, columns: str | None) -> set[Size]:
    """The numbers of sending nodes gathered by `columns` in the messages of a statement's scatters."""
    return {
        program.representative(program.extents[gather.node])
        for choice in scatters_of(program, name) if choice.places == rows
        for gather in walk_edges(program, choice.body, choice.edge)
        if isinstance(gather, Choice) and gather.places == columns
    }  # fmt: skip


def put(program: ModelProgram, name: str, choice: Choice, lifting: Lifting, parts: Sequence[Expr]) -> None:
    """Writes a reduction over the entries of a relation in place of a scatter."""
    statement = program.statements[name]
    modes = lifting.modes()
    if name not in program.nodes:  # an edge count, in the dtype of the relation
        program.dtypes[name] = lifting.relation.dtype
    if not lifting.is_equal(choice.node, modes[0]):
        raise Refusal("scatters by the same places to different numbers of nodes")
    if lifting.relation.by != "values" and program.dtypes[name] != lifting.relation.dtype:
        raise Refusal(
            f"{name} scatters by the same places in {program.dtypes[name]} and {lifting.relation.dtype}"
        )
    modes[0] = choice.node
    entry = lifting.entry(modes)
    lifted_parts = [lifting.lifted(part, choice.edge, modes) for part in parts]
    if choice.monoid == "sum":
        body: Expr = entry
        for part in lifted_parts:
            body = body if part == Const(1.0) else Call("mul", (body, part))
    else:
        body = Call("where", (Stored(entry), lifted_parts[0], Const(EMPTY[choice.monoid])))
    bound = (*modes[1:], *(b for b in choice.bound if b != choice.edge))
    reduction = Reduce(choice.monoid, bound, body)

    def visit(node: Node) -> Node:
        if isinstance(node, Reduce) and choice_of(node) == choice:
            return reduction
        node = map_children(node, visit)
        match node:
            case Call("add", (Const(0), Reduce() as total)):  # zeros of the same dtype
                return total
        return node

    value = visit(statement.value)
    assert isinstance(value, Expr)
    program.statements[name] = replace(statement, value=simplify(value))


def relation_of(
    program: ModelProgram,
    name: str,
    choice: Choice,
    columns: str | None,
    by: By,
    read: set[Size],
    values: str | None = None,
) -> Relation:
    """The relation of a scatter, a leaf of the program.

    Args:
        name: name of the scattering statement.
        choice: the scatter.
        columns: tensor of the sending nodes, None if unread.
        by: kind of the entries.
        read: numbers of sending nodes.
        values: tensor of the edges' values.

    Raises:
        Refusal: the sending nodes have different numbers.
    """
    receivers, edges = program.extents[choice.node], program.extents[choice.edge]
    if len(read) != (columns is not None):
        raise Refusal("edges start from several kinds of nodes")
    bounds = program.bounds.get(choice.places)
    if bounds is None and not all(is_computed(program, size) for size in (receivers, *read)):
        raise Refusal("how many nodes there are is known in a call alone")
    sizes: dict[By, tuple[Size, ...]] = {"edges": (receivers, edges, *read)}
    sizes["distinct"] = sizes["nodes"] = sizes["values"] = sizes["logarithms"] = (
        receivers,
        *(read or (edges,)),
    )
    extents = sizes[by if columns and bounds is None else "edges"]
    label = "_".join(part for part in (choice.places, columns, values, by) if part)
    while label in program.relations and program.sizes[label] != extents:
        label += "_"
    dtype = name_of(program.source[name].meta["val"].dtype) if values is None else dtype_of(program, values)
    relation = Relation(label, choice.places, columns, by if columns else "edges", dtype, values, bounds)
    program.relations[label] = relation
    program.sizes[label] = extents
    program.dtypes[label] = dtype
    return relation


def is_computed(program: ModelProgram, size: Size) -> bool:
    """Whether an extent is a number, an extent of an input, or computed by a node."""
    if isinstance(size, int) or input_of_expression(program.graph, size) is not None:
        return True
    return number_of_expression(program.graph, size) is not None


def places_of_scatters(program: ModelProgram, name: str, rows: str) -> list[str]:
    """The index tensors of the gathers in scattered messages."""
    scatters = (choice for choice in scatters_of(program, name) if choice.places == rows)
    return [tensor for choice in scatters for tensor in places_of(program, choice.body, choice.edge)]


def places_of(program: ModelProgram, expr: Expr, edge: str) -> list[str]:
    """The index tensors by which an expression over an edge reads nodes."""
    return [gather.places for gather in walk_edges(program, expr, edge) if isinstance(gather, Choice)]


def walk_edges(program: ModelProgram, expr: Expr, edge: str) -> Iterator[Choice | Assign]:
    """The gathers of an expression over an edge, and the statements over edges in the expression, each once."""
    visited: set[str] = set()

    def visit(expr: Expr, edge: str) -> Iterator[Choice | Assign]:
        for choice in choices_in(expr):
            if choice.is_gather and choice.edge == edge:
                yield choice
        for access in find(expr, Access):
            statement = program.statements.get(access.tensor)
            if statement is None or Index(edge) not in access.indices or access.tensor in visited:
                continue
            inner_edge = str(statement.target.indices[access.indices.index(Index(edge))])
            if not is_product(statement.value, inner_edge):
                visited.add(access.tensor)
                yield statement
                yield from visit(statement.value, inner_edge)

    yield from visit(expr, edge)


def shared_over_edges(
    program: ModelProgram, names: Sequence[str], rows: str, columns: str | None
) -> set[str]:
    """The statements over edges with several readers or with a reduction: computed once."""
    over: dict[str, Assign] = {}
    for name in names:
        for choice in scatters_of(program, name):
            if choice.places == rows:
                inner = walk_edges(program, choice.body, choice.edge)
                over |= {s.target.tensor: s for s in inner if isinstance(s, Assign)}
    readers = [*over.values(), *(program.statements[name] for name in names)]
    read = [[access.tensor for access in find(statement.value, Access)] for statement in readers]

    def is_shared(name: str, statement: Assign) -> bool:
        others = sum(name in tensors for tensors in read)
        is_repeated = (
            max(tensors.count(name) for tensors in read) > 1 and not functions_of(statement.value) <= CHEAP
        )
        is_sum = len(find(statement.value, Reduce)) > len(choices_in(statement.value))
        return choice_of(statement.value) is None and (others > 1 or is_repeated or is_sum)

    return {name for name, statement in over.items() if is_shared(name, statement)}


def reads_places(program: ModelProgram, expressions: Iterable[Expr], places: set[str]) -> bool:
    """Whether expressions over edges, or statements in them, use the node numbers of an edge as values."""
    waiting, visited = [a.tensor for e in expressions for a in find(without_choices(e), Access)], set[str]()
    while waiting:
        name = waiting.pop()
        if name in places:
            return True
        if name not in visited and name in program.statements:
            waiting += [a.tensor for a in find(without_choices(program.statements[name].value), Access)]
        visited.add(name)
    return False


def without_choices(expr: Expr) -> Expr:
    """An expression with the gathered body in place of each gather or scatter."""

    def visit(node: Node) -> Node:
        choice = choice_of(node)
        return visit(choice.body) if choice is not None else map_children(node, visit)

    result = visit(expr)
    assert isinstance(result, Expr)
    return result


def is_product(expr: Expr, edge: str) -> bool:
    """Whether an expression multiplies edge features by a matrix: torch's product over all edges is faster."""
    for reduction in find(expr, Reduce):
        read = [access for access in find(reduction.body, Access) if choice_of(reduction) is None]
        of_edges = {index for access in read if Index(edge) in access.indices for index in access.indices}
        if of_edges and any(
            Index(edge) not in access.indices and not of_edges.issuperset(access.indices) for access in read
        ):
            return True
    return False


def is_structural(program: ModelProgram, name: str) -> bool:
    """Whether a tensor is computed from integers and numbers of edges alone, as the degrees of nodes are."""
    visited: set[str] = set()

    def visit(name: str) -> bool:
        if name in visited:
            return True
        visited.add(name)
        if name not in program.statements:
            return is_given(program.nodes.get(name))
        value = program.statements[name].value
        gathered = {a.tensor for c in choices_in(value) if c.is_gather for a in find(c.body, Access)}
        return not any(map(is_real_leaf, gathered)) and all(map(visit, program.reads(name)))

    def is_real_leaf(name: str) -> bool:
        return (
            name not in program.statements
            and program.source[name].op in LEAVES
            and dtype_of(program, name) in FLOATS
        )

    def is_given(node: fx.Node | None) -> bool:
        value = None if node is None else tensor_value(node)
        if node is None or value is None:
            return node is not None and (not is_real(node) or all(map(is_given, node.all_input_nodes)))
        if node.op in LEAVES:
            return not value.is_floating_point() or (node.op == "placeholder" and value.dim() == 1)
        return all(visit(source.name) for source in node.all_input_nodes)

    return visit(name)


def dtype_of(program: ModelProgram, name: str) -> str:
    """The dtype of a tensor, a leaf included."""
    return program.dtypes.get(name) or name_of(program.source[name].meta["val"].dtype)


def merge_equal(program: ModelProgram) -> None:
    """`n[i] = sum(j, A[i,j]); m[i] = sum(j, A[i,j])`: merges equal auxiliary statements into the first."""
    first_names: dict[Node, str] = {}
    same: dict[str, str] = {}
    for name, statement in list(program.statements.items()):
        if name in program.nodes:
            continue
        order = {index: f"at{number}" for number, index in enumerate(index_names(statement))}
        key = renamed(replace(statement, target=Access("", statement.target.indices)), order)
        first = first_names.setdefault(key, name)
        if first != name:
            same[name] = first
            del program.statements[name]

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and node.tensor in same:
            return Access(same[node.tensor], node.indices)
        return map_children(node, visit)

    for name, statement in program.statements.items() if same else ():
        value = visit(statement.value)
        assert isinstance(value, Expr)
        program.statements[name] = replace(statement, value=value)


def drop_choices(program: ModelProgram) -> None:
    """Leaves unlifted gathers and scatters to torch, and removes dead statements, in place."""
    waiting = [name for name, statement in program.statements.items() if choices_in(statement.value)]
    readers = program.readers() if waiting else {}
    while waiting:
        name = waiting.pop()
        if program.statements.pop(name, None) is None:
            continue
        if name in program.nodes:
            program.opaque[name] = UNLIFTED
        else:
            waiting += readers.get(name, ())  # torch computes no part of an operator by itself
    program.drop_unneeded()
