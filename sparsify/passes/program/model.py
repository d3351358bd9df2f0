"""A model as one einsum program over parameters, inputs and results of opaque operators.

In: nodes `%h = mm(%x, %w); %y = relu(%h); %s = sort(%y)`. Out: `h[i,k] = sum(j, x[i,j] * w[j,k])`, `y[i,k] =
relu(h[i,k])` and `opaque = {"s": "sort: ..."}`. Tensors of programs have no modes of extent 1: `unsqueeze`, `squeeze`,
`expand` and `keepdim` are renamings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Extent, Index, Reduce
from sparsify.compiler.ir.node import find

# The modes of a matrix.
MATRIX: Final = 2


class Refusal(Exception):
    """Why an operator has no meaning in index notation for the arguments of a node."""


# The extent of a mode: a number, or a symbolic expression from export.
Size = Any


# The entries of a relation. Over pairs of nodes: the number of edges, at most one for `distinct`, its logarithm, or the
# sum of edge values; or edges with their numbers as a mode.
By = Literal["nodes", "distinct", "logarithms", "values", "edges"]


@dataclass(frozen=True)
class Relation:
    """An adjacency: `A[i,j]` counts or weights edges from j to i, `A[i,e,j]` and `A[i,e]` are 1 at edge e.

    Attributes:
        name: name of the leaf.
        rows, columns: tensors of receiving and sending nodes; None where the sender is not read.
        by: kind of the entries.
        dtype: dtype of the values.
        values: tensor of the edges' values, None where each counts as 1.
        bounds: tensor with the first edge of each node, for edges sorted by receiver.
    """

    name: str
    rows: str
    columns: str | None
    by: By
    dtype: str
    values: str | None = None
    bounds: str | None = None

    @property
    def inputs(self) -> list[str]:
        """The source tensors of the relation."""
        return [name for name in (self.bounds or self.rows, self.columns, self.values) if name is not None]

    @property
    def is_numbered(self) -> bool:
        """Whether the number of an edge is a separate mode."""
        return self.by == "edges" or self.bounds is not None


def size_of(extent: Any) -> Size:
    """An extent of a fake tensor as a number or as a symbolic expression; no shape guard is added."""
    if isinstance(extent, int):
        return extent
    expression = extent.node.expr
    return int(expression) if expression.is_Integer else expression


def sizes_of(value: torch.Tensor) -> tuple[Size, ...]:
    """The extents of all modes of a fake tensor."""
    return tuple(map(size_of, value.shape))


@dataclass
class ModelProgram:
    """Statements over named tensors, with their source graph.

    Attributes:
        graph: the captured graph.
        statements: statements by target tensor, in topological order.
        source: node of each tensor, by name; auxiliary statements of a row have the node of the row's result.
        opaque: refusal of each node left to torch's operator, by node name.
        extents: number of coordinates, by index variable.
        sizes: extents of the modes of each tensor, without modes of extent 1.
        dtypes: dtype of each tensor.
        nodes: nodes of the graph, by name.
        constants: tensors computed once, from parameters alone.
        equal: union-find of symbolic extents made equal by operators, such as the lengths of keys and values.
        weights: sparse parameters and tensors computed once from them, whose products are separate regions.
        relations: adjacencies among the leaves, by name.
        inferred: memoized storage of each tensor's statement, with the statement and its operands' storage.
        letters: fixed textbook names of tensors and index variables.
        bounds: tensor with the start of each index, by tensor of ascending indices.
    """

    graph: fx.Graph
    statements: dict[str, Assign] = field(default_factory=dict)
    source: dict[str, fx.Node] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    extents: dict[str, Size] = field(default_factory=dict)
    sizes: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, fx.Node] = field(init=False)
    constants: set[str] = field(default_factory=set)
    equal: dict[Size, Size] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    relations: dict[str, Relation] = field(default_factory=dict)
    inferred: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _reads: dict[str, tuple[Assign, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.graph.nodes}

    def index(self, extent: Size) -> str:
        """A new index variable of a given extent."""
        name = f"i{next(self._numbers)}"
        self.extents[name] = extent
        return name

    def unite(self, first: Size, second: Size) -> None:
        """Records that two extents are equal whenever the operator is valid."""
        first, second = self.representative(first), self.representative(second)
        if first != second:
            symbol, other = (first, second) if isinstance(second, int) else (second, first)
            self.equal[symbol] = other

    def representative(self, extent: Size) -> Size:
        """The representative of all extents equal to a given one."""
        while extent in self.equal:
            extent = self.equal[extent]
        return extent

    def leaf(self, node: fx.Node) -> str:
        """The name of a node among the tensors of the program."""
        if node.name not in self.source:
            self.source[node.name] = node
            self.sizes[node.name] = tuple(size for size in sizes_of(node.meta["val"]) if size != 1)
        return node.name

    def assign(self, name: str, indices: tuple[str, ...], value: Expr, source: fx.Node) -> None:
        """Adds `name[indices] = value`, a tensor of the node `source`."""
        self.statements[name] = Assign(Access(name, tuple(map(Index, indices))), None, value)
        self.source[name] = source
        self.sizes[name] = tuple(self.extents[index] for index in indices)

    def reads(self, name: str) -> list[str]:
        """The tensors read by a statement, each once."""
        statement = self.statements[name]
        cached = self._reads.get(name)
        if cached is None or cached[0] is not statement:
            read = list(dict.fromkeys(access.tensor for access in find(statement.value, Access)))
            cached = self._reads[name] = statement, read
        return cached[1]

    def inputs_of(self, name: str) -> list[str]:
        """The tensors read by a statement, or the inputs of a node without a statement."""
        if name in self.statements:
            return self.reads(name)
        return self.node_inputs(name)

    def node_inputs(self, name: str) -> list[str]:
        """The inputs of a node or a relation; none for a constant."""
        if name in self.relations:
            return self.relations[name].inputs
        if name in self.constants or name not in self.nodes:
            return []
        return [node.name for node in self.nodes[name].all_input_nodes]

    def readers(self) -> dict[str, set[str]]:
        """The present readers of each tensor, by tensor."""
        readers_of: dict[str, set[str]] = {}
        for name in self.statements:
            for read in self.reads(name):
                readers_of.setdefault(read, set()).add(name)
        return readers_of

    def reads_weight(self, expr: Expr) -> bool:
        """Whether an expression has a sum over the entries of a sparse parameter with at most two modes."""
        read = (access for part in find(expr, Reduce) for access in find(part, Access))
        return any(access.tensor in self.weights and len(access.indices) <= MATRIX for access in read)

    def drop_unneeded(self) -> None:
        """Removes dead statements, unneeded by the caller and by opaque operators."""
        needed, waiting = set[str](), [node.name for node in self.graph.output_node().all_input_nodes]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += self.inputs_of(name)
        for name in self.statements.keys() - needed:
            del self.statements[name]

    def order(self) -> None:
        """Sorts the statements in topological order."""
        done: dict[str, Assign] = {}

        def put(name: str) -> None:
            if name in done or name not in self.statements:
                return
            for read in self.reads(name):
                put(read)
            done[name] = self.statements[name]

        for name in list(self.statements):
            put(name)
        self.statements = done

    def __str__(self) -> str:
        return "\n".join(map(str, self.statements.values()))


def index_names(statement: Assign) -> list[str]:
    """All index variables of a statement, each once: of target, accesses, reductions and extents."""
    bound = [name for reduction in find(statement.value, Reduce) for name in reduction.indices]
    named = [part.name for part in find(statement, Index, Extent) if isinstance(part, Index | Extent)]
    return list(dict.fromkeys([*named, *bound]))


def require_extents(program: ModelProgram, statement: Assign) -> None:
    """Checks that each plain index variable has the extent of every mode indexed by it.

    A plain index *implies* the extent of its mode: `x[i]` over fewer coordinates than the extent of `x` is written `x[i
    + 0]`.

    Raises:
        Refusal: an index variable has another extent, as far as known from export.
    """
    for access in find(statement, Access):
        sizes = program.sizes[access.tensor]
        if len(sizes) != len(access.indices):
            raise Refusal(f"{access} has {len(access.indices)} indices, {access.tensor} {len(sizes)} modes")
        for index, size in zip(access.indices, sizes, strict=True):
            if isinstance(index, Index) and program.representative(
                program.extents[index.name]
            ) != program.representative(size):
                variable_extent = program.extents[index.name]
                if is_of_data(variable_extent) and is_of_data(size):
                    program.unite(variable_extent, size)
                    continue
                raise Refusal(f"{index} of {access} has {variable_extent} coordinates, the mode {size}")


def is_of_data(size: Size) -> bool:
    """Whether an extent is data-dependent, as the number of edges other than loops.

    Export gives equal counts different names at different nodes; operators that run have found them equal.
    """
    return not isinstance(size, int) and any(str(symbol).startswith("u") for symbol in size.free_symbols)
