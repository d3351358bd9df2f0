"""An operator as an einsum expression, and the accesses to its operands.

In: `%z` [k] beside a result [i, k]. Out: `z[k]`; a whole node is `Fragment(indices=("i", "k"), value=x[i,k] + z[k])`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Index, Reduce
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, parameter_behind, tensor_value
from sparsify.passes.region.sparse_operand import Matrix, declared_sparse

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
# Of products with weights that get no gradients: sums of float32, rounded once.
HALVES = (torch.bfloat16, torch.float16)
UNARY = {
    "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "neg": "neg", "abs": "abs", "sqrt":
    "sqrt", "silu": "silu", "square": "square", "sin": "sin", "cos": "cos", "erf": "erf",
}  # fmt: skip
BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}


@dataclass(frozen=True)
class Fragment:
    """What one node computes, as an expression over accesses to other nodes and to sparse operands.

    Attributes:
        node: the node.
        kind: `product`, `pointwise` or `message`.
        indices: an index variable per mode of the result.
        value: the expression; tensors are named as the nodes are.
        operands: the node or matrix behind every name in `value`.
        covered: nodes that are part of the fragment besides `node`.
    """

    node: fx.Node
    kind: str
    indices: tuple[str, ...]
    value: Expr
    operands: dict[str, fx.Node | Matrix]
    covered: tuple[fx.Node, ...] = field(default=())

    @property
    def matrices(self) -> list[Matrix]:
        """The sparse operands."""
        return [operand for operand in self.operands.values() if isinstance(operand, Matrix)]

    @property
    def is_of_weight(self) -> bool:
        """Whether the sparse operand is a parameter."""
        dense = [matrix.dense for matrix in self.matrices]
        return len(dense) == 1 and dense[0] is not None and dense[0].op == "get_attr"

    @property
    def is_of_given(self) -> bool:
        """Whether it multiplies given matrices with two coordinates and more, and no parameter that is sparse."""
        read = [o.dense if isinstance(o, Matrix) else parameter_behind(o) for o in self.operands.values()]
        weights = [node for node in read if node is not None and node.op == "get_attr"]
        shapes = [matrix.dense.meta["val"].shape for matrix in self.matrices if matrix.dense is not None]
        has_units = any(type(extent) is int and extent < 2 for shape in shapes for extent in shape)
        return bool(shapes) and not has_units and all(info(node).mark is None for node in weights)


def turned(weight: fx.Node, user: fx.Node) -> fx.Node:
    """The transpose of a weight, in row-major order; `emit` computes it once per version of the weight."""
    value = tensor_value(weight)
    assert value is not None
    with weight.graph.inserting_before(user):
        result = weight.graph.call_function(torch.ops.aten.t.default, (weight,))
        result.meta["val"] = value.t()
        result = weight.graph.call_function(torch.ops.aten.contiguous.default, (result,))
    result.meta["val"] = value.t().contiguous()
    return result


def access(name: str, *indices: str) -> Access:
    """`name[i, j]`."""
    return Access(name, tuple(Index(index) for index in indices))


def same_dtype(node: fx.Node, other: Any) -> bool:
    """Whether `other` is a tensor of the dtype that `node` computes."""
    value, wanted = tensor_value(other), tensor_value(node)
    return value is not None and wanted is not None and value.dtype == wanted.dtype


def sparse_or_dense(node: fx.Node, operands: dict[str, fx.Node | Matrix]) -> str:
    """The name of an operand of a product, entered into `operands`."""
    matrix = declared_sparse(node)
    name = matrix.name if matrix is not None else node.name
    operands[name] = matrix if matrix is not None else node
    return name


Found = tuple[Expr, dict[str, fx.Node | Matrix]]


def with_scales(
    value: Reduce, reads: Mapping[str, tuple[str, ...]], operands: dict[str, fx.Node | Matrix]
) -> Expr | None:
    """`sum(j, x[i,j] * w[k,j]) * s[k]` for whole numbers w with a scale for each row; None where rows are summed.

    Args:
        value: the product.
        reads: the index variables at which operands are read.
        operands: of the product; scales are entered.
    """
    scaled: Expr = value
    for name, indices in reads.items():
        matrix = operands[name]
        if isinstance(matrix, Matrix) and matrix.scales is not None:
            row = indices[int(matrix.transposed)]
            if row in value.indices:
                return None
            operands[matrix.scales.name] = matrix.scales
            scaled = Call("mul", (scaled, access(matrix.scales.name, row)))
    return scaled


def operand_access(arg: Any, indices: tuple[str, ...], node: fx.Node) -> Found | None:
    """The access to an operand of a pointwise operator, None when its shape or dtype does not fit."""
    if isinstance(arg, bool):
        return None
    if isinstance(arg, int | float):
        return Const(arg), {}
    if not same_dtype(node, arg):
        return None
    value, result = tensor_value(arg), tensor_value(node)
    assert value is not None
    assert result is not None
    offset = result.dim() - value.dim()
    names: list[str | None] = [
        indices[offset + mode] if same_extent(value.shape[mode], result.shape[offset + mode]) else None
        for mode in range(value.dim())
    ]
    return through_views(arg, names)


def same_extent(operand: Any, result: Any) -> bool:
    """Whether a mode of an operand is not broadcast; an extent of 1 is."""
    return not (isinstance(operand, int) and operand == 1 and str(result) != "1")


def through_views(node: fx.Node, names: list[str | None]) -> Found | None:
    """The access to `node`, or to the smaller tensor that it only broadcasts.

    None stands for a broadcast mode.
    """
    name = operator_name(node)
    base = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    inner = tensor_value(base)
    if base is not None and inner is not None and inner.dim() and inner.dtype == tensor_value(node).dtype:  # type: ignore[union-attr]
        if name == "expand":
            offset = len(names) - inner.dim()
            value = tensor_value(node)
            assert value is not None
            kept = [
                names[offset + mode] if same_extent(extent, value.shape[offset + mode]) else None
                for mode, extent in enumerate(inner.shape)
            ]
            return through_views(base, kept)
        if name in ("unsqueeze", "view") and inner.dim() == 1 and len(names) > 1:
            mode = vector_mode(node)
            if mode is not None:
                return through_views(base, [names[mode]])
    if any(name is None for name in names):
        return None
    return access(node.name, *(name for name in names if name is not None)), {node.name: node}


def vector_mode(node: fx.Node) -> int | None:
    """The mode that a vector fills after `view(-1, 1)`, `view(1, -1, 1)` or `unsqueeze`."""
    value = tensor_value(node)
    assert value is not None
    long = [mode for mode, extent in enumerate(value.shape) if not (isinstance(extent, int) and extent == 1)]
    return long[0] if len(long) == 1 else None
