"""Products of two dense matrices inside of programs, computed by torch, and in C if they are small.

In: `T[j,k] = sum(f, X[j,f] * W[k,f]) + b[k]`. Out: `T = torch.addmm(b, X, W.t())`.
"""

from dataclasses import dataclass
from typing import Final

import torch

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Expr, Index, Program, Reduce
from sparsify.compiler.ir.dtypes import FLOATING, category
from sparsify.compiler.plan.products.small_product import small_product
from sparsify.errors import ShapeError
from sparsify.runtime.buffers import POOL, SMALLEST_BYTES
from sparsify.storage.tensor import SparseTensor

PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class DenseProduct:
    """`result[i,k] = sum(j, left[i,j] * right[j,k])` over dense matrices by torch's product, plus `bias[k]`."""

    result: str
    left: str
    right: str
    left_transposed: bool
    right_transposed: bool
    bias: str = ""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return (self.left, self.right, self.bias) if self.bias else (self.left, self.right)

    def compute(self, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The product."""
        left, right, *rest = operands
        if type(left) not in PLAIN or type(right) not in PLAIN:
            left, right = _plain(left), _plain(right)
        shape = left.size(1 if self.left_transposed else 0), right.size(0 if self.right_transposed else 1)
        if rest and rest[0].shape != shape[1:]:  # torch would broadcast a bias of one element
            raise ShapeError(
                f"{self.bias} has shape {list(rest[0].shape)} for {shape[1]} columns of {self.result}"
            )
        if not torch._C._are_functorch_transforms_active():
            flags = self.left_transposed, self.right_transposed
            found = small_product(left, right, rest[0] if rest else None, *flags)
            if found is not None:
                return found
        if torch.is_autocast_enabled("cpu"):  # programs have dtypes of their own
            with torch.autocast("cpu", enabled=False):
                return self._product(left, right, rest, shape)
        return self._product(left, right, rest, shape)

    def _product(
        self, left: torch.Tensor, right: torch.Tensor, rest: list[torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        """The product by torch, of the dtype of the operands."""
        size = shape[0] * shape[1] * left.element_size()
        is_small = size < SMALLEST_BYTES or not POOL.is_recycled(size)
        if is_small and self.right_transposed and not self.left_transposed:
            return torch.nn.functional.linear(left, right, *rest)  # the same product in one call less
        left = left.t() if self.left_transposed else left
        right = right.t() if self.right_transposed else right
        factors = (*(_plain(bias) for bias in rest), left, right)
        # Autograd does not support `out=`.
        if is_small or (torch.is_grad_enabled() and any(factor.requires_grad for factor in factors)):
            return torch.addmm(*factors) if rest else torch.mm(left, right)
        memory = POOL.empty(shape, left.dtype)
        return torch.addmm(*factors, out=memory) if rest else torch.mm(left, right, out=memory)

    def __str__(self) -> str:
        right = f"{self.right}.t()" if self.right_transposed else self.right
        factors = f"{self.left}{'.t()' if self.left_transposed else ''}, {right}"
        product = f"torch.addmm({self.bias}, {factors})" if self.bias else f"torch.mm({factors})"
        return f"{self.result} = {product}"


def _plain(operand: torch.Tensor) -> torch.Tensor:
    """The operand as a strided torch tensor."""
    if type(operand) is not torch.Tensor and isinstance(operand, SparseTensor):
        return operand.to_dense()
    return operand


def dense_product(program: Program, statement: Assign) -> DenseProduct | None:
    """`statement` as a product of two dense matrices, with or without a bias; `None` for other statements."""
    from sparsify.compiler.notation.concretize import index_names

    value, bias = without_bias(program, statement)
    if statement.monoid is not None or not isinstance(value, Reduce) or value.monoid != "sum":
        return None
    match value.body:
        case Call("mul", (Access() as left, Access() as right)):
            pass
        case _:
            return None
    for access in (left, right, statement.target):
        declared = program.declaration(access.tensor)
        plain = all(isinstance(index, Index) for index in access.indices)
        if not declared.format.is_dense or len(access.indices) != 2 or not plain:
            return None
        if category(declared.dtype) < FLOATING:
            return None
    if len({program.declaration(a.tensor).dtype for a in (left, right, statement.target)}) > 1:
        return None
    first, second = index_names(statement.target)
    if len(value.indices) != 1 or first == second:
        return None
    if first in index_names(right) and second in index_names(left):
        left, right = right, left
    summed = value.indices[0]
    if set(index_names(left)) != {first, summed} or set(index_names(right)) != {summed, second}:
        return None
    return DenseProduct(
        statement.target.tensor,
        left.tensor,
        right.tensor,
        index_names(left) != (first, summed),
        index_names(right) != (summed, second),
        bias,
    )


def without_bias(program: Program, statement: Assign) -> tuple[Expr, str]:
    """The value of `Y[i,k] = value + b[k]` and the name of `b`; the whole value and "" for other statements."""
    match statement.value:
        case Call("add", (Reduce() as product, Access() as added) | (Access() as added, Reduce() as product)):
            pass
        case _:
            return statement.value, ""
    declared, target = program.declaration(added.tensor), statement.target
    is_vector = declared.format.is_dense and added.indices == target.indices[-1:] and len(target.indices) == 2
    if not is_vector or declared.dtype != program.declaration(target.tensor).dtype:
        return statement.value, ""
    return product, added.tensor
