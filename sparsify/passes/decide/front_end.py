"""Regions of what no recogniser knows: the graph in index notation, sparsity inferred, cut into programs.

In: a draft whose regions are fused, with marked tensors that further operators read, `a * (x @ x.T)` with a sparse.
Out: the same with a region for each part of the graph that touches such a tensor: `Y[i,k] = A[i,k] * sum(j, X[i,j] *
X[k,j])`. What has no program stays torch's, for the reasons that the report lists.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Final

import torch
from torch import fx

from sparsify.compiler.dtypes import name_of
from sparsify.compiler.einsum.declare import Operand
from sparsify.compiler.einsum.nodes import Access, Expr
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.compiler.node import Node, map_children
from sparsify.errors import SparsifyError
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.choose.estimate import extents_of, stored_entries
from sparsify.passes.decide.cut import Cut, cut, kept
from sparsify.passes.decide.textbook import textbook, unified, unread_indices
from sparsify.passes.graph import insert
from sparsify.passes.graph.operators import argument, known_size, operator_name, scope, sources, tensor_value
from sparsify.passes.program.infer import Storage, infer
from sparsify.passes.program.model import ModelProgram, sizes_of
from sparsify.passes.program.translate import dense_operand, translate
from sparsify.passes.region.region import Region, declare_equations
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.passes.rewrite.demand import demand
from sparsify.passes.rewrite.inline import inline
from sparsify.storage.format import Format

aten: Final = torch.ops.aten
# Rounds of inference and demand: each restricts one tensor.
ROUNDS: Final = 64
# Of marked tensors that programs read.
DTYPES: Final = (torch.float32, torch.float64, torch.bool)
# What only inputs and parameters have: a mark for kernels of attention or experts names an operator.
LEAVES: Final = ("placeholder", "get_attr")


def front_end(draft: Draft) -> Draft:
    """The draft with regions for operators that no recogniser lifted, where they touch a marked tensor."""
    marked = marked_leaves(draft.graph, covered_by(draft.regions))
    if marked:
        shared = [region for region in draft.regions if reads_input(region, marked)]
        # One program of all that reads a tensor, or else what the recognisers leave.
        made = shared and general_regions(draft, [r for r in draft.regions if r not in shared], is_whole=True)
        if made:
            draft.regions = [region for region in draft.regions if region not in shared]
        made = made or general_regions(draft, draft.regions)
        place = {node: number for number, node in enumerate(draft.graph.nodes)}
        draft.regions = sorted([*draft.regions, *made], key=lambda region: place[region.output])
    report_dense(draft, covered_by(draft.regions))
    return draft


def covered_by(regions: Iterable[Region]) -> set[fx.Node]:
    """The nodes that regions replace."""
    return {node for region in regions for node in region.covered}


def reads_input(region: Region, marked: Mapping[str, Matrix]) -> bool:
    """Whether a region of products reads an input, as a sparse operand, that further operators read."""
    return any(
        matrix.dense is not None and matrix.dense.op == "placeholder" and matrix.dense.name in marked
        for matrix in region.matrices
    )


def general_regions(draft: Draft, others: Iterable[Region], *, is_whole: bool = False) -> list[Region]:
    """The regions of all that reads marked tensors and that other regions do not cover.

    Args:
        is_whole: whether one cut without a region means none at all.
    """
    covered = covered_by(others)
    marked = marked_leaves(draft.graph, covered)
    program = translate(
        draft.graph,
        apart=covered | {draft_node for draft_node in draft.graph.nodes if draft_node.name in marked},
    )
    leaves = {name: operand_of(matrix) for name, matrix in marked.items()}
    storage = canonical(program, leaves, densities(draft, marked))
    for name in marked:
        for reader in program.nodes[name].users:
            if reader.name in program.opaque and reader not in covered:
                reader.meta.setdefault("dense_reason", program.opaque[reader.name])
    made = []
    for found in cut(program, storage):
        region = region_of(program, found, marked)
        if not isinstance(region, str):
            made.append(region)
        elif is_whole:
            return []
        else:
            for name in found.outputs:
                program.nodes[name].meta["dense_reason"] = region
    for region in made:
        for node in region.covered:
            node.meta.pop("dense_reason", None)
    return made


def report_dense(draft: Draft, covered: set[fx.Node]) -> None:
    """Lists every node that a rule reached and that no region computes."""
    for node in draft.graph.nodes:
        why = node.meta.get("dense_reason")
        if why and node not in covered:
            draft.report.left_dense(node.name, operator_name(node), scope(node), why)


def marked_leaves(graph: fx.Graph, covered: set[fx.Node]) -> dict[str, Matrix]:
    """The marked tensors that operators outside of regions read, as sparse operands by name.

    They are inputs and parameters, and dense tensors that the graph makes of coordinates and marked values.
    """
    found = {}
    for node in graph.nodes:
        matrix = declared(node) if node.op in LEAVES else written_out(node)
        readers = (user for user in node.users if operator_name(user) not in ("sym_size", "size"))
        if matrix is not None and not matrix.format.is_dense and not covered.issuperset(readers):
            found[node.name] = matrix
    return found


def declared(node: fx.Node) -> Matrix | None:
    """An input or a parameter that a rule declares sparse."""
    mark, value = node.meta.get("sparse"), tensor_value(node)
    if not isinstance(mark, Mark) or mark.derived or mark.dtype != "same" or mark.mask is not None:
        return None
    # Modes of extent 1 are left out of programs, and nothing is stored in empty ones.
    if value is None or value.dtype not in DTYPES or any(size in (0, 1) for size in (sizes_of(value) or [0])):
        return None
    form = storage_format(mark, value.dim())
    return None if form is None else Matrix(
        name=node.name, extents=None, rows=None, columns=None, values=None, dense=node,
        transposed=False, dtype=value.dtype, mark=mark, packed=form,
    )  # fmt: skip


def written_out(node: fx.Node) -> Matrix | None:
    """`zeros.index_put((rows, columns), values, accumulate=True)`: a matrix of coordinates, some of them marked."""
    value = tensor_value(node)
    if operator_name(node) != "index_put" or value is None or value.dim() != 2 or value.dtype not in DTYPES:
        return None
    base, places, values = node.args[:3]
    is_matrix = len(places) == 2 and all(isinstance(place, fx.Node) for place in places)  # type: ignore[arg-type]
    if not is_matrix or operator_name(base) != "zeros" or argument(node, 3, "accumulate") is not True:
        return None
    rows, columns = places  # type: ignore[misc]
    marks = (source.meta.get("sparse") for source in sources([rows, columns, values]))
    mark = next((mark for mark in marks if isinstance(mark, Mark)), None)
    shapes = [tensor_value(part) for part in (rows, columns, values)]
    if mark is None or any(shape is None or shape.dim() != 1 for shape in shapes) or 1 in sizes_of(value):
        return None
    form = storage_format(mark, 2)
    return None if form is None else Matrix(
        name=node.name, extents=tuple(base.args[0]), rows=rows, columns=columns, values=values,
        dense=None, transposed=False, dtype=value.dtype, mark=mark, packed=form,
    )  # fmt: skip


def storage_format(mark: Mark, rank: int) -> Format | None:
    """The format of a marked tensor of this rank; `None` where the rule names one for another rank."""
    if mark.format == "auto":
        return Format("csr") if rank == 2 else Format(", ".join(["dense"] * (rank - 1) + ["compressed"]))
    try:
        found = Format(mark.format, rank=rank)
    except SparsifyError:
        return None
    return found if found.rank == rank else None


def operand_of(matrix: Matrix) -> Operand:
    """How programs read a sparse operand."""
    form = matrix.format
    return Operand(form, name_of(matrix.dtype), 0.0, result_index_dtypes(form))


def densities(draft: Draft, marked: Mapping[str, Matrix]) -> dict[str, float]:
    """The shares of stored entries of operands, in the example."""
    found = {}
    for name, matrix in marked.items():
        stored = stored_entries(draft, matrix)
        sizes = [known_size(extent) for extent in extents_of(matrix)]
        if stored is not None and all(sizes):
            found[name] = stored / prod(size or 1 for size in sizes)
    return found


def canonical(program: ModelProgram, leaves: Mapping[str, Operand], shares: Mapping[str, float]) -> Storage:
    """Rewrites a program, in place: views are inlined, and what is needed under a pattern alone is restricted to it.

    Returns:
        how its tensors are stored.
    """
    inline(program, infer(program, leaves, shares), kept(program))
    for _ in range(ROUNDS):
        storage = infer(program, leaves, shares)
        if not demand(program, storage, kept(program)):
            break
    inline(program, storage, kept(program))
    return infer(program, leaves, shares)


def region_of(program: ModelProgram, found: Cut, marked: Mapping[str, Matrix]) -> Region | str:
    """The region of a cut, or why there is none."""
    if not any(name in marked for name in found.operands):
        return "no sparse operand is read"
    unread = unread_indices(unified(program, found.statements))
    if any(not isinstance(program.extents[name], int) for name in unread):
        return "an extent of a result is known in a call alone"
    place = {node.name: number for number, node in enumerate(program.graph.nodes)}
    outputs = sorted(found.outputs, key=place.__getitem__)
    sources = {name: marked.get(name, program.nodes[name]) for name in found.operands}
    text = textbook(program, found, outputs, sources)
    declared = {
        text.names[name]: operand_of(source) if isinstance(source, Matrix) else dense_operand(program, name)
        for name, source in sources.items()
    }
    try:
        made = declare_equations(
            text.statements, declared, [text.names[name] for name in outputs], text.sizes
        )
    except SparsifyError as error:
        return f"no program: {error}".splitlines()[0]
    inside = between([program.nodes[name] for name in outputs], [program.nodes[name] for name in sources])
    operands, names = {}, {}
    for name, source in sources.items():
        operand = source if isinstance(source, Matrix) else without_units(program.nodes[name], inside)
        operands[operand.name] = operand
        names[operand.name] = text.names[name]
    results = []
    for name in outputs:
        results.append(result_without_units(program.nodes[name]))
        names[results[-1].name] = text.names[name]
    back = {short: name for name, short in names.items()}
    return Region(
        statements=[(results[-1], (), read_by_name(text.statements[-1].value, back))],
        operands=operands,
        covered=[*inside, *(result for result in results if result not in inside)],
        names=names,
        program=made,
        results=tuple(results) if len(results) > 1 else (),
        equations=text,
    )


def read_by_name(value: Expr, names: Mapping[str, str]) -> Expr:
    """An expression with operands under the names of their nodes."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return Access(names.get(node.tensor, node.tensor), node.indices)
        return map_children(node, visit)

    found = visit(value)
    assert isinstance(found, Expr)
    return found


