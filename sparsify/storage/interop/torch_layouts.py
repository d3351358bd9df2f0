"""torch's sparse layouts, read and made over the same values if the layout allows.

In: a `torch.sparse_bsr` tensor. Out: a `SparseTensor` in `bcsr`, and back; a nested tensor in `ragged` levels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsify.errors import FormatError, InvalidTensorError
from sparsify.storage import convert, validate
from sparsify.storage.fill import Fill
from sparsify.storage.format import Format, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Compressed, Dense, Level, Ragged, Singleton
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def from_coo(data: Tensor, fill: Fill = 0, duplicates: str = "error") -> SparseTensor:
    """torch's coordinate layout, dense modes included; duplicates of an uncoalesced tensor follow `duplicates`."""
    sizes = tuple(data.shape)
    indices = data._indices()
    if indices.shape[1] != data._values().shape[0]:
        raise InvalidTensorError(
            f"{data._values().shape[0]} values for {indices.shape[1]} indices", "as many values"
        )
    validate.coordinates(list(indices), sizes[: data.sparse_dim()])
    if not data.is_coalesced():
        data = data.coalesce()
        if duplicates == "error" and data._nnz() < indices.shape[1]:
            raise _repeated(indices, sizes)
        indices = data._indices()
    sparse, dense = data.sparse_dim(), data.dense_dim()
    levels: list[Level] = [Compressed() if n == 0 else Singleton() for n in range(sparse)]
    format = Format([*levels, *(Dense() for _ in range(dense))])
    values = data.values()
    validate.value_dtype(values.dtype)
    if sparse == 0:
        raise InvalidTensorError("a torch coo tensor without sparse modes", "its dense tensor, to_dense()")
    pos: list[Tensor | None] = [torch.tensor([0, indices.shape[1]]), *[None] * (len(sizes) - 1)]
    crd: list[Tensor | None] = [*(c.contiguous() for c in indices), *[None] * dense]
    return checked(Pattern(format, sizes, pos, crd), values, fill)


def _repeated(indices: Tensor, sizes: Sequence[int]) -> InvalidTensorError:
    """The error for duplicate indices, with the first duplicate."""
    columns = list(indices)
    sorting = convert.order(columns, sizes[: len(columns)])
    ordered = columns if sorting is None else [c[sorting] for c in columns]
    duplicate = validate.first_duplicate(ordered)
    assert duplicate is not None, "fewer entries after they were added"
    entry = duplicate if sorting is None else int(sorting[duplicate])
    coordinates = tuple(int(c[entry]) for c in columns)
    return InvalidTensorError(
        f"entry {entry} is a duplicate of the coordinates {coordinates}", 'duplicates="sum"'
    )


def from_compressed(data: Tensor, fill: Fill = 0) -> SparseTensor:
    """torch's csr, csc, bsr and bsc layouts with leading batch modes and trailing dense ones."""
    by_row = data.layout in (torch.sparse_csr, torch.sparse_bsr)
    blocked = data.layout in (torch.sparse_bsr, torch.sparse_bsc)
    outer = data.crow_indices() if by_row else data.ccol_indices()
    inner = data.col_indices() if by_row else data.row_indices()
    values = data.values()
    batch = outer.dim() - 1
    block = tuple(values.shape[batch + 1 : batch + 3]) if blocked else (1, 1)
    if values.shape[: batch + 1] != inner.shape:
        raise InvalidTensorError(
            f"values of shape {list(values.shape)} for indices of shape {list(inner.shape)}",
            "one for each index",
        )
    levels = [StoredLevel(LevelExpression(n), Dense()) for n in range(batch)]
    order = (batch, batch + 1) if by_row else (batch + 1, batch)
    kinds: tuple[Level, Level] = (Dense(), Compressed())
    for mode, level in zip(order, kinds, strict=True):
        size = block[mode - batch]
        expression = LevelExpression(mode, "block", size) if blocked else LevelExpression(mode)
        levels.append(StoredLevel(expression, level))
    if blocked:
        levels += [StoredLevel(LevelExpression(batch + n, "within", block[n]), Dense()) for n in (0, 1)]
    levels += [StoredLevel(LevelExpression(n), Dense()) for n in range(batch + 2, data.dim())]
    compressed = batch + 1
    pos: list[Tensor | None] = [None] * len(levels)
    crd: list[Tensor | None] = [None] * len(levels)
    pos[compressed], crd[compressed] = _joined(outer, inner)
    return checked(Pattern(Format(levels), tuple(data.shape), pos, crd), values, fill)


def from_jagged(data: Tensor, fill: Fill = 0) -> SparseTensor:
    """A nested tensor [rows, lengths, ...] of the jagged layout, over the same values.

    Raises:
        InvalidTensorError: rows of different lengths along another mode than the second.
    """
    ragged = getattr(data, "_ragged_idx", 1)
    if ragged != 1:
        raise InvalidTensorError(
            f"a nested tensor with lengths along mode {ragged}",
            "lengths along mode 1, transpose it",
        )
    values, offsets = data.values(), data.offsets()  # type: ignore[attr-defined]
    if data.lengths() is not None:  # type: ignore[attr-defined]  # rows with gaps between them
        rows = list(data.unbind())
        values = torch.cat(rows)
        offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    extent = int(offsets.diff().max()) if len(offsets) > 1 else 0
    shape = (len(offsets) - 1, extent, *values.shape[1:])
    inner = len(shape) - 2
    format = Format([Dense(), Ragged(), *(Dense() for _ in range(inner))])
    pos = [None, offsets.contiguous(), *[None] * inner]
    return checked(Pattern(format, shape, pos, [None] * len(shape)), values, fill)


