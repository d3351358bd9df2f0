"""The cut of a model program into regions: their statements, and where each ends.

In: a program, and how its tensors are stored. Out: cuts, in an order in which they can be computed: statements that
touch something sparse, with dense ones behind them that compute each entry from the same entry of a result.

Cuts are convex: nothing that a cut reads follows from what it computes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from sparsify.compiler.einsum.infer.sparsity import Sparsity
from sparsify.compiler.einsum.nodes import Access, Assign, Reduce
from sparsify.compiler.ir.node import find
from sparsify.passes.program.infer import Storage
from sparsify.passes.program.model import MATRIX, ModelProgram
from sparsify.passes.rewrite.simplify import functions_of, is_multilinear

# Functions of a product with a bias.
LINEAR: Final = frozenset(("mul", "add"))


@dataclass
class Cut:
    """Statements that one region computes.

    Attributes:
        statements: in order.
        outputs: the names of the tensors that are read outside.
    """

    statements: list[Assign]
    outputs: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The tensors that it computes."""
        return [statement.target.tensor for statement in self.statements]

    @property
    def operands(self) -> list[str]:
        """The tensors that it reads and does not compute."""
        own = set(self.names)
        read = dict.fromkeys(a.tensor for s in self.statements for a in find(s.value, Access))
        return [name for name in read if name not in own]


def kept(program: ModelProgram) -> set[str]:
    """The tensors that opaque operators or the caller read."""
    waiting = [node.name for node in program.graph.output_node().all_input_nodes]
    found, seen = set(waiting), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        read = program.inputs_of(name)
        if name not in program.statements:
            found.update(read)
        waiting += read
    return found


