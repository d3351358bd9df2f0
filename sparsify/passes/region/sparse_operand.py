"""Sparse operands of a graph, with the sources of their coordinates and values.

In: a placeholder `adj` marked by a rule. Out: `Matrix(name="A_adj", dense=%adj)`. A weight with integer values has
scales, `%s = row_scales(%w, %w_scales)`.
"""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from sparsify.compiler.ir.dtypes import name_of
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph import operators
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, tensor_value
from sparsify.passes.operands.alignment import BAGS
from sparsify.passes.operands.cached_operands import Joins
from sparsify.sparsification.masks.mask_spec import MaskSpec
from sparsify.sparsification.rules.rounding import scale_dtype, scales
from sparsify.storage.format import Format

if TYPE_CHECKING:
    from sparsify.compiler.einsum.declare import Operand

# Dtypes of products with weights without gradients: sums of float32, rounded once.
HALVES: Final = (torch.bfloat16, torch.float16)
# Suffix of an integer weight's name for the buffer with its scales.
SCALES: Final = "_scales"


@dataclass(frozen=True)
class Matrix:
    """A sparse operand [rows, columns].

    Attributes:
        name: name of the operand in einsum programs.
        extents: numbers or size nodes; None for a dense tensor, whose shape has the extents. With three extents and no
            `between` coordinates, the second is the number of entries: each entry has its own middle coordinate.
        rows, columns: coordinates of the entries, [entries], None for a dense tensor.
        values: [entries], None when all are 1.
        dense: dense tensor declared sparse by a rule.
        transposed: whether the operand is the transpose of `dense`.
        dtype: dtype of the values.
        mark: origin of the sparsity.
        packed: chosen format where the rule leaves the format open.
        scales: factors of the rows of `dense`, None for unscaled values.
        places: tensor with zeros that imply zeros of `dense` for any values, None where zeros of `dense` are values.
        parts: nodes from which `dense` and `places` are computed if the computation belongs to the operand, else empty.
        between: coordinates of the entries in the modes between rows and columns.
        joins: reduction of duplicate entries, where missing values count as 1, or as the logarithm 0; `nothing` where
            duplicates are excluded.
    """

    name: str
    extents: tuple[Any, ...] | None
    rows: fx.Node | None
    columns: fx.Node | None
    values: fx.Node | None
    dense: fx.Node | None
    transposed: bool
    dtype: torch.dtype
    mark: Mark
    packed: Format | None = None
    scales: fx.Node | None = None
    places: fx.Node | None = None
    parts: tuple[fx.Node, ...] = ()
    joins: Joins = "sum"
    between: tuple[fx.Node, ...] = ()

    @property
    def leaves(self) -> list[fx.Node]:
        """The source nodes of a dense tensor's operand, the tensor itself first."""
        assert self.dense is not None, "other operands have coordinates"
        if self.parts:
            return list(self.parts)
        if self.places is not None and self.places is not self.dense:
            return [self.dense, self.places]
        return [self.dense] if self.scales is None else list(self.scales.all_input_nodes)

    @property
    def format(self) -> Format:
        """The storage format."""
        if self.packed is not None:
            return self.packed
        return Format("csr" if self.mark.format == "auto" else self.mark.format)

    @property
    def declared(self) -> "Operand":
        """The declaration of the operand in programs."""
        from sparsify.compiler.einsum.declare import Operand

        form = self.format
        return Operand(form, name_of(self.dtype), 0.0, () if form.is_dense else result_index_dtypes(form))

    @property
    def source(self) -> str:
        """The name of the source tensor if dense."""
        if self.dense is None:
            return ""
        return str(self.dense.target) if self.dense.op in ("placeholder", "get_attr") else self.dense.name