def to_jagged(matrix: SparseTensor) -> Tensor:
    """See `SparseTensor.to_nested`."""
    without_fill(matrix)
    rank = matrix.dim()
    rows = Format([Dense(), Ragged(), *(Dense() for _ in range(rank - 2))]) if rank > 1 else None
    if rows is None or matrix.format.unfixed() != rows:
        raise FormatError(
            f"a nested tensor of {matrix.format}", f'to(format="{rows or "dense, ragged"}") first'
        )
    offsets = matrix.pattern._pos[1]
    assert offsets is not None, "the second level is ragged"
    values = matrix.values().view(-1, *matrix.shape[2:])
    result: Tensor = torch.nested.nested_tensor_from_jagged(values, offsets.to(torch.int64, copy=True))
    return result


def _joined(outer: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    """The concatenated indices of a batch; each matrix starts at the end of the previous one."""
    if outer.dim() == 1:
        return outer.contiguous(), inner.contiguous()
    rows = outer.reshape(-1, outer.shape[-1])
    each = inner.shape[-1]
    if bool((rows[:, 0] != 0).any()) or bool((rows[:, -1] != each).any()):
        raise InvalidTensorError(
            f"a batch whose indices do not run from 0 to {each}", "as torch's invariants ask"
        )
    starts = torch.arange(rows.shape[0], dtype=rows.dtype).unsqueeze(1) * each
    joined = torch.cat([torch.zeros(1, dtype=rows.dtype), (rows[:, 1:] + starts).reshape(-1)])
    return joined, inner.reshape(-1).contiguous()


def checked(pattern: Pattern, values: Tensor, fill: Fill) -> SparseTensor:
    """The tensor over foreign arrays, validated."""
    return SparseTensor(pattern, values.reshape(-1), fill)


def write(matrix: SparseTensor) -> Tensor:
    """See `SparseTensor.to_torch`: csr, csc, bsr and bsc for equal formats, coo otherwise."""
    without_fill(matrix)
    pattern, format = matrix.pattern, matrix.format
    if format.is_dense:
        return matrix.to_dense()
    layout, block = layout_of(format)
    if layout == "coo" or any(n % b for n, b in zip(pattern.shape, block, strict=False)):
        sorted_coo = matrix.to(format=Format("coo", rank=pattern.rank))
        coordinates, values = sorted_coo.coordinates(), sorted_coo.values()
        return torch.sparse_coo_tensor(
            coordinates, values, pattern.shape, is_coalesced=True, check_invariants=False
        )
    pos, crd = pattern._pos[1], pattern._crd[1]
    assert pos is not None and crd is not None, "the second level is compressed"
    pos, crd = same_dtype(pos, crd)
    values = matrix.values()
    if layout in ("bsr", "bsc"):
        values = values.view(crd.shape[0], *block)
    make = getattr(torch, f"sparse_{layout}_tensor")
    result: Tensor = make(pos, crd, values, pattern.shape, check_invariants=False)
    return result


def layout_of(format: Format) -> tuple[str, tuple[int, int]]:
    """The layout of torch and scipy for a format, and the block: csr, csc, bsr, bsc or coo."""
    if format.rank != 2 or not isinstance(format.levels[0].level, Dense):
        return "coo", (1, 1)
    if any(getattr(stored.level, "ordered", True) is False for stored in format.levels):
        return "coo", (1, 1)
    kinds = [type(stored.level) for stored in format.levels]
    ordering = format.ordering[:2]
    if format.is_short and kinds == [Dense, Compressed]:
        return ("csr" if ordering == (0, 1) else "csc"), (1, 1)
    expressions = [stored.expression for stored in format.levels]
    blocks = [e.size for e in expressions if e.kind == "within"]
    is_blocked = kinds == [Dense, Compressed, Dense, Dense]
    inner = [(e.kind, e.mode) for e in expressions[2:]]
    if is_blocked and expressions[1].kind == "block" and inner == [("within", 0), ("within", 1)]:
        return ("bsr" if ordering == (0, 1) else "bsc"), (blocks[0], blocks[1])
    return "coo", (1, 1)


def same_dtype(pos: Tensor, crd: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of both index arrays in one dtype known to torch and scipy; writable by the new owner."""
    wide = torch.int64 if torch.int64 in (pos.dtype, crd.dtype) else torch.int32
    return pos.to(wide, copy=True), crd.to(wide, copy=True)


def without_fill(matrix: SparseTensor) -> None:
    """Raises for a fill other than 0, unsupported by torch and scipy."""
    if matrix.fill != 0 and not matrix.format.is_dense:
        raise FormatError(f"a tensor with fill {matrix.fill}", "with_fill(0), or to_dense()")
