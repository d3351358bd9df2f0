"""Sources of the operands of regions: arguments, or memoized structures.

In: a region over an adjacency, its normalisation and the graph around it. Out: a `Binding` for each operand, and a
`Plan` for each set of inputs that determines operands; the plan's part of the graph is cut out into a `Structure`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.graph import canonicalize, operators
from sparsify.passes.graph.direct_calls import call_directly
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, tensor_value
from sparsify.passes.operands.alignment import BagsOutput
from sparsify.passes.operands.cached_operands import MatrixOutput, Output, PatternOutput, Structure
from sparsify.passes.operands.content_memo import REMEMBERED
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Bags, Matrix, PatternOperand, row_scales
from sparsify.report import ConversionEntry

# Views with the memory order of their operand.
RESHAPES: Final = frozenset({"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "alias"})
# Plans by their tensor leaves, by all leaves if none is a tensor.
Plans = dict[frozenset[fx.Node], "Plan"]


@dataclass
class Plan:
    """The structure cut out for one set of tensors.

    `is_static`: a rule declares the tensors constant; `is_frozen`: weights without gradients; `is_computed`: computed
    anew in each call.
    """

    leaves: list[fx.Node]
    outputs: list[fx.Node | int] = field(default_factory=list)
    results: list[Output] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    structure: Structure | None = None
    is_static: bool = False
    is_frozen: bool = False
    is_computed: bool = False

    @property
    def static(self) -> list[int]:
        """The positions of leaves declared constant across calls by rules."""
        marks = [info(leaf).mark for leaf in self.leaves]
        return [at for at, mark in enumerate(marks) if self.is_static or getattr(mark, "static", False)]

    def output(self, node: Any) -> int:
        """The position of a node or number among the outputs of the module."""
        if node not in self.outputs:
            self.outputs.append(node)
        return self.outputs.index(node)

    def result(self, spec: Output, name: str) -> int:
        """The position of a result, shared by equal operands."""
        if spec not in self.results:
            self.results.append(spec)
            self.names.append(name)
        return self.results.index(spec)


@dataclass
class Binding:
    """Source of one operand of a region: an argument, or a result of a structure."""

    name: str
    node: fx.Node | None = None
    plan: Plan | None = None
    result: int = 0
    is_full: bool = False


def bind_all(draft: Draft, regions: Sequence[Region]) -> list[list[Binding]]:
    """Sources of the operands of regions; memoizable computations are cut out of the graph."""
    plans: Plans = {}
    for region in regions:  # all structures are known before an operand may join one
        for matrix in region.matrices if not region.backend else ():
            bind_matrix(draft, matrix, region.names[matrix.name], plans)
    bindings = [bind(draft, region, plans) for region in regions]
    for plan in plans.values():
        cut_out(draft, plan)
    return bindings


def plan_of(plans: Plans, leaves: Sequence[fx.Node]) -> Plan:
    """The structure of some leaves; leaves with the same tensors share one, even with different sizes."""
    tensors = frozenset(leaf for leaf in leaves if tensor_value(leaf) is not None)
    plan = plans.setdefault(tensors or frozenset(leaves), Plan([]))
    plan.leaves += [leaf for leaf in leaves if leaf not in plan.leaves]
    return plan


def bind(draft: Draft, region: Region, plans: Plans) -> list[Binding]:
    """Sources of the operands of a region, in the order of its program, or of its nodes' inputs."""
    if region.backend:
        return [Binding(node.name, node=node) for node in region.read]
    bindings = []
    for name, operand in region.operands.items():
        short = region.names[name]
        if isinstance(operand, Matrix):
            bindings.append(bind_matrix(draft, operand, short, plans))
            continue
        if isinstance(operand, PatternOperand):
            bindings.append(bind_pattern(operand, short, plans))
            continue
        if isinstance(operand, Bags):
            bindings.append(bind_bags(operand, short, plans))
            continue
        is_scales = operand.target is row_scales
        leaves = list(operand.all_input_nodes) if is_scales else None
        if not is_scales and region.layout is None:
            leaves = once_leaves(operand, plans)
        if leaves is None:
            bindings.append(Binding(short, node=operand))
        else:
            plan = plan_of(plans, leaves)
            bindings.append(Binding(short, plan=plan, result=plan.result(plan.output(operand), short)))
    return bindings


def is_as_it_is(matrix: Matrix) -> bool:
    """Whether a matrix is read unchanged: a dense tensor that a rule leaves dense."""
    return (
        matrix.dense is not None
        and matrix.format.is_dense
        and matrix.format.is_short
        and matrix.format.ordering == (0, 1)
        and not matrix.transposed
        and matrix.mark.dtype == "same"
    )


