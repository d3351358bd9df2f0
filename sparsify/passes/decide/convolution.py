"""Convolutions with pruned weights, with their entrywise epilogues.

In:  `%c = conv2d(%x, %w, %b, [2, 2], [1, 1]); %n = batch_norm(%c, ...); %r = silu(%n)`.
Out: a region over the packed weight and flat images: `Y[n,o,y,x] = silu(s[o] * sum(k, W[o,k] * F[n,k+58*y+x]) + b[o])`.

Windows become products: `sum(c, r, s, w[o,c,r,s] * x[n,c,2*y+r-1,2*x+s-1]) = sum(k, W[o,k] * F[n,k+29*y+x])`, with
flat images, and with the entries of w in W at their offsets in an image. The results of an image are one mode p where
nothing lies between rows or where rows are shorter than vectors, `F[n,k+p]`. The epilogue reads vectors over outputs or
tensors of the result's shape.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.compiler.cpp.toolchain.target import vector_bytes
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import rename_accesses
from sparsify.compiler.ir.dtypes import name_of
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import known_size, operator_name, tensor_value
from sparsify.passes.operands.convolution_operands import (
    FlatImages,
    Places,
    entry_read,
    extents_of_results,
    pixels,
    summand,
)
from sparsify.passes.operands.sliding_window import CSR, Grid, packed_bytes, packed_format
from sparsify.passes.program.model import MATRIX, ModelProgram, Refusal, sizes_of
from sparsify.passes.program.table import ROWS
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import SCALES, Matrix, scales_of
from sparsify.passes.rewrite.epilogue import epilogue, joined
from sparsify.passes.rewrite.row_factors import RowFactors
from sparsify.passes.rewrite.windows import Windowed, windowed
from sparsify.recipe.schema import Compile
from sparsify.report import Choice
from sparsify.sparsification.rules.rounding import rounded, scale_dtype

DTYPES: Final = {torch.float32: "float32", torch.float64: "float64"}
# Bytes by which a packed weight may be larger than the dense one, with the positions of its entries in images: listing
# positions in each call takes longer than a small product, and kernels of small weights with few zeros may be faster
# than torch's.
FEW_BYTES: Final = 128 * 1024
# The section of the table with convolutions.
WINDOW: Final = "window"
# The index of a vector over outputs.
ROW: Final = (Index("o"),)
# Placeholder name for the sum over windows, distinct from all tensor names of a graph.
SUM: Final = "sum over windows"


def convolution_regions(
    draft: Draft, program: ModelProgram, unfused: Collection[str], taken: Collection[fx.Node]
) -> list[Region]:
    """The regions of convolutions with marked weights; refusals are noted on the nodes.

    Args:
        program: program of the graph.
        unfused: tensors that must not be fused with their readers.
        taken: nodes of other regions.
    """
    regions: list[Region] = []
    weights = marked_weights(draft.graph)
    for node in draft.graph.nodes:
        weight = next((read for read in node.all_input_nodes if read in weights), None)
        if weight is None:
            continue
        covered = {*taken, *(n for region in regions for n in region.covered)}
        region_or_refusal = region_behind(draft, program, node, weight, unfused, covered)
        if isinstance(region_or_refusal, str):
            set_info(node, dense_reason=region_or_refusal)
        elif region_or_refusal is not None:
            regions.append(region_or_refusal)
    return regions


def marked_weights(graph: fx.Graph) -> dict[fx.Node, Mark]:
    """The window parameters matched by rules, with their marks."""
    marks = ((node, info(node).mark) for node in graph.find_nodes(op="get_attr"))
    return {node: mark for node, mark in marks if isinstance(mark, Mark) and has_windows(node)}


def has_windows(weight: fx.Node) -> bool:
    """Whether a parameter has more modes than a matrix."""
    value = tensor_value(weight)
    return value is not None and value.dim() > MATRIX


def region_behind(
    draft: Draft,
    program: ModelProgram,
    node: fx.Node,
    weight: fx.Node,
    unfused: Collection[str],
    taken: Collection[fx.Node],
) -> Region | str | None:
    """The region that begins with a reader of a weight, or the refusal; `None` for other operators."""
    row = ROWS.get(operator_name(node))
    if node.name not in program.statements:
        return program.opaque.get(node.name) if row is not None and row.section == WINDOW else None
    try:
        windowed_sum = windowed(program, node, weight)
    except Refusal as refusal:
        return str(refusal)
    return (
        None
        if windowed_sum is None
        else convolution(draft, program, node, weight, windowed_sum, unfused, taken)
    )


def reason_against(node: fx.Node, weight: fx.Node, image: fx.Node, mark: Mark) -> str:
    """The reason why a convolution has no kernel, "" for a convolution with a kernel."""
    value = tensor_value(node)
    assert value is not None, "convolutions give tensors"
    if value.dtype not in DTYPES or {weight.meta["val"].dtype, image.meta["val"].dtype} != {value.dtype}:
        return f"convolutions in {value.dtype} are not supported yet"
    if mark.format not in ("auto", str(CSR), "csr"):
        return f"its kernels read CSR alone, not {mark.format}"
    return ""


def convolution(
    draft: Draft,
    program: ModelProgram,
    node: fx.Node,
    weight: fx.Node,
    windowed_sum: Windowed,
    unfused: Collection[str],
    taken: Collection[fx.Node],
) -> Region | str:
    """The region of a sum over windows and its epilogue, or the refusal."""
    mark = info(weight).mark
    assert mark is not None, "rules reach it"
    why = reason_against(node, weight, windowed_sum.image, mark)
    if why:
        return why
    if draft.is_trainable:
        return "in training it is torch's, whose gradients for the weight are those of its entries that are not 0"
    dense_weight = draft.known_tensor(weight)
    extents = [
        known_size(extent) for extent in windowed_sum.image.meta["val"].shape[-len(windowed_sum.windows) :]
    ]
    if dense_weight is None or None in extents:
        return "the extents of its images, or its weight, are not known"
    if mark.dtype != "same" and not is_rounded(draft, weight, dense_weight, mark.dtype):
        return f"its weight is not rounded to {mark.dtype}: those of modules for convolutions are"
    grid = Grid(windowed_sum.windows, tuple(extents))  # type: ignore[arg-type]
    options = draft.recipe.compile
    is_timed = options.allows("torch") and draft.options.tune_seconds > 0
    packing = packed(dense_weight, grid, mark.dtype, options.memory == "compact", is_timed)
    if not packing.is_small:
        return Choice(
            f"{packing.share:.0%} of its weight are stored: they and their coordinates take more memory than all"
        )
    lanes = max(1, vector_bytes(draft.options) // dense_weight.itemsize)
    product = Product(program, node, weight, windowed_sum, mark, grid, packing, grid.is_by_rows(lanes))
    try:
        computed = product.computed(unfused, taken)
        *_, last = computed
        if grid.has_whole_vectors(lanes) and any(
            reads_padded(program, reader, last) for reader in last.users
        ):
            product = replace(product, has_rows=True)
            computed = product.computed(unfused, taken)
    except Refusal as refusal:
        return str(refusal)
    return convolution_region(product, computed, draft.recipe.compile)


def reads_padded(program: ModelProgram, node: fx.Node, image: fx.Node) -> bool:
    """Whether a node is a convolution with a marked weight that reads a tensor inside padded images."""
    weight = next((read for read in node.all_input_nodes if isinstance(info(read).mark, Mark)), None)
    if weight is None or not has_windows(weight) or node.name not in program.statements:
        return False
    try:
        found = windowed(program, node, weight)
    except Refusal:
        return False
    return (
        found is not None
        and found.image is image
        and Grid(found.windows, (1,) * len(found.windows)).is_single_phase
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in its packed form.

    Attributes:
        share: share of stored entries.
        bytes: memory of the packed weight with its additional arrays.
        dense_bytes: memory of the dense weight.
        keeps_places: whether the positions of entries in images are listed once, not in each call.
        is_small: whether entries and coordinates take less than the dense weight; for a timed kernel also if all takes
            less than the dense weight plus `FEW_BYTES`.
    """

    share: float
    bytes: int
    dense_bytes: int
    keeps_places: bool
    is_small: bool


