"""A region: graph nodes computed by one einsum program.

In: nodes `%t = linear(%x, %w)`, `%y = index_add(...)`, `%z = add(%y, %b)`, `%r = relu(%z)`.
Out: `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])` over nodes and matrices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Protocol, TypeVar

from torch import fx

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Extent, Index, Program, Reduce
from sparsify.compiler.ir.dtypes import name_of
from sparsify.compiler.ir.node import Node, map_children
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.operands.convolution_operands import FlatImages
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand, SparseOperand, row_scales

# A node, the index variables of its modes and its defining expression.
Statement = tuple[fx.Node, tuple[str, ...], Expr]
SUM_NAMES = ("j", "f", "g", "h", "l", "m", "n", "p", "q", "r")


N = TypeVar("N", bound=Node)


class Equations(Protocol):
    """Statements with textbook names, and the extents that follow from no operand."""

    @property
    def statements(self) -> tuple[Assign, ...]:
        """In order."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The extents without an operand, by index variable."""


@dataclass
class Region:
    """Statements over named operands.

    Attributes:
        statements: (node, indices, value) in order; the last one is the output.
        operands: node or matrix of each name read but not computed by the region.
        covered: all nodes replaced by the region.
        notes: decisions for the report.
        backend: library of the region's product, "" for a kernel.
        is_contested: whether one operator of torch computes the whole region, possibly as fast.
        layout: mapping from the operands of convolution nodes to the program's, None for other programs.
        densely: program inputs whose gradients are computed by the region's nodes, not by a kernel.
        results: result nodes of a program with several results, in the order of program and graph; () for one result.
        equations: statements of a program with formats derived from its operands; None otherwise.
        is_layer: whether the region is a matrix product with a weight operand, for which `pack` times formats.
        dense_form: fastest dense form of the region's nodes as timed, of `dense_forms`; "" for unchanged nodes.
    """

    statements: list[Statement]
    operands: dict[str, fx.Node | SparseOperand]
    covered: list[fx.Node]
    notes: list[str] = field(default_factory=list)
    program: Program | None = None
    names: dict[str, str] = field(default_factory=dict)
    backend: str = ""
    is_contested: bool = False
    layout: FlatImages | None = None
    densely: tuple[str, ...] = ()
    results: tuple[fx.Node, ...] = ()
    equations: "Equations | None" = None
    is_layer: bool = False
    dense_form: str = ""

    @property
    def output(self) -> fx.Node:
        """The node computed by the region, the first of several."""
        return self.outputs[0]

    @property
    def shown(self) -> fx.Node:
        """The node shown for the region in reports."""
        node = info(self.output).shown or self.output
        assert isinstance(node, fx.Node)
        return node

    @property
    def outputs(self) -> tuple[fx.Node, ...]:
        """The nodes computed by the region, in the order of the graph."""
        return self.results or (self.statements[-1][0],)

    @property
    def inputs(self) -> list[fx.Node]:
        """The input nodes of the region."""
        nodes: list[fx.Node | None] = []
        for operand in self.operands.values():
            if isinstance(operand, Matrix):
                extents = [extent for extent in operand.extents or () if isinstance(extent, fx.Node)]
                nodes += [
                    operand.rows,
                    *operand.between,
                    operand.columns,
                    operand.values,
                    operand.dense,
                    *extents,
                ]
            elif isinstance(operand, PatternOperand):
                nodes += operand.size_nodes
            elif isinstance(operand, Bags):
                nodes += operand.inputs
            else:
                nodes.append(operand)
        return [node for node in dict.fromkeys(nodes) if node is not None]

    @property
    def read(self) -> list[fx.Node]:
        """The inputs read by the region's nodes: all but the scales of weights."""
        return [node for node in self.inputs if node.target is not row_scales]

    @property
    def matrices(self) -> list[Matrix]:
        """The sparse operands."""
        return [operand for operand in self.operands.values() if isinstance(operand, Matrix)]


def substitute(expr: Expr, indices: Mapping[str, Expr]) -> Expr:
    """`expr` with index variables replaced."""

    def visit(node: Node) -> Node:
        if isinstance(node, Index) and node.name in indices:
            return indices[node.name]
        return map_children(node, visit)

    result = visit(expr)
    assert isinstance(result, Expr)
    return result


def finish(region: Region) -> None:
    """Writes the program of a region's equations into the region, for its operands' present formats."""
    equations = region.equations
    assert equations is not None, "regions of other roads come with their program"
    operands = {}
    for name, operand in region.operands.items():
        if isinstance(operand, SparseOperand):
            operands[region.names[name]] = operand.declared
        else:
            value = tensor_value(operand)
            assert value is not None, "regions read tensors"
            operands[region.names[name]] = Operand(dense_format(value.dim()), name_of(value.dtype))
    outputs = {region.names[node.name]: name_of(node.meta["val"].dtype) for node in region.outputs}
    region.program = declare_equations(equations.statements, operands, outputs, equations.sizes)


def declare_equations(
    statements: Sequence[Assign],
    operands: Mapping[str, Operand],
    outputs: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Program:
    """The program of some statements; results are dense, formats of temporaries follow from the operands.

    Args:
        outputs: dtype of each result by name: half-precision products of weights in another dtype are rounded.
    """
    program = declare(statements, operands, [*outputs], sizes=sizes)
    sparse = [name for name in outputs if not program.declaration(name).format.is_dense]
    formats = {name: dense_format(len(program.declaration(name).extents)) for name in sparse}
    if sparse:
        program = declare(statements, operands, [*outputs], sizes=sizes, formats=formats)
    typed = [changed(d, dtype=outputs.get(d.name, d.dtype)) for d in program.declarations]
    return changed(program, declarations=tuple(typed))


def rename(node: N, tensors: Mapping[str, str], indices: Mapping[str, str]) -> N:
    """An expression or a statement with short names."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        match node:
            case Index(name):
                return Index(indices[name])
            case Extent(name):
                return Extent(indices[name])
            case Access(tensor, at):
                return Access(tensors[tensor], at)
            case Reduce(monoid, names, body):
                return Reduce(monoid, tuple(indices[name] for name in names), body)
        return node

    return visit(node)  # type: ignore[return-value]


def copied(region: Region) -> Region:
    """A region to try something on."""
    return changed(
        region,
        statements=list(region.statements),
        operands=dict(region.operands),
        covered=list(region.covered),
        notes=list(region.notes),
        program=None,
        names=dict(region.names),
    )