def bind_matrix(draft: Draft, matrix: Matrix, name: str, plans: Plans) -> Binding:
    """The binding of a sparse operand.

    The values are an argument if they depend on more than structure.
    """
    form = matrix.format
    if is_as_it_is(matrix):
        return Binding(name, node=matrix.dense)
    if matrix.dense is not None:
        plan = plan_of(plans, matrix.leaves)
        plan.is_static |= matrix.mark.static
        plan.is_computed |= matrix.mark.outputs is not None
        is_weight = operators.parameter_behind(matrix.dense) is not None
        is_computed = not draft.is_trainable and operators.is_constant(matrix.dense)
        plan.is_frozen |= is_computed and not is_weight
        is_full = not is_weight and not is_computed and matrix.places is None
        spec = MatrixOutput(
            form,
            matrix.dtype,
            dense=plan.output(matrix.dense),
            places=None if matrix.places is None else plan.output(matrix.places),
            transposed=matrix.transposed,
            is_frozen=is_weight and not draft.is_trainable,
            is_trained=draft.is_trainable and is_own_parameter(matrix),
            rounds=None if matrix.mark.dtype == "same" else dtype_of(matrix.dense),
        )
        return Binding(name, plan=plan, result=plan.result(spec, name), is_full=is_full)
    assert matrix.rows is not None
    assert matrix.columns is not None
    assert matrix.extents is not None
    extents = (extent for extent in matrix.extents if isinstance(extent, fx.Node))
    needed = [matrix.rows, *matrix.between, matrix.columns, *extents]
    leaves = leaves_of(needed)
    with_values = leaves_of([*needed, matrix.values]) if matrix.values is not None else leaves
    is_once = all(leaf in leaves or is_edge_vector(leaf) for leaf in with_values)
    chosen = with_values if is_once else leaves
    plan = plan_of(plans, chosen)
    plan.is_static |= matrix.mark.static
    values = None if matrix.values is None else plan.output(matrix.values) if is_once else -1
    spec = MatrixOutput(
        form,
        matrix.dtype,
        rows=plan.output(matrix.rows),
        between=tuple([plan.output(node) for node in matrix.between]),
        columns=plan.output(matrix.columns),
        values=values,
        extents=tuple([plan.output(extent) for extent in matrix.extents]),
        joins=matrix.joins,
    )
    node = None if is_once else matrix.values
    return Binding(name, node=node, plan=plan, result=plan.result(spec, name))


def is_own_parameter(matrix: Matrix) -> bool:
    """Whether a matrix is a whole parameter in its own dtype, with a pattern given by its zeros alone."""
    assert matrix.dense is not None, "other operands have coordinates"
    is_one = matrix.dense.op == "get_attr" and matrix.leaves == [matrix.dense] and matrix.places is None
    return is_one and matrix.mark.dtype == "same" and operators.parameter_behind(matrix.dense) is matrix.dense


def dtype_of(node: fx.Node) -> torch.dtype:
    """The dtype of a tensor."""
    value = tensor_value(node)
    assert value is not None, f"{node} is a tensor"
    return value.dtype


def bind_pattern(pattern: PatternOperand, name: str, plans: Plans) -> Binding:
    """The binding of a mask, determined by the lengths."""
    leaves = list(dict.fromkeys(pattern.size_nodes))
    plan = plan_of(plans, leaves)
    rows, columns = (plan.output(extent) for extent in pattern.extents)
    return Binding(name, plan=plan, result=plan.result(PatternOutput(pattern.spec, rows, columns), name))


def bind_bags(bags: Bags, name: str, plans: Plans) -> Binding:
    """The binding of bags: from integers alone if possible, otherwise from computed indices and offsets."""
    needed = [bags.indices, bags.offsets]
    leaves = leaves_of(needed)
    if any(is_floating(leaf) for leaf in leaves):
        leaves = needed
    plan = plan_of(plans, leaves)
    spec = BagsOutput(
        indices=plan.output(bags.indices),
        offsets=plan.output(bags.offsets),
        rows=bags.extents[2],
        has_last=bags.has_last,
        dtype=bags.dtype,
        is_weighted=bags.weights is not None,
    )
    return Binding(name, node=bags.weights, plan=plan, result=plan.result(spec, name))


def is_floating(node: fx.Node) -> bool:
    """Whether a node computes floating-point numbers."""
    value = tensor_value(node)
    return value is not None and value.is_floating_point()


