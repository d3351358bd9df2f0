"""General front end: regions of all further operators, by index notation, sparsity inference and cuts.

In: a draft with the regions of recognisers, and marked tensors with further readers, `a * (x @ x.T)` with a sparse.
Out: the same with a region for each part of the graph over such a tensor: `Y[i,k] = A[i,k] * sum(j, X[i,j] * X[k,j])`.
Operators without a program are left to torch, with reasons in the report.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Final

import torch
from torch import fx

from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.nodes import Access, Call, Program, Reduce
from sparsify.compiler.ir.node import find
from sparsify.compiler.plan.products.contract import contract
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import expected_sizes
from sparsify.passes.decide.convolution import convolution_regions, marked_weights
from sparsify.passes.decide.cut import Cut, cut, is_layer, read_outside
from sparsify.passes.decide.dense_reasons import PRODUCTS, reason_to_stay_dense
from sparsify.passes.decide.gates import finish_mixture, gate_operand, gates_of_slots
from sparsify.passes.decide.leaves import (
    computed_weights,
    densities,
    is_free,
    is_relation_selected,
    marked_leaves,
    program_operand,
    relation_mark,
    relation_operands,
)
from sparsify.passes.decide.pattern_regions import pattern_regions
from sparsify.passes.decide.textbook import Text
from sparsify.passes.decide.to_region import region_of
from sparsify.passes.decide.transpose_weights import transpose_weights
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import operator_name, scope, tensor_value
from sparsify.passes.program.infer import UNKNOWN, Storage, infer
from sparsify.passes.program.model import ModelProgram, sizes_of
from sparsify.passes.program.translate import translate
from sparsify.passes.region.region import Region, finish
from sparsify.passes.region.sparse_operand import HALVES, Matrix, row_scales
from sparsify.passes.rewrite.demand import demand
from sparsify.passes.rewrite.distribute import distribute
from sparsify.passes.rewrite.gate import (
    absorb,
    inline_parts,
    join,
    read_parts,
    restricted,
    results_of,
    split_biases,
)
from sparsify.passes.rewrite.inline import inline, is_view
from sparsify.passes.rewrite.narrow import narrow_first
from sparsify.passes.rewrite.relation import relate
from sparsify.passes.rewrite.simplify import is_multilinear, without_detach
from sparsify.passes.rewrite.softmax import normalise
from sparsify.passes.rewrite.tokens import with_tokens
from sparsify.passes.rewrite.weights import gathered, scale_rows
from sparsify.passes.rules.scatters import BAGS, REPEATS, SCATTERS, messages_of
from sparsify.report import Choice

# Rounds of inference and demand: each restricts one tensor.
ROUNDS: Final = 64
# Density from which a product with a sparse factor is written as a dense tensor.
FULL: Final = 0.5
WHOLE_ROWS: Final = (
    "rows of it are read whole for the entries of the other matrix: to look for what both store is slower"
)
# Functions that are finite for finite operands, also at unstored coordinates.
FINITE: Final = frozenset(
    ("mul", "add", "sub", "neg", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "abs", "square")
)


def front_end(draft: Draft) -> Draft:
    """The draft with regions of all operators that read a marked tensor and have no region yet."""
    draft.regions = in_order(draft, [*draft.regions, *windows(draft), *pattern_regions(draft)])
    # Gates of mixtures are computed by their own nodes, then read sparse.
    gates = {node for region in draft.regions for node in region.inputs}
    gates |= {part for region in draft.regions for matrix in region.matrices for part in matrix.parts}
    note_reasons(draft, lambda node: operator_name(node) not in PRODUCTS and node not in gates)
    covered = covered_by(draft.regions) | settled(draft.graph)
    if leaves_of(draft, covered) or (draft.has_general and edges_of(draft.graph, covered)):
        draft.regions = in_order(draft, [*draft.regions, *general_regions(draft)])
    note_reasons(draft, lambda node: operator_name(node) in PRODUCTS)
    report_dense(draft, covered_by(draft.regions))
    return draft


def windows(draft: Draft) -> list[Region]:
    """The regions of convolutions with sparse weights."""
    if not draft.has_general or not marked_weights(draft.graph):
        return []
    program = translate(draft.graph)
    return convolution_regions(draft, program, unfused_tensors(draft, program), covered_by(draft.regions))


def note_reasons(draft: Draft, which: Callable[[fx.Node], bool]) -> None:
    """Records the reason to stay dense on nodes reached by rules outside of regions, unless recorded."""
    covered = covered_by(draft.regions)
    for node in draft.graph.nodes:
        if node not in covered and info(node).dense_reason is None and which(node):
            set_info(node, dense_reason=reason_to_stay_dense(node) or None)


def leaves_of(draft: Draft, covered: set[fx.Node]) -> dict[str, Matrix]:
    """The sparse operands read outside of regions, by name: marked tensors and gates of experts."""
    marked = marked_leaves(draft, covered)
    return marked | gates_of(draft.graph, covered)


def gates_of(graph: fx.Graph, covered: Collection[fx.Node]) -> dict[str, Matrix]:
    """The marked gates of experts without a region, as sparse operands by name."""
    rest = (node for node in graph.nodes if not covered_all(node, covered))
    operands = {node.name: gate_operand(node) for node in rest}
    return {name: matrix for name, matrix in operands.items() if matrix is not None}


def covered_all(node: fx.Node, covered: Collection[fx.Node]) -> bool:
    """Whether regions compute all readers of a node."""
    return all(user in covered for user in node.users)


def reads_gate(region: Region) -> bool:
    """Whether a region is a mixture of experts."""
    return any(matrix.mark.role == "gate" for matrix in region.matrices)


def has_bags(region: Region) -> bool:
    """Whether a region computes a single result from bags of rows, an operator of torch."""
    return len(region.outputs) == 1 and any(operator_name(node) == BAGS for node in region.covered)


def in_order(draft: Draft, regions: Iterable[Region]) -> list[Region]:
    """Regions in the order of the graph."""
    order = {node: number for number, node in enumerate(draft.graph.nodes)}
    return sorted(regions, key=lambda region: order[region.output])


def edges_of(graph: fx.Graph, covered: set[fx.Node]) -> set[fx.Node]:
    """The index inputs marked as adjacencies, or read by marked scatters."""
    edges = set[fx.Node]()
    for node in graph.nodes:
        if operator_name(node) in (*SCATTERS, BAGS) and node not in covered:
            places = places_of(node)
            if relation_mark(places, node) is not None:
                edges.update(places)
    return edges


def places_of(scatter: fx.Node) -> list[fx.Node]:
    """The integer tensors read by a scatter, without the views that repeat them."""
    tensors = []
    for node in scatter.all_input_nodes:
        value = tensor_value(node)
        if value is None or value.is_floating_point():
            continue
        while operator_name(node) in REPEATS:
            node = node.all_input_nodes[0]
        tensors.append(node)
    return tensors


def covered_by(regions: Iterable[Region]) -> set[fx.Node]:
    """The nodes replaced by regions."""
    return {node for region in regions for node in region.covered}


def general_regions(draft: Draft) -> list[Region]:
    """The regions of all readers of marked tensors not covered by other regions."""
    covered = covered_by(draft.regions) | settled(draft.graph)
    marked = leaves_of(draft, covered)
    opaque = covered | {n for n in draft.graph.nodes if n.name in marked}
    weights = {n for n, m in marked.items() if m.dense is not None and m.dense.op == "get_attr"}
    program = program_of(draft, opaque, marked, weights)
    gates = gates_among(marked)
    for name, statement in program.statements.items() if not draft.is_trainable else ():
        program.statements[name] = replace(statement, value=without_detach(statement.value))
    inline(program, infer(program, {}, {}), read_outside(program), is_view)
    relate(program, is_relation_selected(program))
    relations = relation_operands(program)
    leaves = {name: program_operand(matrix) for name, matrix in {**marked, **relations}.items()}
    shares = densities(draft, {**marked, **relations})
    if not draft.is_trainable:
        constant_weights = computed_weights(program, infer(program, leaves, shares))
        for name in constant_weights:
            del program.statements[name]
            program.constants.add(name)
        leaves |= {name: matrix.declared for name, matrix in constant_weights.items()}
        shares |= densities(draft, constant_weights)
        marked |= constant_weights
        program.weights |= constant_weights.keys()
    results = results_of(program, infer(program, leaves, shares), gates)
    for name in gathered(
        program, infer(program, leaves, shares), [n for n, m in marked.items() if is_free(m)]
    ):
        set_info(program.nodes[name], dense_reason=Choice(WHOLE_ROWS))
        program.weights.discard(name)
        for table in (marked, leaves, shares):
            table.pop(name, None)
    scale_rows(program, marked)
    results = results_of(program, infer(program, leaves, shares), gates)
    alone = unfused_tensors(draft, program) | results
    storage = canonical(program, leaves, shares, read_outside(program) | alone, gates, results)
    alone |= {name for name in program.statements if is_layer(program, storage, name)}
    note_readers(program, marked.keys() - gates, covered)
    note_scatters(program, covered)
    regions = []
    most = draft.recipe.fuse.max_einsums or len(program.statements)
    for region_cut in cut(program, storage, alone, most):
        region = region_of(program, storage, region_cut, {**marked, **relations})
        if not isinstance(region, str):
            regions.append(region)
        else:
            note_refusal(program, region_cut, gates, region)
    if not draft.has_general:
        regions = [region for region in regions if is_product(region) or reads_gate(region)]
    for region in regions:
        region.is_contested = has_bags(region)
        if reads_gate(region):
            finish_mixture(region)
        elif not region.is_layer:
            put_dense_products_first(draft, region)
            transpose_weights(region)
        once = sources_of(matrix.dense for matrix in region.matrices if matrix.dense is not None)
        for node in (*region.covered, *once):
            set_info(node, dense_reason=None)
    return regions


def gates_among(marked: Mapping[str, Matrix]) -> set[str]:
    """The sparse operands that are gates of experts."""
    return {name for name, matrix in marked.items() if matrix.mark.role == "gate"}


def program_of(
    draft: Draft, opaque: Collection[fx.Node], marked: dict[str, Matrix], weights: set[str]
) -> ModelProgram:
    """The program of a graph; in mixtures of experts biases are split off, and slots become one token mode.

    Args:
        opaque: nodes that stay opaque.
        marked: sparse operands; gates of tokens replace weights of slots in place.
        weights: sparse parameters.
    """
    gates = gates_among(marked)
    program = translate(draft.graph, opaque)
    if not draft.has_general:
        opaque = {*opaque, *unbounded(program)}
        program = translate(draft.graph, opaque)
    program.weights = weights
    if gates:
        inline(program, infer(program, {}, {}), read_outside(program), is_view)
        program = translate(draft.graph, {*opaque, *split_biases(program, gates)})
        program.weights = weights
        inline(program, infer(program, {}, {}), read_outside(program), is_view)
        for name, gate in gates_of_slots(program, sorted(gates)).items():
            del marked[name]
            operand = None if gate is None else gate_operand(gate)
            marked |= {} if operand is None or gate is None else {gate.name: operand}
        with_tokens(program, gates_among(marked))
    return program


def note_readers(program: ModelProgram, names: Iterable[str], covered: Collection[fx.Node]) -> None:
    """Records refusals on opaque readers of sparse leaves; relations have their readers at their sources."""
    for name in names:
        for reader in program.nodes[name].users:
            is_left = reader.name in program.opaque and reader not in covered
            is_left = is_left and reader.target is not row_scales
            if is_left and info(reader).dense_reason is None:
                set_info(reader, dense_reason=program.opaque[reader.name])


def note_scatters(program: ModelProgram, covered: Collection[fx.Node]) -> None:
    """Records refusals on scatters selected by rules."""
    for node in program.graph.nodes:
        mark = info(node).mark
        is_scatter = operator_name(node) in (*SCATTERS, BAGS)
        if not is_scatter or mark is None or mark.role == "gate" or node in covered:
            continue
        result, messages = (node.meta["val"], messages_of(node).meta["val"])
        result = result if isinstance(result, torch.Tensor) else result[0]
        refused = [
            name for name in (node.name, *(user.name for user in node.users)) if name in program.opaque
        ]
        if any(size in (0, 1) for size in (*sizes_of(result)[:1], *sizes_of(messages)[:1])):
            set_info(
                node, dense_reason=Choice("of one edge or none, or to one place, it is one sum of torch's")
            )
        elif refused:
            set_info(node, dense_reason=program.opaque[refused[0]])


def unbounded(program: ModelProgram) -> set[fx.Node]:
    """The nodes whose results may be infinite or NaN for finite operands, as in `0 / 0`."""
    calls = {name: find(statement.value, Call) for name, statement in program.statements.items()}
    return {
        program.source[name]
        for name, functions in calls.items()
        if any(c.function not in FINITE for c in functions)
    }


def is_product(region: Region) -> bool:
    """Whether all sparse reads of a region are matrix operands of products, the case of recognisers."""
    assert region.program is not None, "the front end writes programs"
    sums = [part for part in find(region.program, Reduce) if is_multilinear(part)]
    within = [access for part in sums for access in find(part, Access)]
    names = {region.names[matrix.name] for matrix in region.matrices if matrix.dense is not None}
    read = [a for s in region.program.statements for a in find(s.value, Access) if a.tensor in names]
    return len(names) == len(region.matrices) and all(access in within for access in read)


def put_dense_products_first(draft: Draft, region: Region) -> None:
    """`Y = sum(j, f, A X W) -> T = sum(f, X W); Y = sum(j, A T)` if cheaper, gradients included.

    Products with a sparse factor are left to the compiler, which preserves their zeros, except nearly full ones.
    """
    sizes, equations, program = expected_sizes(draft, region), region.equations, region.program
    assert isinstance(equations, Text) and program is not None, "the front end makes regions with both"
    if any(index not in sizes.extents for d in program.declarations for index in d.extents):
        return
    contracted = contract(program, sizes)
    split, declared_names = contracted.program, {declared.name for declared in program.declarations}
    further = [statement for statement in split.statements if statement.target.tensor not in declared_names]
    read = {access.tensor for statement in further for access in find(statement.value, Access)}
    computed = {statement.target.tensor for statement in further}
    dense = {name for name in {*read, *computed} if split.declaration(name).format.is_dense}
    full = {
        name for name, stored in contracted.stored.items() if stored >= FULL * coordinates(split, name, sizes)
    }
    if further and (read <= dense or (full and computed <= full)):
        region.equations = replace(equations, statements=split.statements)
        finish(region)


def coordinates(program: Program, name: str, sizes: Sizes) -> int:
    """The number of entries a tensor of a program has when all are stored."""
    return prod(sizes.extents.get(extent, UNKNOWN) for extent in program.declaration(name).extents)


def report_dense(draft: Draft, covered: set[fx.Node]) -> None:
    """Lists every node reached by a rule without a region."""
    for node in draft.graph.nodes:
        why = info(node).dense_reason
        if why and node not in covered:
            draft.report.left_dense(node.name, operator_name(node), scope(node), why)


def settled(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that recognisers leave dense for speed, and convolutions, which have their own recogniser."""
    reasons = {node: info(node).dense_reason for node in graph.nodes if info(node).dense_reason is not None}
    return {n for n, why in reasons.items() if isinstance(why, Choice) or operator_name(n).startswith("conv")}


