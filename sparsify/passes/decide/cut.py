"""The cut of a model program into regions: selection and extent of fusion groups.

In: a program, and the storage of its tensors. Out: cuts in topological order: statements with sparse tensors, followed
by dense statements that compute each entry from the same entry of a result. Cuts are convex: no operand of a cut
depends on its results.
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
    """Statements computed by one region.

    Attributes:
        statements: statements in order.
        outputs: names of the tensors with outside readers.
    """

    statements: list[Assign]
    outputs: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The computed tensors."""
        return [statement.target.tensor for statement in self.statements]

    @property
    def operands(self) -> list[str]:
        """The tensors read but not computed."""
        own = set(self.names)
        read = dict.fromkeys(a.tensor for s in self.statements for a in find(s.value, Access))
        return [name for name in read if name not in own]


def kept(program: ModelProgram) -> set[str]:
    """The tensors read by opaque operators or by the caller."""
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
    """The regions of a program; none without sparse tensors.

    Args:
        alone: tensors that must not be fused with their readers.
        most: maximum number of statements in a region.
    """
    cuts: list[Cut] = []
    place: dict[str, Cut] = {}  # cut of each computed tensor, by name
    edges: dict[int, set[int]] = {}  # cuts read by each cut
    behind: dict[str, set[int]] = {}  # cuts that a tensor outside of cuts depends on, by name

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
    """Whether a statement is a weight product with epilogue: a separate region with a packed weight."""
    sums = find(program.statements[name].value, Reduce)
    return not storage.is_sparse(name) and any(is_multilinear(p) and program.reads_weight(p) for p in sums)


def sparse_inputs(program: ModelProgram, storage: Storage, read: list[str]) -> set[str]:
    """The sparse inputs of the model among some tensors, shared by all results of one region."""
    leaves = (name for name in read if name in storage.leaves)
    return {name for name in leaves if name in program.relations or program.nodes[name].op != "get_attr"}


def touches_sparse(program: ModelProgram, storage: Storage, name: str) -> bool:
    """Whether a statement omits anything: its own fill, or terms of a reduction.

    `sum(k, square(x[i,k] - w[j,k]))` reads a sparse w and omits nothing.
    """
    if storage.is_sparse(name):
        return True
    reductions = find(program.statements[name].value, Reduce)
    return any(not is_dense(storage.sparsity(reduction.body)) for reduction in reductions)


def is_dense(sparsity: Sparsity) -> bool:
    """Whether an expression has an individual value at each coordinate."""
    return sparsity.fill is None or sparsity.is_number


def is_gathered(statement: Assign, found: Cut, storage: Storage) -> bool:
    """Whether a statement gathers from a dense result of a cut, which must be complete first.

    `sum(j, A[i,j] * T[j,k])` with T of a first layer is a separate region: kernels cannot share their loops. Vectors,
    such as degrees, are small enough to be computed before.
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
    """All dependencies of a tensor, by its statement and by its node."""
    read = program.reads(name) if name in program.statements else []
    return list(dict.fromkeys([*read, *program.node_inputs(name)]))


def in_order(program: ModelProgram) -> list[str]:
    """The names of statements and nodes in topological order."""
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
    """Whether a tensor, alone in another cut, may move: the cuts share no sparse input.

    `A @ (X @ W)` with X and A sparse is ordered by cost; `A @ (A @ X)` is two regions.
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
    """Adds products of matrices, `x @ w + b`, to the cut that is their only reader, unless kept apart.

    Returns:
        the added products.
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
    """Whether all readers of a tensor in a cut are sums of products, which may be reordered.

    A weight is packed for the product with its own rows.
    """
    sums = [part for s in found.statements for part in find(s.value, Reduce) if is_multilinear(part)]
    sums = [part for part in sums if not program.reads_weight(part)]
    within = sum(access.tensor == name for part in sums for access in find(part, Access))
    return within == sum(access.tensor == name for s in found.statements for access in find(s.value, Access))


def complete(program: ModelProgram, found: Cut) -> None:
    """Adds the missing statements read by a cut that correspond to no node of the graph."""
    while missing := [
        name for name in found.operands if name in program.statements and name not in program.nodes
    ]:
        found.statements[:0] = [program.statements[name] for name in missing]
    place = {name: number for number, name in enumerate(program.statements)}
    found.statements.sort(key=lambda statement: place[statement.target.tensor])


def note_outputs(program: ModelProgram, cuts: list[Cut], place: dict[str, Cut]) -> None:
    """Records the outputs of cuts, the tensors with outside readers, and removes dead statements."""
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
    """The statements of a cut on which some of its tensors depend."""
    wanted = set(outputs)
    statements: list[Assign] = []
    for statement in reversed(found.statements):
        if statement.target.tensor in wanted:
            statements.insert(0, statement)
            wanted |= {access.tensor for access in find(statement.value, Access)}
    return Cut(statements, outputs)
