"""A region: graph nodes that one einsum program computes.

In: fragments of `%t = linear(%x, %w)`, `%y = index_add(...)`, `%z = add(%y, %b)`, `%r = relu(%z)`.
Out: `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])` over nodes and
matrices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import chain, count
from typing import Protocol, TypeVar

from torch import fx

from sparsify.compiler.dtypes import name_of
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.extents import equal_extents
from sparsify.compiler.einsum.infer_format import dense_format
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Expr, Extent, Index, Program, Reduce
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.compiler.node import Node, find, map_children, walk
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import parameter_behind, tensor_value
from sparsify.passes.operands.convolution_operands import FlatImages
from sparsify.passes.region.fragment import Fragment
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand, row_scales
from sparsify.storage.format import Format

# A node, the index variables of its modes and what computes it.
Statement = tuple[fx.Node, tuple[str, ...], Expr]
SUM_NAMES = ("j", "f", "g", "h", "l", "m", "n", "p", "q", "r")


N = TypeVar("N", bound=Node)


class Equations(Protocol):
    """Statements under the names that textbooks use, and the extents that no operand gives."""

    @property
    def statements(self) -> tuple[Assign, ...]:
        """In order."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """By index variable."""


@dataclass
class Region:
    """Statements over named operands.

    Attributes:
        statements: (node, indices, value) in order; the last one is the output.
        operands: the node or matrix behind every name that is read and not computed here.
        covered: all nodes that the region replaces.
        notes: decisions for the report.
        backend: the library whose product computes it, "" for a kernel.
        is_contested: whether torch has an operator of its own for all of it, which may be as fast.
        layout: how the operands of a convolution's program follow from those of its nodes, None for other programs.
        densely: the inputs of its program whose gradients its nodes compute, not a kernel.
        results: the nodes whose values a program of several results computes, in its order and that of the graph; ()
            for one result.
        equations: the statements of a program whose formats follow from those of its operands; None where `finish`
            writes them.
    """

    statements: list[Statement]
    operands: dict[str, fx.Node | Matrix | PatternOperand | Bags]
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

    @property
    def output(self) -> fx.Node:
        """The node whose value the region computes, the first one of several."""
        return self.outputs[0]

    @property
    def shown(self) -> fx.Node:
        """The node that stands for the region in reports."""
        found = info(self.output).shown or self.output
        assert isinstance(found, fx.Node)
        return found

    @property
    def outputs(self) -> tuple[fx.Node, ...]:
        """The nodes whose values the region computes, in the order of the graph."""
        return self.results or (self.statements[-1][0],)

    @property
    def inputs(self) -> list[fx.Node]:
        """The nodes that the region reads."""
        found: list[fx.Node | None] = []
        for operand in self.operands.values():
            if isinstance(operand, Matrix):
                extents = [extent for extent in operand.extents or () if isinstance(extent, fx.Node)]
                found += [
                    operand.rows,
                    *operand.between,
                    operand.columns,
                    operand.values,
                    operand.dense,
                    *extents,
                ]
            elif isinstance(operand, PatternOperand):
                found += operand.size_nodes
            elif isinstance(operand, Bags):
                found += operand.inputs
            else:
                found.append(operand)
        return [node for node in dict.fromkeys(found) if node is not None]

    @property
    def read(self) -> list[fx.Node]:
        """Those of them that its nodes read: all but the scales of weights."""
        return [node for node in self.inputs if node.target is not row_scales]

    @property
    def matrices(self) -> list[Matrix]:
        """The sparse operands."""
        return [operand for operand in self.operands.values() if isinstance(operand, Matrix)]


def of_fragment(fragment: Fragment) -> Region:
    """The region of one fragment."""
    statement = (fragment.node, fragment.indices, fragment.value)
    return Region([statement], dict(fragment.operands), [fragment.node, *fragment.covered])


def place(expr: Expr, indices: Mapping[str, Expr]) -> Expr:
    """`expr` with index variables replaced."""

    def visit(node: Node) -> Node:
        if isinstance(node, Index) and node.name in indices:
            return indices[node.name]
        return map_children(node, visit)

    result = visit(expr)
    assert isinstance(result, Expr)
    return result


def inline(expr: Expr, name: str, indices: tuple[str, ...], value: Expr) -> Expr:
    """`expr` with every access to `name` replaced by `value`, whose result is indexed by `indices`."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and node.tensor == name:
            return place(value, dict(zip(indices, node.indices, strict=True)))
        return map_children(node, visit)

    result = visit(expr)
    assert isinstance(result, Expr)
    return result


