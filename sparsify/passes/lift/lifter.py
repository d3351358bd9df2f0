"""Operators to fragments: products and pointwise operators.

In: `%y = linear(%x, %w, %b)`. Out: `Fragment(indices=("i1", "i2"), value=sum(i3, x[i1,i3] * w[i2,i3]) +
b[i2])`.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from torch import fx

from sparsify.compiler.einsum.nodes import Call, Reduce
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.region.fragment import (
    BINARY,
    DTYPES,
    HALVES,
    UNARY,
    Fragment,
    access,
    operand_access,
    same_dtype,
    sparse_or_dense,
    turned,
    with_scales,
)
from sparsify.passes.region.sparse_operand import Matrix, declared_sparse


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

    def fragment(self, node: fx.Node) -> Fragment | None:
        """The fragment of `node`, None when it has none."""
        value = tensor_value(node)
        if node.op not in ("call_function", "call_method") or value is None or value.dtype not in self.dtypes:
            return None
        name = operator_name(node)
        if name not in PRODUCTS:
            return self.pointwise(node)
        product = PRODUCTS[name](self, node)
        if product is not None and product.is_of_given:
            return None  # the front end makes its region
        if product is not None and value.dtype in HALVES and not product.is_of_weight:
            return None
        return product

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