def cut(program: ModelProgram, storage: Storage, alone: Collection[str], most: int) -> list[Cut]:
    """The regions of a program; none where nothing touches a sparse tensor.

    Args:
        alone: tensors that no region computes together with what reads them.
        most: statements of a region.
    """
    cuts: list[Cut] = []
    place: dict[str, Cut] = {}  # by name the cut that computes a tensor
    edges: dict[int, set[int]] = {}  # by cut those that it reads from
    behind: dict[str, set[int]] = {}  # by name those that a tensor outside of cuts follows from

    def reached(numbers: set[int]) -> set[int]:
        found, waiting = set(numbers), list(numbers)
        while waiting:
            new = edges[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    def outside(read: list[str], own: Cut | None) -> set[int]:
        others = (name for name in read if own is None or place.get(name) is not own)
        return set[int]().union(*({id(place[n])} if n in place else behind[n] for n in others))

    for name in in_order(program):
        statement = program.statements.get(name)
        behind[name] = outside(dependencies(program, name), None)
        if statement is None:
            continue
        read = program.reads(name)
        known = [found for found in cuts if any(place.get(tensor) is found for tensor in read)]
        is_alone = program.source[name].name in alone
        shared = set() if is_alone else sparse_inputs(program, storage, read)
        known = [found for found in cuts if shared & set(found.operands) and found not in known] + known
        known = [f for f in known if not is_gathered(statement, f, storage) and len(f.statements) < most]
        known = [f for f in known if not any(place.get(tensor) is f for tensor in read if tensor in alone)]
        known = [] if is_layer(program, storage, name) else known
        fitting = [found for found in known if id(found) not in reached(outside(read, found))]
        touches = touches_sparse(program, storage, name) or is_layer(program, storage, name)
        wanted = (
            fitting if touches else [found for found in fitting if is_epilogue(statement, found, storage)]
        )
        if not wanted and not touches:
            continue
        joined = wanted[-1] if wanted else Cut([])
        if not wanted:
            cuts.append(joined)
        joined.statements.append(statement)
        edges.setdefault(id(joined), set()).update(outside(read, joined))
        place[name] = joined
    apart = {*alone, *kept(program)}
    for found in cuts:
        if len(found.statements) < most:
            others = {n for n in found.operands if n in place and not is_free(n, found, place, storage)}
            taken = take_products(program, found, apart | others)
            place.update(dict.fromkeys(taken, found))
        complete(program, found)
    cuts = [found for found in cuts if any(place[name] is found for name in found.names if name in place)]
    note_outputs(program, cuts, place)
    return [found for found in cuts if found.outputs]


def is_layer(program: ModelProgram, storage: Storage, name: str) -> bool:
    """Whether a statement is a product with a weight, and its epilogue: a region by itself, for which it is packed."""
    sums = find(program.statements[name].value, Reduce)
    return not storage.is_sparse(name) and any(is_multilinear(p) and program.reads_weight(p) for p in sums)


def sparse_inputs(program: ModelProgram, storage: Storage, read: list[str]) -> set[str]:
    """The sparse inputs of the model among some tensors: one region reads them for several results."""
    leaves = (name for name in read if name in storage.leaves)
    return {name for name in leaves if name in program.relations or program.nodes[name].op != "get_attr"}


def touches_sparse(program: ModelProgram, storage: Storage, name: str) -> bool:
    """Whether a statement leaves something out: its own fill, or terms of a reduction.

    `sum(k, square(x[i,k] - w[j,k]))` reads a sparse w and leaves out nothing.
    """
    if storage.is_sparse(name):
        return True
    reductions = find(program.statements[name].value, Reduce)
    return any(not is_dense(storage.sparsity(reduction.body)) for reduction in reductions)


def is_dense(sparsity: Sparsity) -> bool:
    """Whether an expression has a value of its own at each coordinate."""
    return sparsity.fill is None or sparsity.is_number


def is_gathered(statement: Assign, found: Cut, storage: Storage) -> bool:
    """Whether a statement reads a dense result of a cut at other entries than its own: all of it must be there first.

    `sum(j, A[i,j] * T[j,k])` with T of a first layer is a region of its own: kernels cannot share their loops.
    Vectors, such as degrees, are small enough to be computed before.
    """
    dense = {name for name in found.names if not storage.is_sparse(name)}
    own = {name for name in dense if len(storage.program.sizes[name]) > 1}
    read = [access for access in find(statement.value, Access) if access.tensor in own]
    return any(not set(access.indices) <= set(statement.target.indices) for access in read)


def is_epilogue(statement: Assign, found: Cut, storage: Storage) -> bool:
    """Whether a dense statement computes each entry from the same entry of a cut's dense results."""
    own = set(found.names)
    read = [access for access in find(statement.value, Access) if access.tensor in own]
    return not find(statement.value, Reduce) and all(
        access.indices == statement.target.indices and not storage.is_sparse(access.tensor) for access in read
    )


def dependencies(program: ModelProgram, name: str) -> list[str]:
    """All that a tensor follows from, whether its statement or its node computes it."""
    read = program.reads(name) if name in program.statements else []
    return list(dict.fromkeys([*read, *program.node_inputs(name)]))


def in_order(program: ModelProgram) -> list[str]:
    """The names of statements and nodes, each after all that it follows from."""
    done: dict[str, None] = {}

    def put(name: str) -> None:
        if name in done:
            return
        for read in dependencies(program, name):
            put(read)
        done[name] = None

    for name in (*(node.name for node in program.graph.nodes), *program.statements):
        put(name)
    return list(done)


def is_free(name: str, found: Cut, place: dict[str, Cut], storage: Storage) -> bool:
    """Whether a tensor that another cut computes, and nothing else, may move: the cuts read no sparse input together.

    `A @ (X @ W)` with X and A sparse has the order that is cheaper; `A @ (A @ X)` is two regions.
    """
    other, program = place[name], storage.program
    return (
        other is not found
        and other.names == [name]
        and not (
            sparse_inputs(program, storage, other.operands) & sparse_inputs(program, storage, found.operands)
        )
    )


def take_products(program: ModelProgram, found: Cut, apart: Collection[str]) -> list[str]:
    """Adds to a cut the products of matrices, `x @ w + b`, that it alone reads, but those that stay apart.

    Returns:
        the products.
    """
    readers, own, taken = program.readers(), set(found.names), []
    for name in found.operands:
        statement = program.statements.get(name)
        if statement is None or name in apart or readers[name] - own:
            continue
        sums = find(statement.value, Reduce)
        is_product = len(sums) == 1 and is_multilinear(sums[0]) and functions_of(statement.value) <= LINEAR
        if is_product and len(statement.target.indices) == MATRIX and is_multiplied(program, found, name):
            found.statements.insert(0, statement)
            taken.append(name)
    return taken


def is_multiplied(program: ModelProgram, found: Cut, name: str) -> bool:
    """Whether all that reads a tensor in a cut are sums of products: their order may be another one.

    A weight is packed for the product with its own rows.
    """
    sums = [part for s in found.statements for part in find(s.value, Reduce) if is_multilinear(part)]
    sums = [part for part in sums if not program.reads_weight(part)]
    within = sum(access.tensor == name for part in sums for access in find(part, Access))
    return within == sum(access.tensor == name for s in found.statements for access in find(s.value, Access))


def complete(program: ModelProgram, found: Cut) -> None:
    """Adds to a cut the statements that it reads and that no node of the graph computes by itself."""
    while missing := [
        name for name in found.operands if name in program.statements and name not in program.nodes
    ]:
        found.statements[:0] = [program.statements[name] for name in missing]
    place = {name: number for number, name in enumerate(program.statements)}
    found.statements.sort(key=lambda statement: place[statement.target.tensor])


def note_outputs(program: ModelProgram, cuts: list[Cut], place: dict[str, Cut]) -> None:
    """Writes into cuts which of their tensors are read outside, and leaves out what nothing needs then."""
    outputs: dict[str, None] = {}
    seen: set[str] = set()
    waiting = [node.name for node in program.graph.output_node().all_input_nodes]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in place:
            waiting += program.node_inputs(name)
            continue
        outputs[name] = None
        waiting += needed(place[name], [name]).operands
    for found in cuts:
        found.outputs = [name for name in found.names if name in outputs]
        found.statements = needed(found, found.outputs).statements


def needed(found: Cut, outputs: list[str]) -> Cut:
    """The statements of a cut that some of its tensors follow from."""
    wanted = set(outputs)
    statements: list[Assign] = []
    for statement in reversed(found.statements):
        if statement.target.tensor in wanted:
            statements.insert(0, statement)
            wanted |= {access.tensor for access in find(statement.value, Access)}
    return Cut(statements, outputs)
