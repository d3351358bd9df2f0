"""Sums of products as `torch.einsum`: sparse factors of moderate size are made dense.

In: `sum(j, A[i,j] * X[j,k])`, A sparse. Out: the product, by torch's matrix product.

An unstored zero annihilates infinities and NaN, a zero in a dense product does not: factors with an infinity or NaN are
excluded.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.nodes import Access, Call, Expr, Index, Reduce
from sparsify.compiler.ir.dtypes import BOOL, Kind, category, computing
from sparsify.compiler.reference.space import sized
from sparsify.compiler.reference.stored import DenseValues, Entries, Values

# Most entries of a sparse factor made dense, and of a result.
MOST_FACTOR: Final = 2**24
MOST_RESULT: Final = 2**28
# Cost of a product at a gathered and scattered entry, in products of a matrix product.
GATHER_COST: Final = 64
MOST_NAMES: Final = 52


def contracted(
    expr: Reduce,
    kind: Kind,
    tensors: Mapping[str, Values],
    extents: Mapping[str, int],
    *,
    is_tracked: bool,
    points: int | None,
) -> DenseValues | None:
    """The sum of a product of tensors over all coordinates; `None` for other reductions, or above the size limits.

    Args:
        kind: kind in which products are summed.
        is_tracked: whether to compute the mask of results that sum fill entries only.
        points: number of points without an unstored zero factor; `None`: all.
    """
    names = free_indices(expr)
    every = tuple(dict.fromkeys((*names, *expr.indices)))
    factors = _factors(expr.body)
    if not factors or set(every) != {name for factor in factors for name in _names(factor)}:
        return None
    is_large = len(every) > MOST_NAMES or sized(names, extents) > MOST_RESULT
    if is_large or (points is not None and points * GATHER_COST < sized(every, extents)):
        return None
    found = [(tensors[factor.tensor], _names(factor)) for factor in factors]
    if not all(_is_factor(tensor, own, kind, extents) for tensor, own in found):
        return None
    dense = [_dense(tensor) for tensor, _ in found]
    stored = [(_is_stored(tensor), own) for tensor, own in found if isinstance(tensor, Entries)]
    if stored and not all(bool(one.isfinite().all()) for one in dense):
        return None
    result = _einsum(dense, [own for _, own in found], names)
    if not is_tracked or not stored:
        return DenseValues(result, None, kind)
    met = {name for _, own in stored for name in own}
    count = _einsum([mask for mask, _ in stored], [own for _, own in stored], [n for n in names if n in met])
    shape = [extents[name] if name in met else 1 for name in names]
    return DenseValues(result, (count == 0).reshape(shape).expand(result.shape), kind)


def _einsum(tensors: list[Tensor], names: list[list[str]], result: Sequence[str]) -> Tensor:
    """`torch.einsum` over index variables by name."""
    places = {name: at for at, name in enumerate(dict.fromkeys(name for own in names for name in own))}
    arguments: list[object] = []
    for tensor, own in zip(tensors, names, strict=True):
        arguments += [tensor, [places[name] for name in own]]
    found: Tensor = torch.einsum(*arguments, [places[name] for name in result])
    return found


def _factors(expr: Expr) -> list[Access] | None:
    """The factors of a product of tensors, `None` for other expressions."""
    match expr:
        case Access():
            return [expr]
        case Call("mul", (left, right)):
            one, other = _factors(left), _factors(right)
            return None if one is None or other is None else one + other
    return None


def _names(access: Access) -> list[str]:
    """The plain index variables of an access, in order."""
    return [index.name for index in access.indices if isinstance(index, Index)]


def _is_factor(tensor: Values, names: list[str], kind: Kind, extents: Mapping[str, int]) -> bool:
    """Whether a tensor is read along distinct whole modes in the dtype of the sum, and small enough to densify."""
    if len(set(names)) < len(tensor.shape) or category(kind.dtype) == BOOL or tensor.is_fill is not None:
        return False
    if computing(tensor.kind.dtype) != computing(kind.dtype):
        return False
    if any(extents[name] != size for name, size in zip(names, tensor.shape, strict=True)):
        return False
    return isinstance(tensor, DenseValues) or (tensor.fill == 0 and sized(names, extents) <= MOST_FACTOR)


def _dense(tensor: Values) -> Tensor:
    """All entries, zeros at unstored coordinates."""
    if isinstance(tensor, DenseValues):
        return tensor.values
    found = torch.zeros(tensor.shape, dtype=tensor.values.dtype, device=tensor.values.device)
    found[tuple(tensor.coordinates)] = tensor.values
    return found


def _is_stored(tensor: Entries) -> Tensor:
    """The mask of stored entries, 1 or 0."""
    found = torch.zeros(tensor.shape, device=tensor.values.device)
    found[tuple(tensor.coordinates)] = 1
    return found
