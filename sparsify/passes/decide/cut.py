"""The cut of a model program into regions: selection and extent of fusion groups.

In: a program, and the storage of its tensors. Out: cuts in topological order: statements with sparse tensors, followed
by dense statements that compute each entry from the same entry of a result. Cuts are convex: no operand of a cut
depends on its results.
"""

from collections.abc import Collection, Mapping, Sequence
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
        computed = set(self.names)
        read = dict.fromkeys(a.tensor for s in self.statements for a in find(s.value, Access))
        return [name for name in read if name not in computed]


def read_outside(program: ModelProgram) -> set[str]:
    """The tensors read by opaque operators or by the caller."""
    waiting = [node.name for node in program.graph.output_node().all_input_nodes]
    reads, visited = set(waiting), set[str]()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        read = program.inputs_of(name)
        if name not in program.statements:
            reads.update(read)
        waiting += read
    return reads


def cut(program: ModelProgram, storage: Storage, alone: Collection[str], most: int) -> list[Cut]:
    """The regions of a program; none without sparse tensors.

    Args:
        alone: tensors that must not be fused with their readers.
        most: maximum number of statements in a region.
    """
    cuts: list[Cut] = []
    cut_of: dict[str, Cut] = {}  # cut of each computed tensor, by name
    edges: dict[int, set[int]] = {}  # cuts read by each cut
    behind: dict[str, set[int]] = {}  # cuts that a tensor outside of cuts depends on, by name

    def reached(numbers: set[int]) -> set[int]:
        visited, waiting = set(numbers), list(numbers)
        while waiting:
            new = edges[waiting.pop()] - visited
            visited |= new
            waiting += new
        return visited

    def outside(read: list[str], reader: Cut | None) -> set[int]:
        others = (name for name in read if reader is None or cut_of.get(name) is not reader)
        return set[int]().union(*({id(cut_of[n])} if n in cut_of else behind[n] for n in others))

    for name in in_order(program):
        statement = program.statements.get(name)
        behind[name] = outside(dependencies(program, name), None)
        if statement is None:
            continue
        read = program.reads(name)
        candidates = candidates_for(program, storage, name, cuts, cut_of, alone, most)
        fitting = [one for one in candidates if id(one) not in reached(outside(read, one))]
        touches = touches_sparse(program, storage, name) or is_layer(program, storage, name)
        targets = fitting if touches else [one for one in fitting if is_epilogue(statement, one, storage)]
        if not targets and not touches:
            continue
        joined = targets[-1] if targets else Cut([])
        if not targets:
            cuts.append(joined)
        joined.statements.append(statement)
        edges.setdefault(id(joined), set()).update(outside(read, joined))
        cut_of[name] = joined
    unfused = {*alone, *read_outside(program)}
    for one in cuts:
        if len(one.statements) < most:
            others = {n for n in one.operands if n in cut_of and not is_free(n, one, cut_of, storage)}
            taken = take_products(program, one, unfused | others)
            cut_of.update(dict.fromkeys(taken, one))
        complete(program, one)
    cuts = [one for one in cuts if any(cut_of[name] is one for name in one.names if name in cut_of)]
    note_outputs(program, cuts, cut_of)
    return [one for one in cuts if one.outputs]


def candidates_for(
    program: ModelProgram,
    storage: Storage,
    name: str,
    cuts: Sequence[Cut],
    cut_of: Mapping[str, Cut],
    alone: Collection[str],
    most: int,
) -> list[Cut]:
    """The cuts that a statement may join: cuts with a shared sparse operand, then cuts with its operands.

    Args:
        name: target of the statement.
        cuts: earlier cuts.
        cut_of: cut of each computed tensor.
        alone, most: as for `cut`.
    """
    if is_layer(program, storage, name):
        return []
    statement, read = program.statements[name], program.reads(name)
    shared = set() if program.source[name].name in alone else sparse_inputs(program, storage, read)
    by_operands = [one for one in cuts if any(cut_of.get(tensor) is one for tensor in read)]
    by_shared = [one for one in cuts if shared & set(one.operands) and one not in by_operands]
    return [
        one
        for one in by_shared + by_operands
        if not is_gathered(statement, one, storage)
        and len(one.statements) < most
        and not any(cut_of.get(tensor) is one for tensor in read if tensor in alone)
    ]


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


