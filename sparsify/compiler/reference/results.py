"""Results of a reference evaluation as the tensors of a kernel: dtype, format, pattern and layout.

In: the entries of a result and its declaration. Out: a tensor, sparse in the declared format.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsify.compiler.einsum.infer.share import shared_pattern
from sparsify.compiler.einsum.nodes import Declaration, Program, Selection
from sparsify.compiler.einsum.select import selected
from sparsify.compiler.ir.dtypes import torch_dtype
from sparsify.compiler.reference.stored import DenseValues, Entries, Values, entries_of, permutation
from sparsify.storage.convert import conversion
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap


def result(program: Program, name: str, values: Values, operands: Mapping[str, Tensor]) -> Tensor:
    """The tensor of a result.

    Args:
        operands: operands by name; the result shares the pattern of an operand if so declared.
    """
    declared = program.declaration(name)
    dtype = torch_dtype(declared.dtype)
    if declared.format.is_dense:
        assert isinstance(values, DenseValues), "a dense result has all entries"
        return _dense(values.values.to(dtype), declared.format)
    found = entries_of(values, declared.fill)
    if declared.selection is not None:
        dense = torch.full(found.shape, declared.fill, dtype=dtype, device=found.values.device)
        dense[tuple(found.coordinates)] = found.values.to(dtype)
        return _selected(declared, declared.selection, dense)
    root = operands.get(declared.pattern_of or "")
    if isinstance(root, SparseTensor):
        read_as = program.declaration(declared.pattern_of or "").format
        is_as_declared = root._pattern.format == read_as
        pattern = root._pattern if is_as_declared else conversion(root._pattern, read_as).pattern
        pattern = shared_pattern(pattern, declared.format, found.shape)
        return _on_pattern(pattern, found, declared, dtype)
    if declared.drops:
        stays = found.values != declared.fill
        coordinates = found.coordinates[:, stays]
        found = Entries(coordinates, found.values[stays], found.shape, found.kind, found.fill)
    entries = found.values.to(dtype)
    made = tensor((found.coordinates.cpu(), entries.cpu(), found.shape), declared.format, fill=declared.fill)
    made = made.to(format=declared.format)
    return wrap(_in_index_dtypes(made._pattern, declared), made._vals.to(entries.device), declared.fill)


def _selected(declared: Declaration, selection: Selection, values: Tensor) -> SparseTensor:
    """The largest entries of each row of a result."""
    ordering = declared.format.ordering
    stays = selected(selection, values.permute(ordering))
    at = stays.nonzero().T
    entries = values.permute(ordering)[stays]
    coordinates = at[[ordering.index(mode) for mode in range(len(ordering))]]
    made = tensor(
        (coordinates.cpu(), entries.cpu(), tuple(values.shape)), declared.format, fill=declared.fill
    )
    return wrap(_in_index_dtypes(made._pattern, declared), made._vals.to(entries.device), declared.fill)


def _dense(values: Tensor, format: Format) -> Tensor:
    """A dense result in newly allocated memory, in the mode ordering of its format."""
    if values.dim() == 0 or not format.is_short:
        return values.clone()
    ordering = format.ordering
    stored = values.permute(ordering).clone(memory_format=torch.contiguous_format)
    return stored.permute([ordering.index(mode) for mode in range(len(ordering))]).data


def _on_pattern(pattern: Pattern, found: Entries, declared: Declaration, dtype: torch.dtype) -> SparseTensor:
    """Values on the pattern of an operand; the padding of blocks is the fill."""
    if pattern.format != declared.format:
        pattern = conversion(pattern, declared.format).pattern
    order = permutation(pattern, found.values.device)
    values = found.values.to(dtype)
    if order is None:
        return wrap(pattern, values, declared.fill)
    laid_out = torch.full((pattern.nnz,), declared.fill, dtype=dtype, device=values.device)
    return wrap(pattern, laid_out.index_copy_(0, order, values), declared.fill)


def _in_index_dtypes(pattern: Pattern, declared: Declaration) -> Pattern:
    """A pattern with the declared dtypes of positions and coordinates; int64 if a value is out of range."""
    pairs: list[tuple[Tensor | None, torch.dtype | None]] = []
    levels = zip(pattern.format.levels, pattern._pos, pattern._crd, declared.index_dtypes, strict=True)
    for stored, pos, crd, names in levels:
        for array, role, name in zip((pos, crd), ("pos", "crd"), names, strict=True):
            fixed = getattr(stored.level, role, None) or name
            pairs.append((array, None if array is None else torch_dtype(fixed)))
    fits = all(
        array is None or array.numel() == 0 or dtype is None or int(array.max()) <= torch.iinfo(dtype).max
        for array, dtype in pairs
    )
    cast = [None if array is None else array.to(dtype if fits else torch.int64) for array, dtype in pairs]
    return Pattern(pattern.format, pattern.shape, cast[0::2], cast[1::2]).trusted()