def note_refusal(program: ModelProgram, cut: Cut, gates: set[str], reason: str) -> None:
    """Records a refusal on the gates that a cut reads, else on its first node, unless a node has a reason already."""
    for name in gates & {*cut.operands}:
        set_info(program.nodes[name], dense_reason=reason)
    nodes = [program.nodes[name] for name in cut.names if name in program.nodes]
    if gates.isdisjoint(cut.operands) and not any(info(node).dense_reason is not None for node in nodes):
        set_info(nodes[0], dense_reason=reason)


def sources_of(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Some nodes, and all of their ancestors."""
    ancestors, waiting = set[fx.Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting += node.all_input_nodes
    return ancestors


def unfused_tensors(draft: Draft, program: ModelProgram) -> set[str]:
    """Tensors that the recipe keeps apart from readers: all, nested sums, or those read by other modules."""
    fusion, readers = draft.recipe.fuse, program.readers()
    sums = {name for name, statement in program.statements.items() if find(statement.value, Reduce)}
    alone = set()
    for name, statement in program.statements.items():
        node = program.nodes.get(name)
        if node is None or is_view(statement):
            continue
        is_summed = name in sums and bool(sums & readers.get(name, set()))
        is_alone = not fusion.enabled or (fusion.max_einsums == 1 and is_summed)
        is_between = fusion.across != "modules" and any(scope(user) != scope(node) for user in node.users)
        is_rounded = any(reads_rounded(tensor_value(node), tensor_value(user)) for user in node.users)
        alone |= {name} if is_alone or is_between or is_rounded else set()
    return alone


def reads_rounded(value: torch.Tensor | None, result: torch.Tensor | None) -> bool:
    """Whether a half-precision value is read in another dtype: kernels have to round it as torch does.

    Kernels compute half precision in float32, and round only their results.
    """
    if value is None or result is None:  # parts of a tensor, sizes, the caller
        return False
    return value.dtype in HALVES and result.dtype != value.dtype


def canonical(
    program: ModelProgram,
    leaves: Mapping[str, Operand],
    shares: Mapping[str, float],
    outside_reads: Collection[str],
    gates: Collection[str] = (),
    results: Collection[str] = (),
) -> Storage:
    """Rewrites a program in place: inlines views, and restricts tensors to the patterns that need them.

    Args:
        outside_reads: tensors that stay.
        gates: leaves that choose experts.
        results: sums over the tensors restricted by gates.

    Returns:
        the storage of the program's tensors.
    """
    inline(program, infer(program, leaves, shares), outside_reads, is_view)
    distribute(program, infer(program, leaves, shares), outside_reads)
    restrict(
        program, leaves, shares, outside_reads
    )  # before products of sums are joined: sampled products stay separate
    inline(program, infer(program, leaves, shares), outside_reads)
    normalise(program, set(outside_reads))
    restrict(program, leaves, shares, outside_reads)
    inline(program, infer(program, leaves, shares), outside_reads)
    narrow_first(program, infer(program, leaves, shares), outside_reads)
    if gates:
        inline_parts(program, infer(program, leaves, shares), outside_reads)
        inline(program, infer(program, leaves, shares), outside_reads)
        for name in results:
            join(program, name, outside_reads)
            absorb(program, name, gates, outside_reads)
        rows = restricted(program, infer(program, leaves, shares), gates)
        read_parts(program, rows.keys() & program.statements.keys())
    return infer(program, leaves, shares)


def restrict(
    program: ModelProgram,
    leaves: Mapping[str, Operand],
    shares: Mapping[str, float],
    outside_reads: Collection[str],
) -> None:
    """Restricts tensors to the patterns that need them, one after the other."""
    for _ in range(ROUNDS):
        if not demand(program, infer(program, leaves, shares), outside_reads):
            return