def is_gathered(statement: Assign, cut: Cut, storage: Storage) -> bool:
    """Whether a statement gathers from a dense result of a cut, which must be complete first.

    `sum(j, A[i,j] * T[j,k])` with T of a first layer is a separate region: kernels cannot share their loops. Vectors,
    such as degrees, are small enough to be computed before.
    """
    dense = {name for name in cut.names if not storage.is_sparse(name)}
    dense_matrices = {name for name in dense if len(storage.program.sizes[name]) > 1}
    read = [access for access in find(statement.value, Access) if access.tensor in dense_matrices]
    return any(not set(access.indices) <= set(statement.target.indices) for access in read)


def is_epilogue(statement: Assign, cut: Cut, storage: Storage) -> bool:
    """Whether a dense statement computes each entry from the same entry of a cut's dense results."""
    computed = set(cut.names)
    read = [access for access in find(statement.value, Access) if access.tensor in computed]
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


def is_free(name: str, cut: Cut, cut_of: dict[str, Cut], storage: Storage) -> bool:
    """Whether a tensor, alone in another cut, may move: the cuts share no sparse input.

    `A @ (X @ W)` with X and A sparse is ordered by cost; `A @ (A @ X)` is two regions.
    """
    other, program = cut_of[name], storage.program
    return (
        other is not cut
        and other.names == [name]
        and not (
            sparse_inputs(program, storage, other.operands) & sparse_inputs(program, storage, cut.operands)
        )
    )


def take_products(program: ModelProgram, cut: Cut, unfused: Collection[str]) -> list[str]:
    """Adds products of matrices, `x @ w + b`, to the cut that is their only reader, unless kept apart.

    Returns:
        the added products.
    """
    readers, computed, taken = program.readers(), set(cut.names), []
    for name in cut.operands:
        statement = program.statements.get(name)
        if statement is None or name in unfused or readers[name] - computed:
            continue
        sums = find(statement.value, Reduce)
        is_product = len(sums) == 1 and is_multilinear(sums[0]) and functions_of(statement.value) <= LINEAR
        if is_product and len(statement.target.indices) == MATRIX and is_multiplied(program, cut, name):
            cut.statements.insert(0, statement)
            taken.append(name)
    return taken


def is_multiplied(program: ModelProgram, cut: Cut, name: str) -> bool:
    """Whether all readers of a tensor in a cut are sums of products, which may be reordered.

    A weight is packed for the product with its own rows.
    """
    sums = [part for s in cut.statements for part in find(s.value, Reduce) if is_multilinear(part)]
    sums = [part for part in sums if not program.reads_weight(part)]
    within = sum(access.tensor == name for part in sums for access in find(part, Access))
    return within == sum(access.tensor == name for s in cut.statements for access in find(s.value, Access))


def complete(program: ModelProgram, cut: Cut) -> None:
    """Adds the missing statements read by a cut that correspond to no node of the graph."""
    while missing := [
        name for name in cut.operands if name in program.statements and name not in program.nodes
    ]:
        cut.statements[:0] = [program.statements[name] for name in missing]
    order = {name: number for number, name in enumerate(program.statements)}
    cut.statements.sort(key=lambda statement: order[statement.target.tensor])


def note_outputs(program: ModelProgram, cuts: list[Cut], cut_of: dict[str, Cut]) -> None:
    """Records the outputs of cuts, the tensors with outside readers, and removes dead statements."""
    outputs: dict[str, None] = {}
    visited: set[str] = set()
    waiting = [node.name for node in program.graph.output_node().all_input_nodes]
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        if name not in cut_of:
            waiting += program.node_inputs(name)
            continue
        outputs[name] = None
        waiting += needed(cut_of[name], [name]).operands
    for cut in cuts:
        cut.outputs = [name for name in cut.names if name in outputs]
        cut.statements = needed(cut, cut.outputs).statements


def needed(cut: Cut, outputs: list[str]) -> Cut:
    """The statements of a cut on which some of its tensors depend."""
    needed_names = set(outputs)
    statements: list[Assign] = []
    for statement in reversed(cut.statements):
        if statement.target.tensor in needed_names:
            statements.insert(0, statement)
            needed_names |= {access.tensor for access in find(statement.value, Access)}
    return Cut(statements, outputs)