def between(outputs: list[fx.Node], operands: list[fx.Node]) -> list[fx.Node]:
    """The nodes that compute some nodes from others, in the order of the graph."""
    found, waiting = set[fx.Node](), list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found and node not in operands and node.op not in LEAVES:
            found.add(node)
            waiting += node.all_input_nodes
    return [node for node in outputs[0].graph.nodes if node in found]


def without_units(node: fx.Node, readers: list[fx.Node]) -> fx.Node:
    """An operand without its modes of extent 1; the nodes of a region read it through them."""
    bare, whole = apart(node)
    for reader in readers if bare is not node else ():
        reader.replace_input_with(node, whole)
    return bare


def result_without_units(node: fx.Node) -> fx.Node:
    """A result without its modes of extent 1; what reads it gets them back."""
    readers = list(node.users)
    bare, whole = apart(node)
    for reader in readers if bare is not node else ():
        reader.replace_input_with(node, whole)
    return bare


def apart(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """`squeeze(node)` and `unsqueeze(squeeze(node))`, equal to the node; the node twice where no mode has extent 1."""
    shape = node.meta["val"].shape
    units = [mode for mode, extent in enumerate(shape) if type(extent) is int and extent == 1]
    if not units:
        return node, node
    with node.graph.inserting_after(node):
        bare = whole = insert.call(aten.squeeze.dims, node, units)
    for mode in units:
        with node.graph.inserting_after(whole):
            whole = insert.call(aten.unsqueeze.default, whole, mode)
    return bare, whole