def packed(weight: Tensor, grid: Grid, dtype: str, is_compact: bool, is_timed: bool) -> Packed:
    """Packed storage of a weight, with positions listed once if few or smaller than the dense weight.

    Args:
        dtype: dtype of the packed values, "same" for the weight's own.
        is_compact: whether positions are never kept.
        is_timed: whether the kernel only runs if it is faster than torch's convolution.
    """
    stored = int(torch.count_nonzero(weight))
    value_bytes = weight.itemsize if dtype == "same" else getattr(torch, dtype).itemsize
    scales = len(weight) * scale_dtype(weight.dtype).itemsize if dtype == "int8" else 0
    packed_size = packed_bytes(weight.shape, stored, value_bytes) + scales
    with_places = packed_size + grid.bytes_of_places(stored, len(weight), value_bytes)
    share = stored / max(1, weight.numel())
    keeps_places = not is_compact and with_places < weight.nbytes + FEW_BYTES
    is_small = packed_size < weight.nbytes or (is_timed and keeps_places)
    return Packed(share, with_places if keeps_places else packed_size, weight.nbytes, keeps_places, is_small)


def is_rounded(draft: Draft, parameter: fx.Node, weight: Tensor, dtype: str) -> bool:
    """Whether a weight is representable in a dtype, with registered scales for int8."""
    if dtype == "int8":
        owner, _, name = str(parameter.target).rpartition(".")
        if not hasattr(draft.model.get_submodule(owner), f"{name}{SCALES}"):
            return False
    return torch.equal(rounded(weight, dtype), weight)