def leaves_of(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Inputs, attributes and sizes from which `nodes` are computed, in graph order."""
    return sorted(leaves_behind(nodes))


def leaves_behind(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Inputs, attributes and sizes from which `nodes` are computed, lazily and in any order."""
    return filter(is_leaf, operators.ancestors(nodes, lambda node: not is_leaf(node)))


def is_leaf(node: fx.Node) -> bool:
    """Whether `node` is an input of structures; random and mutating nodes are never memoized."""
    if node.op in ("placeholder", "get_attr"):
        return True
    return is_input_size(node) or canonicalize.has_effect(node)


def is_input_size(node: fx.Node) -> bool:
    """Whether a node is the extent of an input."""
    return operator_name(node) in ("sym_size", "size") and node.all_input_nodes[0].op == "placeholder"


def is_edge_vector(node: fx.Node) -> bool:
    """Whether a leaf is an input with one number per edge, such as edge weights."""
    value = tensor_value(node)
    return node.op == "placeholder" and value is not None and value.dim() == 1


def once_leaves(node: fx.Node, plans: Plans) -> list[fx.Node] | None:
    """The leaves of an operand determined by structure or of a transposed weight, None otherwise."""
    if is_leaf(node) or is_weight_in_place(node):
        return None
    if operators.parameter_behind(node) is not None or is_stack(node):
        return leaves_of([node])
    structures = [{leaf for leaf in known if leaf.op == "placeholder"} for known in plans]
    structural = set[fx.Node]().union(*structures)
    # A dependence on other tensors is found early; the search does not visit all ancestors in a deep graph.
    if any(not is_size_or(leaf, structural) for leaf in leaves_behind([node])):
        return None
    leaves = leaves_of([node])
    has_tensor = any(tensor_value(leaf) is not None for leaf in leaves)
    is_known = any(all(is_size_or(leaf, known) for leaf in leaves) for known in structures)
    return leaves if has_tensor and is_known else None


def is_weight_in_place(node: fx.Node) -> bool:
    """Whether an operand is a parameter with other extents, in the parameter's memory: nothing to memoize."""
    while operator_name(node) in RESHAPES:
        node = node.all_input_nodes[0]
    return node.op == "get_attr"


def is_stack(node: fx.Node) -> bool:
    """Whether an operand is made of parameters side by side."""
    return operator_name(node) == "stack" and all(part.op == "get_attr" for part in node.all_input_nodes)


def is_size_or(node: fx.Node, known: set[fx.Node]) -> bool:
    """Whether a leaf is a size or one of `known`."""
    return node in known or operator_name(node) in ("sym_size", "size")


def cut_out(draft: Draft, plan: Plan) -> None:
    """Builds the structure of a plan from the part of the graph between its leaves and its outputs."""
    for leaf in plan.leaves:
        if is_input_size(leaf):  # maybe unread before by the first region of the plan
            leaf.graph.find_nodes(op="placeholder")[-1].append(leaf)
    module = extract(draft.graph, plan.leaves, plan.outputs)
    matrices = [spec for spec in plan.results if isinstance(spec, MatrixOutput)]
    masks = [str(spec.spec) for spec in plan.results if isinstance(spec, PatternOutput)]
    has_bags = any(isinstance(spec, BagsOutput) for spec in plan.results)
    target = str(matrices[0].format) if matrices else "bags" if has_bags else ", ".join(masks) or "row-major"
    static = plan.static
    source = ", ".join(f"{leaf.name}{' (static)' * (at in static)}" for at, leaf in enumerate(plan.leaves))
    entry = ConversionEntry(", ".join(plan.names), source, target)
    draft.report.conversions.append(entry)
    most = 0 if plan.is_computed else REMEMBERED
    plan.structure = Structure(module.forward, plan.results, entry, most, static, plan.is_frozen)


def extract(whole: fx.Graph, inputs: list[fx.Node], outputs: list[fx.Node | int]) -> fx.GraphModule:
    """The part of a graph from `inputs` to `outputs` as a separate module."""
    wanted = [node for node in outputs if isinstance(node, fx.Node)]
    needed = set(operators.ancestors(wanted, lambda node: node not in inputs)) - set(inputs)
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node, copy in copies.items():
        copy.meta.update({key: node.meta[key] for key in ("val",) if key in node.meta})
    for node in whole.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] if isinstance(node, fx.Node) else node for node in outputs])
    canonicalize.merge_repetitions(graph)
    as_methods(graph)
    call_directly(graph)
    return fx.GraphModule(torch.nn.Module(), graph)


def as_methods(graph: fx.Graph) -> None:
    """`sym_size(x, 0) -> x.size(0)`: the operator is meant for tracing and ten times slower."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        node.op, node.target = "call_method", "size"