def reads(expr: Expr, name: str) -> int:
    """How often `expr` reads the tensor `name`."""
    return sum(node.tensor == name for node in find(expr, Access))


def absorb(region: Region, consumer: Fragment) -> None:
    """Adds a pointwise consumer of the region's output: the last statement computes it instead."""
    node, indices, value = region.statements[-1]
    joined = inline(consumer.value, node.name, indices, value)
    region.statements[-1] = (consumer.node, consumer.indices, joined)
    region.operands |= {name: operand for name, operand in consumer.operands.items() if name != node.name}
    region.covered += [consumer.node, *consumer.covered]


def finish(region: Region) -> None:
    """Writes the region's program, with the names that textbooks use, into it."""
    if region.equations is not None:
        region.program = inferred(region, region.equations)
        return
    region.names = tensor_names(region)
    order = index_order(region)
    statements = []
    declarations = []
    extents: dict[str, tuple[str, ...]] = {}
    for node, indices, value in region.statements:
        target = Access(region.names[node.name], tuple(Index(order[index]) for index in indices))
        named = rename(value, region.names, order)
        statements.append(Assign(target, None, named))
        extents[target.tensor] = tuple(order[index] for index in indices)
        for found in walk(named):
            if isinstance(found, Access):
                extents.setdefault(found.tensor, tuple(mode_name(index) for index in found.indices))
    same = equal_extents(statements)  # X[i,k] + A[i,j] * X[j,k] has as many rows as columns
    extents = {name: tuple(same[index] for index in indices) for name, indices in extents.items()}
    for name, operand in region.operands.items():
        declarations.append(declaration_of(region.names[name], extents[region.names[name]], operand))
    for node, _, _ in region.statements:
        declarations.append(declaration_of(region.names[node.name], extents[region.names[node.name]], node))
    inputs = tuple(region.names[name] for name in region.operands)
    outputs = (statements[-1].target.tensor,)
    known = known_extents(region, extents)
    region.program = Program(tuple(statements), tuple(declarations), inputs, outputs, known)


def inferred(region: Region, equations: Equations) -> Program:
    """The program of equations for the operands of a region, as they are stored now."""
    operands = {}
    for name, operand in region.operands.items():
        if isinstance(operand, Matrix):
            form, dtype = operand.format, operand.dtype
            index_dtypes = () if form.is_dense else result_index_dtypes(form)
        else:
            value = tensor_value(operand)
            assert value is not None, "regions read tensors"
            form, dtype, index_dtypes = dense_format(value.dim()), value.dtype, ()
        operands[region.names[name]] = Operand(form, name_of(dtype), 0.0, index_dtypes)
    outputs = [region.names[node.name] for node in region.outputs]
    return declare_equations(equations.statements, operands, outputs, equations.sizes)


def declare_equations(
    statements: Sequence[Assign],
    operands: Mapping[str, Operand],
    outputs: Sequence[str],
    sizes: Mapping[str, int],
) -> Program:
    """The program of some statements; its results are dense, temporaries as their operands have it."""
    found = declare(statements, operands, outputs, sizes=sizes)
    sparse = [name for name in outputs if not found.declaration(name).format.is_dense]
    formats = {name: dense_format(len(found.declaration(name).extents)) for name in sparse}
    return declare(statements, operands, outputs, sizes=sizes, formats=formats) if sparse else found


