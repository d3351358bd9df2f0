"""Regions of what has no road of its own: the graph in index notation, sparsity inferred, cut into programs.

In: a draft with the regions of other roads, and marked tensors that further operators read, `a * (x @ x.T)` with a
sparse.
Out: the same with a region for each part of the graph that touches such a tensor: `Y[i,k] = A[i,k] * sum(j, X[i,j] *
X[k,j])`. What has no program stays torch's, for the reasons that the report lists.
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
from sparsify.compiler.plan.contract import contract
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import expected_sizes
from sparsify.passes.decide.convolution import convolution_regions, marked_weights
from sparsify.passes.decide.cut import cut, is_layer, kept
from sparsify.passes.decide.dense_reasons import PRODUCTS, reason_to_stay_dense
from sparsify.passes.decide.gates import finish_mixture, gate_operand, gates_of_slots
from sparsify.passes.decide.leaves import (
    computed_weights,
    densities,
    is_free,
    is_relation_wanted,
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
# The share of entries from which on a product of a sparse factor is written as a dense tensor.
FULL: Final = 0.5
WHOLE_ROWS: Final = (
    "rows of it are read whole for the entries of the other matrix: to look for what both store is slower"
)
# Functions that are finite for finite operands, whatever is not stored.
FINITE: Final = frozenset(
    ("mul", "add", "sub", "neg", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "abs", "square")
)


def front_end(draft: Draft) -> Draft:
    """The draft with regions of all operators that touch a marked tensor and have no region yet."""
    draft.regions = in_order(draft, [*draft.regions, *windows(draft), *pattern_regions(draft)])
    # Gates of mixtures are computed as they were, and then read sparse.
    gates = {node for region in draft.regions for node in region.inputs}
    gates |= {part for region in draft.regions for matrix in region.matrices for part in matrix.parts}
    note_reasons(draft, lambda node: operator_name(node) not in PRODUCTS and node not in gates)
    known = covered_by(draft.regions) | settled(draft.graph)
    if leaves_of(draft, known) or (draft.has_general and edges_of(draft.graph, known)):
        draft.regions = in_order(draft, [*draft.regions, *general_regions(draft)])
    note_reasons(draft, lambda node: operator_name(node) in PRODUCTS)
    report_dense(draft, covered_by(draft.regions))
    return draft


def windows(draft: Draft) -> list[Region]:
    """The regions of convolutions with sparse weights."""
    if not draft.has_general or not marked_weights(draft.graph):
        return []
    program = translate(draft.graph)
    return convolution_regions(draft, program, kept_alone(draft, program), covered_by(draft.regions))


def note_reasons(draft: Draft, which: Callable[[fx.Node], bool]) -> None:
    """Says of some nodes outside of regions that rules reached why they stay dense, where nothing has said so."""
    covered = covered_by(draft.regions)
    for node in draft.graph.nodes:
        if node not in covered and info(node).dense_reason is None and which(node):
            set_info(node, dense_reason=reason_to_stay_dense(node) or None)


def leaves_of(draft: Draft, covered: set[fx.Node]) -> dict[str, Matrix]:
    """The sparse operands by name that operators outside of regions read: marked tensors and gates of experts."""
    marked = marked_leaves(draft, covered)
    return marked | gates_of(draft.graph, covered)


def gates_of(graph: fx.Graph, covered: Collection[fx.Node]) -> dict[str, Matrix]:
    """The gates of experts that rules mark and that no region reads, as sparse operands by name."""
    rest = (node for node in graph.nodes if not covered_all(node, covered))
    found = {node.name: gate_operand(node) for node in rest}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def covered_all(node: fx.Node, covered: Collection[fx.Node]) -> bool:
    """Whether regions compute all that reads a node."""
    return all(user in covered for user in node.users)


def reads_gate(region: Region) -> bool:
    """Whether a region is a mixture of experts."""
    return any(matrix.mark.role == "gate" for matrix in region.matrices)


def has_bags(region: Region) -> bool:
    """Whether a region computes one result of bags of rows, for which torch has an operator of its own."""
    return len(region.outputs) == 1 and any(operator_name(node) == BAGS for node in region.covered)


def in_order(draft: Draft, regions: Iterable[Region]) -> list[Region]:
    """Regions in the order of the graph."""
    place = {node: number for number, node in enumerate(draft.graph.nodes)}
    return sorted(regions, key=lambda region: place[region.output])


def edges_of(graph: fx.Graph, covered: set[fx.Node]) -> set[fx.Node]:
    """The inputs, with the marks of adjacencies or behind scatters with marks, that places are made of."""
    found = set[fx.Node]()
    for node in graph.nodes:
        if operator_name(node) in (*SCATTERS, BAGS) and node not in covered:
            places = places_of(node)
            if relation_mark(places, node) is not None:
                found.update(places)
    return found


def places_of(scatter: fx.Node) -> list[fx.Node]:
    """The tensors of whole numbers that a scatter reads, without the views that repeat them."""
    found = []
    for node in scatter.all_input_nodes:
        value = tensor_value(node)
        if value is None or value.is_floating_point():
            continue
        while operator_name(node) in REPEATS:
            node = node.all_input_nodes[0]
        found.append(node)
    return found


def covered_by(regions: Iterable[Region]) -> set[fx.Node]:
    """The nodes that regions replace."""
    return {node for region in regions for node in region.covered}


def general_regions(draft: Draft) -> list[Region]:
    """The regions of all that reads marked tensors and that other regions do not cover."""
    covered = covered_by(draft.regions) | settled(draft.graph)
    marked = leaves_of(draft, covered)
    apart = covered | {n for n in draft.graph.nodes if n.name in marked}
    weights = {n for n, m in marked.items() if m.dense is not None and m.dense.op == "get_attr"}
    program = program_of(draft, apart, marked, weights)
    gates = gates_among(marked)
    for name, statement in program.statements.items() if not draft.is_trainable else ():
        program.statements[name] = replace(statement, value=without_detach(statement.value))
    inline(program, infer(program, {}, {}), kept(program), is_view)
    relate(program, is_relation_wanted(program))
    relations = relation_operands(program)
    leaves = {name: program_operand(matrix) for name, matrix in {**marked, **relations}.items()}
    shares = densities(draft, {**marked, **relations})
    if not draft.is_trainable:
        made_once = computed_weights(program, infer(program, leaves, shares))
        for name in made_once:
            del program.statements[name]
            program.constants.add(name)
        leaves |= {name: matrix.declared for name, matrix in made_once.items()}
        shares |= densities(draft, made_once)
        marked |= made_once
        program.weights |= made_once.keys()
    results = results_of(program, infer(program, leaves, shares), gates)
    for name in gathered(
        program, infer(program, leaves, shares), [n for n, m in marked.items() if is_free(m)]
    ):
        set_info(program.nodes[name], dense_reason=Choice(WHOLE_ROWS))
        program.weights.discard(name)
        for known in (marked, leaves, shares):
            known.pop(name, None)
    scale_rows(program, marked)
    results = results_of(program, infer(program, leaves, shares), gates)
    alone = kept_alone(draft, program) | results
    storage = canonical(program, leaves, shares, kept(program) | alone, gates, results)
    alone |= {name for name in program.statements if is_layer(program, storage, name)}
    note_readers(program, marked.keys() - gates, covered)
    note_scatters(program, covered)
    made = []
    most = draft.recipe.fuse.max_einsums or len(program.statements)
    for found in cut(program, storage, alone, most):
        region = region_of(program, storage, found, {**marked, **relations})
        if not isinstance(region, str):
            made.append(region)
        else:
            note_refusal([program.nodes[name] for name in found.names if name in program.nodes], region)
    if not draft.has_general:
        made = [region for region in made if is_product(region) or reads_gate(region)]
    for region in made:
        region.is_contested = has_bags(region)
        if reads_gate(region):
            finish_mixture(region)
        elif not region.is_layer:
            put_dense_products_first(draft, region)
            transpose_weights(region)
        once = sources_of(matrix.dense for matrix in region.matrices if matrix.dense is not None)
        for node in (*region.covered, *once):
            set_info(node, dense_reason=None)
    return made


def gates_among(marked: Mapping[str, Matrix]) -> set[str]:
    """The sparse operands that choose experts."""
    return {name for name, matrix in marked.items() if matrix.mark.role == "gate"}


def program_of(
    draft: Draft, apart: Collection[fx.Node], marked: dict[str, Matrix], weights: set[str]
) -> ModelProgram:
    """The program of a graph, in which mixtures of experts have no biases behind them, no slots and a mode for tokens.

    Args:
        apart: nodes that stay opaque.
        marked: the sparse operands; gates of tokens take the place of weights of slots among them.
        weights: sparse parameters.
    """
    gates = gates_among(marked)
    program = translate(draft.graph, apart)
    if not draft.has_general:
        apart = {*apart, *unbounded(program)}
        program = translate(draft.graph, apart)
    program.weights = weights
    if gates:
        inline(program, infer(program, {}, {}), kept(program), is_view)
        program = translate(draft.graph, {*apart, *split_biases(program, gates)})
        program.weights = weights
        inline(program, infer(program, {}, {}), kept(program), is_view)
        for name, gate in gates_of_slots(program, sorted(gates)).items():
            del marked[name]
            operand = None if gate is None else gate_operand(gate)
            marked |= {} if operand is None or gate is None else {gate.name: operand}
        with_tokens(program, gates_among(marked))
    return program


def note_readers(program: ModelProgram, names: Iterable[str], covered: Collection[fx.Node]) -> None:
    """Says of opaque operators that read sparse leaves why they are; relations are read by what they are made of."""
    for name in names:
        for reader in program.nodes[name].users:
            is_left = reader.name in program.opaque and reader not in covered
            is_left = is_left and reader.target is not row_scales
            if is_left and info(reader).dense_reason is None:
                set_info(reader, dense_reason=program.opaque[reader.name])


def note_scatters(program: ModelProgram, covered: Collection[fx.Node]) -> None:
    """Says of scatters that rules select why they have no program."""
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
    """The nodes whose results may not be finite where their operands are, as `0 / 0` is."""
    calls = {name: find(statement.value, Call) for name, statement in program.statements.items()}
    return {
        program.source[name] for name, found in calls.items() if any(c.function not in FINITE for c in found)
    }


def is_product(region: Region) -> bool:
    """Whether all that a region reads sparse are matrices of its products, which recognisers would have made."""
    assert region.program is not None, "the front end writes programs"
    sums = [part for part in find(region.program, Reduce) if is_multilinear(part)]
    within = [access for part in sums for access in find(part, Access)]
    names = {region.names[matrix.name] for matrix in region.matrices if matrix.dense is not None}
    read = [a for s in region.program.statements for a in find(s.value, Access) if a.tensor in names]
    return len(names) == len(region.matrices) and all(access in within for access in read)


def put_dense_products_first(draft: Draft, region: Region) -> None:
    """`Y = sum(j, f, A X W) -> T = sum(f, X W); Y = sum(j, A T)` where that is the order by cost, of gradients as well.

    Products with a sparse factor are left to the compiler, which keeps their zeros, but for those that have few.
    """
    sizes, equations, program = expected_sizes(draft, region), region.equations, region.program
    assert isinstance(equations, Text) and program is not None, "the front end makes regions with both"
    if any(index not in sizes.extents for d in program.declarations for index in d.extents):
        return
    found = contract(program, sizes)
    split, known = found.program, {declared.name for declared in program.declarations}
    further = [statement for statement in split.statements if statement.target.tensor not in known]
    read = {access.tensor for statement in further for access in find(statement.value, Access)}
    made = {statement.target.tensor for statement in further}
    dense = {name for name in {*read, *made} if split.declaration(name).format.is_dense}
    full = {name for name, stored in found.stored.items() if stored >= FULL * coordinates(split, name, sizes)}
    if further and (read <= dense or (full and made <= full)):
        region.equations = replace(equations, statements=split.statements)
        finish(region)


def coordinates(program: Program, name: str, sizes: Sizes) -> int:
    """The number of entries a tensor of a program has when all are stored."""
    return prod(sizes.extents.get(extent, UNKNOWN) for extent in program.declaration(name).extents)


def report_dense(draft: Draft, covered: set[fx.Node]) -> None:
    """Lists every node that a rule reached and that no region computes."""
    for node in draft.graph.nodes:
        why = info(node).dense_reason
        if why and node not in covered:
            draft.report.left_dense(node.name, operator_name(node), scope(node), why)


def settled(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that recognisers leave dense as that is faster, and convolutions, which have roads of their own."""
    reasons = {node: info(node).dense_reason for node in graph.nodes if info(node).dense_reason is not None}
    return {n for n, why in reasons.items() if isinstance(why, Choice) or operator_name(n).startswith("conv")}


