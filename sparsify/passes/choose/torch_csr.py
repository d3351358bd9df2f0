"""torch's product of a sparse and a dense matrix in place of a kernel's, with adjacent statements.

In: the kernel of `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.
Out: a function of its operands, `relu(A @ T + b)` with A in torch's CSR; the products with dense matrices are
unchanged.

`A @ T` is MKL's product if built into torch. `torch.sparse.mm` with `reduce` runs torch's own loops and is left out: on
one thread of an AMD Zen 5 it took 2.2 to 20 times as long as kernels for sums over PubMed and over a mesh, and 1.5 to 7
times as long for maxima.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Index, Reduce
from sparsify.compiler.ir.node import find
from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.reference.functions import TORCH
from sparsify.passes.operands.content_memo import Memo
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

# Functions allowed after a product, named as in einsum programs.
FUNCTIONS: Final = (
    *("add", "sub", "mul", "div", "min", "max", "neg", "abs", "square", "sqrt", "exp"),
    *("relu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"),
)
DTYPES: Final = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Product:
    """A statement with one product of a sparse and a dense operand.

    Attributes:
        step: step of the kernel.
        matrix, dense: the operands, `A[i,j]` and `X[j,k]`, `X[k,j]` or `x[j]`.
        value: expression of the product and of dense operands.
        names: index variables of the result.
    """

    step: GeneratedStep
    matrix: Access
    dense: Access
    value: Expr
    names: tuple[str, ...]

    @property
    def columns(self) -> str:
        """The index variable of the result's columns, "" for a vector."""
        return self.names[1] if len(self.names) == 2 else ""

    @property
    def passes(self) -> int:
        """The number of functions applied to the product."""
        return sum(part is not self.product.body for part in find(self.value, Call))

    @property
    def product(self) -> Reduce:
        """The sum of products."""
        return find(self.value, Reduce)[0]


class TorchProducts:
    """The results of a kernel, with torch's products in place of its sparse products.

    Args:
        kernel: the replaced kernel.
        products: products of all statements that read sparse operands.
    """

    def __init__(self, kernel: Kernel, products: Sequence[Product]) -> None:
        self.kernel = kernel
        self.products = {product.step: product for product in products}
        self.memory: Memo[tuple[Pattern, torch.Tensor]] = Memo()

    def __call__(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result for operands in the order of the program."""
        program = self.kernel.program
        values: dict[str, Any] = dict(zip(program.inputs, operands, strict=True))
        for step in self.kernel.steps:
            arguments = tuple([values[name] for name in step.operands])
            product = self.products.get(step) if isinstance(step, GeneratedStep) else None
            values[step.result] = (
                step.compute(arguments) if product is None else self.result(product, arguments)
            )
        result: torch.Tensor = values[program.outputs[0]]
        return result

    def result(self, product: Product, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result of a statement."""
        named = dict(zip(product.step.program.inputs, operands, strict=True))
        dense, matrix = named[product.dense.tensor], named[product.matrix.tensor]
        if product.columns and index_names(product.dense)[0] == product.columns:
            dense = dense.t()
        assert isinstance(matrix, SparseTensor), "the program has it sparse"
        return applied(product.value, named, self.in_torch(matrix) @ dense, product.names)

    def in_torch(self, matrix: SparseTensor) -> torch.Tensor:
        """A matrix in torch's CSR, memoized by its values and version, if the pattern is equal."""
        pattern = matrix._pattern.validated()

        def make() -> tuple[Pattern, torch.Tensor]:
            with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
                warnings.simplefilter("ignore", UserWarning)  # about the state of torch's own layout
                in_rows: Any = matrix.detach().to(format="csr")  # type: ignore[call-overload]
                return pattern, in_rows.to_torch()

        return self.memory.get((matrix._vals,), make, lambda entry: entry[0].equals(pattern))[1]


def products_of(kernel: Kernel) -> list[Product]:
    """The products with sparse operands of a kernel; none if a step uses sparse operands in any other way."""
    program = kernel.program
    sparse = {d.name for d in program.declarations if not d.format.is_dense}
    readers = [step for step in kernel.steps if sparse & {step.result, *step.operands}]
    products = [product_of(step) for step in readers]
    products_with_form = [product for product in products if product is not None]
    is_single = all(not isinstance(step, GeneratedStep) or len(step.results) == 1 for step in kernel.steps)
    return (
        products_with_form
        if len(products_with_form) == len(readers) and is_single and len(program.outputs) == 1
        else []
    )


def product_of(step: object) -> Product | None:
    """The product computed by a step, `None` unless of the form `f(sum(j, A[i,j] * X[j,k]), ...)`."""
    if not isinstance(step, GeneratedStep) or len(step.program.statements) != 1 or step.output.pattern_of:
        return None
    (statement,) = step.program.statements
    names = index_names(statement.target)
    sums = find(statement.value, Reduce)
    if statement.monoid is not None or len(sums) != 1 or len(statement.target.indices) != len(names):
        return None
    match sums[0]:
        case Reduce("sum", (summed,), Call("mul", (Access() as left, Access() as right))):
            pass
        case _:
            return None
    declared = {d.name: d for d in step.program.declarations}
    if {d.dtype for d in declared.values()} - {step.output.dtype} or step.output.dtype not in DTYPES:
        return None
    matrix, dense = (right, left) if declared[left.tensor].format.is_dense else (left, right)
    is_product = matrix.indices == (Index(names[0]), Index(summed)) and dense.indices in (
        (Index(summed), *map(Index, names[1:])),
        (*map(Index, names[1:]), Index(summed)),
    )
    if not is_product or declared[matrix.tensor].format.is_dense or declared[matrix.tensor].fill != 0:
        return None
    if not all(d.format.is_dense and d.format.is_short for d in declared.values() if d.name != matrix.tensor):
        return None
    product = Product(step, matrix, dense, statement.value, names)
    return product if len(names) <= 2 and is_known(statement.value, sums[0], matrix.tensor, names) else None


def is_known(value: Expr, product: Reduce, matrix: str, names: tuple[str, ...]) -> bool:
    """Whether torch has all functions applied to a product."""
    match value:
        case Const():
            return True
        case Call(function, args):
            return function in FUNCTIONS and all(is_known(arg, product, matrix, names) for arg in args)
        case Access(tensor, indices):
            variables = index_names(value)
            return tensor != matrix and len(set(variables)) == len(indices) and set(variables) <= set(names)
    return value is product


def applied(
    value: Expr, operands: dict[str, torch.Tensor], product: torch.Tensor, names: tuple[str, ...]
) -> torch.Tensor:
    """The value of an expression over `names`, given the computed product."""
    match value:
        case Call(function, args):
            result: torch.Tensor = TORCH[function](*[applied(arg, operands, product, names) for arg in args])
            return result
        case Access(tensor):
            return spread(operands[tensor], index_names(value), names)
        case Const(number):
            return torch.tensor(number, dtype=product.dtype)
    return product


def spread(tensor: torch.Tensor, indices: tuple[str, ...], names: tuple[str, ...]) -> torch.Tensor:
    """A broadcastable view of a tensor over the index variables `names`.

    >>> spread(torch.zeros(3), ("k",), ("i", "k")).shape, spread(torch.zeros(3, 2), ("k", "i"), ("i", "k")).shape
    (torch.Size([1, 3]), torch.Size([2, 3]))
    """
    ordered = tensor.permute([indices.index(name) for name in names if name in indices])
    return ordered[tuple([slice(None) if name in indices else None for name in names])]