@dataclass
class Product:
    """A convolution as a product, with the checks of its epilogue.

    Attributes:
        program: program of the graph.
        node: the convolution.
        weight: its weight.
        windowed: its sum over windows.
        mark: mark of the weight.
        grid: its windows, over the example's images.
        packed: packed form of the weight.
        has_rows: whether results are computed by rows, without the padding between rows.
    """

    program: ModelProgram
    node: fx.Node
    weight: fx.Node
    windowed: Windowed
    mark: Mark
    grid: Grid
    packed: Packed
    has_rows: bool

    @property
    def entry(self) -> tuple[Index, ...]:
        """The indices of an entry of the result."""
        return (Index("n"), *ROW, *pixels(self.grid, self.has_rows))

    def computed(self, unfused: Collection[str], taken: Collection[fx.Node]) -> dict[fx.Node, Expr]:
        """The nodes of the region, with their values.

        Raises:
            Refusal: the statement of the convolution reads something other than a vector over outputs.
        """
        first = {self.node: self.result_value}
        return first | epilogue(self.program, self.node, self.entry, self.read, unfused, taken)

    @property
    def value(self) -> Tensor:
        """A stand-in for the result."""
        result = tensor_value(self.node)
        assert result is not None, "convolutions give tensors"
        return result

    @property
    def result_value(self) -> Expr:
        """The value of its statement, with the sum over windows as one tensor.

        Raises:
            Refusal: the statement reads something other than a vector over outputs.
        """
        statement = self.program.statements[self.node.name]

        def visit(part: Node) -> Node:
            if part == self.windowed.total:
                return Access(SUM, self.entry)
            return self.read(part, statement) if isinstance(part, Access) else map_children(part, visit)

        result = visit(statement.value)
        assert isinstance(result, Expr)
        return result

    def read(self, access: Access, statement: Assign) -> Access:
        """The access of an epilogue to another tensor, with the results of an image as one mode.

        Raises:
            Refusal: neither a vector over outputs nor a tensor of the same shape without gaps between rows.
        """
        value = tensor_value(self.program.nodes.get(access.tensor))
        if value is None or value.dtype not in (self.value.dtype, torch.bool):
            raise Refusal(f"{access} has another dtype")
        sizes, entry = sizes_of(self.value), statement.target.indices
        if sizes_of(value) == sizes and access.indices == entry:
            if not (self.has_rows or self.grid.is_whole):
                raise Refusal(f"{access} has nothing for what lies between rows")
            return Access(access.tensor, self.entry)
        channel = len(sizes) - len(self.grid.extents) - 1
        long_modes = sum(size != 1 for size in sizes[:channel])
        row = entry[long_modes : long_modes + 1] if sizes[channel] != 1 else ()
        if access.indices not in ((), row) or value.dtype is torch.bool:
            raise Refusal(f"{access} is no vector over outputs")
        return Access(access.tensor, ROW if access.indices == row else ())


@dataclass(frozen=True, slots=True)
class Text:
    """The statements of a region.

    Attributes:
        values: value of each tensor: temporaries, and Y.
        rows: nodes that determine the vectors.
        added: nodes of the shape of the result, Z.
        vectors: name of each vector over outputs, by expression.
        ranks: number of modes of a row, by name.
    """

    values: dict[str, Expr]
    rows: list[fx.Node]
    added: list[fx.Node]
    vectors: dict[Expr, str]
    ranks: dict[str, int]


def text_of(product: Product, computed: Mapping[fx.Node, Expr], scales: fx.Node | None) -> Text:
    """The statements of the nodes of a region."""
    members = list(computed)
    names = {node.name: f"T{number or ''}" for number, node in enumerate(members)} | {members[-1].name: "Y"}
    accesses = [
        a for value in computed.values() for a in find(value, Access) if a.tensor not in (*names, SUM)
    ]
    read_nodes = {a.tensor: product.program.nodes[a.tensor] for a in accesses}
    added = [
        n
        for name, n in read_nodes.items()
        if any(a.tensor == name and a.indices == product.entry for a in accesses)
    ]
    rows = [
        *([] if scales is None else [scales]),
        *(node for node in read_nodes.values() if node not in added),
    ]
    names |= {node.name: f"r{number}" for number, node in enumerate(rows)}
    names |= {node.name: summand(number) for number, node in enumerate(added)}
    image = Access("F", (Index("n"), entry_read(product.grid, product.has_rows)))
    total: Expr = Reduce("sum", ("k",), Call("mul", (Access("W", (*ROW, Index("k"))), image)))
    total = total if scales is None else Call("mul", (Access(names[scales.name], ROW), total))
    values = {names[node.name]: rename_accesses(value, names) for node, value in computed.items()}
    law = RowFactors(frozenset(names[node.name] for node in rows), ROW)
    values = joined({SUM: total} | values, "Y")
    temporaries = {name: f"T{number or ''}" for number, name in enumerate(values)} | {"Y": "Y"}
    statements = {
        temporaries[name]: rename_accesses(law(value), temporaries) for name, value in values.items()
    }
    ranks = {} if scales is None else {names[scales.name]: 1}
    ranks |= {names[a.tensor]: len(a.indices) for a in accesses if read_nodes[a.tensor] in rows}
    return Text(statements, rows, added, law.vectors, ranks)