@dataclass(frozen=True)
class PatternOperand:
    """A mask determined by lengths alone.

    Attributes:
        name: name among the operands of its region.
        spec: the pattern.
        extents: numbers of queries and keys, as numbers or size nodes.
        format: format of the masks.
    """

    name: str
    spec: MaskSpec
    extents: tuple[Any, Any]
    format: Format

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents of all modes, heads included."""
        heads = self.spec.heads
        return self.extents if heads is None else (heads, *self.extents)

    @property
    def declared(self) -> "Operand":
        """The declaration in programs: truth values, or numbers added to scores."""
        from sparsify.compiler.einsum.declare import Operand

        dtype, fill = ("float32", -inf) if self.spec.is_weighted else ("bool", False)
        return Operand(self.format, dtype, fill, result_index_dtypes(self.format))

    @property
    def size_nodes(self) -> list[fx.Node]:
        """The extents known only at call time."""
        return [extent for extent in self.extents if isinstance(extent, fx.Node)]


@dataclass(frozen=True)
class Bags:
    """The table rows named by each bag: `A[b,p,j]`, with positions over all bags as mode p; 1, or a weight.

    Attributes:
        name: name among the operands of its region.
        extents: numbers of bags, indices and table rows, as numbers or symbols.
        indices: named rows, bag by bag.
        offsets: start positions of bags.
        weights: one per index, None when all are 1.
        has_last: whether the last offset is the end of the last bag.
        dtype: dtype of the values.
        mark: origin of the sparsity.
    """

    name: str
    extents: tuple[Any, Any, int]
    indices: fx.Node
    offsets: fx.Node
    weights: fx.Node | None
    has_last: bool
    dtype: torch.dtype
    mark: Mark

    @property
    def inputs(self) -> list[fx.Node]:
        """The source nodes of the operand."""
        return [self.indices, self.offsets, *([] if self.weights is None else [self.weights])]

    @property
    def declared(self) -> "Operand":
        """The declaration in programs: arrays are the indices and offsets of the model."""
        from sparsify.compiler.einsum.declare import Operand

        crd, pos = (name_of(node.meta["val"].dtype) for node in (self.indices, self.offsets))
        return Operand(BAGS, name_of(self.dtype), 0.0, (("", ""), (pos, crd), ("", crd)))


SparseOperand = Matrix | PatternOperand | Bags


def declared_sparse(node: Any) -> Matrix | None:
    """The sparse operand of a dense input or parameter marked by a rule, through transposes.

    None for a dense operand.
    """
    transposed = False
    base = node
    while (
        isinstance(base, fx.Node) and operator_name(base) in ("t", "transpose", "permute") and is_swap(base)
    ):
        base, transposed = base.args[0], not transposed
    if not isinstance(base, fx.Node) or base.op not in ("placeholder", "get_attr"):
        return None
    mark, value = info(base).mark, tensor_value(base)
    if not isinstance(mark, Mark) or value is None or value.dim() != 2 or not value.dtype.is_floating_point:
        return None
    suffix = "_t" if transposed else ""
    dtype = value.dtype if mark.dtype == "same" else getattr(torch, mark.dtype)
    scales = scales_of(base, value) if dtype is torch.int8 else None
    name = f"A_{base.name}{suffix}"
    return Matrix(name, None, None, None, None, base, transposed, dtype, mark, scales=scales)


def row_scales(weight: torch.Tensor, packed_scales: torch.Tensor) -> torch.Tensor:
    """The scales of a dense weight; `packed_scales` holds the scales of a packed weight."""
    return scales(weight)


def scales_of(weight: fx.Node, value: torch.Tensor) -> fx.Node:
    """The node for the scales of a weight."""
    existing = next((user for user in weight.users if user.target is row_scales), None)
    if existing is not None:
        return existing
    name = f"{weight.target}{SCALES}"
    fake = value.new_empty(value.shape[:1], dtype=scale_dtype(value.dtype))
    packed_scales = next(
        (node for node in weight.graph.find_nodes(op="get_attr") if node.target == name), None
    )
    if packed_scales is None:
        packed_scales = weight.graph.create_node("get_attr", name, name=name.replace(".", "_"))
    weight.append(packed_scales)
    with weight.graph.inserting_after(packed_scales):
        node = weight.graph.call_function(row_scales, (weight, packed_scales))
    packed_scales.meta["val"] = node.meta["val"] = fake
    return node


def is_swap(node: fx.Node) -> bool:
    """Whether a transposition exchanges the two modes of a matrix."""
    value = tensor_value(node)
    if value is None or value.dim() != 2:
        return False
    if operator_name(node) == "t":
        return True
    if operator_name(node) == "permute":
        dims = operators.argument(node, 1, "dims")
        return [dim % 2 for dim in dims] == [1, 0]
    dims = (operators.argument(node, 1, "dim0"), operators.argument(node, 2, "dim1"))
    return sorted(dim % 2 for dim in dims) == [0, 1]