def known_extents(region: Region, extents: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, int], ...]:
    """The extents that every call has, those of weights above all, by index variable."""
    known: dict[str, int] = {}
    for name, operand in [*region.operands.items(), (region.output.name, region.output)]:
        value = tensor_value(operand)
        for index, extent in zip(
            extents[region.names[name]], value.shape if value is not None else (), strict=False
        ):
            if str(extent).isdigit():
                known[index] = int(str(extent))
    return tuple(sorted(known.items()))


def mode_name(index: Expr) -> str:
    """The name of a plain index variable."""
    assert isinstance(index, Index), f"fragments index by plain variables, found {index}"
    return index.name


def declaration_of(
    name: str, extents: tuple[str, ...], operand: fx.Node | Matrix | PatternOperand | Bags
) -> Declaration:
    """How an operand or a result is stored."""
    if isinstance(operand, Matrix):
        form = operand.format
        indices = result_index_dtypes(form)
        return Declaration(name, extents, form, name_of(operand.dtype), index_dtypes=indices)
    assert isinstance(operand, fx.Node), "regions with patterns come with their program"
    value = tensor_value(operand)
    assert value is not None, f"{operand} is a tensor"
    return Declaration(name, extents, Format("dense", rank=len(extents)), name_of(value.dtype))


def tensor_names(region: Region) -> dict[str, str]:
    """Short names: A sparse, X and W matrices, b vectors, s scales, T temporaries, Y the result."""
    taken: set[str] = set()
    names: dict[str, str] = {}

    def give(name: str, base: str) -> None:
        number = 0
        while (short := f"{base}{number or ''}") in taken:
            number += 1
        taken.add(short)
        names[name] = short

    for name, operand in region.operands.items():
        if isinstance(operand, Matrix):
            is_data = operand.mark.role in ("activation", "weight")
            give(name, ("W" if operand.mark.role == "weight" else "X") if is_data else "A")
        elif isinstance(operand, fx.Node):
            value = tensor_value(operand)
            rank = value.dim() if value is not None else 0
            vector = "s" if operand.target is row_scales else "b"
            give(name, vector if rank == 1 else "W" if parameter_behind(operand) is not None else "X")
    for node, _, _ in region.statements[:-1]:
        give(node.name, "T")
    give(region.output.name, "Y")
    return names


def index_order(region: Region) -> dict[str, str]:
    """Short names of index variables: i and k for the result, j and f for sums, one name per extent."""
    groups = shared_modes(region)
    _, outputs, _ = region.statements[-1]
    names: dict[str, str] = {}
    for index, short in zip(outputs, ("i", "k") if len(outputs) == 2 else ("i", "k", "l", "m"), strict=False):
        names[groups[index]] = short
    rest = chain(SUM_NAMES, (f"s{number}" for number in count()))
    for _, indices, value in reversed(region.statements):
        found = [*indices, *(n for part in find(value, Reduce) for n in part.indices)]
        for index in found:
            if groups[index] not in names:
                names[groups[index]] = next(rest)
    return {index: names[group] for index, group in groups.items()}


def shared_modes(region: Region) -> dict[str, str]:
    """Per index variable the one that stands for it: those of a temporary are those of its reader."""
    every = {index: index for _, indices, value in region.statements for index in indices_of(indices, value)}
    for node, indices, _ in region.statements[:-1]:
        readers = [
            part
            for _, _, value in region.statements
            for part in find(value, Access)
            if part.tensor == node.name
        ]
        for own, seen in zip(indices, readers[0].indices if readers else (), strict=False):
            every[own] = every[mode_name(seen)]
    return {index: every[every[index]] for index in every}


def indices_of(indices: tuple[str, ...], value: Expr) -> list[str]:
    """All index variables of a statement."""
    inside = [part.name for part in find(value, Index)]
    bound = [name for part in find(value, Reduce) for name in part.indices]
    return [*indices, *inside, *bound]


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
        names={} if region.equations is None else region.names,
    )
