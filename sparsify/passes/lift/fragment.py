"""Operators as einsum expressions, one fragment a node.

In: `%y = linear(%x, %w, %b)`. Out: `Fragment(indices=("i1", "i2"), value=sum(i3, x[i1,i3] * w[i2,i3]) +
b[i2])`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Index, Reduce
from sparsify.passes.base import Mark
from sparsify.passes.lift import gather_scatter
from sparsify.passes.lift.matrix import Matrix, declared_sparse, of_message_passing
from sparsify.passes.operators import argument, operator_name, tensor_value

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


class Lifter:
    """Makes fragments; index variables are numbered over the whole graph.

    Args:
        is_trainable: whether weights get gradients.
    """

    def __init__(self, is_trainable: bool = False) -> None:
        self.numbers = count()
        self.dtypes = tuple(DTYPES) if is_trainable else (*DTYPES, *HALVES)

    def fresh(self, rank: int) -> tuple[str, ...]:
        """`rank` new index variables."""
        return tuple(f"i{next(self.numbers)}" for _ in range(rank))

    def fragment(self, node: fx.Node, adjacency: Mark | None) -> Fragment | None:
        """The fragment of `node`, None when it has none; `adjacency` is the mark of message passing."""
        value = tensor_value(node)
        if node.op not in ("call_function", "call_method") or value is None or value.dtype not in self.dtypes:
            return None
        if adjacency is not None:
            match = gather_scatter.recognise(node) if value.dtype in DTYPES else None
            return self.message(match, adjacency) if match is not None else None
        name = operator_name(node)
        if name not in PRODUCTS:
            return self.pointwise(node)
        product = PRODUCTS[name](self, node)
        if product is not None and value.dtype in HALVES and not product.is_of_weight:
            return None
        return product

    def message(self, match: gather_scatter.GatherScatter, mark: Mark) -> Fragment | None:
        """`y[i,k] = scale * sum(j, A[i,j] * x[j,k])`."""
        matrix = of_message_passing(match, mark)
        if matrix is None or not same_dtype(match.node, match.features):
            return None
        i, j, k = self.fresh(3)
        body = Call("mul", (access(matrix.name, i, j), access(match.features.name, j, k)))
        value: Expr = Reduce("sum", (j,), body)
        if match.scale != 1:
            value = Call("mul", (value, Const(match.scale)))
        operands: dict[str, fx.Node | Matrix] = {matrix.name: matrix, match.features.name: match.features}
        return Fragment(match.node, "message", (i, k), value, operands, match.covered)

    def linear(self, node: fx.Node) -> Fragment | None:
        """`y[i,k] = sum(f, x[i,f] * w[k,f]) + b[k]`."""
        x, w, b = node.args[0], node.args[1], argument(node, 2, "bias")
        if (
            declared_sparse(x) is not None
            and is_free(declared_sparse(w))
            and isinstance(w, fx.Node)
            and same_dtype(node, w)
        ):
            product = self.contraction(node, x, turned(w, node), transposed=False)  # rows of w are gathered
        else:
            product = self.contraction(node, x, w, transposed=True)
        if product is None or b is None:
            return product
        if not same_dtype(node, b):
            return None
        value = Call("add", (product.value, access(b.name, product.indices[-1])))
        return Fragment(node, "product", product.indices, value, {**product.operands, b.name: b})

    def matmul(self, node: fx.Node) -> Fragment | None:
        """`y[i,k] = sum(j, a[i,j] * b[j,k])`."""
        return self.contraction(node, node.args[0], node.args[1], transposed=False)

    def addmm(self, node: fx.Node) -> Fragment | None:
        """`y[i,k] = c[i,k] + sum(j, a[i,j] * b[j,k])`."""
        if argument(node, 3, "beta", 1) != 1 or argument(node, 4, "alpha", 1) != 1:
            return None
        product = self.contraction(node, node.args[1], node.args[2], transposed=False)
        bias = operand_access(node.args[0], product.indices, node) if product else None
        if product is None or bias is None:
            return None
        operands = {**product.operands, **bias[1]}
        return Fragment(node, "product", product.indices, Call("add", (product.value, bias[0])), operands)

    def contraction(self, node: fx.Node, left: Any, right: Any, *, transposed: bool) -> Fragment | None:
        """The product of two matrices, or of a matrix and a vector."""
        if not same_dtype(node, left) or not same_dtype(node, right):
            return None
        left_rank, right_rank = tensor_value(left).dim(), tensor_value(right).dim()  # type: ignore[union-attr]
        if left_rank != 2 or right_rank not in (1, 2):
            return None
        i, j, k = self.fresh(3)
        operands: dict[str, fx.Node | Matrix] = {}
        a, b = sparse_or_dense(left, operands), sparse_or_dense(right, operands)
        second = (j,) if right_rank == 1 else (k, j) if transposed else (j, k)
        reads = {a: (i, j), b: second}
        body = Call("mul", (access(a, i, j), access(b, *second)))
        value = with_scales(Reduce("sum", (j,), body), reads, operands)
        outputs = (i,) if right_rank == 1 else (i, k)
        return None if value is None else Fragment(node, "product", outputs, value, operands)

    def pointwise(self, node: fx.Node) -> Fragment | None:
        """`y[i,k] = f(x[i,k], z[k])`, operands broadcast."""
        name = operator_name(node)
        function = UNARY.get(name) or BINARY.get(name)
        args = list(node.args)
        if name == "gelu":
            function = "gelu_tanh" if argument(node, 1, "approximate", "none") == "tanh" else "gelu"
            args = args[:1]
        if name == "add" or name == "sub":
            if argument(node, 2, "alpha", 1) != 1:
                return None
            args = args[:2]
        if function is None or len(args) != (2 if name in BINARY else 1):
            return None
        indices = self.fresh(tensor_value(node).dim())  # type: ignore[union-attr]
        parts, operands = [], {}
        for arg in args:
            part = operand_access(arg, indices, node)
            if part is None:
                return None
            parts.append(part[0])
            operands.update(part[1])
        return Fragment(node, "pointwise", indices, Call(function, tuple(parts)), operands)


PRODUCTS: dict[str, Callable[[Lifter, fx.Node], Fragment | None]] = {
    "linear": Lifter.linear,
    "matmul": Lifter.matmul,
    "mm": Lifter.matmul,
    "mv": Lifter.matmul,
    "addmm": Lifter.addmm,
}


def is_free(weight: Matrix | None) -> bool:
    """Whether a weight may be read dense: no rule makes it sparse, or one that leaves its format open."""
    return weight is None or (weight.dense is not None and weight.mark.format == "auto")


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