def note_refusal(nodes: list[fx.Node], reason: str) -> None:
    """Says of the first of some nodes why they stay dense, where none says so itself."""
    if not any(info(node).dense_reason is not None for node in nodes):
        set_info(nodes[0], dense_reason=reason)


def sources_of(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Some nodes, and all that they are computed from."""
    found, waiting = set[fx.Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def kept_alone(draft: Draft, program: ModelProgram) -> set[str]:
    """The tensors that the recipe keeps apart from readers: all, sums that sums read, or what other modules read."""
    asked, readers = draft.recipe.fuse, program.readers()
    sums = {name for name, statement in program.statements.items() if find(statement.value, Reduce)}
    found = set()
    for name, statement in program.statements.items():
        node = program.nodes.get(name)
        if node is None or is_view(statement):
            continue
        is_summed = name in sums and bool(sums & readers.get(name, set()))
        is_alone = not asked.enabled or (asked.max_einsums == 1 and is_summed)
        is_between = asked.across != "modules" and any(scope(user) != scope(node) for user in node.users)
        is_rounded = any(reads_rounded(tensor_value(node), tensor_value(user)) for user in node.users)
        found |= {name} if is_alone or is_between or is_rounded else set()
    return found


def reads_rounded(value: torch.Tensor | None, result: torch.Tensor | None) -> bool:
    """Whether numbers in half precision count in another dtype: as torch rounds them, kernels have to round them.

    Kernels compute half precision in float32, and round what they write.
    """
    if value is None or result is None:  # parts of a tensor, sizes, the caller
        return False
    return value.dtype in HALVES and result.dtype != value.dtype


def canonical(
    program: ModelProgram,
    leaves: Mapping[str, Operand],
    shares: Mapping[str, float],
    apart: Collection[str],
    gates: Collection[str] = (),
    results: Collection[str] = (),
) -> Storage:
    """Rewrites a program, in place: views are inlined, and what is needed under a pattern alone is restricted to it.

    Args:
        apart: tensors that stay.
        gates: leaves that choose experts.
        results: sums over what these restrict.

    Returns:
        how its tensors are stored.
    """
    inline(program, infer(program, leaves, shares), apart, is_view)
    distribute(program, infer(program, leaves, shares), apart)
    restrict(
        program, leaves, shares, apart
    )  # before products of sums are joined: sampled ones stay by themselves
    inline(program, infer(program, leaves, shares), apart)
    normalise(program, set(apart))
    restrict(program, leaves, shares, apart)
    inline(program, infer(program, leaves, shares), apart)
    narrow_first(program, infer(program, leaves, shares), apart)
    if gates:
        inline_parts(program, infer(program, leaves, shares), apart)
        inline(program, infer(program, leaves, shares), apart)
        for name in results:
            join(program, name, apart)
            absorb(program, name, gates, apart)
        rows = restricted(program, infer(program, leaves, shares), gates)
        read_parts(program, rows.keys() & program.statements.keys())
    return infer(program, leaves, shares)


def restrict(
    program: ModelProgram,
    leaves: Mapping[str, Operand],
    shares: Mapping[str, float],
    apart: Collection[str],
) -> None:
    """Restricts tensors to the patterns under which they are needed, one after the other."""
    for _ in range(ROUNDS):
        if not demand(program, infer(program, leaves, shares), apart):
            return