def convolution_region(product: Product, computed: Mapping[fx.Node, Expr], options: Compile) -> Region:
    """The region of a convolution, with its program.

    Args:
        computed: value of each fused node.
        options: memory policy and libraries allowed by the recipe.
    """
    mark, grid, packing = product.mark, product.grid, product.packed
    x, weight, value = product.windowed.image, product.weight, product.value
    image, dense_weight = tensor_value(x), tensor_value(weight)
    assert image is not None and dense_weight is not None, "convolutions are of tensors"
    scales = scales_of(weight, dense_weight) if mark.dtype == "int8" else None
    text = text_of(product, computed, scales)
    read = list(dict.fromkeys([x, weight, *text.rows, *text.added]))
    dtype, stored = DTYPES[value.dtype], value.dtype if mark.dtype == "same" else getattr(torch, mark.dtype)
    vectors = sorted(text.vectors.values(), key=lambda name: (name[0] == "b", len(name), name))
    layout = FlatImages(
        grid.windows,
        Places(0, 1, tuple(map(read.index, text.rows)), tuple(map(read.index, text.added))),
        grid.extents,
        program_of_rows(text, vectors, dtype, len(dense_weight)),
        packing.keeps_places,
        image.dim() < dense_weight.dim(),
        product.has_rows,
    )
    form = packed_format(dense_weight.shape)
    operands: dict[str, Any] = {n.name: n for n in read}
    operands[weight.name] = Matrix(
        weight.name, None, None, None, None, weight, False, stored, mark, packed=form, scales=scales
    )
    *_, last = computed
    names = {n.name: n.name for n in read} | {x.name: "F", weight.name: "W", last.name: "Y"}
    notes = ["convolution"]
    if any(not isinstance(expr, Access) for expr in text.vectors):
        notes[0] = f"convolution, what follows from vectors over outputs alone in {' and '.join(vectors)}"
    sizes = f"{packing.share:.1%} stored, {packing.bytes / 1024:.1f} KiB of {packing.dense_bytes / 1024:.1f}"
    how = "" if packing.keeps_places else ", places in images listed in each call"
    notes.append(f"{weight.target} packed: {sizes}{how}")
    return Region(
        [(last, tuple([index.name for index in product.entry]), Const(0))],
        operands,
        list(computed),
        notes,
        program_of(product, text, vectors, dtype, name_of(stored)),
        names,
        is_contested=options.memory != "compact" and options.allows("torch"),
        layout=layout,
    )


def program_of_rows(text: Text, vectors: Sequence[str], dtype: str, outputs: int) -> Program | None:
    """The program of the vectors of a convolution, None without vectors."""
    named = {name: expr for expr, name in text.vectors.items()}
    statements = [Assign(Access(name, ROW), None, named[name]) for name in vectors]
    operands = {name: Operand(dense_format(rank), dtype) for name, rank in text.ranks.items()}
    return declare(statements, operands, vectors, sizes={"o": outputs}) if statements else None


def program_of(product: Product, text: Text, vectors: Sequence[str], dtype: str, stored: str) -> Program:
    """The program of a convolution.

    Args:
        product: the convolution.
        text: statements of the region.
        vectors: vectors over its outputs, in order.
        dtype: dtype of images and results.
        stored: dtype of the weight's values.
    """
    operands = {
        "F": Operand(dense_format(2), dtype),
        "W": Operand(CSR, stored, 0.0, result_index_dtypes(CSR)),
    }
    operands |= {name: Operand(dense_format(1), dtype) for name in vectors}
    for number, node in enumerate(text.added):
        operands[summand(number)] = Operand(dense_format(len(product.entry)), name_of(node.meta["val"].dtype))
    statements = [Assign(Access(name, product.entry), None, value) for name, value in text.values.items()]
    channels = product.weight.meta["val"].shape[1]
    sizes = extents_of_results(product.grid, int(channels), product.has_rows)
    return declare(statements, operands, ("Y",), sizes=sizes)
